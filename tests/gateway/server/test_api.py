from __future__ import annotations

import pytest

from tests.conftest import Service


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer sk-dcu-chat-wrong"}, {"x-api-key": "nonsense"}])
@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/chat/completions"), ("GET", "/api/v1/models")])
async def test_without_a_valid_key_it_is_401_without_a_row(
    service: Service, headers: dict[str, str], method: str, path: str
) -> None:
    async with service.http.request(method, service.base + path, headers=headers, data=b"{}") as answer:
        assert answer.status == 401
        assert (await answer.json())["error"]["code"] == "invalid_api_key"
    assert await service.rows() == []


@pytest.mark.parametrize("key", ["é" * 60, "sk-dcu-chat-" + "\u00ff" * 49, "sk-" + "x" * 7000, "😀"])
async def test_a_key_of_any_bytes_is_just_a_wrong_key(service: Service, key: str) -> None:
    async with service.http.get(f"{service.base}/v1/models", headers={"x-api-key": key}) as answer:
        assert answer.status == 401


@pytest.mark.parametrize("messages", ["[" * 900 + "]" * 900, "[" * 100_000 + "]" * 100_000])
async def test_a_nesting_bomb_is_answered(service: Service, messages: str) -> None:
    body = f'{{"model":"public","messages":{messages}}}'
    async with service.http.post(f"{service.base}/v1/chat/completions", data=body, headers=service.auth) as answer:
        assert answer.status in (400, 413)


async def test_models_are_listed_with_their_aliases(service: Service) -> None:
    async with service.http.get(f"{service.base}/v1/models", headers={"x-api-key": service.secret}) as answer:
        assert [m["id"] for m in (await answer.json())["data"]] == ["public", "other", "two"]


async def test_health_says_whether_a_chat_would_succeed(service: Service) -> None:
    for path in ("/health", "/readyz"):
        async with service.http.get(service.base + path) as answer:
            assert (answer.status, await answer.text()) == (200, '{"status":"ok"}')
    state = service.dispatcher.backends.get("b")
    assert state is not None
    state.is_ready, state.reason = False, "it is loading"
    async with service.http.get(f"{service.base}/health") as answer:
        assert answer.status == 503
        assert "it is loading" in (await answer.json())["reason"]
    async with service.http.get(f"{service.base}/livez") as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/", 404)],
)
async def test_unknown_paths_are_errors_in_openais_shape(service: Service, method: str, path: str, status: int) -> None:
    async with service.http.request(method, service.base + path, headers=service.auth) as answer:
        assert answer.status == status
        assert (await answer.json())["error"]["request_id"] == answer.headers["X-Request-Id"]


async def test_a_body_over_the_limit_is_413(service: Service) -> None:
    limit = service.dispatcher.routes.limits.body_bytes
    async with service.http.post(
        f"{service.base}/v1/chat/completions", data=b" " * (limit + 1), headers=service.auth
    ) as answer:
        assert answer.status == 413
        assert (await answer.json())["error"]["code"] == "body_too_large"


async def test_metrics_count_what_the_ledger_has_and_name_no_unknown_model(service: Service) -> None:
    for model in ("public", "invented-by-a-client"):
        async with service.http.post(
            f"{service.base}/v1/chat/completions", json=service.ask("plain", model=model), headers=service.auth
        ) as answer:
            await answer.read()
    async with service.http.get(f"{service.base}/metrics") as answer:
        text = await answer.text()
    assert 'dcugate_requests_total{model="public",purpose="chat",status="completed"} 1.0' in text
    assert 'dcugate_tokens_total{kind="cached",model="public",purpose="chat"} 16.0' in text
    assert 'dcugate_requests_in_flight{model="public"} 0.0' in text
    assert 'dcugate_backend_ready{backend="b"} 1.0' in text
    assert "invented" not in text
    assert service.secret not in text
