"""Every error the gateway shows a client, with its HTTP status, and the one constructor of error bodies.

GatewayError
├── InvalidRequest          400  the body cannot be served as it is
├── InvalidKey              401  no key, or one that is not valid
├── UnknownModel            404
├── UnknownPath             404
├── BodyTooLarge            413
├── QuotaRefused            429  the key's quota does not cover the request
├── WorkerFailed            502  the worker answered wrongly, or died before its answer
├── WorkerUnavailable       503  no worker of this model is ready
├── AccountingUnavailable   503  the store of keys and quota does not answer
└── DeadlinePassed          504  the worker was silent for longer than the deadline
"""

from __future__ import annotations

import orjson

__all__ = [
    "AccountingUnavailable",
    "BodyTooLarge",
    "DeadlinePassed",
    "GatewayError",
    "InvalidKey",
    "InvalidRequest",
    "QuotaRefused",
    "UnknownModel",
    "UnknownPath",
    "WorkerFailed",
    "WorkerUnavailable",
    "error_body",
]


class GatewayError(Exception):
    """What a client is told: `status` (HTTP), `type` and `code` (OpenAI's words), `param`, `retry_after_s`."""

    status = 500
    type = "server_error"
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequest(GatewayError):
    status = 400
    type = "invalid_request_error"
    code = "invalid_request"


class InvalidKey(GatewayError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class UnknownModel(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class UnknownPath(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "unknown_path"


class BodyTooLarge(GatewayError):
    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class QuotaRefused(GatewayError):
    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"


class WorkerFailed(GatewayError):
    status = 502
    code = "worker_failed"


class WorkerUnavailable(GatewayError):
    status = 503
    code = "worker_unavailable"


class AccountingUnavailable(GatewayError):
    status = 503
    code = "accounting_unavailable"


class DeadlinePassed(GatewayError):
    status = 504
    code = "deadline_passed"


def error_body(error: GatewayError, request_id: str) -> bytes:
    """The JSON body of an error in OpenAI's shape, marked with its origin and the request's id."""
    return orjson.dumps(
        {
            "error": {
                "message": error.message,
                "type": error.type,
                "param": error.param,
                "code": error.code,
                "origin": "gateway",
                "request_id": request_id,
            }
        }
    )
