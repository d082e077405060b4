from __future__ import annotations

import pytest

from gateway.core.endings import Charge, Ending, Evidence, charge, never_reached_engine
from gateway.core.usage import TokenUsage

FEED, REPORTED, GUESS = TokenUsage(100, 64, 9), TokenUsage(100, 0, 8), TokenUsage(130, 0, 5)
ALL = Evidence(FEED, REPORTED, GUESS)

CASES = [
    (Ending.COMPLETED, ALL, Charge(100, 0, 8, False)),
    (Ending.COMPLETED, Evidence(None, None, GUESS), Charge(130, 0, 5, True)),
    (Ending.CLIENT_CLOSED, ALL, Charge(36, 64, 9, False)),
    (Ending.CLIENT_CLOSED, Evidence(None, REPORTED, GUESS), Charge(100, 0, 8, False)),
    (Ending.CLIENT_CLOSED, Evidence(None, None, GUESS), Charge(130, 0, 5, True)),
    (Ending.UPSTREAM_ERROR, Evidence(None, REPORTED, GUESS), Charge(100, 0, 8, False)),
    (Ending.UPSTREAM_ERROR, Evidence(None, None, GUESS, reached_worker=False), Charge(0, 0, 0, False)),
    (Ending.TIMED_OUT, ALL, Charge(36, 64, 9, False)),
    (Ending.REFUSED, ALL, Charge(0, 0, 0, False)),
    (Ending.UPSTREAM_ERROR, Evidence(None, None, GUESS), Charge(0, 0, 0, False)),
    (Ending.CLIENT_CLOSED, Evidence(), Charge(0, 0, 0, True)),
]


@pytest.mark.parametrize(("ending", "evidence", "expected"), CASES)
def test_the_table_of_endings(ending: Ending, evidence: Evidence, expected: Charge) -> None:
    assert charge(ending, evidence) == expected


@pytest.mark.parametrize(
    ("waited_s", "is_running", "others_running", "steps_since", "never"),
    [
        (1, False, False, 0, False),  # too early to tell
        (4, False, False, 0, True),  # idle: it would have been taken at once
        (100, False, True, 1, False),  # one long step may hide it
        (4, False, True, 2, True),
        (100, True, False, 50, False),
    ],
)
def test_when_a_cut_request_never_reached_the_engine(
    waited_s: float, is_running: bool, others_running: bool, steps_since: int, never: bool
) -> None:
    assert never_reached_engine(waited_s, is_running, others_running, steps_since) is never
