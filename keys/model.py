"""The values of this package: keys, usage and ledger rows. Whole numbers only; times are Unix milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "GROUPINGS",
    "PURPOSES",
    "STATUSES",
    "Grouping",
    "Key",
    "KeyStatus",
    "LedgerRow",
    "RowStatus",
    "UsageTotals",
]

KeyStatus = Literal["active", "revoked"]
RowStatus = Literal["completed", "client_closed", "upstream_error", "refused", "timed_out"]
Grouping = Literal["key", "purpose", "model", "worker", "day"]

PURPOSES: tuple[str, ...] = ("chat", "agent")
STATUSES: tuple[RowStatus, ...] = ("completed", "client_closed", "upstream_error", "refused", "timed_out")
GROUPINGS: tuple[Grouping, ...] = ("key", "purpose", "model", "worker", "day")


@dataclass(frozen=True, slots=True)
class Key:
    """One issued key. The secret is not here: `digest` finds the key, `hint` reminds its owner which one it is.

    `limit_tokens` bounds input + cached + output tokens over the key's life; None means no bound.
    """

    id: str
    name: str
    purpose: str
    status: KeyStatus
    created_ms: int
    hint: str
    digest: bytes = field(repr=False)
    limit_tokens: int | None
    last_used_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One finished request, in whichever way it ended.

    `input_tokens` are uncached; `device_ms` is a price, not a measurement; `estimated` tells that the tokens come from
    an estimate, not from the engine or its progress feed; `ttft_ms` is None where no first token came.
    """

    request_id: str
    key_id: str
    purpose: str
    model: str
    worker: str
    route: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    device_ms: int
    ttft_ms: int | None
    duration_ms: int
    status: RowStatus
    estimated: bool
    started_ms: int
    http_status: int

    @property
    def total_tokens(self) -> int:
        """What the quota is charged."""
        return self.input_tokens + self.cached_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Sums over ledger rows."""

    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    device_ms: int
