"""The API listener: OpenAI's routes, health and metrics, and the one place where errors become bodies."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web

from gateway.config.model import Routes
from gateway.core.errors import BodyTooLarge, GatewayError, UnknownPath, WorkerUnavailable, error_body
from gateway.core.headers import new_request_id, presented_key
from gateway.dispatch import Dispatcher, Incoming
from gateway.server.sink import ResponseSink
from keys.errors import KeysError

__all__ = ["make_api"]

log = logging.getLogger(__name__)

REQUEST_ID = web.RequestKey("request_id", str)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _answer(error: GatewayError, request_id: str) -> web.Response:
    headers = {"X-Request-Id": request_id}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return web.Response(
        status=error.status, headers=headers, content_type="application/json", body=error_body(error, request_id)
    )


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Gives the request its id, and turns every error into a body of the caller's dialect."""
    request_id = request[REQUEST_ID] = new_request_id(secrets.token_bytes(17))
    try:
        response = await handler(request)
    except GatewayError as error:
        return _answer(error, request_id)
    except web.HTTPRequestEntityTooLarge as problem:
        return _answer(BodyTooLarge(f"The request body is larger than the limit: {problem.text}."), request_id)
    except web.HTTPException as problem:
        unknown = UnknownPath(f"{request.method} {request.path} is not served here ({problem.reason}).")
        unknown.status = problem.status
        return _answer(unknown, request_id)
    except (asyncio.CancelledError, ConnectionError):
        raise  # the client left; dispatch has taken care of it
    except Exception:
        log.exception("%s: unexpected error", request_id)
        return _answer(GatewayError("An unexpected error; the gateway's log has it under the request id."), request_id)
    if not response.prepared:
        response.headers.setdefault("X-Request-Id", request_id)
    return response


class _Api:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._routes: Routes = dispatcher.routes

    def _incoming(self, request: web.Request, body: bytes) -> Incoming:
        return Incoming(request[REQUEST_ID], "chat/completions", presented_key(request.headers), body)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        sink = ResponseSink(request, request[REQUEST_ID])
        try:
            await self._dispatcher.serve(self._incoming(request, await request.read()), sink)
        except Exception:
            if not sink.has_started:
                raise
            log.exception("%s: the answer broke off after it had started", request[REQUEST_ID])
            sink.abort()
        if sink.response is None:
            raise GatewayError("The request ended without an answer.")
        return sink.response

    async def models(self, request: web.Request) -> web.StreamResponse:
        await self._dispatcher.authenticate(self._incoming(request, b""))
        data = []
        for model in self._routes.models:
            states = [s for n in model.workers if (s := self._dispatcher.backends.get(n))]
            length = min((s.max_model_len for s in states if s.max_model_len), default=None)
            data += [
                {"id": name, "object": "model", "created": 0, "owned_by": "dcugate", "max_model_len": length}
                for name in (model.name, *model.aliases)
            ]
        return web.Response(body=orjson.dumps({"object": "list", "data": data}), content_type="application/json")

    async def _unready(self) -> str | None:
        """Why a chat request would fail now; None when it would succeed."""
        try:
            await self._dispatcher.store.ping()
        except KeysError as problem:
            return f"the store of keys and quota does not answer: {problem}"
        reasons = []
        for model in self._routes.models:
            reason = self._dispatcher.backends.why_not_ready(model.workers)
            if reason is None:
                return None
            reasons.append(f"{model.name}: {reason}")
        return "; ".join(reasons)

    async def live(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.StreamResponse:
        reason = await self._unready()
        if reason is None:
            return web.Response(body=b'{"status":"ok"}', content_type="application/json")
        error = WorkerUnavailable(f"Not ready: {reason}.")
        body = {"status": "unavailable", "reason": reason, "error": {"message": error.message, "code": error.code}}
        return web.Response(status=503, body=orjson.dumps(body), content_type="application/json")

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        for state in self._dispatcher.backends.all():
            self._dispatcher.metrics.backend_ready.labels(state.name).set(state.is_ready)
        return web.Response(
            body=self._dispatcher.metrics.exposition(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )


def make_api(dispatcher: Dispatcher) -> web.Application:
    """The aiohttp application of one API listener. Run it with handler_cancellation: a client that leaves cancels."""
    api = _Api(dispatcher)
    app = web.Application(middlewares=[_errors], client_max_size=dispatcher.routes.limits.body_bytes)
    for base in ("/v1", "/api/v1"):
        app.router.add_post(f"{base}/chat/completions", api.chat)
        app.router.add_get(f"{base}/models", api.models)
    app.router.add_get("/livez", api.live)
    app.router.add_get("/readyz", api.ready)
    app.router.add_get("/health", api.ready)
    app.router.add_get("/metrics", api.metrics)
    return app
