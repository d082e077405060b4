"""Reads routes.yaml and the worker files it names, and reports every problem at once, with line numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from gateway.config.model import Routes
from keys.language import choose

__all__ = ["ConfigError", "Problem", "WorkerCheck", "load_routes"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: file, line (1-based, None where it has none), and what to do about it."""

    file: str
    line: int | None
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}" if self.line else f"{self.file}: {self.message}"


class ConfigError(Exception):
    """routes.yaml or a worker file is wrong; `problems` is never empty."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


# Checks one worker file; returns its worker's name (None where the file is too broken to tell) and its problems.
# Passed in by the composition root: the gateway does not import the runner.
WorkerCheck = Callable[[Path], tuple[str | None, list[Problem]]]


def _line_of(node: yaml.Node | None, path: tuple[Any, ...]) -> int | None:
    """The line where the value at `path` stands; of the deepest part that exists."""
    line = None
    for step in path:
        if node is None:
            break
        line = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == str(step)), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
        else:
            break
    return line or (node.start_mark.line + 1 if node is not None else None)


def _message(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return choose(
            f"{where}: unknown setting; remove it or correct its spelling", f"{where}：未知的设置；请删除或改正拼写"
        )
    if error["type"] == "missing":
        return choose(f"{where}: is missing", f"{where}：缺少此项")
    return (
        f"{where}: {error['msg'].removeprefix('Value error, ')}"
        if where
        else error["msg"].removeprefix("Value error, ")
    )


def load_routes(path: Path, check_worker: WorkerCheck) -> Routes:
    """The routes of `path`, checked as a whole. Raises ConfigError with every problem found, of every file."""
    file = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            [
                Problem(
                    file,
                    None,
                    choose("does not exist; name another file with --config", "不存在；请用 --config 指定其他文件"),
                )
            ]
        ) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError([Problem(file, None, choose(f"cannot be read: {problem}", f"无法读取：{problem}"))]) from None
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark else None
        raise ConfigError(
            [
                Problem(
                    file, line, choose(f"is not valid YAML: {problem.problem}", f"不是合法的 YAML：{problem.problem}")
                )
            ]
        ) from None
    except (yaml.YAMLError, ValueError) as problem:  # a control character; a date such as 2026-13-45
        words = " ".join(str(problem).split())
        text = choose(f"is not valid YAML: {words}", f"不是合法的 YAML：{words}")
        raise ConfigError([Problem(file, None, text)]) from None
    problems: list[Problem] = []
    routes: Routes | None = None
    try:
        routes = Routes.model_validate(values if values is not None else {})
    except ValidationError as invalid:
        problems += [Problem(file, _line_of(tree, e["loc"]), _message(e)) for e in invalid.errors()]
    raw = values if isinstance(values, dict) else {}
    backends, workers = (raw[n] if isinstance(raw.get(n), list) else [] for n in ("backends", "workers"))
    named = [b.get("name") for b in backends if isinstance(b, dict)]
    for position, backend in enumerate(backends):
        if isinstance(backend, dict) and isinstance(backend.get("api_key_file"), str):
            key_file = path.parent / backend["api_key_file"]
            if not os.access(key_file, os.R_OK) or key_file.is_dir():
                line = _line_of(tree, ("backends", position, "api_key_file"))
                problems.append(Problem(file, line, choose(f"{key_file}: cannot be read", f"{key_file}：无法读取")))
    all_known = True
    for position, entry in enumerate(workers):
        name, found = check_worker(path.parent / str(entry))
        problems += [
            p
            if Path(p.file).exists()
            else Problem(file, _line_of(tree, ("workers", position)), f"{p.file}: {p.message}")
            for p in found
        ]
        all_known = all_known and name is not None
        if name is not None and name in named:
            problems.append(
                Problem(
                    file,
                    _line_of(tree, ("workers", position)),
                    choose(f"two workers or backends are called {name!r}", f"有两个工作进程或后端都叫 {name!r}"),
                )
            )
        named.append(name)
    known = ", ".join(sorted(str(name) for name in named))
    if routes is not None and all_known:
        problems += [
            Problem(
                file,
                _line_of(tree, ("models", position, "workers", place)),
                choose(
                    f"model {model.name!r}: no worker or backend is called {worker!r}; known: {known or 'none'}",
                    f"模型 {model.name!r}：没有叫 {worker!r} 的工作进程或后端；已有：{known or '无'}",
                ),
            )
            for position, model in enumerate(routes.models)
            for place, worker in enumerate(model.workers)
            if worker not in named
        ]
    if problems:
        raise ConfigError(problems)
    assert routes is not None  # noqa: S101 -- without routes there is at least one problem
    absolute = [
        b.model_copy(update={"api_key_file": path.parent / b.api_key_file}) if b.api_key_file else b
        for b in routes.backends
    ]
    return routes.model_copy(update={"backends": tuple(absolute)})
