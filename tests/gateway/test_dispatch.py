"""Every ending of a request through a real gateway: what the client gets, and the one ledger row."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp
import orjson
import pytest

from gateway.core.errors import DeadlinePassed
from gateway.core.sse import EventSplitter, event_data
from gateway.core.usage import TokenUsage
from gateway.dispatch import Incoming
from keys.model import LedgerRow
from tests.conftest import Service
from tests.fakes.fake_vllm import PROMPT_TOKENS, chunk


async def events(answer: aiohttp.ClientResponse) -> list[bytes]:
    return EventSplitter().feed(await answer.read())


async def the_row(service: Service) -> LedgerRow:
    rows = await service.rows()
    assert len(rows) == 1
    return rows[0]


@pytest.mark.parametrize("base", ["/v1", "/api/v1"])
async def test_a_plain_answer_comes_back_with_the_public_name_and_is_charged_exactly(
    service: Service, base: str
) -> None:
    async with service.http.post(
        f"{service.base}{base}/chat/completions", json=service.ask("plain"), headers=service.auth
    ) as answer:
        body = await answer.json()
    assert answer.status == 200
    assert body["model"] == "public"
    row = await the_row(service)
    assert (row.input_tokens, row.cached_tokens, row.output_tokens) == (PROMPT_TOKENS - 16, 16, 20)
    assert (row.status, row.estimated, row.request_id) == ("completed", False, answer.headers["X-Request-Id"])
    assert f"X-Request-Id: {row.request_id}".encode() in service.fake.heads[-1]
    assert service.secret.encode() not in service.fake.heads[-1]


async def test_a_stream_hides_the_usage_that_the_client_did_not_ask_for(service: Service) -> None:
    async with service.http.post(
        f"{service.base}/v1/chat/completions", json=service.ask("stream 5", stream=True), headers=service.auth
    ) as answer:
        got = await events(answer)
    expected = [chunk(i, usage=False).replace(b'"served"', b'"public"') for i in range(6)]
    assert got == [*expected, b"data: [DONE]\n\n"]
    assert answer.headers["X-Accel-Buffering"] == "no"
    row = await the_row(service)
    assert (row.input_tokens, row.cached_tokens, row.output_tokens) == (PROMPT_TOKENS - 16, 16, 5)
    assert row.ttft_ms is not None


@pytest.mark.parametrize("running", [False, True])
async def test_a_stream_shows_the_usage_that_the_client_asked_for(service: Service, running: bool) -> None:
    options = {"include_usage": True, "continuous_usage_stats": running}
    async with service.http.post(
        f"{service.base}/v1/chat/completions",
        json=service.ask("stream 2", stream=True, stream_options=options),
        headers=service.auth,
    ) as answer:
        got = [orjson.loads(event_data(e)) for e in (await events(answer))[:-1]]
    assert [("usage" in e) for e in got] == [running, running, running, True]
    assert got[-1]["usage"]["completion_tokens"] == 2


async def test_an_error_inside_a_stream_reaches_the_client_and_the_row(service: Service) -> None:
    async with service.http.post(
        f"{service.base}/v1/chat/completions", json=service.ask("error-in-band 3", stream=True), headers=service.auth
    ) as answer:
        got = await events(answer)
    assert b"EngineCore" in got[-2]
    assert got[-1] == b"data: [DONE]\n\n"
    row = await the_row(service)
    assert (row.status, row.output_tokens) == ("upstream_error", 3)


async def test_a_stream_cut_by_the_worker_ends_properly_with_an_error_event(service: Service) -> None:
    async with service.http.post(
        f"{service.base}/v1/chat/completions", json=service.ask("die 3", stream=True), headers=service.auth
    ) as answer:
        got = await events(answer)
    error = orjson.loads(event_data(got[-2]))["error"]
    assert (error["code"], error["origin"]) == ("worker_failed", "gateway")
    assert got[-1] == b"data: [DONE]\n\n"
    row = await the_row(service)
    assert (row.status, row.output_tokens, row.estimated) == ("upstream_error", 3, False)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_that_closes_before_its_answer_is_a_502_that_costs_what_is_known(
    service: Service, stream: bool
) -> None:
    async with service.http.post(
        f"{service.base}/v1/chat/completions", json=service.ask("reset", stream=stream), headers=service.auth
    ) as answer:
        assert answer.status == 502
        assert (await answer.json())["error"]["code"] == "worker_failed"
    assert (await the_row(service)).status == "upstream_error"


@pytest.mark.parametrize(("text", "tokens"), [("hang", 0), ("headers-hang", 0), ("stream-hang 4", 4)])
async def test_a_client_that_leaves_closes_the_worker_and_is_charged_for_what_was_made(
    service: Service, text: str, tokens: int
) -> None:
    async def ask() -> None:
        async with service.http.post(
            f"{service.base}/v1/chat/completions", json=service.ask(text, stream=True), headers=service.auth
        ) as answer:
            seen = b""
            while f"字{tokens}".encode() not in seen:
                seen += await answer.content.readany()
            started.set()
            await answer.read()

    started = asyncio.Event()
    task = asyncio.create_task(ask())
    while not service.fake.bodies:
        await asyncio.sleep(0)
    if tokens:
        await started.wait()
    task.cancel()
    async with asyncio.timeout(1):  # the design's bound
        await service.fake.closed.wait()
    row = await the_row(service)
    assert (row.status, row.http_status, row.output_tokens) == ("client_closed", 499, tokens)
    assert row.estimated is (tokens == 0)


class Gone:
    """A client whose connection is found closing by the first write."""

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        return

    async def write(self, data: bytes) -> None:
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        return


class Stuck(Gone):
    """A client that keeps its connection open and reads nothing."""

    async def write(self, data: bytes) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("service", [{"total_s": 0.3, "between_tokens_s": 0.2}], indirect=True)
async def test_a_client_that_reads_nothing_is_let_go_after_the_deadlines(service: Service) -> None:
    body = orjson.dumps(service.ask("stream-hang 3", stream=True))
    async with asyncio.timeout(5):
        with pytest.raises(DeadlinePassed):
            await service.dispatcher.serve(
                Incoming("dcu-" + "3" * 26, "chat/completions", service.secret, body), Stuck()
            )
    assert (await the_row(service)).status == "timed_out"
    state = service.dispatcher.backends.get("b")
    assert state is not None
    assert state.in_flight == 0


async def test_a_write_that_finds_the_client_gone_is_booked_as_the_clients_leaving(service: Service) -> None:
    body = orjson.dumps(service.ask("stream-hang 3", stream=True))
    with pytest.raises(ConnectionError):
        await service.dispatcher.serve(Incoming("dcu-" + "1" * 26, "chat/completions", service.secret, body), Gone())
    row = await the_row(service)
    assert (row.status, row.http_status) == ("client_closed", 499)


async def test_at_shutdown_the_feed_has_a_moment_to_tell_the_final_count(service: Service) -> None:
    backends, request_id = service.dispatcher.backends, "dcu-" + "2" * 26
    state = backends.get("b")
    assert state is not None
    state.has_progress = True
    body = orjson.dumps(service.ask("stream-hang 3", stream=True))
    with pytest.raises(ConnectionError):
        await service.dispatcher.serve(Incoming(request_id, "chat/completions", service.secret, body), Gone())
    finishing = asyncio.create_task(service.dispatcher.finish(5))
    await asyncio.sleep(0)
    backends.update_progress("b", 9, [], [(request_id, TokenUsage(20, 4, 7))])
    await finishing
    row = (await service.dispatcher.store.rows())[0]
    assert (row.input_tokens, row.cached_tokens, row.output_tokens, row.estimated) == (16, 4, 7, False)


@pytest.mark.parametrize("service", [{"first_token_s": 0.2}], indirect=True)
async def test_a_silent_worker_is_a_504(service: Service) -> None:
    async with service.http.post(
        f"{service.base}/v1/chat/completions", json=service.ask("hang"), headers=service.auth
    ) as answer:
        assert answer.status == 504
        assert (await answer.json())["error"]["code"] == "deadline_passed"
    assert (await the_row(service)).status == "timed_out"


@pytest.mark.parametrize("service", [{"between_tokens_s": 0.2}], indirect=True)
async def test_a_worker_that_falls_silent_ends_the_stream_with_an_error_event(service: Service) -> None:
    async with service.http.post(
        f"{service.base}/v1/chat/completions", json=service.ask("stream-hang 2", stream=True), headers=service.auth
    ) as answer:
        got = await events(answer)
    assert orjson.loads(event_data(got[-2]))["error"]["code"] == "deadline_passed"
    row = await the_row(service)
    assert (row.status, row.output_tokens) == ("timed_out", 2)


@pytest.mark.parametrize("service", [{"total_s": 0.3}], indirect=True)
async def test_the_total_deadline_ends_a_running_stream_properly(service: Service) -> None:
    async with service.http.post(
        f"{service.base}/v1/chat/completions", json=service.ask("stream-hang 2", stream=True), headers=service.auth
    ) as answer:
        got = await events(answer)
    assert answer.status == 200
    assert orjson.loads(event_data(got[-2]))["error"]["code"] == "deadline_passed"
    assert got[-1] == b"data: [DONE]\n\n"
    assert (await the_row(service)).status == "timed_out"


async def test_a_key_revoked_a_moment_ago_is_a_401(service: Service) -> None:
    from keys.admin import revoke_key
    from keys.stores.sqlite import open_sqlite

    async def ask() -> int:
        async with service.http.post(
            f"{service.base}/v1/chat/completions", json=service.ask("plain"), headers=service.auth
        ) as answer:
            return answer.status

    assert await ask() == 200  # its look-up is kept for a second from now
    other = await open_sqlite(service.state / "dcugate.db")
    await revoke_key(other, service.key.id)
    await other.aclose()
    assert await ask() == 401


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"model": "nope"}, 404, "model_not_found"),
        ({"model": None}, 400, "invalid_request"),
        ({"max_tokens": 0}, 400, "invalid_request"),
    ],
)
async def test_refusals_cost_nothing_and_leave_a_row(
    service: Service, fields: dict[str, object], status: int, code: str
) -> None:
    async with service.http.post(
        f"{service.base}/v1/chat/completions", json=service.ask("plain", **fields), headers=service.auth
    ) as answer:
        assert answer.status == status
        assert (await answer.json())["error"]["code"] == code
    row = await the_row(service)
    assert (row.status, row.http_status, row.input_tokens, row.output_tokens) == ("refused", status, 0, 0)
    assert not service.fake.bodies


async def test_a_workers_own_refusal_keeps_its_status_and_words(service: Service) -> None:
    async with service.http.post(
        f"{service.base}/v1/chat/completions", json=service.ask("status 400", stream=True), headers=service.auth
    ) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["message"] == "told by the worker"
    assert (await the_row(service)).status == "refused"


async def test_a_worker_that_refuses_our_key_is_our_fault(service: Service) -> None:
    async with service.http.post(
        f"{service.base}/v1/chat/completions", json=service.ask("status 401"), headers=service.auth
    ) as answer:
        assert answer.status == 502


async def test_no_worker_ready_is_a_503_that_says_why(service: Service) -> None:
    state = service.dispatcher.backends.get("b")
    assert state is not None
    state.is_ready, state.reason = False, "it is loading"
    async with service.http.post(
        f"{service.base}/v1/chat/completions", json=service.ask("plain"), headers=service.auth
    ) as answer:
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "10"
        assert "it is loading" in (await answer.json())["error"]["message"]


async def test_a_request_moves_once_to_another_worker_when_the_first_is_dead(service: Service) -> None:
    gone, alive = service.dispatcher.backends.get("gone"), service.dispatcher.backends.get("b")
    assert gone is not None
    assert alive is not None
    gone.is_ready = True
    alive.in_flight = 1  # so that the dead one is tried first
    async with service.http.post(
        f"{service.base}/v1/chat/completions", json=service.ask("plain", model="two"), headers=service.auth
    ) as answer:
        assert answer.status == 200
    row = await the_row(service)
    assert (row.worker, row.status) == ("b", "completed")
    alive.is_ready, gone.is_ready = False, True
    async with service.http.post(
        f"{service.base}/v1/chat/completions", json=service.ask("plain", model="two"), headers=service.auth
    ) as answer:
        assert answer.status == 503
        assert "cannot be reached" in (await answer.json())["error"]["message"]
    assert (await service.rows())[0].input_tokens == 0


async def test_the_quota_refuses_and_is_given_back(service: Service) -> None:
    from keys.admin import create_key

    _, secret = await create_key(
        service.dispatcher.store,
        service.dispatcher.pepper,
        name="small",
        purpose="agent",
        limit_tokens=200,
        now_ms=0,
    )
    auth = {"x-api-key": secret.reveal()}
    async with service.http.post(
        f"{service.base}/v1/chat/completions", json=service.ask("plain", max_tokens=500), headers=auth
    ) as answer:
        assert answer.status == 429
        assert (await answer.json())["error"]["type"] == "insufficient_quota"
    for expected in (
        200,
        200,
        200,
        429,
    ):  # 43 tokens each: a fourth reservation of about 116 does not fit into 200 - 129
        async with service.http.post(
            f"{service.base}/v1/chat/completions", json=service.ask("plain", max_tokens=64), headers=auth
        ) as answer:
            assert answer.status == expected


async def test_sixty_at_once_each_have_one_row_and_nothing_stays_in_flight(service: Service) -> None:
    async def one(position: int) -> None:
        text = ("plain", "stream 3", "die 2", "status 400")[position % 4]
        async with service.http.post(
            f"{service.base}/v1/chat/completions",
            json=service.ask(text, stream=position % 2 == 1),
            headers=service.auth,
        ) as answer:
            await answer.read()

    await asyncio.gather(*(one(i) for i in range(60)))
    await service.dispatcher.finish(5)
    rows = await service.dispatcher.store.rows(limit=1000)
    assert len(rows) == 60
    assert len({r.request_id for r in rows}) == 60
    state = service.dispatcher.backends.get("b")
    assert state is not None
    assert state.in_flight == 0
