"""`dcugate up`: model, runner, worker, gateway, in this order; and back down without leaving a process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from gateway.app import ListenError, serve_until_stopped
from gateway.config.model import Listener, Routes
from gateway.dispatch import Dispatcher
from keys.language import choose

__all__ = ["StartError", "check_listeners", "run_up"]

POLL_S = 0.25
LOG_LINES = 12
STOP_MARGIN_S = 15.0  # after the drain bound: vLLM's own exit takes about 6 s


class StartError(Exception):
    """Something did not start; the message says what, why, and what to do."""


def check_listeners(listeners: tuple[Listener, ...]) -> None:
    """Fails early, before a worker is launched, where an address is taken. Raises ListenError."""
    for listener in listeners:
        try:
            family = socket.getaddrinfo(listener.host, listener.port, type=socket.SOCK_STREAM)[0][0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((listener.host, listener.port))
        except OSError as problem:
            why = problem.strerror or str(problem)
            raise ListenError(
                choose(
                    f"cannot listen on {listener.address}: {why}; end the program that uses it or change `listen` "
                    "in routes.yaml",
                    f"无法监听 {listener.address}:{why};请结束占用它的程序，或修改 routes.yaml 的 `listen`",
                )
            ) from None


async def _workers(socket_path: Path, runner_pid: int) -> list[dict[str, Any]] | None:
    """The list of the runner with that pid; None while it does not answer yet. Another one may hold the folder: then ours
    will end and say so."""
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(path=str(socket_path)), timeout=aiohttp.ClientTimeout(total=2)
            ) as session,
            session.get("http://runner/v1/workers") as answer,
        ):
            told = await answer.json()
            return list(told["workers"]) if told["runner_pid"] == runner_pid else None
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None


def _last_lines(path: str | None) -> str:
    try:
        with Path(path or "").open(encoding="utf-8", errors="replace") as log:
            return "".join(f"  | {line.rstrip()[:200]}\n" for line in deque(log, LOG_LINES))
    except OSError:
        return ""


def _runner_ended(runner: asyncio.subprocess.Process, log_path: Path) -> StartError:
    return StartError(
        choose(f"the runner ended with status {runner.returncode}:", f"运行器退出，状态 {runner.returncode}：")
        + "\n"
        + _last_lines(str(log_path))
    )


async def _until_ready(
    runner: asyncio.subprocess.Process, socket_path: Path, log_path: Path, say: Callable[[str], None]
) -> None:
    """Waits until every worker is ready, telling what goes on. Raises StartError where one fails or the runner ends."""
    started = time.monotonic()
    while True:
        if runner.returncode is not None:
            raise _runner_ended(runner, log_path)
        workers = await _workers(socket_path, runner.pid)
        for worker in workers or []:
            if worker["state"] in ("failed", "backoff", "stopped"):
                raise StartError(
                    choose(
                        f"worker {worker['name']} did not start: {worker.get('reason') or worker['state']}",
                        f"工作进程 {worker['name']} 启动失败：{worker.get('reason') or worker['state']}",
                    )
                    + f"\n{_last_lines(worker.get('log_path'))}"
                    + choose(f"the whole log: {worker.get('log_path')}", f"完整日志：{worker.get('log_path')}")
                )
        if workers and all(worker["state"] == "ready" for worker in workers):
            return
        states = ", ".join(f"{w['name']}: {w['state']}" for w in workers or []) or choose("starting", "启动中")
        say(f"{states} ({time.monotonic() - started:.0f} s)")
        try:
            await asyncio.wait_for(runner.wait(), POLL_S)
        except TimeoutError:
            continue


async def _stop_runner(runner: asyncio.subprocess.Process, drain_s: float) -> None:
    if runner.returncode is not None:
        return
    runner.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(runner.wait(), drain_s + STOP_MARGIN_S)
    except TimeoutError:
        runner.kill()
        await runner.wait()


async def run_up(
    routes: Routes,
    worker_files: list[Path],
    state: Path,
    say: Callable[[str], None],
    on_ready: Callable[[Dispatcher], Awaitable[None]],
) -> None:
    """Runs the whole service until SIGINT or SIGTERM. Raises StartError, ListenError.

    The runner is a process in a session of its own, so that Ctrl-C reaches this process only, which then drains the
    gateway before the workers; it ends by itself when this process is gone.
    """
    check_listeners(routes.listen)
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this is not None  # noqa: S101 -- a coroutine runs in a task
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, this.cancel)
    command = [sys.executable, "-m", "backend_runner", "--state", str(state), "--exit-with-parent", str(os.getpid())]
    for path in worker_files:
        command += ["--worker", str(path)]
    log_path = state / "logs" / "runner.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        runner = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=dict(os.environ),
        )
    try:
        await _until_ready(runner, state / "runner.sock", log_path, say)
        serving = asyncio.create_task(serve_until_stopped(routes, state, on_ready))
        watching = asyncio.create_task(runner.wait())
        try:
            await asyncio.wait({serving, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            if not serving.done():
                serving.cancel()  # it drains all the same
                await asyncio.gather(serving, return_exceptions=True)
        if not serving.cancelled():
            await serving  # its own error, if it has one
        if runner.returncode is not None:
            raise _runner_ended(runner, log_path)
        say(choose("stopping the workers", "正在停止工作进程"))
    finally:
        await asyncio.shield(_stop_runner(runner, routes.deadlines.drain_s))


def greeting(base_url: str, model: str, keys: dict[str, str]) -> str:
    """What an operator sees when the service is up. `keys`: the secrets by purpose, on the first start only."""
    secret = keys.get("chat", "$DCUGATE_KEY")
    body = json.dumps(
        {"model": model, "temperature": 0, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    )
    lines = [choose("dcugate is ready", "dcugate 已就绪"), "", f"  {choose('base URL', '接口地址')}   {base_url}/v1"]
    lines += [f"  {purpose:<5} key  {text}" for purpose, text in keys.items()]
    if keys:
        lines.append(choose("  (shown once: keep them)", "  (仅显示一次，请保存)"))
    else:
        lines.append(
            choose(
                "  keys: `dcugate keys create --purpose chat --name NAME`",
                "  新建密钥：`dcugate keys create --purpose chat --name NAME`",
            )
        )
    python = (
        "import json, urllib.request as u; print(json.load(u.urlopen(u.Request("
        f"'{base_url}/v1/chat/completions', headers={{'Authorization': 'Bearer {secret}'}}, "
        f"data=json.dumps({{'model': '{model}', 'temperature': 0, 'messages': [{{'role': 'user', "
        "'content': 'What is the capital of France?'}]}).encode())))['choices'][0]['message']['content'])"
    )
    lines += [
        "",
        f'curl -s {base_url}/v1/chat/completions -H "Authorization: Bearer {secret}" '
        f"-H 'Content-Type: application/json' -d '{body}'",
        "",
        f'python3 -c "{python}"',
        "",
        choose("Ctrl-C drains and ends everything.", "按 Ctrl-C 会先处理完进行中的请求，再全部退出。"),
    ]
    return "\n".join(lines)
