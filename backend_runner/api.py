"""The runner's HTTP API on a unix socket: the workers, their events, and what may be asked of them.

    GET  /v1/workers                    {"runner_pid": 1, "workers": [worker, ...]}
    GET  /v1/events                     SSE: `workers` (as above) at connect and on each change;
                                        `progress` of one worker, 4 a second at most: at connect every request known,
                                        then only the requests that changed
    POST /v1/workers/{name}/drain|restart|stop    202, with the worker as it is now
    GET  /v1/workers/{name}/logs?lines=200        text

The socket is 0600: whoever may open it may also read the workers' keys, which the answers carry.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from backend_runner.core.plan import Request
from backend_runner.core.progress import RequestProgress
from backend_runner.loop import Worker
from backend_runner.probe import last_lines

__all__ = ["Hub", "make_api", "worker_json"]

EVENT_PERIOD_S = 0.25
KEEP_ALIVE_S = 15.0
MAX_LOG_LINES = 5000
REQUESTS = {"drain": Request.DRAIN, "restart": Request.RESTART, "stop": Request.STOP}


class Hub:
    """Wakes the open event streams. `changed` and `progressed` may be called as often as one likes."""

    def __init__(self) -> None:
        self._streams: set[_Stream] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"Hub({len(self._streams)} streams)"

    def changed(self) -> None:
        """The workers' list is not what it was."""
        for stream in self._streams:
            stream.workers_due = True
            stream.wake.set()

    def progressed(self) -> None:
        """Some worker's progress is not what it was."""
        for stream in self._streams:
            stream.wake.set()

    def close(self) -> None:
        """Ends the open streams, and new ones after their first events."""
        self._closed = True
        self.changed()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def open(self) -> _Stream:
        """A stream that gets everything at first. Hand it to `leave` in the end."""
        stream = _Stream()
        self._streams.add(stream)
        return stream

    def leave(self, stream: _Stream) -> None:
        """Forgets a stream."""
        self._streams.discard(stream)


class _Stream:
    """What one reader of /v1/events was told last."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.wake.set()
        self.workers_due = True
        self.told: dict[str, tuple[int, float, Mapping[str, RequestProgress]]] = {}


def worker_json(worker: Worker) -> dict[str, Any]:
    """A worker as the API shows it. It carries the worker's key."""
    config, record = worker.config, worker.record
    return {
        "name": config.name,
        "address": f"unix:{worker.paths.socket}",
        "model": config.model,
        "max_model_len": config.max_model_len,
        "state": record.state.value,
        "reason": record.reason,
        "api_key": worker.api_key,
        "cards": config.cards,
        "profile": None,
        "pid": worker.pid,
        "started_s": worker.started_s,
        "log_path": str(worker.paths.log),
        "steps": worker.progress.steps,
        "requests": {name: request.as_json() for name, request in worker.progress.requests.items()},
    }


def make_api(workers: Mapping[str, Worker], hub: Hub) -> web.Application:
    """The application; the caller puts it on a socket."""

    def all_workers() -> dict[str, Any]:
        return {"runner_pid": os.getpid(), "workers": [worker_json(worker) for worker in workers.values()]}

    def named(request: web.Request) -> Worker:
        name = request.match_info["name"]
        if name not in workers:
            known = ", ".join(workers)
            raise web.HTTPNotFound(
                text=json.dumps({"error": f"no worker {name}; known: {known}"}), content_type="application/json"
            )
        return workers[name]

    async def list_workers(_: web.Request) -> web.Response:
        return web.json_response(all_workers())

    async def ask(request: web.Request) -> web.Response:
        worker = named(request)
        worker.post(REQUESTS[request.match_info["what"]])
        return web.json_response(worker_json(worker), status=202)

    async def logs(request: web.Request) -> web.Response:
        worker = named(request)
        text = request.query.get("lines", "200")
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_LOG_LINES:
            raise web.HTTPBadRequest(
                text=json.dumps({"error": f"lines must be from 1 to {MAX_LOG_LINES}"}), content_type="application/json"
            )
        return web.Response(text="".join(f"{line}\n" for line in last_lines(worker.paths.log, int(text))))

    async def events(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        stream = hub.open()
        try:
            await answer.prepare(request)
            while True:
                stream.wake.clear()
                if stream.workers_due:
                    stream.workers_due = False
                    await answer.write(_event("workers", all_workers()))
                for worker in workers.values():
                    if (news := _news(worker, stream)) is not None:
                        await answer.write(_event("progress", news))
                if hub.closed:
                    break
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await stream.wake.wait()
                except TimeoutError:
                    await answer.write(b": keep-alive\n\n")
            await answer.write_eof()
        except ConnectionError:
            pass  # the reader left
        finally:
            hub.leave(stream)
        return answer

    app = web.Application()
    app.add_routes(
        [
            web.get("/v1/workers", list_workers),
            web.get("/v1/events", events),
            web.post("/v1/workers/{name}/{what:drain|restart|stop}", ask),
            web.get("/v1/workers/{name}/logs", logs),
        ]
    )
    return app


def _news(worker: Worker, stream: _Stream) -> dict[str, Any] | None:
    """What the stream has not been told of a worker's progress; None where that is nothing."""
    now, name = worker.progress, worker.config.name
    told = stream.told.get(name)
    if told is not None and told[:2] == (now.steps, now.time) and told[2] is now.requests:
        return None
    known: Mapping[str, RequestProgress] = told[2] if told is not None else {}
    stream.told[name] = (now.steps, now.time, now.requests)
    changed = {i: r.as_json() for i, r in now.requests.items() if known.get(i) != r}
    return {"worker": name, "steps": now.steps, "time": now.time, "requests": changed}


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
