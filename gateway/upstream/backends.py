"""The backends the gateway knows: their state, what they serve, how many requests they have, and their progress.

One owner: the runner's feed and the prober write through `update_*`; dispatch reads, and counts its own requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from gateway.core.endings import never_reached_engine
from gateway.core.routing import Candidate
from gateway.core.usage import TokenUsage
from gateway.upstream.connection import Address, parse_address

__all__ = ["BackendState", "Backends"]

LOOK_EVERY_S = 0.5
ENDED_KEPT = 20_000  # final counts kept at most; the runner drops them after 60 s


@dataclass(slots=True)
class BackendState:
    """One addressable model server. `reason` says why it is not ready. The key is the gateway's secret: no repr."""

    name: str
    address: Address
    model: str
    is_ready: bool = False
    reason: str = "it has not answered yet"
    max_model_len: int | None = None
    cards: int = 1
    has_progress: bool = False
    api_key: str | None = field(default=None, repr=False)
    in_flight: int = 0


@dataclass(slots=True)
class _Engine:
    """What the feed has said of a worker's engine."""

    steps: int = 0
    running: set[str] = field(default_factory=set)


class Backends:
    """The table of backends and the final counts of the requests that ended."""

    def __init__(self) -> None:
        self._states: dict[str, BackendState] = {}
        self._engines: dict[str, _Engine] = {}
        self._final: dict[tuple[str, str], TokenUsage] = {}
        self._waiting: dict[tuple[str, str], asyncio.Future[TokenUsage | None]] = {}
        self._stopped = False
        self.feed_connected = False

    def __repr__(self) -> str:
        shown = (f"{s.name}: " + ("ready" if s.is_ready else s.reason) for s in self._states.values())
        return f"Backends({', '.join(shown)})"

    def get(self, name: str) -> BackendState | None:
        """The backend of that name."""
        return self._states.get(name)

    def all(self) -> list[BackendState]:
        """Every backend, by name."""
        return [self._states[name] for name in sorted(self._states)]

    def candidates(self, names: Iterable[str]) -> list[Candidate]:
        """Those of the named backends that are known."""
        known = (self._states[name] for name in names if name in self._states)
        return [Candidate(state.name, state.is_ready, state.in_flight) for state in known]

    def why_not_ready(self, names: Iterable[str]) -> str | None:
        """Why none of the named backends is ready; None where one is."""
        states = {name: self._states.get(name) for name in names}
        if any(state is not None and state.is_ready for state in states.values()):
            return None
        return "; ".join(f"{name}: {state.reason if state else 'not known yet'}" for name, state in states.items())

    def update(self, state: BackendState) -> None:
        """Takes over a backend's newest state. The known object stays: running requests count themselves on it."""
        known = self._states.setdefault(state.name, state)
        for each in fields(BackendState):
            if each.name != "in_flight":
                setattr(known, each.name, getattr(state, each.name))

    def update_progress(
        self, backend: str, steps: int, running: Iterable[str], ended: Iterable[tuple[str, TokenUsage]]
    ) -> None:
        """Takes over what the feed says of a worker: engine steps, and of the requests that changed, those that run and
        the final counts of those that ended."""
        self.feed_connected = True
        engine = self._engines.setdefault(backend, _Engine())
        engine.steps = steps
        engine.running.update(running)
        for request_id, usage in ended:
            engine.running.discard(request_id)
            waiting = self._waiting.pop((backend, request_id), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(usage)
            self._final[backend, request_id] = usage
        while len(self._final) > ENDED_KEPT:
            self._final.pop(next(iter(self._final)))

    def forget_progress(self) -> None:
        """Forgets which requests run: a feed that is connected anew begins with all of them."""
        self._engines.clear()
        self.feed_connected = False

    async def final_usage(self, request_id: str, backend: str, timeout_s: float, seen: bool) -> TokenUsage | None:
        """The engine's final count of a request that was cut, None where it does not come in time. One caller an id.

        `seen`: a part of its answer came, so the engine had it; else zero counts mean that it never reached the engine.
        """
        if (known := self._final.pop((backend, request_id), None)) is not None:
            return known
        if self._stopped:
            return None
        loop = asyncio.get_running_loop()
        waiting = self._waiting.setdefault((backend, request_id), loop.create_future())
        began = seen_from = loop.time()
        steps = self._engines.get(backend, _Engine()).steps
        try:
            while (waited_s := loop.time() - began) < timeout_s:
                await asyncio.wait([waiting], timeout=min(LOOK_EVERY_S, timeout_s - waited_s))
                if waiting.done():
                    return waiting.result()
                engine = self._engines.get(backend, _Engine())
                if not self.feed_connected:  # what is not told now proves nothing
                    seen_from, steps = loop.time(), engine.steps
                if not seen and never_reached_engine(
                    loop.time() - seen_from,
                    request_id in engine.running,
                    bool(engine.running - {request_id}),
                    engine.steps - steps,
                ):
                    return TokenUsage(0, 0, 0)
            return None
        finally:
            self._waiting.pop((backend, request_id), None)

    def stop_waiting(self) -> None:
        """Answers None to everyone who waits for a final count, now and later: the gateway shuts down."""
        self._stopped = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)

    def add_address(self, name: str, address: str, model: str, api_key: str | None) -> None:
        """Adds a backend that is known by its address only."""
        self._states[name] = BackendState(name, parse_address(address), model, api_key=api_key)
