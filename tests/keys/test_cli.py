from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from keys.admin import authenticate
from keys.cli import keys_app, usage_command, usage_help
from keys.model import LedgerRow
from keys.state import database_path, open_state

NOW_MS = 1_700_000_000_000


def program() -> typer.Typer:
    app = typer.Typer()
    app.add_typer(keys_app(), name="keys")
    app.command("usage", help=usage_help())(usage_command)
    return app


class Cli:
    def __init__(self, state: Path, lang: str = "C.UTF-8") -> None:
        self.state, self.lang = state, lang

    def __call__(self, *arguments: str) -> Any:
        with pytest.MonkeyPatch.context() as environment:  # the program is built in its user's locale too
            for name, value in {"LC_ALL": "", "LC_MESSAGES": "", "LANG": self.lang}.items():
                environment.setenv(name, value)
            environment.setenv("DCUGATE_STATE", str(self.state))
            return CliRunner().invoke(program(), list(arguments))

    def good(self, *arguments: str) -> str:
        result = self(*arguments)
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout

    def refused(self, *arguments: str) -> str:
        result = self(*arguments)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1, result.stderr
        return result.stderr


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "state")


@pytest.fixture
def chinese(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "state", "zh_CN.UTF-8")


def settle(state_dir: Path, *rows: LedgerRow) -> None:
    async def write() -> None:
        state = await open_state(state_dir)
        for row in rows:
            await state.store.settle(row, NOW_MS)
        await state.store.aclose()

    asyncio.run(write())


def row(request_id: str, key_id: str, started_ms: int = NOW_MS) -> LedgerRow:
    tokens = (30, 20, 50)
    return LedgerRow(
        request_id, key_id, "chat", "m", "w", "chat", *tokens, 7, 12, 34, "completed", False, started_ms, 200
    )


def test_create_prints_the_secret_once_and_the_key_works(cli: Cli) -> None:
    made = json.loads(
        cli.good("keys", "create", "--purpose", "chat", "--name", "小明", "--limit-tokens", "500", "--json")
    )
    assert made["secret"].startswith("sk-dcu-chat-")
    assert {key: made[key] for key in ("name", "purpose", "status", "limit_tokens")} == {
        "name": "小明",
        "purpose": "chat",
        "status": "active",
        "limit_tokens": 500,
    }

    async def look() -> str:
        state = await open_state(cli.state)
        try:
            return (await authenticate(state.store, state.pepper, made["secret"])).id
        finally:
            await state.store.aclose()

    assert asyncio.run(look()) == made["id"]
    assert made["secret"] not in cli.good("keys", "list") + cli.good("keys", "list", "--json")


def test_create_for_people_shows_the_secret_on_a_line_of_its_own(cli: Cli) -> None:
    lines = cli.good("keys", "create", "--purpose", "agent", "--name", "[red]a").splitlines()
    assert any(line.strip().startswith("sk-dcu-agent-") for line in lines)
    assert "[red]a" in lines[0]
    assert "only now" in lines[-1]


def test_list_shows_every_key_with_what_it_used(cli: Cli) -> None:
    assert json.loads(cli("keys", "list", "--json").stdout) == []
    made = json.loads(cli.good("keys", "create", "--purpose", "chat", "--name", "[b]app", "--json"))
    settle(cli.state, row("dcu-1", made["id"]))
    (listed,) = json.loads(cli.good("keys", "list", "--json"))
    assert listed == {
        **{key: value for key, value in made.items() if key != "secret"},
        "used_tokens": 100,
        "last_used_ms": NOW_MS,
    }
    table = cli.good("keys", "list")
    for shown in (made["id"], "[b]app", made["hint"], " 100 ", "2023-11-14 22:13:20"):
        assert shown in table


def test_revoke_by_id_or_name(cli: Cli) -> None:
    made = json.loads(cli.good("keys", "create", "--purpose", "chat", "--name", "app", "--json"))
    assert made["id"] in cli.good("keys", "revoke", "app")
    revoked = json.loads(cli.good("keys", "revoke", made["id"], "--json"))
    assert (revoked["id"], revoked["status"]) == (made["id"], "revoked")
    assert "revoked" in cli.good("keys", "list")


def test_usage_shows_the_exact_sums(cli: Cli) -> None:
    made = json.loads(cli.good("keys", "create", "--purpose", "chat", "--name", "app", "--json"))
    settle(cli.state, row("dcu-1", made["id"]), row("dcu-2", made["id"], NOW_MS + 86_400_000))
    sums = {"requests": 2, "input_tokens": 60, "cached_tokens": 40, "output_tokens": 100, "device_ms": 14}
    assert json.loads(cli.good("usage", "--json")) == [{"key": made["id"], "name": "app", **sums}]
    assert json.loads(cli.good("usage", "--by", "model", "--json")) == [{"model": "m", **sums}]
    days = json.loads(cli.good("usage", "--by", "day", "--since", "2023-11-15", "--until", "2023-11-16", "--json"))
    assert [(day["day"], day["requests"]) for day in days] == [("2023-11-15", 1)]
    for shown in (made["id"], "app", " 60 ", " 40 ", " 100 "):
        assert shown in cli.good("usage")


def test_usage_shows_the_last_requests(cli: Cli) -> None:
    settle(cli.state, row("dcu-1", "k_a"), row("dcu-2", "k_a"))
    (last,) = json.loads(cli.good("usage", "--requests", "1", "--json"))
    assert last["request_id"] == "dcu-2"
    assert last["estimated"] is False
    assert "dcu-1" in cli.good("usage", "--requests", "5")


def test_an_option_names_another_state_folder(cli: Cli, tmp_path: Path) -> None:
    other = tmp_path / "other"
    cli.good("keys", "create", "--purpose", "chat", "--name", "app", "--state", str(other))
    assert len(json.loads(cli.good("keys", "list", "--json", "--state", str(other)))) == 1
    assert not cli.state.exists()


@pytest.mark.parametrize("looking", [("keys", "list"), ("usage",), ("usage", "--requests", "3")])
def test_looking_makes_no_state_and_says_that_there_is_none(cli: Cli, looking: tuple[str, ...]) -> None:
    for arguments in (looking, (*looking, "--json")):
        result = cli(*arguments)
        assert result.exit_code == 0
        assert str(cli.state) in result.stderr
    assert json.loads(result.stdout) == []
    assert not cli.state.exists()


def test_texts_are_chinese_in_a_chinese_locale(chinese: Cli) -> None:
    assert "只显示这一次" in chinese.good("keys", "create", "--purpose", "chat", "--name", "小明")
    assert "有效" in chinese.good("keys", "list")
    assert "已吊销" in chinese.good("keys", "revoke", "小明")
    assert "已吊销" in chinese.good("keys", "list")
    assert "缓存输入" in chinese.good("usage")
    assert "密钥用途" in chinese.refused("keys", "create", "--purpose", "x", "--name", "a")
    assert "没有编号或名称" in chinese.refused("keys", "revoke", "nobody")
    assert "签发" in chinese.good("keys", "--help")
    assert "账本" in chinese.good("usage", "--help")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("keys", "create", "--purpose", "x", "--name", "a"), "chat or agent"),
        (("keys", "create", "--purpose", "chat", "--name", " "), "name"),
        (("keys", "create", "--purpose", "chat", "--name", "a", "--limit-tokens", "0"), "limit"),
        (("keys", "revoke", "nobody"), "'nobody'"),
        (("usage", "--by", "colour"), "purpose"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(cli: Cli, arguments: tuple[str, ...], says: str) -> None:
    assert says in cli.refused(*arguments)


def test_two_active_keys_of_one_name_are_told_apart_by_id(cli: Cli) -> None:
    ids = [
        json.loads(cli.good("keys", "create", "--purpose", "chat", "--name", "app", "--json"))["id"] for _ in range(2)
    ]
    message = cli.refused("keys", "revoke", "app")
    assert all(key_id in message for key_id in ids)


def test_a_state_folder_that_cannot_be_written_is_one_line(cli: Cli) -> None:
    cli.state.write_text("a file in the folder's place")
    assert str(cli.state) in cli.refused("keys", "create", "--purpose", "chat", "--name", "a")


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A folder whose rights bind this process too, root or not; it is 0500 and the test may lower that."""
    folder = Path(tempfile.mkdtemp())
    Cli(folder)("keys", "create", "--purpose", "chat", "--name", "a")  # imports everything while it still may
    for file in folder.iterdir():
        file.unlink()
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o700)
    shutil.rmtree(folder)


@contextlib.contextmanager
def without_roots_rights() -> Iterator[None]:
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_read_only_state_folder_is_one_line(closed_folder: Path) -> None:
    with without_roots_rights():
        for folder in (closed_folder, closed_folder / "below"):
            assert str(folder) in Cli(folder).refused("keys", "create", "--purpose", "chat", "--name", "a")


def test_a_state_folder_that_may_not_be_searched_is_one_line(closed_folder: Path) -> None:
    closed_folder.chmod(0)
    with without_roots_rights():
        for arguments in (("keys", "list"), ("usage",), ("keys", "revoke", "a")):
            assert str(closed_folder) in Cli(closed_folder).refused(*arguments)


def test_a_damaged_database_is_one_line(cli: Cli) -> None:
    cli.state.mkdir()
    database_path(cli.state).write_bytes(b"no database" * 1000)
    for arguments in (("keys", "list"), ("usage",), ("keys", "revoke", "a")):
        assert "damaged" in cli.refused(*arguments)


FULL_DISK = """
import resource, sys
# No file may grow beyond 16 KiB: the disk of this process is as good as full.
resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
import typer
from keys.cli import keys_app
app = typer.Typer()
app.add_typer(keys_app(), name="keys")
app(sys.argv[1:])
"""


@pytest.mark.parametrize("lang", ["C.UTF-8", "zh_CN.UTF-8"])
def test_a_full_disk_is_one_line(cli: Cli, lang: str) -> None:
    environment = {**os.environ, "LC_ALL": lang, "DCUGATE_STATE": str(cli.state), "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-B", "-c", FULL_DISK, "keys", "create", "--purpose", "chat", "--name", "a"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert str(cli.state) in done.stderr
