from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.core.chat import OWNED, parse_chat, worker_body
from gateway.core.errors import InvalidRequest

MESSAGES = [{"role": "user", "content": "hi"}]


def raw(**fields: Any) -> bytes:
    return orjson.dumps({"model": "m", "messages": MESSAGES} | fields)


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        (b"{", None, "JSON"),
        (b"[]", None, "object"),
        (orjson.dumps({"messages": MESSAGES}), "model", "model"),
        (raw(model=3), "model", "model"),
        (raw(messages=[]), "messages", "messages"),
        (raw(stream="yes"), "stream", "stream"),
        (raw(stream_options={"include_usage": True}), "stream_options", "stream: true"),
        (raw(stream=True, stream_options=3), "stream_options", "object"),
        (raw(max_tokens=0), "max_tokens", "max_tokens"),
        (raw(max_completion_tokens=1.5), "max_completion_tokens", "whole"),
        (raw(n=True), "n", "n"),
        (raw(max_tokens=2**63), "max_tokens", "whole"),
    ],
)
def test_a_wrong_body_is_told_by_field_and_rule(body: bytes, param: str | None, word: str) -> None:
    with pytest.raises(InvalidRequest, match=word) as caught:
        parse_chat(body)
    assert caught.value.param == param


def test_the_default_cap_is_written_into_the_forwarded_body() -> None:
    assert orjson.loads(worker_body(parse_chat(raw()), "served", 512))["max_tokens"] == 512
    assert orjson.loads(worker_body(parse_chat(raw(max_tokens=None)), "served", 512))["max_tokens"] == 512
    named = orjson.loads(worker_body(parse_chat(raw(max_completion_tokens=7)), "served", 512))
    assert named["max_completion_tokens"] == 7
    assert "max_tokens" not in named


def test_running_usage_is_asked_of_the_worker_for_streams_only() -> None:
    streamed = orjson.loads(worker_body(parse_chat(raw(stream=True)), "served", 1))
    assert streamed["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "stream_options" not in orjson.loads(worker_body(parse_chat(raw(stream_options={})), "served", 1))


def test_the_gateways_own_fields_are_removed_and_unknown_ones_pass() -> None:
    extra = dict.fromkeys(OWNED, 1) | {"chat_template_kwargs": {"enable_thinking": False}}
    sent = orjson.loads(worker_body(parse_chat(raw(**extra)), "served", 1))
    assert not set(OWNED) & set(sent)
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}
    assert sent["model"] == "served"


def test_the_reservation_covers_every_choice() -> None:
    one = parse_chat(raw(max_tokens=100)).reservation_tokens(5)
    assert parse_chat(raw(max_tokens=100, n=3)).reservation_tokens(5) == one + 200
    assert parse_chat(raw()).reservation_tokens(5) == one - 95


def test_what_the_client_asked_to_see_is_known() -> None:
    request = parse_chat(raw(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}))
    assert request.wants_usage
    assert request.wants_running_usage
    alone = parse_chat(raw(stream=True, stream_options={"continuous_usage_stats": True}))
    assert not alone.wants_running_usage  # as in vLLM: without include_usage it has no effect
