"""The price of a request in device milliseconds, where no measured profile is known."""

from __future__ import annotations

__all__ = ["device_ms_without_profile"]


def device_ms_without_profile(cards: int, wall_ms: int, mean_in_flight: float) -> int:
    """cards × wall ms ÷ mean requests in flight on the worker: the request's share of the cards' time."""
    return round(cards * wall_ms / max(1.0, mean_in_flight))
