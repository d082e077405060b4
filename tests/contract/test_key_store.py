"""The contract of `keys.stores.base.Store`, the same for every store."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from keys.errors import DuplicateReservation, InvalidKey, KeysError, QuotaExceeded, StoreUnavailable, UnknownKey
from keys.model import Key, LedgerRow, UsageTotals
from keys.stores.base import LEASE_MS, Store
from keys.stores.sqlite import open_sqlite

NOW_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
DAY_MS = 86_400_000

KEY = Key(
    id="k_aaaaaaaaaaaaaaaa",
    name="小明's app",
    purpose="chat",
    status="active",
    created_ms=NOW_MS,
    hint="sk-dcu-chat-…a1b2",
    digest=b"a" * 32,
    limit_tokens=1000,
)
ROW = LedgerRow(
    request_id="dcu-1",
    key_id=KEY.id,
    purpose="chat",
    model="m",
    worker="w",
    route="chat",
    input_tokens=30,
    cached_tokens=20,
    output_tokens=50,
    device_ms=7,
    ttft_ms=12,
    duration_ms=34,
    status="completed",
    estimated=False,
    started_ms=NOW_MS,
    http_status=200,
)


async def outcome(store: Store, request_id: str, tokens: int, now_ms: int = NOW_MS) -> str:
    try:
        await store.reserve(request_id, KEY.id, tokens, now_ms)
    except KeysError as error:
        return type(error).__name__
    return "granted"


async def test_a_key_is_found_by_its_digest_as_it_was_put(store: Store) -> None:
    await store.put_key(KEY)
    assert await store.find_key(KEY.digest) == KEY
    assert await store.find_key(b"b" * 32) is None


async def test_an_unknown_digest_is_found_as_soon_as_its_key_is_put(store: Store) -> None:
    assert await store.find_key(KEY.digest) is None
    await store.put_key(KEY)
    assert await store.find_key(KEY.digest) == KEY


async def test_keys_are_listed_oldest_first(store: Store) -> None:
    younger = replace(KEY, id="k_0", digest=b"b" * 32, created_ms=NOW_MS + 1)
    await store.put_key(younger)
    await store.put_key(KEY)
    assert await store.list_keys() == [KEY, younger]


async def test_name_limit_and_status_of_a_key_can_change(store: Store) -> None:
    await store.put_key(KEY)
    await store.find_key(KEY.digest)
    changed = replace(KEY, name="other", limit_tokens=None)
    await store.put_key(changed)
    assert await store.find_key(KEY.digest) == changed
    assert await store.list_keys() == [changed]


async def test_a_revoked_key_is_found_and_stays_revoked(store: Store) -> None:
    await store.put_key(KEY)
    revoked = replace(KEY, status="revoked")
    await store.put_key(revoked)
    assert await store.find_key(KEY.digest) == revoked
    await store.put_key(KEY)
    assert await store.find_key(KEY.digest) == revoked


async def test_two_keys_cannot_share_a_digest(store: Store) -> None:
    await store.put_key(KEY)
    with pytest.raises(InvalidKey):
        await store.put_key(replace(KEY, id="k_other"))
    assert await store.list_keys() == [KEY]


async def test_changing_a_key_keeps_what_it_used(store: Store) -> None:
    await store.put_key(KEY)
    await store.settle(replace(ROW, output_tokens=950), NOW_MS)
    await store.put_key(replace(KEY, name="other"))
    with pytest.raises(QuotaExceeded) as refused:
        await store.reserve("dcu-2", KEY.id, 1, NOW_MS)
    assert (refused.value.limit_name, refused.value.remaining_tokens) == ("limit_tokens", 0)


async def test_of_fifty_parallel_reserves_exactly_those_that_fit_are_granted(store: Store) -> None:
    await store.put_key(KEY)
    outcomes = await asyncio.gather(*(outcome(store, f"dcu-{number}", 100) for number in range(50)))
    assert outcomes.count("granted") == 10
    assert outcomes.count("QuotaExceeded") == 40
    assert len(await store.sweep(NOW_MS + LEASE_MS)) == 10


async def test_two_stores_over_the_same_data_never_exceed_the_limit_together(store: Store, neighbour: Store) -> None:
    await store.put_key(KEY)
    outcomes = await asyncio.gather(
        *(
            outcome(here, f"dcu-{number}-{side}", 100)
            for number in range(25)
            for side, here in enumerate((store, neighbour))
        )
    )
    assert outcomes.count("granted") == 10
    assert outcomes.count("QuotaExceeded") == 40


async def test_two_stores_over_the_same_data_see_each_others_work(store: Store, neighbour: Store) -> None:
    await store.put_key(KEY)
    assert await neighbour.find_key(KEY.digest) == KEY
    await neighbour.reserve("dcu-1", KEY.id, 100, NOW_MS)
    assert await store.settle(ROW, NOW_MS)
    assert not await neighbour.settle(ROW, NOW_MS)
    assert await neighbour.rows() == [ROW]


async def test_nobody_reserves_for_an_unknown_or_a_revoked_key(store: Store) -> None:
    with pytest.raises(UnknownKey):
        await store.reserve("dcu-1", KEY.id, 1, NOW_MS)
    await store.put_key(replace(KEY, status="revoked"))
    with pytest.raises(UnknownKey):
        await store.reserve("dcu-1", KEY.id, 1, NOW_MS)


async def test_a_request_id_is_reserved_once_only(store: Store) -> None:
    await store.put_key(KEY)
    await store.reserve("dcu-1", KEY.id, 1, NOW_MS)
    with pytest.raises(DuplicateReservation):
        await store.reserve("dcu-1", KEY.id, 1, NOW_MS)
    await store.settle(ROW, NOW_MS)
    with pytest.raises(DuplicateReservation):
        await store.reserve("dcu-1", KEY.id, 1, NOW_MS)


async def test_a_negative_reservation_is_a_bug_of_the_caller(store: Store) -> None:
    await store.put_key(KEY)
    with pytest.raises(ValueError, match="negative"):
        await store.reserve("dcu-1", KEY.id, -1, NOW_MS)


async def test_a_settle_frees_the_reservation_and_charges_what_was_used(store: Store) -> None:
    await store.put_key(KEY)
    await store.reserve("dcu-1", KEY.id, 1000, NOW_MS)
    assert await outcome(store, "dcu-2", 1) == "QuotaExceeded"
    assert await store.settle(ROW, NOW_MS)
    assert await outcome(store, "dcu-2", 901) == "QuotaExceeded"
    assert await outcome(store, "dcu-2", 900) == "granted"


async def test_only_the_first_of_many_settles_counts(store: Store) -> None:
    await store.put_key(KEY)
    later = replace(ROW, output_tokens=999, status="client_closed")
    assert await store.settle(ROW, NOW_MS)
    assert await asyncio.gather(*(store.settle(later, NOW_MS + 1) for _ in range(20))) == [False] * 20
    assert await store.rows() == [ROW]
    assert await outcome(store, "dcu-2", 900) == "granted"


async def test_a_settle_without_a_reservation_or_a_known_key_writes_its_row(store: Store) -> None:
    refused = replace(
        ROW,
        key_id="",
        input_tokens=0,
        cached_tokens=0,
        output_tokens=0,
        ttft_ms=None,
        status="refused",
        http_status=401,
    )
    assert await store.settle(refused, NOW_MS)
    assert await store.rows() == [refused]


async def test_a_settle_above_its_reservation_is_charged_in_full(store: Store) -> None:
    await store.put_key(KEY)
    await store.reserve("dcu-1", KEY.id, 10, NOW_MS)
    await store.settle(replace(ROW, output_tokens=5000), NOW_MS)
    assert await outcome(store, "dcu-2", 0) == "QuotaExceeded"


async def test_a_row_with_impossible_values_is_refused_and_changes_nothing(store: Store) -> None:
    with pytest.raises(ValueError, match="refuses"):
        await store.settle(replace(ROW, input_tokens=-1), NOW_MS)
    assert await store.rows() == []


async def test_a_key_remembers_when_it_was_last_used(store: Store) -> None:
    await store.put_key(KEY)
    await store.settle(ROW, NOW_MS + 5)
    await store.settle(replace(ROW, request_id="dcu-2"), NOW_MS + 3)
    assert [key.last_used_ms for key in await store.list_keys()] == [NOW_MS + 5]


async def test_a_lease_that_runs_out_holds_nothing_even_before_the_sweep(store: Store) -> None:
    await store.put_key(KEY)
    await store.reserve("dcu-1", KEY.id, 1000, NOW_MS)
    assert await outcome(store, "dcu-2", 1000, NOW_MS + LEASE_MS - 1) == "QuotaExceeded"
    assert await outcome(store, "dcu-2", 1000, NOW_MS + LEASE_MS) == "granted"


async def test_a_sweep_returns_each_expired_reservation_once(store: Store) -> None:
    await store.put_key(KEY)
    await store.reserve("dcu-1", KEY.id, 1, NOW_MS)
    await store.reserve("dcu-2", KEY.id, 1, NOW_MS + 1)
    assert await store.sweep(NOW_MS + LEASE_MS - 1) == []
    assert await store.sweep(NOW_MS + LEASE_MS) == ["dcu-1"]
    assert await store.sweep(NOW_MS + LEASE_MS) == []
    assert await store.sweep(NOW_MS + LEASE_MS + 1) == ["dcu-2"]


async def test_a_renewed_lease_lives_on_and_unknown_ids_are_passed_over(store: Store) -> None:
    await store.put_key(KEY)
    await store.reserve("dcu-1", KEY.id, 1, NOW_MS)
    await store.renew(["dcu-1", "dcu-none"], NOW_MS + 20_000)
    await store.renew([], NOW_MS + 90_000)
    assert await store.sweep(NOW_MS + LEASE_MS) == []
    assert await store.sweep(NOW_MS + LEASE_MS + 20_000) == ["dcu-1"]


async def test_a_swept_request_can_still_be_settled_once(store: Store) -> None:
    await store.put_key(KEY)
    await store.reserve("dcu-1", KEY.id, 1, NOW_MS)
    await store.sweep(NOW_MS + LEASE_MS)
    assert await store.settle(ROW, NOW_MS + LEASE_MS)
    assert not await store.settle(ROW, NOW_MS + LEASE_MS)


async def test_usage_sums_by_each_grouping(store: Store) -> None:
    await store.settle(ROW, NOW_MS)
    await store.settle(replace(ROW, request_id="dcu-2", started_ms=NOW_MS + DAY_MS, model="n", worker="v"), NOW_MS)
    await store.settle(replace(ROW, request_id="dcu-3", key_id="k_b", purpose="agent"), NOW_MS)
    one, two = UsageTotals(1, 30, 20, 50, 7), UsageTotals(2, 60, 40, 100, 14)
    assert await store.usage("key") == [(KEY.id, two), ("k_b", one)]
    assert await store.usage("purpose") == [("agent", one), ("chat", two)]
    assert await store.usage("model") == [("m", two), ("n", one)]
    assert await store.usage("worker") == [("v", one), ("w", two)]
    assert await store.usage("day") == [("2023-11-14", two), ("2023-11-15", one)]


async def test_usage_counts_requests_started_from_since_up_to_before_until(store: Store) -> None:
    for number in range(3):
        await store.settle(replace(ROW, request_id=f"dcu-{number}", started_ms=NOW_MS + number), NOW_MS)

    async def requests(since_ms: int | None, until_ms: int | None) -> int:
        return sum(totals.requests for _, totals in await store.usage("model", since_ms, until_ms))

    assert await requests(None, None) == 3
    assert await requests(NOW_MS + 1, None) == 2
    assert await requests(None, NOW_MS + 1) == 1
    assert await requests(NOW_MS + 1, NOW_MS + 2) == 1
    assert await requests(NOW_MS + 3, None) == 0


async def test_usage_refuses_a_grouping_it_does_not_know(store: Store) -> None:
    with pytest.raises(ValueError, match="grouped"):
        await store.usage("colour")  # type: ignore[arg-type]


async def test_rows_come_newest_first_up_to_the_limit_and_by_key(store: Store) -> None:
    rows = [replace(ROW, request_id=f"dcu-{number}", key_id=f"k_{number % 2}") for number in range(5)]
    for row in rows:
        await store.settle(row, NOW_MS)
    assert await store.rows() == rows[::-1]
    assert await store.rows(limit=2) == [rows[4], rows[3]]
    assert await store.rows(key_id="k_1") == [rows[3], rows[1]]
    assert await store.rows(limit=0) == []


async def test_every_field_of_a_row_comes_back(store: Store) -> None:
    estimated = replace(ROW, estimated=True, ttft_ms=None, status="timed_out", http_status=504)
    await store.settle(estimated, NOW_MS)
    (found,) = await store.rows()
    assert found == estimated
    assert found.estimated is True


async def test_a_store_answers_a_ping_until_it_is_closed(store: Store) -> None:
    await store.ping()
    await store.aclose()
    await store.aclose()
    for call in (store.ping(), store.list_keys(), store.settle(ROW, NOW_MS)):
        with pytest.raises(StoreUnavailable) as refused:
            await call
        assert refused.value.reason == "closed"


async def test_what_was_asked_before_closing_is_done(store: Store, neighbour: Store) -> None:
    settles = [asyncio.ensure_future(store.settle(replace(ROW, request_id=f"dcu-{n}"), NOW_MS)) for n in range(20)]
    await asyncio.sleep(0)
    await store.aclose()
    assert await asyncio.gather(*settles) == [True] * 20
    assert len(await neighbour.rows()) == 20


async def test_a_cancelled_reserve_leaves_at_most_a_lease(store: Store) -> None:
    await store.put_key(KEY)
    reserving = asyncio.ensure_future(store.reserve("dcu-1", KEY.id, 1000, NOW_MS))
    await asyncio.sleep(0)
    reserving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reserving
    assert await outcome(store, "dcu-2", 1000, NOW_MS + LEASE_MS) == "granted"


async def test_what_is_settled_after_another_process_has_looked_is_seen_by_the_next_one(tmp_path: Path) -> None:
    """Several processes share the file: a command that opens and closes it must not cut the running one off."""
    path = tmp_path / "store.db"
    look = (
        "import asyncio, sys, pathlib\n"
        "from keys.stores.sqlite import open_sqlite\n"
        "async def main():\n"
        "    store = await open_sqlite(pathlib.Path(sys.argv[1]))\n"
        "    print(len(await store.list_keys()))\n"
        "    await store.aclose()\n"
        "asyncio.run(main())\n"
    )

    async def seen_by_another_process() -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", look, str(path), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
        )
        out, _ = await process.communicate()
        return int(out)

    store = await open_sqlite(path)
    try:
        assert await store.list_keys() == []  # the reading connection is open beside the writing one
        for expected in (1, 2, 3):
            await store.put_key(replace(KEY, id=f"k_{expected}", digest=bytes([expected]) * 32))
            assert await seen_by_another_process() == expected
    finally:
        await store.aclose()
