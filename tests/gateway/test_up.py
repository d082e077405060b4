"""`dcugate up` without vLLM: early checks and what it says. The whole of it runs in tests/real."""

from __future__ import annotations

import socket

import pytest

from gateway.app import ListenError
from gateway.config.model import Listener
from gateway.up import check_listeners, greeting


def test_an_address_that_is_taken_is_found_before_a_worker_is_launched(unused_tcp_port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ListenError, match="cannot listen on"):
            check_listeners((Listener(address=f"127.0.0.1:{taken.getsockname()[1]}"),))
    check_listeners((Listener(address=f"127.0.0.1:{unused_tcp_port}"),))


def test_the_greeting_shows_each_secret_once_and_lines_to_paste() -> None:
    text = greeting("http://127.0.0.1:8080", "demo", {"chat": "sk-dcu-chat-x", "agent": "sk-dcu-agent-y"})
    assert text.count("sk-dcu-agent-y") == 1
    assert 'curl -s http://127.0.0.1:8080/v1/chat/completions -H "Authorization: Bearer sk-dcu-chat-x"' in text
    again = greeting("http://127.0.0.1:8080", "demo", {})
    assert "sk-" not in again
    assert "dcugate keys create" in again
