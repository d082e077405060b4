from __future__ import annotations

from backend_runner.launchers.base import LaunchFailed


def test_a_failed_launch_gives_its_reason() -> None:
    assert LaunchFailed("no card").reason == "no card"
