from __future__ import annotations

from gateway.telemetry.metrics import LONG_BUCKETS, Metrics


def test_a_131k_prompt_lands_in_a_real_bucket() -> None:
    assert any(bound >= 1246.6 for bound in LONG_BUCKETS)
    metrics = Metrics()
    metrics.time_to_first_token.labels("m").observe(1246.6)
    text = metrics.exposition().decode()
    assert 'dcugate_time_to_first_token_seconds_bucket{le="1280.0",model="m"} 1.0' in text


def test_two_gateways_in_one_process_do_not_share_counters() -> None:
    one, two = Metrics(), Metrics()
    one.unauthorized.inc()
    assert b"dcugate_unauthorized_requests_total 1.0" in one.exposition()
    assert b"dcugate_unauthorized_requests_total 0.0" in two.exposition()
