"""The store protocol: what keys, quota and ledger need of a place to live."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from keys.model import Grouping, Key, LedgerRow, UsageTotals

__all__ = ["LEASE_MS", "Store"]

LEASE_MS = 30_000
"""How long a reservation lives without being renewed."""


class Store(Protocol):
    """Keys, reservations and the ledger of one installation. Used from one event loop; never blocks it.

    Every call is atomic and durable when it returns, and raises StoreUnavailable where the store cannot answer. A call
    that is cancelled may still take effect. Any number of processes may use one installation at once.
    """

    async def find_key(self, digest: bytes) -> Key | None:
        """Return the key with this digest, active or revoked. The answer may be up to one second old."""
        ...

    async def put_key(self, key: Key) -> None:
        """Keep a new key, or change name, limit and status of the one with its id.

        A revoked key stays revoked. Raises InvalidKey where another key has the digest.
        """
        ...

    async def list_keys(self) -> list[Key]:
        """Return all keys, oldest first."""
        ...

    async def reserve(self, request_id: str, key_id: str, tokens: int, now_ms: int) -> None:
        """Hold `tokens` of the key's limit for a request: a lease until now + LEASE_MS, to be renewed or settled.

        Raises QuotaExceeded where they do not fit (as `keys.quota.decide` says), UnknownKey where the key is unknown
        or revoked, DuplicateReservation where the request id was reserved or settled before. Nothing is held then.
        """
        ...

    async def renew(self, request_ids: Iterable[str], now_ms: int) -> None:
        """Extend the leases of these requests to now + LEASE_MS; ids without a reservation are passed over."""
        ...

    async def settle(self, row: LedgerRow, now_ms: int) -> bool:
        """Write the request's ledger row, charge its tokens to the key and free its reservation, if it has one.

        True for the first settle of a request id; False, and nothing changed, for every later one.
        """
        ...

    async def sweep(self, now_ms: int) -> list[str]:
        """Drop the reservations whose lease has run out; return their request ids, which the caller settles."""
        ...

    async def usage(
        self, group_by: Grouping, since_ms: int | None = None, until_ms: int | None = None
    ) -> list[tuple[str, UsageTotals]]:
        """Return sums per key id, purpose, model, worker or UTC day, ordered by that label.

        Rows of requests started at or after `since_ms` and before `until_ms` count.
        """
        ...

    async def rows(self, limit: int = 100, key_id: str | None = None) -> list[LedgerRow]:
        """Return the last `limit` ledger rows, of one key or of all, newest first."""
        ...

    async def ping(self) -> None:
        """Return when the store can be written; raise StoreUnavailable when it cannot."""
        ...

    async def aclose(self) -> None:
        """Finish what was asked for and let go of everything; later calls raise StoreUnavailable. May be repeated."""
        ...
