"""The writer of the progress file: a fixed table of requests in shared memory, guarded by a sequence counter.

Layout, little endian. The reader is `backend_runner/core/progress.py`; `test_progress_file.py` holds both to the same
bytes.

    header, 64 bytes:  magic "DCUP" | version u32 | sequence u64 | steps u64 | time f64 | slots u32 | slot bytes u32 | 0...
    slot, 96 bytes:    id 64 bytes, zero padded | computed u32 | prompt u32 | cached u32 | output u32 |
                       state u8 (0 free, 1 running, 2 ended) | 0 x 7 | ended time f64

The sequence is odd while a change is being written: a reader takes a copy whose sequence is even and the same before
and after. One writer only: the engine's scheduler thread.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections import OrderedDict

__all__ = ["ProgressFile"]

MAGIC = b"DCUP"
VERSION = 1
HEADER = struct.Struct("<4sIQQdII")
HEADER_BYTES = 64
SEQUENCE = struct.Struct("<Q")
SEQUENCE_OFFSET = 8
STEPS_TIME = struct.Struct("<Qd")
STEPS_OFFSET = 16
ID_BYTES = 64
COUNTS = struct.Struct("<IIIIB7xd")
SLOT_BYTES = ID_BYTES + COUNTS.size
RUNNING, ENDED = 1, 2
# 400 KB. vLLM runs at most some hundreds of requests at a time; the rest keeps final counts until the runner has read them.
DEFAULT_SLOTS = 4096


class ProgressFile:
    """A new progress file at `path`, made beside it and renamed, so that no reader sees half a header.

    Changes go between `begin()` and `commit()`. A request beyond the table (all slots running) is not shown.
    """

    def __init__(self, path: str, slots: int = DEFAULT_SLOTS) -> None:
        fresh = f"{path}.{os.getpid()}"
        size = HEADER_BYTES + slots * SLOT_BYTES
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        HEADER.pack_into(self._map, 0, MAGIC, VERSION, 0, 0, 0.0, slots, SLOT_BYTES)
        os.replace(fresh, path)
        self._sequence = 0
        self._steps = 0
        self._free = list(range(slots - 1, -1, -1))
        self._running: dict[str, int] = {}
        self._ended: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._last: dict[str, tuple[int, int, int, int]] = {}

    def __repr__(self) -> str:
        return f"ProgressFile(steps={self._steps}, running={len(self._running)}, ended={len(self._ended)})"

    def begin(self) -> None:
        """Marks the table as being written."""
        self._sequence += 1
        SEQUENCE.pack_into(self._map, SEQUENCE_OFFSET, self._sequence)

    def commit(self, now_s: float, *, step: bool) -> None:
        """Ends the change; `step` counts an engine step."""
        self._steps += step
        STEPS_TIME.pack_into(self._map, STEPS_OFFSET, self._steps, now_s)
        self._sequence += 1
        SEQUENCE.pack_into(self._map, SEQUENCE_OFFSET, self._sequence)

    def put(self, request_id: str, computed: int, prompt: int, cached: int, output: int) -> None:
        """Writes a running request's counts, where they changed. Computed and cached tokens never go back: a
        preempted request starts over, but what was computed for it was computed."""
        last = self._last.get(request_id)
        if last is not None:
            computed, cached = max(computed, last[0]), max(cached, last[2])
        counts = (computed, prompt, cached, output)
        if counts == last:
            return
        slot = self._running.get(request_id)
        if slot is None:
            slot = self._take_slot()
            if slot is None:
                return
            self._running[request_id] = slot
            offset = HEADER_BYTES + slot * SLOT_BYTES
            self._map[offset : offset + ID_BYTES] = request_id.encode()[:ID_BYTES].ljust(ID_BYTES, b"\0")
        self._last[request_id] = counts
        COUNTS.pack_into(self._map, HEADER_BYTES + slot * SLOT_BYTES + ID_BYTES, *counts, RUNNING, 0.0)

    def end(self, request_id: str, now_s: float) -> None:
        """Turns a request's last counts into its final ones. An unknown or ended request is left alone."""
        slot = self._running.pop(request_id, None)
        if slot is None:
            return
        counts = self._last.pop(request_id)
        COUNTS.pack_into(self._map, HEADER_BYTES + slot * SLOT_BYTES + ID_BYTES, *counts, ENDED, now_s)
        self._ended[slot] = None

    def _take_slot(self) -> int | None:
        if self._free:
            return self._free.pop()
        if self._ended:
            return self._ended.popitem(last=False)[0]
        return None
