from __future__ import annotations

import pytest

from backend_runner.core.states import TRANSITIONS, IllegalTransition, State, moved


def test_every_state_has_a_row_and_a_way_out() -> None:
    assert set(TRANSITIONS) == set(State)
    assert all(TRANSITIONS.values())


def test_a_step_the_table_does_not_have_is_an_error() -> None:
    assert moved(State.STARTING, State.READY) is State.READY
    with pytest.raises(IllegalTransition, match="from stopped to ready"):
        moved(State.STOPPED, State.READY)
