from __future__ import annotations

from gateway.core.device_time import device_ms_without_profile


def test_a_request_pays_its_share_of_the_cards_time() -> None:
    assert device_ms_without_profile(2, 1000, 1.0) == 2000
    assert device_ms_without_profile(2, 1000, 4.0) == 500
    assert device_ms_without_profile(1, 1000, 0.0) == 1000
