from __future__ import annotations

import orjson

from gateway.core import errors


def test_every_error_has_a_body_with_its_origin_and_the_requests_id() -> None:
    kinds = [getattr(errors, n) for n in errors.__all__ if n not in ("error_body", "GatewayError")]
    assert len({k.code for k in kinds}) == len(kinds)
    for kind in kinds:
        body = orjson.loads(errors.error_body(kind("what, where, what to do", param="p"), "dcu-1"))["error"]
        assert body["origin"] == "gateway"
        assert body["request_id"] == "dcu-1"
        assert body["param"] == "p"
        assert 400 <= kind.status <= 504
