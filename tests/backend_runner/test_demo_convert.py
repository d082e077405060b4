"""Runs in the worker's environment, as a program: this one has no torch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from backend_runner.launchers.base import LaunchFailed
from backend_runner.launchers.environment import find_python

FOLDER = Path(__file__).parents[2] / "backend_runner"
CHECK = """
import torch
from demo_convert import hf_name, unpermute
assert hf_name("blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj.weight"
assert hf_name("output_norm.weight") == "model.norm.weight"
# What llama.cpp's converter does to a Hugging Face weight, and back.
weight = torch.arange(2 * 8 * 3).reshape(16, 3)
permuted = weight.reshape(2, 2, 4, 3).swapaxes(1, 2).reshape(16, 3)
assert not torch.equal(permuted, weight)
assert torch.equal(unpermute(permuted, 2), weight)
"""


@pytest.mark.real
def test_names_and_rotary_order_come_back_as_hugging_face_has_them() -> None:
    try:
        python = find_python(None, {}, Path.cwd())
    except LaunchFailed as missing:
        pytest.skip(missing.reason)
    subprocess.run([str(python), "-c", CHECK], cwd=FOLDER, check=True)
