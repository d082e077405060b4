from __future__ import annotations

from gateway.core.routing import Candidate, choose, may_retry


def test_the_ready_backend_with_the_fewest_requests_is_chosen() -> None:
    table = [Candidate("a", True, 3), Candidate("b", True, 1), Candidate("c", False, 0), Candidate("d", True, 1)]
    assert choose(table) == "b"
    assert choose(table, excluded=["b", "d"]) == "a"
    assert choose([Candidate("c", False, 0)]) is None
    assert choose([]) is None


def test_a_retry_needs_a_dead_worker_and_no_body_byte_and_happens_once() -> None:
    assert may_retry(1, worker_known_dead=True, body_byte_seen=False)
    assert not may_retry(2, worker_known_dead=True, body_byte_seen=False)
    assert not may_retry(1, worker_known_dead=False, body_byte_seen=False)
    assert not may_retry(1, worker_known_dead=True, body_byte_seen=True)
