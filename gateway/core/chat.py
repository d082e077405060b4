"""Reads a chat completion's body once, and writes the body that the worker gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.errors import InvalidRequest
from gateway.core.estimate import prompt_tokens_upper

__all__ = ["ChatRequest", "parse_chat", "worker_body"]

# Owned by the gateway: a client's value never reaches a worker. `priority` would jump the queue, `request_id` would
# break the ledger's link to the progress feed, `kv_transfer_params` names other machines' memory.
OWNED = ("priority", "request_id", "kv_transfer_params", "cache_salt")

LARGEST_COUNT = 100_000_000  # above any context length; their product with `n` stays within the store's 64-bit integers


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What the gateway needs of a body. Tokens are model tokens.

    `output_bound` is None where the client named none: the model's default cap is then written into the forwarded body.
    `wants_usage`: the client asked for the usage event of a stream; `wants_running_usage`: for usage on every chunk.
    """

    body: dict[str, Any]
    model: str
    stream: bool
    choices: int
    output_bound: int | None
    wants_usage: bool
    wants_running_usage: bool

    def reservation_tokens(self, default_output_tokens: int) -> int:
        """prompts + n × output bound: what the request can cost at most, by the upper prompt estimate.

        One prompt whatever `n`: the engine counts the prompt once for n choices (measured), and so does the charge.
        """
        bound = self.output_bound if self.output_bound is not None else default_output_tokens
        return prompt_tokens_upper(self.body) + self.choices * bound


def _positive(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_COUNT:
        raise InvalidRequest(
            f"`{name}` must be a whole number from 1 to {LARGEST_COUNT}, not {str(value)[:40]}.", param=name
        )
    return value


def parse_chat(raw: bytes) -> ChatRequest:
    """Parses a body. Raises InvalidRequest naming the field and the rule."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as problem:
        raise InvalidRequest(f"The request body is not valid JSON: {problem}.") from None
    if not isinstance(body, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("Name a model in `model`; GET /v1/models lists them.", param="model")
    if not isinstance(body.get("messages"), list) or not body["messages"]:
        raise InvalidRequest("`messages` must be a list with at least one message.", param="messages")
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequest("`stream` must be true or false.", param="stream")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise InvalidRequest("`stream_options` must be an object.", param="stream_options")
    if options and not stream:
        raise InvalidRequest("`stream_options` needs `stream: true`.", param="stream_options")
    new, old = _positive(body, "max_completion_tokens"), _positive(body, "max_tokens")
    wants_usage = bool(options and options.get("include_usage"))
    return ChatRequest(
        body=body,
        model=model,
        stream=bool(stream),
        choices=_positive(body, "n") or 1,
        output_bound=new if new is not None else old,
        wants_usage=wants_usage,
        wants_running_usage=wants_usage and bool(options and options.get("continuous_usage_stats")),
    )


def worker_body(request: ChatRequest, served_model: str, default_output_tokens: int) -> bytes:
    """The forwarded body: the client's, with the worker's model name, the output bound written in, the gateway's own
    fields removed, and, for a stream, running usage asked for. Unknown fields pass untouched. Raises InvalidRequest."""
    body = {name: value for name, value in request.body.items() if name not in OWNED}
    body["model"] = served_model
    if request.output_bound is None:
        body.pop("max_completion_tokens", None)
        body["max_tokens"] = default_output_tokens
    if request.stream:
        body["stream_options"] = {
            **(body.get("stream_options") or {}),
            "include_usage": True,
            "continuous_usage_stats": True,
        }
    else:
        body.pop("stream_options", None)
    try:
        return orjson.dumps(body)
    except TypeError:  # it writes 254 levels, and reads 1,024
        raise InvalidRequest("The request body is nested too deeply: more than 250 levels.") from None
