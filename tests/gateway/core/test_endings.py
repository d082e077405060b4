from __future__ import annotations

import pytest

from gateway.core.endings import Charge, Ending, Evidence, charge
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
    (Ending.UPSTREAM_ERROR, Evidence(), Charge(0, 0, 0, True)),
]


@pytest.mark.parametrize(("ending", "evidence", "expected"), CASES)
def test_the_table_of_endings(ending: Ending, evidence: Evidence, expected: Charge) -> None:
    assert charge(ending, evidence) == expected
