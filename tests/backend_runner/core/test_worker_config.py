from __future__ import annotations

from pathlib import Path

import pytest

from backend_runner.core.worker_config import ConfigProblems, load_worker_config

ROOT = Path(__file__).parents[3]
GOOD = '[server]\nserved_model_name = "m"\n[model]\nmodel_path = "/m"\n'


def problems(text: str, name: str = "w.toml") -> list[tuple[int | None, str]]:
    with pytest.raises(ConfigProblems) as caught:
        load_worker_config(text, name)
    return [(p.line, p.message) for p in caught.value.problems]


@pytest.mark.parametrize("path", sorted(ROOT.glob("workers/*.toml")), ids=lambda p: p.name)
def test_the_shipped_files_are_valid(path: Path) -> None:
    config = load_worker_config(path.read_text(), path.name)
    assert config.name == path.stem


def test_the_articles_file_is_taken_as_it_stands() -> None:
    text = GOOD.replace("[model]", 'host = "0.0.0.0"\nport = 8000\napi_key = "sk-x"\n[model]')
    config = load_worker_config(text, "dir/box.toml")
    assert (config.name, config.model, config.cards, config.max_model_len) == ("box", "m", 1, None)


def test_every_problem_is_told_at_once_with_its_line() -> None:
    text = '[server]\nport = 0\n[model]\nmodel_path = "/m"\ndtyp = "float16"\n[zzz]\na = 1\n[vllm.args]\nhost = "x"\n'
    assert problems(text) == [
        (1, "[server] needs served_model_name"),
        (2, "port must be a whole number from 1 to 65535, not 0"),
        (5, "unknown setting dtyp in [model]; known: model_path, dtype, quantization, tensor_parallel_size, "
            "max_model_len, gpu_memory_utilization"),
        (6, "unknown section [zzz]; known: worker, server, model, prefill, attention, graph, engine, vllm"),
        (9, "host cannot be set here: the runner sets it"),
    ]  # fmt: skip


def test_broken_toml_names_the_line() -> None:
    [(line, _)] = problems("[server]\nport = = 3\n")
    assert line == 2


@pytest.mark.parametrize(
    ("extra", "start"),
    [
        ('[graph]\nenforce_eager = true\nhip_graph_mode = "FULL"\n', "enforce_eager = true switches graphs off"),
        (
            "max_model_len = 9\n[graph]\nchunked_prefill = false\nmax_num_batched_tokens = 8\n",
            "without chunked_prefill",
        ),
        ('dtype = "bfloat16"\n[attention]\nattention_backend = "hip_gfx906"\n', "gfx906 has no BF16"),
        ("[attention]\nhip_attention_gqa = 6\n", "hip_attention_gqa has no effect"),
        ("[vllm.args]\ndtype = 'x'\n", "dtype cannot be set here: write it as dtype in [model]"),
        ("[vllm.args]\nno-enable-chunked-prefill = true\n", "no-enable-chunked-prefill cannot be set here"),
        ('[vllm.args]\n"--x" = 1\n', "--x cannot be a flag"),
        ("[worker]\nname = 'a b'\n", "name must be at most 40"),
        ("[worker]\nenv = { A = 1 }\n", "env must be a table of texts"),
        ("gpu_memory_utilization = true\n", "gpu_memory_utilization must be a number"),
    ],
)
def test_what_contradicts_itself_is_refused(extra: str, start: str) -> None:
    [(_, message)] = problems(GOOD + extra)
    assert message.startswith(start)
