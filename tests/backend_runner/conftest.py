"""A fake worker environment: an interpreter that runs tests/fakes/fake_worker.py whatever it is asked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FAKE = Path(__file__).parents[1] / "fakes" / "fake_worker.py"


@pytest.fixture
def fake_python(tmp_path: Path) -> Path:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture
def worker_file(tmp_path: Path, fake_python: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    path = tmp_path / "w1.toml"
    path.write_text(
        f'[worker]\npython = "{fake_python}"\nenv = {{ FAKE_CHILD = "{tmp_path}/child" }}\n'
        f'[server]\nserved_model_name = "m"\n[model]\nmodel_path = "{model}"\n'
    )
    return path
