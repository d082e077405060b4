"""The scheduler subclass over a stand-in for vLLM's scheduler, which frees requests at the same places."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from backend_runner.core.progress import RequestProgress, decode

SOURCE = Path(__file__).parents[3] / "backend_runner" / "worker_plugin" / "src"


@dataclass
class FakeRequest:
    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    prefill_stats: Any = field(default_factory=lambda: SimpleNamespace(num_cached_tokens=0))
    finished: bool = False

    def is_finished(self) -> bool:
        return self.finished


class FakeScheduler:
    def __init__(self, vllm_config: Any, **_: Any) -> None:
        self.requests: dict[str, FakeRequest] = {}

    def add_request(self, request: FakeRequest) -> None:
        self.requests[request.request_id] = request

    def update_from_output(self, scheduler_output: Any, stopping: tuple[str, ...] = ()) -> str:
        for name in scheduler_output.num_scheduled_tokens:
            request = self.requests[name]
            if request.num_computed_tokens >= request.num_prompt_tokens:
                request.num_output_tokens += 1
                request.prefill_stats = None
            if name in stopping:
                request.finished = True
                del self.requests[name]
        return "outputs"

    def finish_requests(self, request_ids: Any, status: str) -> list[str]:
        names = list(self.requests) if request_ids is None else request_ids
        for name in [names] if isinstance(names, str) else names:
            if name in self.requests:
                self.requests.pop(name).finished = True
        return ["freed"]


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SOURCE))
    monkeypatch.setenv("DCUGATE_PROGRESS_FILE", str(tmp_path / "p"))
    for name in ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = ModuleType("vllm.v1.core.sched.scheduler")
    module.Scheduler = FakeScheduler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    from dcugate_worker.progress import ProgressScheduler

    return ProgressScheduler(SimpleNamespace(scheduler_config=SimpleNamespace(async_scheduling=False)), log_stats=True)


def shown(tmp_path: Path) -> dict[str, RequestProgress]:
    picture = decode((tmp_path / "p").read_bytes())
    assert picture is not None
    return {
        n: RequestProgress(
            r.computed_tokens, r.prompt_tokens, r.cached_tokens, r.output_tokens, 1.0 if r.ended else None
        )
        for n, r in picture.requests.items()
    }


def test_a_queued_request_shows_at_once(scheduler: Any, tmp_path: Path) -> None:
    scheduler.add_request(FakeRequest("a", 37))
    assert shown(tmp_path) == {"a": RequestProgress(0, 37, 0, 0)}


def test_the_final_count_has_the_last_token_and_the_cached_ones(scheduler: Any, tmp_path: Path) -> None:
    request = FakeRequest("a", 37, prefill_stats=SimpleNamespace(num_cached_tokens=16))
    scheduler.add_request(request)
    step = SimpleNamespace(num_scheduled_tokens={"a": 21})
    request.num_computed_tokens = 37
    assert scheduler.update_from_output(step) == "outputs"
    assert shown(tmp_path) == {"a": RequestProgress(37, 37, 16, 1)}
    request.num_computed_tokens = 38
    scheduler.update_from_output(step, ("a",))
    assert shown(tmp_path) == {"a": RequestProgress(38, 37, 16, 2, 1.0)}


@pytest.mark.parametrize("ids", ["a", ["a", "gone"], {"a"}, None])
def test_an_abort_shows_what_was_computed(scheduler: Any, tmp_path: Path, ids: Any) -> None:
    request = FakeRequest("a", 5920)
    scheduler.add_request(request)
    request.num_computed_tokens = 2048
    assert scheduler.finish_requests(ids, "FINISHED_ABORTED") == ["freed"]
    assert shown(tmp_path) == {"a": RequestProgress(2048, 5920, 0, 0, 1.0)}


def test_the_scheduler_follows_the_engines_setting(scheduler: Any) -> None:
    from dcugate_worker.progress import base_path, cached_tokens

    assert base_path(True)[1] == "AsyncScheduler"
    assert base_path(None)[1] == base_path(False)[1] == "Scheduler"
    assert cached_tokens(SimpleNamespace(num_cached_tokens=-1)) == 0, "0.18: not known yet"
