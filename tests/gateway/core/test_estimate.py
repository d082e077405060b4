from __future__ import annotations

from gateway.core.estimate import prompt_tokens_upper


def test_more_text_never_lowers_the_estimate_and_every_form_of_content_counts() -> None:
    plain = prompt_tokens_upper({"messages": [{"role": "user", "content": "你好" * 100}]})
    parts = prompt_tokens_upper({"messages": [{"role": "user", "content": [{"type": "text", "text": "你好" * 100}]}]})
    assert plain >= 200  # at least one token a character
    assert parts >= plain
    assert prompt_tokens_upper({"messages": [{"role": "user", "content": "a"}], "tools": [{"x": "y" * 100}]}) > 50
    assert prompt_tokens_upper({}) > 0


def test_a_nesting_bomb_is_measured_without_recursion() -> None:
    bomb: list[object] = []
    for _ in range(100_000):
        bomb = [bomb]
    assert prompt_tokens_upper({"messages": bomb}) > 0
