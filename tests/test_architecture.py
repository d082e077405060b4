"""The import rules, and that each module has its test module."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("gateway", "backend_runner", "keys")
PLUGIN = "backend_runner/worker_plugin"

PURE = (
    "gateway/core",
    "backend_runner/core",
    "keys/model.py",
    "keys/secret.py",
    "keys/quota.py",
    "keys/errors.py",
)
# Of our own packages, a pure module may import these; and one library each where the format itself is the matter.
PURE_MAY_IMPORT = {
    "gateway/core": {"gateway.core", "orjson"},  # orjson: the wire format is JSON, at 4 µs a chunk
    "backend_runner/core": {"backend_runner.core"},
    "keys": {"keys.model", "keys.errors", "keys.secret", "keys.quota"},
}
IMPURE_STANDARD = {"socket", "asyncio", "time", "subprocess", "sqlite3", "threading", "random"}
TORCH_SIDE = {"torch", "vllm", "triton", "transformers", "gguf", "safetensors"}
TORCH_ALLOWED = {"backend_runner/demo_convert.py"}  # runs in the worker's environment, as a program of its own
STARTS_THE_RUNNER = {"gateway/cli.py", "gateway/app.py", "gateway/up.py"}
# Layers of the gateway, lowest first; a module imports from its own layer or below.
LAYERS = (
    ("gateway/core", "gateway/config"),
    ("gateway/telemetry", "gateway/upstream"),
    ("gateway/relay.py",),
    ("gateway/dispatch.py",),
    ("gateway/server",),
    ("gateway/app.py",),
    ("gateway/up.py",),
    ("gateway/cli.py", "gateway/__main__.py"),
)


def imports(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def layer(path: str) -> int | None:
    for number, rooms in enumerate(LAYERS):
        if any(path == room or path.startswith(room + "/") for room in rooms):
            return number
    return None


def is_in(path: str, rooms: tuple[str, ...]) -> bool:
    return any(path == room or path.startswith(room + "/") for room in rooms)


def violations(path: str, source: str) -> list[str]:
    """Every broken rule of one module, as `path: sentence`."""
    found = []
    names = imports(source)
    tops = {name.split(".")[0] for name in names}
    if path.startswith(PLUGIN):
        return [f"{path}: the worker plugin imports {top}" for top in tops & set(PACKAGES)]
    if tops & TORCH_SIDE and path not in TORCH_ALLOWED:
        found.append(f"{path}: imports {tops & TORCH_SIDE}, which live in the worker's environment")
    if path.startswith("keys/") and "gateway" in tops:
        found.append(f"{path}: keys never imports gateway")
    if path.startswith("backend_runner/") and tops & {"gateway", "keys"}:
        found.append(f"{path}: the runner imports neither gateway nor keys")
    if not path.startswith("backend_runner/") and "backend_runner" in tops and path not in STARTS_THE_RUNNER:
        found.append(f"{path}: only {sorted(STARTS_THE_RUNNER)} may know the runner")
    if is_in(path, PURE):
        room = next(r for r in PURE_MAY_IMPORT if path.startswith(r))
        for name in sorted(names):
            ours_or_library = name.split(".")[0] not in sys.stdlib_module_names
            if ours_or_library and not any(name == ok or name.startswith(ok + ".") for ok in PURE_MAY_IMPORT[room]):
                found.append(f"{path}: a pure module imports {name}")
            if name.split(".")[0] in IMPURE_STANDARD:
                found.append(f"{path}: a pure module imports {name}, which does I/O or reads a clock")
    own = layer(path)
    if own is not None:
        for name in sorted(names):
            if not name.startswith("gateway."):
                continue
            target = name.replace(".", "/")
            other = layer(target) if layer(target) is not None else layer(target + ".py")
            if other is not None and other > own:
                found.append(f"{path}: imports upward: {name}")
    return found


def modules() -> list[Path]:
    return [p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py")) if "__pycache__" not in p.parts]


def test_every_module_keeps_the_import_rules() -> None:
    found = [v for p in modules() for v in violations(p.relative_to(ROOT).as_posix(), p.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("keys/admin.py", "import gateway.app"),
        ("backend_runner/loop.py", "from keys.model import Key"),
        ("gateway/dispatch.py", "import backend_runner.core.states"),
        ("gateway/core/usage.py", "import time"),
        ("gateway/core/usage.py", "from gateway.upstream.connection import Exchange"),
        ("gateway/core/usage.py", "import aiohttp"),
        ("gateway/upstream/backends.py", "from gateway.dispatch import Dispatcher"),
        ("gateway/relay.py", "import gateway.server.api"),
        ("gateway/app.py", "import torch"),
        ("backend_runner/worker_plugin/dcugate_worker/progress.py", "import backend_runner"),
        ("keys/quota.py", "import sqlite3"),
    ],
)
def test_a_planted_violation_is_found(path: str, source: str) -> None:
    assert violations(path, source)


def test_every_module_has_its_test_module() -> None:
    missing = []
    for path in modules():
        relative = path.relative_to(ROOT)
        if path.name in ("__init__.py", "__main__.py") or "worker_plugin" in relative.parts:
            continue
        if (
            not (ROOT / "tests" / relative.parent / f"test_{path.name}").exists()
            and relative.as_posix() not in TESTED_ELSEWHERE
        ):
            missing.append(relative.as_posix())
    assert not missing, f"no test module for {missing}"


# Modules whose behaviour is a contract that several implementations share, or that only a whole service shows.
TESTED_ELSEWHERE = {
    "keys/stores/base.py": "tests/contract/test_key_store.py",
    "keys/stores/sqlite.py": "tests/contract/test_key_store.py",
    "backend_runner/demo_convert.py": "tests/real/test_end_to_end.py",
}


def test_the_tests_named_elsewhere_exist() -> None:
    assert all((ROOT / place).exists() for place in TESTED_ELSEWHERE.values())


def test_modules_stay_small_enough_to_see_whole() -> None:
    long = {p.relative_to(ROOT).as_posix(): n for p in modules() if (n := len(p.read_text().splitlines())) > 400}
    assert not long
