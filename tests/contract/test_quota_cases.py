"""One case table for the reference arithmetic and for every store."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from keys.errors import QuotaExceeded
from keys.model import Key, LedgerRow
from keys.quota import Denied, Granted, decide
from keys.stores.base import LEASE_MS, Store

NOW_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Case:
    name: str
    limit: int | None
    used: int
    reserved: tuple[int, ...]
    requested: int
    expected: Granted | Denied


CASES = (
    Case("no limit grants anything", None, 10**12, (10**12,), 10**12, Granted(None)),
    Case("no limit grants nothing too", None, 0, (), 0, Granted(None)),
    Case("all of a fresh limit", 1000, 0, (), 1000, Granted(0)),
    Case("one more than a fresh limit", 1000, 0, (), 1001, Denied(1000)),
    Case("what use leaves", 1000, 400, (), 600, Granted(0)),
    Case("one more than use leaves", 1000, 400, (), 601, Denied(600)),
    Case("what leases leave", 1000, 0, (100, 200), 700, Granted(0)),
    Case("one more than leases leave", 1000, 0, (100, 200), 701, Denied(700)),
    Case("use and leases together", 1000, 500, (100, 100), 299, Granted(1)),
    Case("used up", 1000, 1000, (), 1, Denied(0)),
    Case("used up, nothing asked", 1000, 1000, (), 0, Granted(0)),
    Case("settled above the limit", 1000, 1200, (), 1, Denied(0)),
    Case("settled above the limit, nothing asked", 1000, 1200, (), 0, Denied(0)),
    Case("leases above what is left", 1000, 950, (50,), 1, Denied(0)),
    Case("smallest limit", 1, 0, (), 1, Granted(0)),
    Case("large numbers stay exact", 9 * 10**18, 9 * 10**18 - 3, (2,), 1, Granted(0)),
    Case("large numbers stay exact, refused", 9 * 10**18, 9 * 10**18 - 3, (2,), 2, Denied(1)),
)

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def ledger_row(request_id: str, tokens: int) -> LedgerRow:
    third = tokens // 3
    return LedgerRow(
        request_id=request_id,
        key_id="k_case",
        purpose="chat",
        model="m",
        worker="w",
        route="r",
        input_tokens=third,
        cached_tokens=third,
        output_tokens=tokens - 2 * third,
        device_ms=0,
        ttft_ms=None,
        duration_ms=0,
        status="completed",
        estimated=False,
        started_ms=NOW_MS,
        http_status=200,
    )


@by_name
def test_the_reference_decides_as_the_table_says(case: Case) -> None:
    assert decide(case.limit, case.used, sum(case.reserved), case.requested) == case.expected


@by_name
async def test_a_store_decides_as_the_table_says(case: Case, store: Store) -> None:
    await store.put_key(
        Key("k_case", "case", "chat", "active", NOW_MS, "sk-dcu-chat-…0000", b"d" * 32, limit_tokens=None)
    )
    await store.settle(ledger_row("used", case.used), NOW_MS)
    for number, tokens in enumerate(case.reserved):
        await store.reserve(f"held-{number}", "k_case", tokens, NOW_MS)
    await store.put_key(
        Key("k_case", "case", "chat", "active", NOW_MS, "sk-dcu-chat-…0000", b"d" * 32, limit_tokens=case.limit)
    )
    if isinstance(case.expected, Denied):
        with pytest.raises(QuotaExceeded) as refused:
            await store.reserve("asked", "k_case", case.requested, NOW_MS)
        assert refused.value.remaining_tokens == case.expected.remaining_tokens
        assert refused.value.requested_tokens == case.requested
        expected_held = len(case.reserved)
    else:
        await store.reserve("asked", "k_case", case.requested, NOW_MS)
        expected_held = len(case.reserved) + 1
    assert len(await store.sweep(NOW_MS + LEASE_MS)) == expected_held
