"""The `dcugate` command. Bad input ends with one clear line on standard error and exit code 2."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.config.load import ConfigError, Problem, load_routes
from gateway.config.model import Routes
from keys.cli import keys_app, usage_command, usage_help
from keys.explain import explain
from keys.language import choose
from keys.state import default_state_dir

if TYPE_CHECKING:
    from gateway.dispatch import Dispatcher

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=choose(
        "API gateway for language models on Hygon Z100 cards: keys, quota, exact usage, and its vLLM workers.",
        "海光 Z100 大模型 API 网关：密钥、额度、精确用量，以及后端的 vLLM 工作进程。",
    ),
)
config_app = typer.Typer(no_args_is_help=True, help=choose("Look at the configuration.", "查看配置。"))
app.add_typer(keys_app(), name="keys", help=choose("Keys, one per purpose.", "密钥，一个用途一个。"))
app.add_typer(config_app, name="config")
app.command("usage", help=usage_help())(usage_command)

ConfigOption = Annotated[Path, typer.Option("--config", help=choose("The routes file.", "路由配置文件。"))]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", show_default=False, help=choose("Where state is kept.", "状态目录。")),
]
DEFAULT_CONFIG = Path("routes.yaml")


def _fail(message: str) -> typer.Exit:
    typer.echo(f"dcugate: {message}", err=True)
    return typer.Exit(2)


def _check_worker(path: Path) -> tuple[str | None, list[Problem]]:
    """The runner's own check of a worker file, in the gateway's terms."""
    from backend_runner.core.worker_config import ConfigProblems, load_worker_config

    try:
        worker = load_worker_config(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8"
        return None, [Problem(str(path), None, f"cannot be read: {why}")]
    except ConfigProblems as found:
        return None, [Problem(p.file, p.line, p.message) for p in found.problems]
    return worker.name, []


def _load(config: Path) -> Routes:
    try:
        return load_routes(config, _check_worker)
    except ConfigError as wrong:
        for problem in wrong.problems:
            typer.echo(f"dcugate: {problem}", err=True)
        raise typer.Exit(2) from None


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Runs the service. A stop by signal is a clean end; a start that failed tells why."""
    import uvloop

    from gateway.app import ListenError
    from gateway.telemetry.logs import set_up_logs
    from gateway.up import StartError
    from keys.errors import KeysError

    set_up_logs(os.environ.get("DCUGATE_LOG_LEVEL", "INFO"))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)
    except (asyncio.CancelledError, KeyboardInterrupt):
        return
    except KeysError as problem:
        raise _fail(explain(problem)) from None
    except (ListenError, StartError, OSError) as problem:
        raise _fail(str(problem)) from None


async def _first_keys(dispatcher: Dispatcher) -> dict[str, str]:
    """The secrets of a fresh chat key and agent key where the store has no key yet; else nothing."""
    import time

    from keys.admin import create_key

    made: dict[str, str] = {}
    if not await dispatcher.store.list_keys():
        for purpose in ("chat", "agent"):
            _, secret = await create_key(
                dispatcher.store, dispatcher.pepper, name=f"first-{purpose}", purpose=purpose, limit_tokens=None,
                now_ms=time.time_ns() // 1_000_000,
            )  # fmt: skip
            made[purpose] = secret.reveal()
    return made


@app.command(help=choose("Launch the workers and serve.", "启动工作进程并提供服务。"))
def up(config: ConfigOption = DEFAULT_CONFIG, state: StateOption = None) -> None:
    """The main job: model, runner, worker, gateway."""
    from rich.console import Console

    from gateway.app import ListenError
    from gateway.up import check_listeners, greeting, run_up
    from keys.errors import KeysError

    routes, folder = _load(config), state or default_state_dir()
    worker_files = [config.parent / path for path in routes.workers]
    console = Console(stderr=True)
    try:
        check_listeners(routes.listen)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _ensure_models(worker_files)
    except KeysError as problem:
        raise _fail(explain(problem)) from None
    except (ListenError, OSError) as problem:
        raise _fail(str(problem)) from None
    status = console.status(choose("starting the worker", "正在启动工作进程"))
    told = [""]

    def say(text: str) -> None:
        if console.is_terminal:
            status.update(text)
        elif text.split("(")[0] != told[0]:
            told[0] = text.split("(")[0]
            console.print(text)

    async def on_ready(dispatcher: Dispatcher) -> None:
        secrets = await _first_keys(dispatcher)  # only now: a start that fails would make keys that nobody sees
        status.stop()
        host = routes.listen[0].host if routes.listen[0].host not in ("0.0.0.0", "::") else "127.0.0.1"  # noqa: S104 -- compared, not bound
        typer.echo(greeting(f"http://{host}:{routes.listen[0].port}", routes.models[0].name, secrets))
        sys.stdout.flush()

    with status:
        _run(run_up(routes, worker_files, folder, say, on_ready))


def _make_demo_model() -> Path:
    """The demo model's folder; made now, with a progress bar, where it is not in the cache yet."""
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from backend_runner.demo_model import DemoModelError, Step, make_demo_model
    from backend_runner.launchers.base import LaunchFailed
    from backend_runner.launchers.environment import find_python

    names = {
        "download": choose("demo model: downloading (93 MB)", "演示模型：下载（93 MB）"),
        "check": choose("demo model: checking", "演示模型：校验"),
        "convert": choose("demo model: converting", "演示模型：转换"),
    }
    tasks: dict[str, TaskID] = {}
    try:
        with Progress(console=Console(stderr=True)) as progress:

            def report(step: Step) -> None:
                if step.name not in tasks:
                    tasks[step.name] = progress.add_task(names[step.name], total=step.total)
                progress.update(tasks[step.name], completed=step.done, total=step.total)

            return make_demo_model(find_python(None, os.environ, Path.cwd()), os.environ, report)
    except (DemoModelError, LaunchFailed) as problem:
        raise _fail(str(problem)) from None


def _ensure_models(worker_files: list[Path]) -> None:
    """Makes the demo model where a worker file asks for it."""
    from backend_runner.core.worker_config import load_worker_config
    from backend_runner.demo_model import demo_model_is_made, needs_demo_model

    configs = (load_worker_config(path.read_text(encoding="utf-8"), str(path)) for path in worker_files)
    if any(needs_demo_model(config.model_path) for config in configs) and not demo_model_is_made(os.environ):
        _make_demo_model()


@app.command(help=choose("The gateway alone.", "只运行网关。"))
def serve(config: ConfigOption = DEFAULT_CONFIG, state: StateOption = None) -> None:
    """Workers are found through the runner's socket, or are named by address."""
    from gateway.app import serve_until_stopped

    routes = _load(config)

    async def on_ready(_: object) -> None:
        typer.echo(choose("dcugate listens on ", "dcugate 正在监听 ") + ", ".join(x.address for x in routes.listen))
        sys.stdout.flush()

    _run(serve_until_stopped(routes, state or default_state_dir(), on_ready))


@app.command(help=choose("One worker alone, under the runner.", "只运行一个工作进程。"))
def worker(config: Annotated[Path, typer.Argument()], state: StateOption = None) -> None:
    """Replaces this process by the runner with that one worker."""
    name, problems = _check_worker(config)
    if name is None:
        raise _fail("\ndcugate: ".join(map(str, problems)))
    _ensure_models([config])
    folder = state or default_state_dir()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.execv(  # noqa: S606 -- no shell is wanted
        sys.executable,
        [sys.executable, "-m", "backend_runner", "--state", str(folder), "--worker", str(config)],
    )


@app.command("demo-model", help=choose("Make the small model of the demo.", "制作演示用的小模型。"))
def demo_model() -> None:
    """SmolLM2-135M-Instruct, from a Python package; no model hub is reached."""
    typer.echo(str(_make_demo_model()))


@config_app.command("check", help=choose("Tell everything that is wrong.", "列出配置中的所有问题。"))
def config_check(
    config: ConfigOption = DEFAULT_CONFIG, as_json: Annotated[bool, typer.Option("--json")] = False
) -> None:
    """Exit code 0 and one line where all is well, else 2 and one line a problem."""
    try:
        routes = load_routes(config, _check_worker)
    except ConfigError as wrong:
        if as_json:
            listed = [{"file": p.file, "line": p.line, "message": p.message} for p in wrong.problems]
            typer.echo(json.dumps({"ok": False, "problems": listed}, ensure_ascii=False))
        else:
            for problem in wrong.problems:
                typer.echo(str(problem), err=True)
        raise typer.Exit(2) from None
    models = ", ".join(model.name for model in routes.models)
    if as_json:
        typer.echo(json.dumps({"ok": True, "models": [m.name for m in routes.models]}))
    else:
        typer.echo(choose(f"{config} is right; models: {models}", f"{config} 没有问题；模型：{models}"))


def main() -> None:
    """The console script."""
    app()
