"""Token usage as workers report it. The last cumulative figure wins; figures are never added up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["TokenUsage", "openai_usage"]


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Model tokens of one request. `prompt_tokens` includes `cached_tokens`."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def openai_usage(usage: Any) -> TokenUsage | None:
    """Reads the `usage` object of chat/completions and completions; None where there is none.

    vLLM sends `prompt_tokens_details` only with --enable-prompt-tokens-details and, in a stream with running usage,
    only in the last chunk; so a running figure has no cached tokens yet.
    """
    if not isinstance(usage, dict) or "prompt_tokens" not in usage:
        return None
    details = usage.get("prompt_tokens_details")
    prompt = _count(usage.get("prompt_tokens"))
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return TokenUsage(prompt, min(cached, prompt), _count(usage.get("completion_tokens")))
