from __future__ import annotations

import asyncio
import socket
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.app import ListenError, gateway
from tests.conftest import Service

ROOT = Path(__file__).parents[2]


async def test_a_port_in_use_is_a_clear_error_and_leaves_nothing_open(tmp_path: Path, routes_of: Any) -> None:
    routes = routes_of(tmp_path / "w.sock")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((routes.listen[0].host, routes.listen[0].port))
        taken.listen()
        with pytest.raises(ListenError, match="change `listen`"):
            async with gateway(routes, tmp_path):
                pass


async def test_a_running_stream_ends_before_the_gateway_does(service: Service) -> None:
    answer = await service.http.post(
        f"{service.base}/v1/chat/completions", json=service.ask("stream 50", stream=True), headers=service.auth
    )
    body = await answer.read()
    assert body.endswith(b"data: [DONE]\n\n")
    assert (await service.rows())[0].status == "completed"


async def test_the_gateway_alone_is_small_starts_fast_and_imports_no_torch(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    """Ready in under 1 s and under 80 MB resident; three tries, since a busy machine may delay any one."""
    (tmp_path / "routes.yaml").write_text(
        f"listen:\n  - address: 127.0.0.1:{unused_tcp_port}\n"
        "backends:\n  - {name: b, address: 'http://127.0.0.1:9', model: m}\nmodels:\n  - {name: m, workers: [b]}\n"
    )
    seconds, resident = [], 0
    for _ in range(3):
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "serve", "--config", str(tmp_path / "routes.yaml"), "--state", str(tmp_path / "s"),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, cwd=ROOT,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            assert b"127.0.0.1" in await process.stdout.readline()
            seconds.append(time.monotonic() - started)
            child = psutil.Process(process.pid)
            resident = child.memory_info().rss
            assert not [m.path for m in child.memory_maps() if "torch" in m.path]
        finally:
            process.terminate()
            assert await process.wait() == 0
    assert resident < 80 * 1024 * 1024
    assert min(seconds) < 1.0, seconds
