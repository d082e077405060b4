from __future__ import annotations

import pytest

from backend_runner.core.diagnosis import diagnose

PREFIX = "(EngineCore pid=8118) ERROR 11-29 23:10:20 [core.py:1] "


@pytest.mark.parametrize(
    ("status", "line", "words", "permanent"),
    [
        (2, "vllm: error: unrecognized arguments: --bad 3", "does not know the flag --bad 3", True),
        (2, "vllm serve: error: argument --dtype: invalid choice: 'x'", "refuses --dtype (invalid choice: 'x')", True),
        (1, "OSError: [Errno 28] No space left on device", "disk is full", False),
        (1, "ValueError: Invalid repository ID or local directory specified: '/m'.", "model is not there", True),
        (
            1,
            PREFIX + "ValueError: To serve at least one request, (5 GiB KV cache is needed, larger than",
            "KV cache",
            True,
        ),
        (1, "OSError: [Errno 98] error while attempting to bind: address already in use", "socket is in use", False),
        (1, "OSError: AF_UNIX path too long", "shorter state folder", True),
        (1, PREFIX + "TimeoutError: RPC call to execute_model timed out.", "rpc_timeout_seconds", False),
        (1, "torch.OutOfMemoryError: HIP out of memory.", "out of memory", False),
        (1, "ModuleNotFoundError: No module named 'vllm'", "Python has no vllm", True),
        (-9, "", "SIGKILL", False),
        (-11, "", "SIGSEGV", False),
        (0, "INFO all fine", "its engine ended", False),
        (1, PREFIX + "KeyError: 'strange'", "it ended with status 1: KeyError: 'strange'", False),
    ],
)
def test_each_trouble_is_told_in_one_line(status: int, line: str, words: str, permanent: bool) -> None:
    found = diagnose(status, ["INFO start", line, "INFO bye"], was_ready=False)
    assert words in found.reason
    assert "\n" not in found.reason
    assert found.permanent is permanent


def test_a_worker_that_has_served_is_always_tried_again() -> None:
    assert not diagnose(2, ["vllm: error: unrecognized arguments: --bad"], was_ready=True).permanent
