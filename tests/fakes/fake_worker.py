"""A small stand-in for `vllm serve`: listens on --uds, answers /health, ends on SIGTERM; starts a child like vLLM does.

Run as `python -m vllm.entrypoints.cli.main serve MODEL ...` would be; behaviour by environment:
FAKE_FAIL=TEXT prints it and exits 1; FAKE_DEAF=1 ignores SIGTERM; FAKE_CHILD=FILE writes the child's pid there.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys


def main() -> None:
    if text := os.environ.get("FAKE_FAIL"):
        sys.exit(text)
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"]
    )
    if path := os.environ.get("FAKE_CHILD"):
        with open(path + ".new", "w") as f:
            f.write(str(child.pid))
        os.replace(path + ".new", path)

    def end(*_: object) -> None:
        child.kill()
        child.wait()
        sys.exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if os.environ.get("FAKE_DEAF") else end)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[sys.argv.index("--uds") + 1])
    listener.listen()
    print("Application startup complete.", flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


if __name__ == "__main__":
    main()
