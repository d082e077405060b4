from __future__ import annotations

from typing import Any

import pytest

from gateway.core.usage import TokenUsage, openai_usage


@pytest.mark.parametrize(
    ("reported", "read"),
    [
        ({"prompt_tokens": 23, "completion_tokens": 20, "total_tokens": 43}, TokenUsage(23, 0, 20)),
        (
            {"prompt_tokens": 414, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 384}},
            TokenUsage(414, 384, 5),
        ),
        ({"prompt_tokens": 3, "completion_tokens": 0, "prompt_tokens_details": None}, TokenUsage(3, 0, 0)),
        (
            {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}},
            TokenUsage(3, 3, 1),
        ),
        ({"prompt_tokens": -4, "completion_tokens": "many"}, TokenUsage(0, 0, 0)),
        (None, None),
        ({}, None),
        ([1], None),
    ],
)
def test_usage_is_read_and_bounded(reported: Any, read: TokenUsage | None) -> None:
    assert openai_usage(reported) == read
