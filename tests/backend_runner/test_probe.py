from __future__ import annotations

from pathlib import Path

from aiohttp import web

from backend_runner.probe import ProgressReader, is_healthy, last_lines


async def test_health_is_a_200_on_the_socket(tmp_path: Path) -> None:
    status = 200

    async def health(_: web.Request) -> web.Response:
        return web.Response(status=status)

    app = web.Application()
    app.router.add_get("/health", health)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "s")).start()
    try:
        assert await is_healthy(str(tmp_path / "s"))
        status = 503
        assert not await is_healthy(str(tmp_path / "s"))
    finally:
        await runner.cleanup()
    assert not await is_healthy(str(tmp_path / "s"))


def test_the_last_lines_of_what_this_start_wrote(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log, 3) == []
    log.write_text("old\nold\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.write("a\nb\nc\nd\n")
    assert last_lines(log, 3, start) == ["b", "c", "d"]
    assert last_lines(log, 9, start) == ["a", "b", "c", "d"]
    assert last_lines(log, 1, 10_000) == ["d"], "the log was replaced"


def test_a_file_of_something_else_is_no_progress(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"hello" * 100)
    reader = ProgressReader(path)
    assert reader.read() is None
    reader.forget()
    assert not path.exists()
