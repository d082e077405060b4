"""The worker's TOML file: the article's sections (server, model, prefill, attention, graph, engine), and ours.

    [worker]    name, kind ("vllm"), python, env: who runs it
    [vllm.args] any further flag of `vllm serve`, by its name without the dashes

A launched worker listens on a unix socket with a key of the runner's: `host`, `port` and `api_key` of [server] are
accepted, since the article's file carries them, and have no effect here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

__all__ = ["ConfigProblems", "FlagValue", "Problem", "WorkerConfig", "load_worker_config"]

FlagValue = bool | int | float | str | list[Any] | dict[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a file; `line` counts from 1, None where it belongs to no line."""

    file: str
    line: int | None
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}" if self.line else f"{self.file}: {self.message}"


class ConfigProblems(Exception):
    """Every problem of a file at once, in `problems`."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems

    @property
    def reason(self) -> str:
        """All of them, one a line."""
        return str(self)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """A checked worker file. `settings` holds the article's sections, by section and key, defaults not filled in."""

    name: str
    kind: str
    served_model_names: tuple[str, ...]
    model_path: str
    python: str | None = None
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    vllm_args: Mapping[str, FlagValue] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def model(self) -> str:
        """The name that answers carry: always the first."""
        return self.served_model_names[0]

    @property
    def cards(self) -> int:
        """How many cards it occupies."""
        return int(self.get("model", "tensor_parallel_size", 1))

    @property
    def max_model_len(self) -> int | None:
        """The context length the file asks for; None: the model's own."""
        value = self.get("model", "max_model_len", None)
        return None if value is None else int(value)

    def get(self, section: str, key: str, default: Any) -> Any:
        """A setting of the article's sections, or the default where the file does not have it."""
        return self.settings.get(section, {}).get(key, default)


Check = Callable[[Any], str | None]
"""Says what a value should be, None where it is that."""


def _integer(low: int, high: int | None = None) -> Check:
    span = f"at least {low}" if high is None else f"from {low} to {high}"

    def check(value: Any) -> str | None:
        good = (
            isinstance(value, int) and not isinstance(value, bool) and value >= low and (high is None or value <= high)
        )
        return None if good else f"a whole number {span}"

    return check


def _one_of(*choices: str) -> Check:
    return lambda value: None if value in choices else "one of " + ", ".join(f'"{c}"' for c in choices)


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and value.strip() else "a text that is not empty"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _fraction(value: Any) -> str | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
    return None if good else "a number above 0, at most 1"


def _names(value: Any) -> str | None:
    names = value if isinstance(value, list) else [value]
    return None if names and all(_text(n) is None for n in names) else "a name, or a list of names"


def _env(value: Any) -> str | None:
    good = isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
    return None if good else "a table of texts"


def _name(value: Any) -> str | None:
    good = isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", value)
    return None if good else "at most 40 letters, digits, dots, dashes and underscores"


GRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")

SECTIONS: dict[str, dict[str, Check]] = {
    "worker": {"name": _name, "kind": _one_of("vllm"), "python": _text, "env": _env},
    "server": {"host": _text, "port": _integer(1, 65535), "api_key": _text, "served_model_name": _names},
    "model": {
        "model_path": _text,
        "dtype": _one_of("auto", "float16", "half", "bfloat16", "float32"),
        "quantization": _text,
        "tensor_parallel_size": _integer(1, 64),
        "max_model_len": _integer(1),
        "gpu_memory_utilization": _fraction,
    },
    "prefill": {
        "enable_dequant_prefill": _flag,
        "dequant_workspace_qkv_mib": _integer(1),
        "dequant_workspace_gate_up_mib": _integer(1),
        "dequant_workspace_down_mib": _integer(1),
    },
    "attention": {
        "attention_backend": _text,
        "hip_attention_head_size": _integer(1, 512),
        "hip_attention_gqa": _integer(1, 64),
        "hip_attention_kv_dtype": _one_of("auto", "fp8", "fp8_e4m3", "fp8_e5m2"),
        "hip_attention_softmax_segments": _integer(1, 1024),
        "hip_attention_fallback": _one_of("triton", "none"),
    },
    "graph": {
        "enforce_eager": _flag,
        "hip_graph_mode": _one_of(*GRAPH_MODES),
        "chunked_prefill": _flag,
        "max_num_batched_tokens": _integer(1),
    },
    "engine": {"rpc_timeout_seconds": _integer(1)},
    "vllm": {"args": lambda value: None if isinstance(value, dict) else "a table of flags"},
}
REQUIRED = (("server", "served_model_name"), ("model", "model_path"))
ARTICLE = ("server", "model", "prefill", "attention", "graph", "engine")

RUNNERS_OWN = "the runner sets it"
TAKEN_FLAGS = {
    **dict.fromkeys(
        ("host", "port", "uds", "api-key", "scheduler-cls", "shutdown-timeout", "additional-config", "config"),
        RUNNERS_OWN,
    ),
    **dict.fromkeys(("enable-prompt-tokens-details", "disable-access-log-for-endpoints", "root-path"), RUNNERS_OWN),
    **dict.fromkeys(
        ("ssl-keyfile", "ssl-certfile", "headless", "grpc"), "the worker is reached by its unix socket only"
    ),
    "model": "write it as model_path in [model]",
    "served-model-name": "write it as served_model_name in [server]",
    "dtype": "write it as dtype in [model]",
    "quantization": "write it as quantization in [model]",
    "tensor-parallel-size": "write it as tensor_parallel_size in [model]",
    "max-model-len": "write it as max_model_len in [model]",
    "gpu-memory-utilization": "write it as gpu_memory_utilization in [model]",
    "attention-backend": "write it as attention_backend in [attention]",
    "kv-cache-dtype": "write it as hip_attention_kv_dtype in [attention]",
    "enforce-eager": "write it as enforce_eager in [graph]",
    "enable-chunked-prefill": "write it as chunked_prefill in [graph]",
    "max-num-batched-tokens": "write it as max_num_batched_tokens in [graph]",
}


def load_worker_config(text: str, filename: str) -> WorkerConfig:
    """Checks a worker file's text; `filename` is for messages and, without [worker] name, gives the name.

    Raises ConfigProblems with every problem in it, not only the first.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column \d+\)", str(error))
        message = re.sub(r"\s*\(at .*\)", "", str(error))
        raise ConfigProblems([Problem(filename, int(found[1]) if found else None, message)]) from error
    lines = _lines(text)
    problems: list[Problem] = []

    def report(section: str, key: str | None, message: str) -> None:
        problems.append(Problem(filename, lines.get((section, key), lines.get((section, None))), message))

    for section, values in data.items():
        known = SECTIONS.get(section)
        if known is None:
            report(section, None, f"unknown section [{section}]; known: {', '.join(SECTIONS)}")
        elif not isinstance(values, dict):
            report("", section, f"{section} must be a section: [{section}]")
        else:
            for key, value in values.items():
                check = known.get(key)
                if check is None:
                    report(section, key, f"unknown setting {key} in [{section}]; known: {', '.join(known)}")
                elif (wanted := check(value)) is not None:
                    report(section, key, f"{key} must be {wanted}, not {value!r}")
    sections = {name: values for name, values in data.items() if isinstance(values, dict)}
    for section, key in REQUIRED:
        if key not in sections.get(section, {}):
            report(section, None, f"[{section}] needs {key}")
    stem = filename.rsplit("/", 1)[-1].removesuffix(".toml")
    if "name" not in sections.get("worker", {}) and (wanted := _name(stem)) is not None:
        report("worker", None, f"[worker] needs name: the file's name cannot serve as one, which must be {wanted}")
    args = sections.get("vllm", {}).get("args", {})
    if isinstance(args, dict):
        for key, value in args.items():
            if (problem := _flag_problem(key, value)) is not None:
                report("vllm.args", key, problem)
    if not problems:
        _check_together(sections, report)
    if problems:
        raise ConfigProblems(sorted(problems, key=lambda p: p.line or 0))

    worker = sections.get("worker", {})
    names = sections["server"]["served_model_name"]
    return WorkerConfig(
        name=worker.get("name", stem),
        kind=worker.get("kind", "vllm"),
        served_model_names=tuple(names if isinstance(names, list) else [names]),
        model_path=sections["model"]["model_path"],
        python=worker.get("python"),
        env=MappingProxyType(dict(worker.get("env", {}))),
        settings=MappingProxyType({s: MappingProxyType(dict(sections[s])) for s in ARTICLE if s in sections}),
        vllm_args=MappingProxyType(dict(args)),
    )


def _flag_problem(key: str, value: Any) -> str | None:
    flag = key.replace("_", "-").removeprefix("no-")
    if not re.fullmatch(r"[a-z][a-z0-9-]*", flag):
        return f"{key} cannot be a flag: write its name without the leading dashes"
    if flag in TAKEN_FLAGS:
        return f"{key} cannot be set here: {TAKEN_FLAGS[flag]}"
    if not isinstance(value, bool | int | float | str | list | dict):
        return f"{key} cannot be a {type(value).__name__}"
    return None


def _check_together(sections: dict[str, Any], report: Callable[[str, str | None, str], None]) -> None:
    """Settings that contradict each other, each of them good alone."""
    model, graph, attention = (sections.get(name, {}) for name in ("model", "graph", "attention"))
    on_gfx906 = attention.get("attention_backend") == "hip_gfx906"
    if graph.get("enforce_eager") and graph.get("hip_graph_mode", "NONE") != "NONE":
        report("graph", "enforce_eager", "enforce_eager = true switches graphs off, but hip_graph_mode asks for them")
    batched, context = graph.get("max_num_batched_tokens"), model.get("max_model_len")
    if graph.get("chunked_prefill") is False and batched and context and batched < context:
        report(
            "graph",
            "chunked_prefill",
            f"without chunked_prefill a prompt must fit one step: max_num_batched_tokens {batched} is below "
            f"max_model_len {context}",
        )
    if on_gfx906 and model.get("dtype") in ("bfloat16", "float32", "auto"):
        report("model", "dtype", 'gfx906 has no BF16 matrix math and the kernels are FP16: dtype must be "float16"')
    if not on_gfx906:
        for key in attention:
            if key.startswith("hip_attention_") and key != "hip_attention_kv_dtype":
                report("attention", key, f'{key} has no effect without attention_backend = "hip_gfx906"')


def _lines(text: str) -> dict[tuple[str, str | None], int]:
    """Where each section and each of its keys stands. Good enough for messages: one `key = value` a line."""
    found: dict[tuple[str, str | None], int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$", line):
            section = match[1]
            found.setdefault((section, None), number)
            if "." in section:  # [vllm.args] also is the key `args` of [vllm]
                parent, key = section.split(".", 1)
                found.setdefault((parent, key), number)
                found.setdefault((parent, None), number)
        elif match := re.match(r"\s*([\"']?)([\w-]+)\1\s*(\.[^=]*)?=", line):
            found.setdefault((section, match[2]), number)
    return found
