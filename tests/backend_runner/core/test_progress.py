from __future__ import annotations

import struct

import pytest

from backend_runner.core.progress import (
    BadProgress,
    Progress,
    RequestProgress,
    decode,
    fresh,
    gateway_id,
    with_all_ended,
)

OURS = "dcu-0123456789abcdefghijklmnop"
Slot = tuple[str, int, int, int, int, int, float]


def file_of(
    *slots: Slot, sequence: int = 2, steps: int = 7, magic: bytes = b"DCUP", version: int = 1, spare: int = 1
) -> bytes:
    head = struct.pack("<4sIQQdII", magic, version, sequence, steps, 12.5, len(slots) + spare, 96).ljust(64, b"\0")
    body = b"".join(
        name.encode().ljust(64, b"\0") + struct.pack("<IIIIB7xd", c, p, k, o, state, ended)
        for name, c, p, k, o, state, ended in slots
    )
    return head + body + bytes(96 * spare)


def test_it_reads_running_and_ended_requests() -> None:
    data = file_of((f"chatcmpl-{OURS}-1a2b3c4d", 41, 37, 16, 5, 1, 0.0), ("cmpl-elsewhere-0-ff", 9, 4, 0, 5, 2, 99.0))
    assert decode(data) == Progress(
        7,
        12.5,
        {OURS: RequestProgress(41, 37, 16, 5), "cmpl-elsewhere-0-ff": RequestProgress(9, 4, 0, 5, 99.0)},
    )


def test_a_change_being_written_gives_nothing() -> None:
    assert decode(file_of(sequence=3)) is None


def test_samples_of_one_prompt_count_it_once() -> None:
    data = file_of((f"0_chatcmpl-{OURS}-aa", 44, 37, 0, 8, 2, 1.0), (f"1_chatcmpl-{OURS}-aa", 40, 37, 32, 4, 2, 2.0))
    picture = decode(data)
    assert picture is not None
    assert picture.requests == {OURS: RequestProgress(49, 37, 0, 12, 2.0)}


def test_several_prompts_add_up_and_end_together() -> None:
    data = file_of((f"cmpl-{OURS}-0-aa", 9, 2, 0, 7, 2, 1.0), (f"cmpl-{OURS}-1-bb", 9, 4, 0, 6, 1, 0.0))
    picture = decode(data)
    assert picture is not None
    assert picture.requests == {OURS: RequestProgress(18, 6, 0, 13, None)}


@pytest.mark.parametrize(
    "data", [b"", b"x" * 64, file_of(magic=b"NOPE"), file_of(version=2), file_of(("a", 1, 1, 0, 0, 1, 0.0))[:-100]]
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadProgress):
        decode(data)


def test_final_counts_stay_for_60_seconds() -> None:
    picture = Progress(1, 0.0, {"old": RequestProgress(1, 1, 0, 0, 100.0), "new": RequestProgress(1, 1, 0, 0, 100.5)})
    assert set(fresh(picture, 160.2).requests) == {"new"}


def test_a_dead_workers_counts_are_final() -> None:
    picture = Progress(1, 0.0, {"a": RequestProgress(5, 4, 0, 1), "b": RequestProgress(5, 4, 0, 1, 3.0)})
    assert with_all_ended(picture, 9.0).requests == {
        "a": RequestProgress(5, 4, 0, 1, 9.0),
        "b": RequestProgress(5, 4, 0, 1, 3.0),
    }


def test_the_gateways_id_is_found_in_the_engines() -> None:
    assert gateway_id(f"chatcmpl-{OURS}-9f9f9f9f") == OURS
    assert gateway_id("chatcmpl-bench-7-0-aa") == "chatcmpl-bench-7-0-aa"
