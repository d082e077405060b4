from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from gateway.server.sink import ResponseSink


async def test_an_answer_carries_the_requests_id_and_writing_before_starting_is_a_bug() -> None:
    sink = ResponseSink(make_mocked_request("GET", "/"), "dcu-1")
    with pytest.raises(RuntimeError, match="start"):
        await sink.write(b"x")
    await sink.answer(201, {"A": "b"}, b"body")
    assert isinstance(sink.response, web.Response)
    assert (sink.response.status, sink.response.headers["X-Request-Id"], sink.response.body) == (201, "dcu-1", b"body")
