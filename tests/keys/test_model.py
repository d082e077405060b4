from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from keys.model import Key


def test_a_key_does_not_change_and_does_not_print_its_digest() -> None:
    key = Key("k_1", "n", "chat", "active", 0, "sk-dcu-chat-…a1b2", b"\xabdigest", None)
    assert "digest" not in repr(key)
    with pytest.raises(FrozenInstanceError):
        key.name = "other"  # type: ignore[misc]
