from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.load import ConfigError, Problem, load_routes


def check(path: Path) -> tuple[str | None, list[Problem]]:
    if not path.exists():
        return None, [Problem(str(path), None, "cannot be read: No such file or directory")]
    return path.stem, []


def problems(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "routes.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_routes(path, check)
    return [str(p).replace(str(tmp_path) + "/", "") for p in caught.value.problems]


def test_every_problem_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        "listen:\n  - address: nowhere\nworkers:\n  - workers/absent.toml\n"
        "models:\n  - name: a\n    workers: [x]\n    colour: red\n  - name: a b\n    workers: [x]\ndeadlines:\n  connect_s: -1\n",
    )
    lines = {p.split(":")[1] for p in found}
    assert lines == {"2", "4", "8", "9", "12"}
    assert any("colour: unknown setting" in p for p in found)
    assert any("absent.toml" in p for p in found)


def test_a_model_without_a_worker_is_told(tmp_path: Path) -> None:
    (tmp_path / "w.toml").touch()
    found = problems(tmp_path, "workers: [w.toml]\nmodels:\n  - name: a\n    workers: [x]\n")
    assert found == ["routes.yaml:4: model 'a': no worker or backend is called 'x'; known: w"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("models: [", "not valid YAML"),
        ("a: b: c", "not valid YAML"),
        ("", "models: is missing"),
        ("- 1", "dictionary"),
        ("a: \x00", "not valid YAML"),
        ("a: 2026-13-45", "not valid YAML"),
        ("workers: 5\nbackends: 5\nmodels: []\n", "workers"),
        ("workers: w.toml\nmodels: []\n", "workers"),
        ("listen: [{address: 'h:99999'}]\nmodels: []\n", "65535"),
        ("backends: [{name: b, address: 'http://h:1/v1', model: m}]\nmodels: []\n", "without /v1"),
        ("backends: [{name: b, address: 'http://h', model: m, api_key_file: none.key}]\nmodels: []\n", "none.key"),
        ("models:\n  - {name: a, workers: [x]}\n  - {name: b, aliases: [a], workers: [x]}\n", "given twice"),
    ],
)
def test_a_broken_file_is_one_clear_line(tmp_path: Path, text: str, word: str) -> None:
    assert any(word in p for p in problems(tmp_path, text))


def test_a_missing_or_unreadable_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_routes(tmp_path / "none.yaml", check)
    (tmp_path / "latin.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_routes(tmp_path / "latin.yaml", check)


def test_two_workers_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.toml").touch()
    found = problems(tmp_path, "workers: [w.toml, w.toml]\nmodels:\n  - name: a\n    workers: [w]\n")
    assert found == ["routes.yaml:1: two workers or backends are called 'w'"]
