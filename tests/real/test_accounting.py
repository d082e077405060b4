"""The ledger against the real engine: exact without aborts, and with aborts equal to the engine's final count per request."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.real.conftest import Up

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

REQUESTS, AT_ONCE = 200, 20
COUNTERS = {
    "vllm:prompt_tokens_total": "prompt",
    "vllm:generation_tokens_total": "output",
    "vllm:prompt_tokens_cached_total": "cached",
}


@asynccontextmanager
async def runner_session(up: Up) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(path=str(up.state / "runner.sock"))
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        yield session


async def engine_counters(up: Up) -> Counter[str]:
    async with runner_session(up) as session, session.get("http://runner/v1/workers") as answer:
        address = (await answer.json())["workers"][0]["address"].removeprefix("unix:")
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=address)) as session,
        session.get("http://worker/metrics") as answer,
    ):
        text = await answer.text()
    found: Counter[str] = Counter()
    for line in text.splitlines():
        name = line.partition("{")[0]
        if name in COUNTERS:
            found[COUNTERS[name]] += int(float(line.rpartition(" ")[2]))
    return found


def ledger(up: Up) -> list[dict[str, Any]]:
    with sqlite3.connect(f"file:{up.state / 'dcugate.db'}?mode=ro", uri=True) as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute("SELECT * FROM ledger")]
    connection.close()
    return rows


async def settled(up: Up, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(60):
        while len(rows := ledger(up)) < count:
            await asyncio.sleep(0.2)
    return rows


def body(number: int, stream: bool, words: int, tokens: int) -> dict[str, Any]:
    text = f"request {number}: " + "the value of this object " * words
    return {
        "model": "public-tiny",
        "messages": [{"role": "user", "content": text}],
        "stream": stream,
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
    }


class Feed:
    """Everything that the runner publishes of ended requests, as the gateway sees it."""

    def __init__(self) -> None:
        self.ended: dict[str, dict[str, Any]] = {}

    async def follow(self, up: Up) -> None:
        async with runner_session(up) as session, session.get("http://runner/v1/events") as answer:
            async for raw in answer.content:
                if raw.startswith(b"data:") and b'"requests"' in raw:
                    told = json.loads(raw[5:])
                    for request_id, count in told.get("requests", {}).items():
                        if count["ended"]:
                            self.ended[request_id] = count


async def test_without_aborts_the_ledger_equals_the_engines_own_counters(tiny: Up) -> None:
    before, already = await engine_counters(tiny), len(ledger(tiny))
    headers = {"Authorization": f"Bearer {tiny.keys['chat']}"}
    gate = asyncio.Semaphore(AT_ONCE)
    async with aiohttp.ClientSession(headers=headers) as session:

        async def one(number: int) -> None:
            sent = body(
                number % 7, number % 2 == 0, 5 + 40 * (number % 4), 8 + number % 20
            )  # repeats hit the prefix cache
            async with gate, session.post(f"{tiny.base}/v1/chat/completions", json=sent) as answer:
                assert answer.status == 200
                await answer.read()

        await asyncio.gather(*(one(number) for number in range(60)))
    rows = (await settled(tiny, already + 60))[already:]
    assert {(row["status"], row["estimated"]) for row in rows} == {("completed", 0)}
    grown = await engine_counters(tiny)
    grown.subtract(before)
    assert sum(row["input_tokens"] + row["cached_tokens"] for row in rows) == grown["prompt"]
    assert sum(row["cached_tokens"] for row in rows) == grown["cached"]
    assert sum(row["output_tokens"] for row in rows) == grown["output"]
    assert grown["cached"] > 0


async def test_every_aborted_request_is_charged_what_the_engine_did_for_it(tiny: Up) -> None:
    """200 requests, 20 at a time, a third of them aborted: before headers, in prefill, mid-stream, plain."""
    before, already = await engine_counters(tiny), {row["request_id"] for row in ledger(tiny)}
    feed, rng = Feed(), random.Random(2)
    following = asyncio.create_task(feed.follow(tiny))
    headers = {"Authorization": f"Bearer {tiny.keys['chat']}"}
    gate = asyncio.Semaphore(AT_ONCE)
    kinds = ["before-headers", "in-prefill", "mid-stream", "plain"]

    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(force_close=True)) as session:

        async def finish(number: int) -> None:
            sent = body(number, number % 2 == 0, rng.randint(1, 200), rng.randint(4, 40))
            async with session.post(f"{tiny.base}/v1/chat/completions", json=sent) as answer:
                assert answer.status == 200
                await answer.read()

        async def abort(number: int, kind: str) -> None:
            if kind == "mid-stream":
                sent, wait_s = body(number, True, 20, 3000), 0.0
            elif kind == "in-prefill":
                sent, wait_s = body(number, True, 3500, 100), rng.uniform(0.2, 1.5)  # about 18,000 tokens, nine chunks
            elif kind == "plain":
                sent, wait_s = body(number, False, 20, 3000), rng.uniform(0.5, 2.0)
            else:
                sent, wait_s = body(number, True, 50, 1000), rng.uniform(0.0, 0.02)

            async def ask() -> None:
                async with session.post(f"{tiny.base}/v1/chat/completions", json=sent) as answer:
                    seen = 0
                    async for _ in answer.content.iter_any():
                        seen += 1
                        if kind == "mid-stream" and seen > 3 + number % 5:
                            return

            task = asyncio.create_task(ask())
            if kind == "mid-stream":
                await task
            else:
                await asyncio.wait([task], timeout=wait_s)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        async def one(number: int) -> None:
            async with gate:
                await (abort(number, kinds[number // 3 % 4]) if number % 3 == 0 else finish(number))

        await asyncio.gather(*(one(number) for number in range(REQUESTS)))
    async with asyncio.timeout(120):
        # Every accepted request has its row; one cut before the gateway had read it may have none.
        rows: list[dict[str, Any]] = []
        while True:
            seen, rows = len(rows), [row for row in ledger(tiny) if row["request_id"] not in already]
            if seen == len(rows) and len(rows) >= REQUESTS * 2 // 3 and not await in_flight(tiny):
                break
            await asyncio.sleep(5)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)

    statuses = Counter(row["status"] for row in rows)
    aborted = [row for row in rows if row["status"] == "client_closed"]
    assert len({row["request_id"] for row in rows}) == len(rows)
    assert statuses["completed"] + statuses["client_closed"] == len(rows), statuses
    assert len(aborted) >= REQUESTS // 4, statuses
    cut_prefill_tokens = 0
    for row in aborted:
        count = feed.ended.get(row["request_id"])
        charged = (row["input_tokens"] + row["cached_tokens"], row["cached_tokens"], row["output_tokens"])
        assert not row["estimated"], row
        if count is None:  # it never reached the engine
            assert charged == (0, 0, 0), row
            continue
        prompt = min(count["computed_tokens"], count["prompt_tokens"])
        assert charged == (prompt, min(count["cached_tokens"], prompt), count["output_tokens"]), (row, count)
        if count["output_tokens"] == 0:
            cut_prefill_tokens += prompt
    assert cut_prefill_tokens > 0

    grown = await engine_counters(tiny)
    grown.subtract(before)
    charged_prompt = sum(row["input_tokens"] + row["cached_tokens"] for row in rows)
    charged_output = sum(row["output_tokens"] for row in rows)
    # Section 7 of the measurements: the engine's prompt counter never counts a cut prefill, and each aborted stream may
    # differ by the one step that ran when it was cut.
    unseen = sum(row["request_id"] not in feed.ended for row in aborted)
    print(f"\nrows {dict(statuses)}, never reached the engine {unseen}, cut prefills {cut_prefill_tokens} tokens")
    print(
        f"prompt: ledger {charged_prompt} engine {grown['prompt']}; output: ledger {charged_output} engine {grown['output']}"
    )
    assert charged_prompt - grown["prompt"] == cut_prefill_tokens
    assert abs(charged_output - grown["output"]) <= len(aborted)


async def in_flight(up: Up) -> bool:
    async with aiohttp.ClientSession() as session, session.get(f"{up.base}/metrics") as answer:
        text = await answer.text()
    return any(
        line.startswith("dcugate_requests_in_flight{") and not line.endswith(" 0.0") for line in text.splitlines()
    )
