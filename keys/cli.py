"""The command line over a state folder: `dcugate keys create|list|revoke` and `dcugate usage`.

What was asked for goes to stdout. Every error is one line on stderr and exit code 2.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from keys.admin import create_key, revoke_key
from keys.errors import KeysError, NoSuchKey
from keys.explain import explain
from keys.language import choose
from keys.model import GROUPINGS, Grouping, Key, LedgerRow, UsageTotals
from keys.state import State, default_state_dir, has_database, open_state

__all__ = ["keys_app", "usage_command", "usage_help"]

T = TypeVar("T")

_StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        show_default=False,
        help=choose(
            "State folder (default: $DCUGATE_STATE, else ~/.local/state/dcugate).",
            "状态目录（默认：$DCUGATE_STATE，否则 ~/.local/state/dcugate）。",
        ),
    ),
]
_Json = Annotated[bool, typer.Option("--json", help=choose("Print JSON.", "输出 JSON。"))]
_Name = Annotated[str, typer.Option("--name", help=choose("Who or what uses the key.", "密钥的使用者。"))]
_Purpose = Annotated[str, typer.Option("--purpose", metavar="chat|agent", help=choose("What it is for.", "用途。"))]
_Limit = Annotated[
    int | None,
    typer.Option(
        "--limit-tokens",
        metavar="N",
        show_default=False,
        help=choose("Most tokens the key may ever use (default: no limit).", "密钥可用的 token 总量（默认不限）。"),
    ),
]
_IdOrName = Annotated[str, typer.Argument(metavar="ID|NAME", help=choose("The key's id or name.", "密钥编号或名称。"))]
_By = Annotated[
    str,
    typer.Option("--by", metavar="|".join(GROUPINGS), help=choose("What one line is for.", "按什么汇总。")),
]
_Since = Annotated[
    datetime | None,
    typer.Option("--since", show_default=False, help=choose("From this time on (UTC).", "起始时间（UTC）。")),
]
_Until = Annotated[
    datetime | None,
    typer.Option("--until", show_default=False, help=choose("Before this time (UTC).", "截止时间（UTC，不含）。")),
]
_Requests = Annotated[
    int | None,
    typer.Option(
        "--requests",
        metavar="N",
        min=1,
        show_default=False,
        help=choose("Show the last N requests instead of sums.", "显示最近 N 个请求，而不是汇总。"),
    ),
]


def keys_app() -> typer.Typer:
    """Return the commands `create`, `list` and `revoke`, to be added to the program under the name `keys`."""
    app = typer.Typer(
        no_args_is_help=True, help=choose("Issue, list and revoke API keys.", "签发、列出和吊销 API 密钥。")
    )
    app.command("create", help=choose("Issue a key; its secret is shown once.", "签发密钥；密钥内容只显示一次。"))(
        _create
    )
    app.command("list", help=choose("List all keys.", "列出所有密钥。"))(_list)
    app.command("revoke", help=choose("Revoke a key for good.", "永久吊销密钥。"))(_revoke)
    return app


def usage_help() -> str:
    """Return the help text under which `usage_command` is to be registered."""
    return choose("Show exact usage from the ledger.", "显示账本中的准确用量。")


def usage_command(
    by: _By = "key",
    since: _Since = None,
    until: _Until = None,
    requests: _Requests = None,
    state: _StateDir = None,
    as_json: _Json = False,
) -> None:
    """Show sums over the ledger, or its last rows: `app.command("usage", help=usage_help())(usage_command)`."""
    group_by = next((known for known in GROUPINGS if known == by), None)
    if group_by is None:
        _fail(choose(f"--by is one of {', '.join(GROUPINGS)}", f"--by 只能是 {'、'.join(GROUPINGS)}"))
    if requests is not None:
        _show_rows(_read(state, lambda opened: opened.store.rows(requests), []), as_json)
        return

    grouping: Grouping = group_by

    async def sums(opened: State) -> tuple[list[tuple[str, UsageTotals]], dict[str, str]]:
        found = await opened.store.usage(grouping, _milliseconds(since), _milliseconds(until))
        return found, {key.id: key.name for key in await opened.store.list_keys()}

    nothing: tuple[list[tuple[str, UsageTotals]], dict[str, str]] = ([], {})
    totals, names = _read(state, sums, nothing)
    _show_sums(grouping, totals, names, as_json)


def _create(
    name: _Name, purpose: _Purpose, limit_tokens: _Limit = None, state: _StateDir = None, as_json: _Json = False
) -> None:
    now_ms = time.time_ns() // 1_000_000
    key, secret = _run(
        state, lambda opened: create_key(opened.store, opened.pepper, name, purpose, limit_tokens, now_ms)
    )
    if as_json:
        _print_json({**_key_object(key), "secret": secret.reveal()})
        return
    typer.echo(choose(f"Key {key.id} ({key.name}, {key.purpose}):", f"密钥 {key.id}（{key.name}，{key.purpose}）："))
    typer.echo(f"\n    {secret.reveal()}\n")
    typer.echo(choose("It is shown only now; keep it safe.", "密钥内容只显示这一次，请妥善保存。"))


def _list(state: _StateDir = None, as_json: _Json = False) -> None:
    async def everything(opened: State) -> tuple[list[Key], dict[str, UsageTotals]]:
        return await opened.store.list_keys(), dict(await opened.store.usage("key"))

    nothing: tuple[list[Key], dict[str, UsageTotals]] = ([], {})
    keys, totals = _read(state, everything, nothing)
    used = {key_id: sums.input_tokens + sums.cached_tokens + sums.output_tokens for key_id, sums in totals.items()}
    if as_json:
        _print_json([{**_key_object(key), "used_tokens": used.get(key.id, 0)} for key in keys])
        return
    table = _table(
        ("id", "text"),
        (choose("name", "名称"), "text"),
        (choose("purpose", "用途"), "text"),
        (choose("status", "状态"), "text"),
        (choose("key", "密钥"), "text"),
        (choose("used tokens", "已用 token"), "number"),
        (choose("limit", "上限"), "number"),
        (choose("created", "创建时间"), "text"),
        (choose("last used", "最近使用"), "text"),
    )
    statuses = {"active": choose("active", "有效"), "revoked": choose("revoked", "已吊销")}
    for key in keys:
        limit = "-" if key.limit_tokens is None else str(key.limit_tokens)
        table.add_row(
            *_texts(key.id, key.name, key.purpose, statuses[key.status], key.hint, str(used.get(key.id, 0)), limit),
            *_texts(_time(key.created_ms), _time(key.last_used_ms)),
        )
    _print_table(table)


def _revoke(id_or_name: _IdOrName, state: _StateDir = None, as_json: _Json = False) -> None:
    if not _has_database(state or default_state_dir()):
        _fail(explain(NoSuchKey(id_or_name)))
    key = _run(state, lambda opened: revoke_key(opened.store, id_or_name))
    if as_json:
        _print_json(_key_object(key))
        return
    typer.echo(choose(f"Key {key.id} ({key.name}) is revoked.", f"密钥 {key.id}（{key.name}）已吊销。"))


def _run(state_dir: Path | None, use: Callable[[State], Awaitable[T]]) -> T:
    async def opened() -> T:
        state = await open_state(state_dir or default_state_dir())
        try:
            return await use(state)
        finally:
            await state.store.aclose()

    try:
        return asyncio.run(opened())
    except KeysError as error:
        _fail(explain(error))


def _read(state_dir: Path | None, use: Callable[[State], Awaitable[T]], nothing: T) -> T:
    # Looking makes no state folder: where there is none there is nothing to see, and that is said.
    folder = state_dir or default_state_dir()
    if not _has_database(folder):
        typer.echo(choose(f"Nothing has been kept in {folder} yet.", f"{folder} 中还没有任何数据。"), err=True)
        return nothing
    return _run(state_dir, use)


def _has_database(folder: Path) -> bool:
    try:
        return has_database(folder)
    except KeysError as error:
        _fail(explain(error))


def _fail(message: str) -> NoReturn:
    typer.echo(choose(f"Error: {message}", f"错误：{message}"), err=True)
    raise typer.Exit(2)


def _show_sums(group_by: Grouping, sums: list[tuple[str, UsageTotals]], names: dict[str, str], as_json: bool) -> None:
    if as_json:
        _print_json(
            [
                {group_by: label, **({"name": names.get(label)} if group_by == "key" else {}), **asdict(totals)}
                for label, totals in sums
            ]
        )
        return
    titles = {
        "key": choose("key", "密钥"),
        "purpose": choose("purpose", "用途"),
        "model": choose("model", "模型"),
        "worker": choose("worker", "工作进程"),
        "day": choose("day (UTC)", "日期（UTC）"),
    }
    named = [(choose("name", "名称"), "text")] if group_by == "key" else []
    table = _table(
        (titles[group_by], "text"),
        *named,
        (choose("requests", "请求数"), "number"),
        (choose("input", "输入"), "number"),
        (choose("cached input", "缓存输入"), "number"),
        (choose("output", "输出"), "number"),
        (choose("device ms", "设备毫秒"), "number"),
    )
    for label, totals in sums:
        name = [names.get(label, "-")] if group_by == "key" else []
        table.add_row(*_texts(label or "-", *name, *(str(getattr(totals, part.name)) for part in fields(totals))))
    _print_table(table)


def _show_rows(rows: list[LedgerRow], as_json: bool) -> None:
    if as_json:
        _print_json([asdict(row) for row in rows])
        return
    table = _table(
        (choose("started", "开始时间"), "text"),
        (choose("request", "请求"), "text"),
        (choose("key", "密钥"), "text"),
        (choose("model", "模型"), "text"),
        (choose("status", "状态"), "text"),
        (choose("input", "输入"), "number"),
        (choose("cached input", "缓存输入"), "number"),
        (choose("output", "输出"), "number"),
        (choose("estimated", "估算"), "text"),
    )
    for row in rows:
        estimated = choose("yes", "是") if row.estimated else choose("no", "否")
        tokens = (str(row.input_tokens), str(row.cached_tokens), str(row.output_tokens))
        table.add_row(
            *_texts(_time(row.started_ms), row.request_id, row.key_id or "-", row.model, row.status, *tokens, estimated)
        )
    _print_table(table)


def _key_object(key: Key) -> dict[str, object]:
    return {part.name: getattr(key, part.name) for part in fields(key) if part.name != "digest"}


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title, kind in columns:
        table.add_column(title, justify="right" if kind == "number" else "left", no_wrap=True)
    return table


def _texts(*values: str) -> list[Text]:
    return [Text(value) for value in values]  # a name is text, never rich's markup


def _print_table(table: Table) -> None:
    # As wide as its content, whatever the terminal's width: a shortened id or number would be of no use.
    width = Console(width=10_000).measure(table).maximum
    Console(width=max(width, 1)).print(table)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))


def _time(unix_ms: int | None) -> str:
    return "-" if unix_ms is None else f"{datetime.fromtimestamp(unix_ms // 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.replace(tzinfo=UTC).timestamp() * 1000)
