"""The part of dcugate that runs inside a vLLM worker. It imports nothing of the gateway, the runner or the keys."""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """vLLM's general plugin hook, called in every worker process, possibly more than once.

    Nothing to do yet: the progress scheduler is named by `--scheduler-cls`. It must stay cheap and bear repetition.
    """
