"""From a worker's checked file to the command line and environment of its vLLM. Each flag's reason stands beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from backend_runner.core.worker_config import (
    ConfigProblems,
    FlagValue,
    Problem,
    WorkerConfig,
    load_worker_config,
)

__all__ = [
    "ConfigProblems",
    "DEMO_PREFIX",
    "Launch",
    "Problem",
    "WorkerConfig",
    "command",
    "demo_models_folder",
    "load_worker_config",
    "model_location",
]

DEMO_PREFIX = "demo:"
SHUTDOWN_TIMEOUT_S = 30  # 0, vLLM's default, leaves open streams hanging without a byte
RPC_TIMEOUT_S = 1800  # of one engine step; vLLM's 300 s kill a 131K prefill on two cards
READY_TIMEOUT_S = 1800  # loading 27B weights from a slow disk
HTTP_KEEP_ALIVE_S = 75  # above the gateway's pool; vLLM's 5 s close connections it would reuse


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start. `env` is the whole environment and holds the worker's key: never print it."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)


def demo_models_folder(environ: Mapping[str, str]) -> Path:
    """Where converted demo models lie: $XDG_CACHE_HOME/dcugate/models, or below ~/.cache."""
    cache = environ.get("XDG_CACHE_HOME") or str(PurePath(environ.get("HOME", "/"), ".cache"))
    return Path(cache, "dcugate", "models")


def model_location(model_path: str, environ: Mapping[str, str]) -> str:
    """`demo:NAME` as the folder of that demo model, anything else as it is."""
    if model_path.startswith(DEMO_PREFIX):
        return str(demo_models_folder(environ) / model_path.removeprefix(DEMO_PREFIX))
    return model_path


def command(
    config: WorkerConfig,
    *,
    socket_path: str,
    api_key: str,
    progress_path: str,
    python: str,
    plugin_path: str,
    environ: Mapping[str, str],
) -> Launch:
    """The worker's start: `python` is the worker environment's, `plugin_path` the folder with dcugate_worker."""
    argv = [python, "-m", "vllm.entrypoints.cli.main", "serve", model_location(config.model_path, environ)]
    argv += ["--served-model-name", *config.served_model_names, "--uds", socket_path]
    argv += ["--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S)]
    argv += ["--enable-prompt-tokens-details"]  # else usage has no cached tokens
    argv += ["--scheduler-cls", "dcugate_worker.progress.ProgressScheduler"]
    argv += ["--disable-access-log-for-endpoints", "/health,/metrics"]
    argv += _article_flags(config)
    for key, value in config.vllm_args.items():
        argv += flag(key, value)
    return Launch(tuple(argv), _environment(config, api_key, progress_path, plugin_path, environ))


def _article_flags(config: WorkerConfig) -> list[str]:
    argv: list[str] = []
    for section, key in (
        ("model", "dtype"),
        ("model", "quantization"),
        ("model", "tensor_parallel_size"),
        ("model", "max_model_len"),
        ("model", "gpu_memory_utilization"),
        ("graph", "enforce_eager"),
        ("graph", "max_num_batched_tokens"),
    ):
        value = config.get(section, key, None)
        if value is not None and value is not False:
            argv += flag(key, value)
    if (chunked := config.get("graph", "chunked_prefill", None)) is not None:
        argv += flag("enable_chunked_prefill", chunked)
    if (mode := config.get("graph", "hip_graph_mode", None)) is not None:
        argv += flag("compilation_config", {"cudagraph_mode": mode})
    backend = config.get("attention", "attention_backend", None)
    if backend is not None:
        # vLLM's name for a backend that a plugin registers; a name of one's own dies in the spawned engine.
        argv += ["--attention-backend", "CUSTOM" if backend == "hip_gfx906" else backend]
    if (kv_dtype := config.get("attention", "hip_attention_kv_dtype", None)) is not None:
        argv += ["--kv-cache-dtype", kv_dtype]
    kernels = dict(config.settings.get("prefill", {}))
    kernels |= {k: v for k, v in config.settings.get("attention", {}).items() if k.startswith("hip_attention_")}
    if kernels:
        argv += flag("additional_config", {"gfx906": kernels})
    return argv


def _environment(
    config: WorkerConfig, api_key: str, progress_path: str, plugin_path: str, environ: Mapping[str, str]
) -> dict[str, str]:
    # Not the gateway's own environment: its virtual environment and secrets are none of the worker's business.
    env = {k: v for k, v in environ.items() if not k.startswith("DCUGATE_") and k not in ("PYTHONHOME", "VIRTUAL_ENV")}
    env |= {
        "HF_HUB_OFFLINE": "1",  # a missing path must fail, not ask a model hub
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(config.get("engine", "rpc_timeout_seconds", RPC_TIMEOUT_S)),
        "VLLM_ENGINE_READY_TIMEOUT_S": str(READY_TIMEOUT_S),
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(HTTP_KEEP_ALIVE_S),
        "PYTHONUNBUFFERED": "1",  # the log's last lines are the diagnosis
    }
    env |= config.env
    env |= {
        "VLLM_API_KEY": api_key,  # by environment: a flag can be read in `ps`
        "DCUGATE_PROGRESS_FILE": progress_path,
        "PYTHONPATH": plugin_path + (":" + env["PYTHONPATH"] if env.get("PYTHONPATH") else ""),
    }
    return env


def flag(key: str, value: FlagValue) -> list[str]:
    """A setting as vLLM's command line has it: true `--x`, false `--no-x`, a list as several words, a table as JSON."""
    name = "--" + key.replace("_", "-")
    if value is True:
        return [name]
    if value is False:
        return ["--no-" + name.removeprefix("--")]
    if isinstance(value, dict):
        return [name, json.dumps(value, separators=(",", ":"))]
    if isinstance(value, list):
        return [name, *map(_word, value)]
    return [name, _word(value)]


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
