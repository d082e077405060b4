"""The table of cases is in tests/contract/test_quota_cases.py; here are the rules that hold for all numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keys.quota import Denied, Granted, decide

tokens = st.integers(0, 2**62)


@given(limit=tokens, used=tokens, reserved=tokens, requested=tokens)
def test_what_is_granted_never_exceeds_the_limit_and_what_is_denied_would(
    limit: int, used: int, reserved: int, requested: int
) -> None:
    match decide(limit, used, reserved, requested):
        case Granted(remaining):
            assert remaining == limit - used - reserved - requested
            assert remaining >= 0
        case Denied(remaining):
            assert used + reserved + requested > limit
            assert 0 <= remaining < max(requested, 1)


def test_a_negative_request_is_a_bug_of_the_caller() -> None:
    with pytest.raises(ValueError, match="negative"):
        decide(None, 0, 0, -1)
