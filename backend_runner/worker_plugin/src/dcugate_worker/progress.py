"""The scheduler subclass that tells what the engine does with each request, after every step and every abort.

vLLM's metrics stand still during a prefill, give no running usage for plain requests, and never count a cut prefill;
the scheduler knows all of it. Named by `--scheduler-cls dcugate_worker.progress.ProgressScheduler`, it writes the file
that the environment variable DCUGATE_PROGRESS_FILE names. Tried on vLLM 0.32; the interface is not a public one.
"""

from __future__ import annotations

import functools
import importlib
import os
import time
from collections.abc import Iterable
from typing import Any

from dcugate_worker.progress_file import ProgressFile

__all__ = ["ProgressScheduler", "base_path", "cached_tokens"]

FILE_VARIABLE = "DCUGATE_PROGRESS_FILE"


def base_path(async_scheduling: bool | None) -> tuple[str, str]:
    """Which of vLLM's schedulers to extend, as (module, class). Async scheduling is decided by the platform before the
    scheduler is made: off on a CPU, on by default on ROCm; the plain class under it would be wrong, not only slow."""
    if async_scheduling:
        return "vllm.v1.core.sched.async_scheduler", "AsyncScheduler"
    return "vllm.v1.core.sched.scheduler", "Scheduler"


def cached_tokens(request: Any) -> int:
    """Prompt tokens that came from the prefix cache, 0 where not known (any more).

    0.32 keeps them in `prefill_stats` until the first output token; 0.18 in `num_cached_tokens`, -1 before.
    """
    stats = getattr(request, "prefill_stats", None)
    count = stats.num_cached_tokens if stats is not None else getattr(request, "num_cached_tokens", 0)
    return max(int(count), 0)


@functools.cache
def _with_progress(base: Any) -> Any:
    class Progress(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._progress = ProgressFile(os.environ[FILE_VARIABLE])

        def _put(self, request: Any, cached: int) -> None:
            self._progress.put(
                request.request_id,
                request.num_computed_tokens,
                request.num_prompt_tokens,
                cached,
                request.num_output_tokens,
            )

        def add_request(self, request: Any) -> Any:
            out = super().add_request(request)
            self._progress.begin()
            self._put(request, 0)
            self._progress.commit(time.time(), step=False)
            return out

        def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            # Only scheduled requests changed. A request that stops in this step leaves `requests` inside the call, and
            # its prefill_stats go with its first token: so both are taken before it, the counts after it.
            stepped = [
                (request, cached_tokens(request))
                for i in scheduler_output.num_scheduled_tokens
                if (request := self.requests.get(i)) is not None
            ]
            out = super().update_from_output(scheduler_output, *args, **kwargs)
            now = time.time()
            self._progress.begin()
            for request, cached in stepped:
                self._put(request, cached)
                if request.is_finished():
                    self._progress.end(request.request_id, now)
            self._progress.commit(now, step=True)
            return out

        def finish_requests(self, request_ids: str | Iterable[str] | None, *args: Any, **kwargs: Any) -> Any:
            if request_ids is None:
                request_ids = list(self.requests)
            elif not isinstance(request_ids, str):
                request_ids = list(request_ids)
            ids = [request_ids] if isinstance(request_ids, str) else request_ids
            requests = [r for i in ids if (r := self.requests.get(i)) is not None]
            out = super().finish_requests(request_ids, *args, **kwargs)
            now = time.time()
            self._progress.begin()
            for request in requests:
                if request.is_finished():
                    self._put(request, cached_tokens(request))
                    self._progress.end(request.request_id, now)
            self._progress.commit(now, step=False)
            return out

    Progress.__name__ = Progress.__qualname__ = f"Progress{base.__name__}"
    return Progress


class ProgressScheduler:
    """What `--scheduler-cls` names. Calling it makes vLLM's scheduler for this engine's settings, with progress."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the extended scheduler; the arguments are vLLM's own."""
        module, name = base_path(vllm_config.scheduler_config.async_scheduling)
        return _with_progress(getattr(importlib.import_module(module), name))(vllm_config, *args, **kwargs)
