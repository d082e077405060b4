"""The wheel carries what the programs read at run time."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
NEEDED = {
    "keys/stores/migrations/0001_initial.sql",
    "backend_runner/demo_convert.py",
    "backend_runner/worker_plugin/src/dcugate_worker/progress.py",
    "backend_runner/worker_plugin/src/dcugate_worker/progress_file.py",
}


def test_the_wheel_carries_migrations_converter_and_worker_plugin_and_no_tests(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True,
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    assert names >= NEEDED, NEEDED - names
    assert not [name for name in names if name.startswith(("tests", "docs"))]
