"""Reads the progress file of a worker: from its bytes to what is known of each request.

The writer is `worker_plugin/src/dcugate_worker/progress_file.py`, where the layout is described.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace

__all__ = ["BadProgress", "Progress", "RequestProgress", "decode", "fresh", "gateway_id", "with_all_ended"]

MAGIC = b"DCUP"
VERSION = 1
HEADER = struct.Struct("<4sIQQdII")
HEADER_BYTES = 64
ID_BYTES = 64
COUNTS = struct.Struct("<IIIIB7xd")
FREE, RUNNING, ENDED = 0, 1, 2
ENDED_KEPT_S = 60.0  # how long final counts are published; the gateway settles a cut request within seconds

_GATEWAY_ID = re.compile(r"dcu-[0-9a-z]{26}")
_CHILD = re.compile(r"\A\d+_")  # with n > 1 vLLM prefixes each sample's id with its number


class BadProgress(Exception):
    """These bytes are no progress file of this version."""


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """Tokens of one request: computed ones of prompt and output together, as the engine counts; cached ones are part of
    the computed. `ended_time` is the writer's clock in seconds, None while the request runs."""

    computed_tokens: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ended_time: float | None = None

    @property
    def ended(self) -> bool:
        """Whether these are the final counts."""
        return self.ended_time is not None

    def as_json(self) -> dict[str, int | bool]:
        """The form in the runner's API."""
        return {
            "computed_tokens": self.computed_tokens,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "ended": self.ended,
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """One consistent picture: engine steps since its start, the time of the last change, requests by id."""

    steps: int
    time: float
    requests: dict[str, RequestProgress]


def gateway_id(engine_id: str) -> str:
    """The X-Request-Id that the gateway gave, out of the engine's id `chatcmpl-<it>-<random>`; another engine's id as it is."""
    found = _GATEWAY_ID.search(engine_id)
    return found.group() if found else engine_id


def decode(data: bytes) -> Progress | None:
    """The picture in a copy of the file; None where a change was being written: take another copy.

    The copy itself must be made in one go; `data`'s sequence is checked for being even, the caller checks that it is
    the same after copying (`probe.ProgressReader` does). Raises BadProgress on anything else than such a file.
    """
    if len(data) < HEADER_BYTES:
        raise BadProgress(f"{len(data)} bytes are too few")
    magic, version, sequence, steps, time_s, slots, slot_bytes = HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise BadProgress(f"magic {magic!r} version {version}, expected {MAGIC!r} version {VERSION}")
    if slot_bytes != ID_BYTES + COUNTS.size or len(data) < HEADER_BYTES + slots * slot_bytes:
        raise BadProgress(f"{len(data)} bytes cannot hold {slots} slots of {slot_bytes} bytes")
    if sequence % 2:
        return None
    parts: dict[str, dict[str, list[RequestProgress]]] = {}
    for slot in range(slots):
        offset = HEADER_BYTES + slot * slot_bytes
        computed, prompt, cached, output, state, ended = COUNTS.unpack_from(data, offset + ID_BYTES)
        if state == FREE:
            break  # slots are taken in order and never become free again
        engine_id = data[offset : offset + ID_BYTES].rstrip(b"\0").decode(errors="replace")
        one = RequestProgress(computed, prompt, cached, output, ended if state == ENDED else None)
        parts.setdefault(gateway_id(engine_id), {}).setdefault(_CHILD.sub("", engine_id), []).append(one)
    return Progress(steps, time_s, {name: _joined(by_prompt.values()) for name, by_prompt in parts.items()})


def _joined(prompts: Iterable[list[RequestProgress]]) -> RequestProgress:
    """One HTTP request from its engine requests: several prompts add up, several samples (`n`) of one prompt share it.

    Samples after the first find the prompt cached by it, so its own cached count is the smallest of them.
    """
    computed = prompt = cached = output = 0
    ended: float | None = 0.0
    for samples in prompts:
        own_prompt = max(s.prompt_tokens for s in samples)
        own_output = sum(s.output_tokens for s in samples)
        if len(samples) == 1:
            computed += samples[0].computed_tokens
        else:
            computed += min(own_prompt, max(s.computed_tokens for s in samples)) + own_output
        prompt += own_prompt
        cached += min(s.cached_tokens for s in samples)
        output += own_output
        for sample in samples:
            ended = None if ended is None or sample.ended_time is None else max(ended, sample.ended_time)
    return RequestProgress(computed, prompt, cached, output, ended)


def fresh(progress: Progress, now_s: float) -> Progress:
    """Without the requests that ended more than 60 s ago."""
    kept = {
        name: request
        for name, request in progress.requests.items()
        if request.ended_time is None or now_s - request.ended_time < ENDED_KEPT_S
    }
    return replace(progress, requests=kept)


def with_all_ended(progress: Progress, now_s: float) -> Progress:
    """For a worker that is gone: what its requests had are their final counts."""
    ended = {n: r if r.ended else replace(r, ended_time=now_s) for n, r in progress.requests.items()}
    return replace(progress, requests=ended)
