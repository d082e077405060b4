"""Why a worker ended, from its exit status and the last lines of its log: one line for an operator, with what to do.

The patterns follow the messages of vLLM 0.32, Python and torch; a text that none of them knows is shown as it is.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Diagnosis", "diagnose"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`permanent`: starting again unchanged cannot help."""

    reason: str
    permanent: bool


# In this order: the first that matches wins, so the more exact ones stand first. `{0}` is the pattern's first group.
_CASES: tuple[tuple[str, str, bool], ...] = (
    (r"No space left on device|Errno 28\b", "the disk is full: free some space", False),
    (r"unrecognized arguments: (.+)", "vLLM does not know the flag {0}: correct [vllm.args]", True),
    (r"(?:error|vllm\S*): argument (--[\w/-]+[^:]*): (.+)", "vLLM refuses {0} ({1}): correct the worker's file", True),
    (
        r"No module named '?(vllm|torch)\b",
        "the worker's Python has no {0}: check [worker] python, or make its environment",
        True,
    ),
    (
        r"No module named '?(dcugate_worker)\b",
        "the worker cannot import {0}: the installation of dcugate is incomplete",
        True,
    ),
    (
        r"(?:Repo id must be|is not a local folder|Can't load (?:the )?configuration|couldn't (?:connect|find)|"
        r"does not appear to have a file named config\.json|LocalEntryNotFoundError|OfflineModeIsEnabled|"
        r"Invalid repository ID or local directory)(?:.*?'(/[^']+)')?",
        "the model is not there: check model_path in [model], which must be a folder with config.json",
        True,
    ),
    (
        r"(?:KV cache is needed|No available memory for the cache blocks|larger than the (?:available|maximum) (?:KV|number))",
        "the KV cache is too small for max_model_len: raise gpu_memory_utilization (on a CPU kv-cache-memory-bytes) "
        "or lower max_model_len",
        True,
    ),
    (
        r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len \(\D*(\d+)",
        "max_model_len {0} is above the model's own {1}: lower it",
        True,
    ),
    (
        r"(?:[Aa]ddress already in use|Errno 98\b)",
        "its socket is in use: is another worker running with this name?",
        False,
    ),
    (r"AF_UNIX path too long", "the path of its socket is too long: choose a shorter state folder", True),
    (
        r"RPC call to (\w+) timed out",
        "an engine step took longer than rpc_timeout_seconds in [engine]: raise it",
        False,
    ),
    (
        r"(?:OutOfMemoryError|out of memory|Cannot allocate memory|Free memory on device .* is less than)",
        "out of memory: lower gpu_memory_utilization or max_model_len, or see what else uses the card",
        False,
    ),
    (
        r"is not a valid AttentionBackendEnum|Invalid backend|Cannot use .* backend",
        "vLLM refuses attention_backend: {line}",
        True,
    ),
    (
        r"quantization.*(?:not supported|does not match|Unknown)|Unknown quantization",
        "vLLM refuses quantization: {line}",
        True,
    ),
    (r"(?:Permission denied|Errno 13\b)", "a file may not be read or written: {line}", True),
)


def diagnose(exit_status: int, last_lines: Sequence[str], *, was_ready: bool) -> Diagnosis:
    """`exit_status` as of subprocess: negative for a signal. `was_ready`: it had served before it ended."""
    text = [line.strip() for line in last_lines]
    for pattern, meaning, permanent in _CASES:
        compiled = re.compile(pattern)
        for line in reversed(text):
            if found := compiled.search(line):
                reason = meaning.format(*found.groups(), line=_message(line))
                return Diagnosis(reason, permanent and not was_ready)
    if exit_status == -signal.SIGKILL:
        return Diagnosis("it was killed (SIGKILL): most likely the machine ran out of memory; see dmesg", False)
    if exit_status < 0:
        return Diagnosis(f"it died of {_signal_name(-exit_status)}", False)
    last = next((_message(line) for line in reversed(text) if re.search(r"\w*(?:Error|Exception|error)\b: ", line)), "")
    if not last and exit_status == 0:
        return Diagnosis("its engine ended (exit status 0)", False)
    return Diagnosis(
        f"it ended with status {exit_status}" + (f": {last}" if last else ""), exit_status == 2 and not was_ready
    )


def _message(line: str) -> str:
    """A log line without vLLM's prefix `(EngineCore pid=7) ERROR 11-29 23:10:20 [core.py:1] `, cut to a readable length."""
    bare = re.sub(r"^(\(\S+ pid=\d+\)\s*)?((ERROR|WARNING|INFO) \S+ \S+ \[\S+\]\s*)?", "", line)
    return bare if len(bare) <= 200 else bare[:199] + "…"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
