"""The client's side of one request, over aiohttp."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

__all__ = ["ResponseSink"]


class ResponseSink:
    """Writes one answer. `response` is what the handler returns when `dispatch` is done."""

    def __init__(self, request: web.Request, request_id: str) -> None:
        self._request = request
        self._id = {"X-Request-Id": request_id}
        self.response: web.StreamResponse | None = None

    @property
    def has_started(self) -> bool:
        """Whether a part of the answer is on its way."""
        return self.response is not None and self.response.prepared

    def abort(self) -> None:
        """Cuts the connection: the only honest end of an answer that has started and cannot be finished."""
        if self._request.transport is not None:
            self._request.transport.abort()

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Sends the head of a streamed answer."""
        self.response = web.StreamResponse(status=status, headers={**headers, **self._id})
        await self.response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        """Sends body bytes; waits while the client's buffer is full."""
        if self.response is None:
            raise RuntimeError("start the answer before writing to it")
        await self.response.write(data)

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Sends a whole answer."""
        self.response = web.Response(status=status, headers={**headers, **self._id}, body=body)
