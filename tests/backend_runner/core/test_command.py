from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from backend_runner.core.command import Launch, command, demo_models_folder, flag, load_worker_config, model_location

ROOT = Path(__file__).parents[3]


def launch(path: str, environ: dict[str, str] | None = None) -> Launch:
    config = load_worker_config((ROOT / path).read_text(), path)
    return command(
        config, socket_path="/s/w.sock", api_key="secret", progress_path="/s/w.progress", python="/p/python",
        plugin_path="/plugin", environ=environ or {"HOME": "/h"},
    )  # fmt: skip


def test_the_demo_worker_starts_on_its_socket_with_progress() -> None:
    argv = launch("workers/demo.toml").argv
    assert argv[:5] == (
        "/p/python", "-m", "vllm.entrypoints.cli.main", "serve", "/h/.cache/dcugate/models/smollm2-135m-instruct",
    )  # fmt: skip
    pairs = list(itertools.pairwise(argv))
    assert ("--uds", "/s/w.sock") in pairs
    assert ("--scheduler-cls", "dcugate_worker.progress.ProgressScheduler") in pairs
    assert ("--shutdown-timeout", "30") in pairs
    assert "--enable-prompt-tokens-details" in argv
    assert "--additional-config" not in argv


def test_the_z100_worker_gets_the_articles_settings() -> None:
    made = launch("workers/qwen3.6-27b-awq.toml")
    pairs = dict(zip(made.argv, made.argv[1:], strict=False))
    assert pairs["--attention-backend"] == "CUSTOM"
    assert pairs["--kv-cache-dtype"] == "fp8"
    assert json.loads(pairs["--compilation-config"]) == {"cudagraph_mode": "FULL_DECODE_ONLY"}
    assert json.loads(pairs["--additional-config"])["gfx906"]["hip_attention_softmax_segments"] == 64
    assert json.loads(pairs["--limit-mm-per-prompt"]) == {"image": 0, "video": 0}
    assert "--enforce-eager" not in made.argv
    assert made.env["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] == "1800"


def test_the_key_is_in_the_environment_and_shown_nowhere() -> None:
    made = launch("workers/demo.toml")
    assert made.env["VLLM_API_KEY"] == "secret"
    assert "secret" not in repr(made)
    assert "secret" not in made.argv


def test_the_gateways_environment_stays_out() -> None:
    env = launch(
        "workers/demo.toml", {"HOME": "/h", "DCUGATE_STATE": "/x", "VIRTUAL_ENV": "/v", "PYTHONPATH": "/mine"}
    ).env
    assert "DCUGATE_STATE" not in env
    assert "VIRTUAL_ENV" not in env
    assert env["PYTHONPATH"] == "/plugin:/mine"
    assert env["HF_HUB_OFFLINE"] == "1"


def test_the_cache_folder_follows_xdg() -> None:
    assert demo_models_folder({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/dcugate/models")
    assert model_location("/data/m", {}) == "/data/m"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["--a-b"]),
        (False, ["--no-a-b"]),
        (3, ["--a-b", "3"]),
        (["x", 2], ["--a-b", "x", "2"]),
        ({"k": 1}, ["--a-b", '{"k":1}']),
    ],
)
def test_a_value_becomes_words(value: object, words: list[str]) -> None:
    assert flag("a_b", value) == words  # type: ignore[arg-type]
