from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.splice import cut, find_usage, rename_model
from gateway.core.sse import EventSplitter, event_data

FIXTURES = sorted((Path(__file__).parents[2] / "fixtures" / "vllm").glob("*stream*.http"))


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.stem)
def test_on_recorded_streams_the_splice_equals_parsing(path: Path) -> None:
    for event in EventSplitter().feed(path.read_bytes().partition(b"\r\n\r\n")[2]):
        if event_data(event) in (b"", b"[DONE]"):
            continue
        parsed = orjson.loads(event_data(event))
        member = find_usage(event)
        assert (member is not None) == ("usage" in parsed)
        if member is not None:
            assert orjson.loads(member.value) == parsed.pop("usage")
            assert orjson.loads(event_data(cut(event, member))) == parsed


@given(st.text(), st.one_of(st.none(), st.dictionaries(st.just("prompt_tokens"), st.integers(0, 9))), st.booleans())
def test_no_text_of_an_answer_is_taken_for_the_member(text: str, usage: dict[str, int] | None, last: bool) -> None:
    tricky = text + '","usage":{"prompt_tokens":1}' + text
    value = {"choices": [{"delta": {"content": tricky}}]}
    whole = value | {"usage": usage}
    if not last:
        whole["prompt_text"] = None  # vLLM puts members behind usage
    member = find_usage(orjson.dumps(whole))
    assert member is not None
    rest = orjson.loads(cut(orjson.dumps(whole), member))
    assert rest.pop("prompt_text", None) is None
    assert rest == value
    assert find_usage(orjson.dumps(value)) is None


def test_the_public_name_is_put_back_once() -> None:
    text = b'{"id":"x","model":"served","choices":[{"text":"\\"model\\":\\"served\\""}]}'
    assert rename_model(text, "served", "public") == text.replace(b'"model":"served"', b'"model":"public"', 1)
    assert rename_model(text, "served", "served") is text
    assert rename_model(b"{}", "served", "public") == b"{}"
