"""One request: admit -> choose -> relay -> settle.

Everything here is over protocols: a `Store` holds keys, quota and ledger, `Backends` the workers, a `Sink` is the
client. Each request with a valid key ends in exactly one ledger row, whatever its ending.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.config.model import Deadlines, Model, Routes
from gateway.core.chat import ChatRequest, parse_chat, worker_body
from gateway.core.device_time import device_ms_without_profile
from gateway.core.endings import Ending, Evidence, charge
from gateway.core.errors import (
    AccountingUnavailable,
    DeadlinePassed,
    GatewayError,
    InvalidKey,
    InvalidRequest,
    QuotaRefused,
    UnknownModel,
    WorkerFailed,
    WorkerUnavailable,
)
from gateway.core.estimate import prompt_tokens_upper
from gateway.core.routing import choose, may_retry
from gateway.core.usage import TokenUsage
from gateway.relay import Relay, StreamRelay, relay_plain
from gateway.telemetry.metrics import Metrics
from gateway.upstream.backends import Backends, BackendState
from gateway.upstream.connection import Exchange, UpstreamError, UpstreamUnreachable, open_exchange
from keys.admin import authenticate
from keys.errors import KeysError, QuotaExceeded, UnknownKey
from keys.model import Key, LedgerRow
from keys.stores.base import Store

__all__ = ["Dispatcher", "Incoming", "Sink"]

log = logging.getLogger(__name__)

# A cut request ends at the end of the engine's running step (up to 155 s a chunk on a Z100), then the feed has it within
# 0.25 s. Nobody waits for such a row. An engine that failed has said its last within a second, and a client waits.
CUT_FEED_WAIT_S = 300.0
FAILED_FEED_WAIT_S = 1.0
FINISH_FEED_WAIT_S = 3.0  # at shutdown
RENEW_EVERY_S = 10.0  # a reservation is a lease of 30 s


class Sink(Protocol):
    """The client's side of one request."""

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Sends the head of a streamed answer."""

    async def write(self, data: bytes) -> None:
        """Sends body bytes; waits while the client is slow."""

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Sends a whole answer."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request as it came in. `presented_key` is the secret that the client shows: no repr."""

    request_id: str
    route: str
    presented_key: str | None = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(slots=True)
class Record:
    """What is known of a request while it runs; `settle` makes the ledger row from it."""

    incoming: Incoming
    key: Key
    started_ms: int
    started: float
    model: str = ""
    chat: ChatRequest | None = None
    backend: BackendState | None = None
    relay: Relay = field(default_factory=Relay)
    reserved: bool = False
    mean_in_flight: float = 1.0
    settled: bool = False


class Dispatcher:
    """Serves requests. `wall_ms` and `monotonic` are the clocks, read here and nowhere deeper."""

    def __init__(
        self,
        routes: Routes,
        store: Store,
        pepper: bytes,
        backends: Backends,
        metrics: Metrics,
        wall_ms: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self.routes = routes
        self.backends = backends
        self.metrics = metrics
        self.store = store
        self.pepper = pepper
        self._wall_ms = wall_ms
        self._monotonic = monotonic
        self._running: set[str] = set()
        self._settling: set[asyncio.Task[None]] = set()

    async def serve(self, incoming: Incoming, sink: Sink) -> None:
        """Serves one chat completion to its end. Raises GatewayError where nothing has been sent to the client yet; the
        caller answers with its body. A cancellation means that the client left."""
        record = Record(incoming, await self.authenticate(incoming), self._wall_ms(), self._monotonic())
        self._running.add(incoming.request_id)
        try:
            model = await self._admit(record)
            with self.metrics.in_flight.labels(record.model).track_inprogress():
                http_status, ending = await self._attempts(record, model, sink)
        except GatewayError as error:
            http_status, ending = error.status, _ending_of(error, record)
            if ending is Ending.TIMED_OUT:
                self._settle_later(record, ending, http_status)  # the engine may compute on for a whole step
            else:
                await self._settle(record, ending, http_status)
            raise
        except (asyncio.CancelledError, ConnectionError):
            # The client is gone: aiohttp cancels, or a write finds the connection closing. Nothing awaits this request
            # any more, so the row is written by a task of its own.
            self._settle_later(record, Ending.CLIENT_CLOSED, 499)
            raise
        except BaseException:
            self._settle_later(record, Ending.UPSTREAM_ERROR, 500)
            raise

    # admit
    async def authenticate(self, incoming: Incoming) -> Key:
        """The key that the client shows. Raises InvalidKey, AccountingUnavailable."""
        try:
            if incoming.presented_key is None:
                raise UnknownKey
            return await authenticate(self.store, self.pepper, incoming.presented_key)
        except UnknownKey:
            raise self._invalid_key() from None
        except KeysError as problem:
            raise _accounting(problem) from None

    def _invalid_key(self) -> InvalidKey:
        self.metrics.unauthorized.inc()
        return InvalidKey(
            "This needs a valid API key, as `Authorization: Bearer sk-dcu-…` or `x-api-key`; "
            "it was missing, mistyped, or revoked."
        )

    async def _admit(self, record: Record) -> Model:
        record.chat = chat = parse_chat(record.incoming.body)
        model = self.routes.find_model(chat.model)
        if model is None:
            raise UnknownModel(
                f"The model {chat.model!r:.120} does not exist; GET /v1/models lists the models.", param="model"
            )
        record.model = model.name
        tokens = chat.reservation_tokens(model.default_output_tokens)
        try:
            await self.store.reserve(record.incoming.request_id, record.key.id, tokens, self._wall_ms())
        except UnknownKey:  # revoked within the second for which a look-up is kept
            raise self._invalid_key() from None
        except QuotaExceeded as refused:
            raise QuotaRefused(f"The key's {refused.limit_name} does not cover this request: {refused}.") from None
        except KeysError as problem:
            raise _accounting(problem) from None
        record.reserved = True
        return model

    # choose
    async def _attempts(self, record: Record, model: Model, sink: Sink) -> tuple[int, Ending]:
        tried: list[str] = []
        while True:
            name = choose(self.backends.candidates(model.workers), tried)
            if name is None:
                reason = self.backends.why_not_ready(model.workers)
                raise WorkerUnavailable(f"No worker of {model.name!r} is ready: {reason}.", retry_after_s=10)
            tried.append(name)
            backend = record.backend = self.backends.get(name)
            assert backend is not None  # noqa: S101 -- a candidate is a backend of the table
            backend.in_flight += 1
            record.mean_in_flight = float(backend.in_flight)
            try:
                return await self._attempt(record, model, backend, sink)
            except UpstreamError as problem:
                log.warning("%s: worker %s: %s", record.incoming.request_id, name, problem)
                # After the first body byte nothing is repeated; before it, another worker may take over.
                if may_retry(len(tried), worker_known_dead=True, body_byte_seen=problem.body_byte_seen) and choose(
                    self.backends.candidates(model.workers), tried
                ):
                    continue
                if isinstance(problem, UpstreamUnreachable):
                    record.relay.reached_worker = False
                    raise WorkerUnavailable(f"Worker {name} cannot be reached: {problem}.", retry_after_s=10) from None
                raise WorkerFailed(f"Worker {name} failed before its answer: {problem}.") from None
            finally:
                record.mean_in_flight = (record.mean_in_flight + backend.in_flight) / 2
                backend.in_flight -= 1

    # relay
    async def _attempt(self, record: Record, model: Model, backend: BackendState, sink: Sink) -> tuple[int, Ending]:
        chat = record.chat
        assert chat is not None  # noqa: S101 -- admitted requests are parsed
        deadlines = self.routes.deadlines
        headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "X-Request-Id": record.incoming.request_id,
        }
        if backend.api_key:
            headers["Authorization"] = f"Bearer {backend.api_key}"
        body = worker_body(chat, backend.model, model.default_output_tokens)
        record.relay.reached_worker = True
        try:
            exchange = await open_exchange(
                backend.address, "POST", "/v1/chat/completions", headers, body, deadlines.connect_s,
                min(deadlines.first_token_s, deadlines.total_s),
            )  # fmt: skip
            async with exchange:
                return await self._relay(record, backend, exchange, deadlines, sink)
        except TimeoutError:
            raise DeadlinePassed(
                f"Worker {backend.name} was silent for longer than the route's deadline "
                f"(first token {deadlines.first_token_s:g} s, total {deadlines.total_s:g} s)."
            ) from None

    async def _relay(
        self, record: Record, backend: BackendState, exchange: Exchange, deadlines: Deadlines, sink: Sink
    ) -> tuple[int, Ending]:
        chat, relay = record.chat, record.relay
        assert chat is not None  # noqa: S101 -- admitted requests are parsed
        relay.on_first_byte = lambda: self._first_byte(record)
        names = (backend.model, chat.model)
        if exchange.headers.get("content-type", "").startswith("text/event-stream"):
            stream = StreamRelay(relay, exchange, chat.wants_usage, chat.wants_running_usage, names)
            left_s = max(0.001, deadlines.total_s - (self._monotonic() - record.started))
            last = await stream.run(
                sink, record.incoming.request_id, deadlines.first_token_s, deadlines.between_tokens_s, left_s
            )
            ending = Ending.COMPLETED if relay.failure is None else Ending.UPSTREAM_ERROR
            if relay.timed_out:
                ending = Ending.TIMED_OUT
            if ending is Ending.TIMED_OUT:
                await exchange.aclose()  # the engine stops at the end of its step; the client need not wait for that
                self._settle_later(record, ending, exchange.status)
            else:
                await self._settle(record, ending, exchange.status)
            async with asyncio.timeout(deadlines.between_tokens_s):  # a client that reads nothing is not waited for
                await sink.write(last)
            return exchange.status, ending
        status, body = await relay_plain(relay, exchange, deadlines.total_s, names)
        ending = Ending.COMPLETED if status == 200 else Ending.REFUSED if status < 500 else Ending.UPSTREAM_ERROR
        await self._settle(record, ending, status)
        await sink.answer(status, {"Content-Type": "application/json"}, body)
        return status, ending

    def _first_byte(self, record: Record) -> None:
        elapsed = self._monotonic() - record.started
        record.relay.ttft_ms = round(elapsed * 1000)
        self.metrics.time_to_first_token.labels(record.model).observe(elapsed)

    # settle
    def _settle_later(self, record: Record, ending: Ending, http_status: int) -> None:
        task = asyncio.create_task(self._settle(record, ending, http_status))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle(self, record: Record, ending: Ending, http_status: int) -> None:
        """Writes the ledger row, once; shielded, so that a client who leaves meanwhile does not cut it."""
        if record.settled:
            return
        record.settled = True
        task = asyncio.create_task(self._write_row(record, ending, http_status))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        await asyncio.shield(task)

    async def _write_row(self, record: Record, ending: Ending, http_status: int) -> None:
        backend, relay, now = record.backend, record.relay, self._monotonic()
        duration_ms = round((now - record.started) * 1000)
        feed = None
        worked = backend is not None and relay.reached_worker
        if worked and ending not in (Ending.COMPLETED, Ending.REFUSED) and backend is not None and backend.has_progress:
            cut = ending in (Ending.CLIENT_CLOSED, Ending.TIMED_OUT)
            wait_s = CUT_FEED_WAIT_S if cut else FAILED_FEED_WAIT_S
            feed = await self.backends.final_usage(
                record.incoming.request_id, backend.name, wait_s, seen=relay.usage is not None
            )
        cost = charge(ending, Evidence(feed, relay.usage, _estimate(record), worked))
        tokens = cost.input_tokens + cost.cached_tokens + cost.output_tokens
        device_ms = 0
        if backend is not None and tokens:
            device_ms = device_ms_without_profile(backend.cards, duration_ms, record.mean_in_flight)
        row = LedgerRow(
            request_id=record.incoming.request_id, key_id=record.key.id, purpose=record.key.purpose,
            model=record.model, worker=backend.name if backend else "", route=record.incoming.route,
            input_tokens=cost.input_tokens, cached_tokens=cost.cached_tokens, output_tokens=cost.output_tokens,
            device_ms=device_ms, ttft_ms=relay.ttft_ms, duration_ms=duration_ms, status=ending.value,
            estimated=cost.estimated, started_ms=record.started_ms, http_status=http_status,
        )  # fmt: skip
        try:
            await self.store.settle(row, self._wall_ms())
        except KeysError as problem:
            log.error("%s: the ledger row could not be written: %s; %r", row.request_id, problem, row)
        finally:
            self._running.discard(row.request_id)  # until here its reservation is renewed
        self._count(row)
        log.info(
            "%s key=%s purpose=%s model=%s worker=%s status=%s http=%d input=%d cached=%d output=%d ttft_ms=%s ms=%d",
            row.request_id, row.key_id, row.purpose, row.model, row.worker, row.status, row.http_status,
            row.input_tokens, row.cached_tokens, row.output_tokens, row.ttft_ms, row.duration_ms,
        )  # fmt: skip

    def _count(self, row: LedgerRow) -> None:
        # A model's name is counted only where it is one of ours: clients cannot make new series.
        metrics, model = self.metrics, row.model or "unknown"
        metrics.requests.labels(model, row.purpose, row.status).inc()
        metrics.duration.labels(model).observe(row.duration_ms / 1000)
        for kind, count in (("input", row.input_tokens), ("cached", row.cached_tokens), ("output", row.output_tokens)):
            metrics.tokens.labels(model, row.purpose, kind).inc(count)

    async def renew_leases(self) -> None:
        """Renews the reservations of running requests, sweeps the orphans of other processes. Runs until cancelled."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            try:
                if self._running:
                    await self.store.renew(list(self._running), self._wall_ms())
                await self.store.sweep(self._wall_ms())
            except KeysError as problem:
                log.warning("reservations could not be renewed: %s", problem)

    async def finish(self, timeout_s: float) -> None:
        """Ends the settlements that are under way; for shutdown, after the listeners have closed. What the feed has not
        told within FINISH_FEED_WAIT_S is settled from what else is known."""
        if self._settling:
            await asyncio.wait(set(self._settling), timeout=FINISH_FEED_WAIT_S)
        self.backends.stop_waiting()
        while self._settling:
            _, pending = await asyncio.wait(set(self._settling), timeout=timeout_s)
            if pending:
                log.error("%d ledger rows could not be written within %g s", len(pending), timeout_s)
                return


def _accounting(problem: KeysError) -> AccountingUnavailable:
    log.error("the store does not answer: %s", problem)
    return AccountingUnavailable("Keys and quota cannot be read at the moment; try again shortly.", retry_after_s=5)


def _ending_of(error: GatewayError, record: Record) -> Ending:
    if isinstance(error, DeadlinePassed):
        return Ending.TIMED_OUT
    if isinstance(error, (InvalidRequest, InvalidKey)):
        return Ending.REFUSED
    return Ending.UPSTREAM_ERROR if record.reserved else Ending.REFUSED


def _estimate(record: Record) -> TokenUsage | None:
    """Without a feed and without any usage: the prompt by its bytes and no output if no byte of an answer came."""
    if record.chat is None:
        return None
    return TokenUsage(prompt_tokens_upper(record.chat.body), 0, record.relay.events)
