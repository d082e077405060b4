from __future__ import annotations

import pytest

from backend_runner.core.backoff import delay_ms


def test_it_doubles_up_to_a_minute() -> None:
    assert [delay_ms(n) for n in (1, 2, 3, 6, 7, 1000)] == [1000, 2000, 4000, 32000, 60000, 60000]


def test_no_failure_has_no_delay() -> None:
    with pytest.raises(ValueError, match="counts from 1"):
        delay_ms(0)
