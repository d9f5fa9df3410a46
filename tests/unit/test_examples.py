"""The example services, run as processes of their own: right answers, in batches, and the agent hears of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.batch.consumers import ConsumerServer
from agent.batch.layout import PublishedWindow
from agent.batch.publisher import PagePublisher
from tools.examples.fastapi_service import create_app

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the examples believe pages of root alone")

TIMEOUT_S = 30
CLIENTS = 24
WAIT_US = 50_000

FASTAPI = """
import uvicorn
from tools.examples.fastapi_service import create_app
uvicorn.run(create_app(Path(state_dir)), port=port, log_level="warning")
"""
FLASK = """
from tools.examples.flask_service import create_app
create_app(Path(state_dir)).run(port=port, threaded=True)
"""
SOCKET = """
from tools.examples.socket_service import serve
serve(port, Path(state_dir))
"""


def free_port(kind: socket.SocketKind) -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def service(code: str, port: int, state_dir: Path) -> Iterator[None]:
    """An example that listens on a port, for the agent in this directory."""
    head = f"from pathlib import Path\nport, state_dir = {port}, {str(state_dir)!r}\n"
    process = subprocess.Popen([sys.executable, "-c", head + code], stderr=subprocess.PIPE)
    try:
        yield
        assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
    finally:
        process.kill()
        process.communicate()


def post(port: int, frame: bytes) -> tuple[float, int]:
    """Brightness and size of the batch, by HTTP."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/brightness", frame)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                found = json.load(response)
                return found["brightness"], found["batch"]
        except ConnectionError:
            pass
        except urllib.error.URLError as error:
            # It has not begun to listen yet.
            if not isinstance(error.reason, ConnectionError):
                raise
        assert time.monotonic() < deadline, "the service does not answer"
        time.sleep(0.05)


def send(port: int, frame: bytes) -> tuple[float, int]:
    """Brightness and size of the batch, by UDP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("127.0.0.1", port))
        client.settimeout(0.5)
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                client.send(frame)
                result, batch, arrival = client.recv(1_000).decode().split()
            except (ConnectionRefusedError, TimeoutError):
                time.sleep(0.05)
                continue
            assert arrival == "unknown"
            return float(result), int(batch)
    raise AssertionError("the service does not answer")


@pytest.mark.parametrize(
    ("code", "kind", "ask"),
    [
        (FASTAPI, socket.SOCK_STREAM, post),
        (FLASK, socket.SOCK_STREAM, post),
        (SOCKET, socket.SOCK_DGRAM, send),
    ],
    ids=["fastapi", "flask", "socket"],
)
def test_it_answers_in_batches_by_the_agents_window(
    tmp_path: Path, code: str, kind: socket.SocketKind, ask: Callable[[int, bytes], tuple[float, int]]
) -> None:
    """Each client gets its own frame's result; batches are larger than one, and are reported."""
    port = free_port(kind)
    with (
        PagePublisher(tmp_path, "default") as publisher,
        ConsumerServer(tmp_path, "default", [0]) as server,
        service(code, port, tmp_path),
        ThreadPoolExecutor(CLIENTS) as clients,
    ):
        now_ns = time.monotonic_ns()
        publisher.publish_window(PublishedWindow(now_ns, now_ns + 55 * 10**9, WAIT_US, 8))
        assert ask(port, bytes([9, 11])) == (10.0, 1)
        reported = 0
        deadline = time.monotonic() + TIMEOUT_S
        sizes = set()
        while reported < 100:
            assert time.monotonic() < deadline, "nothing is reported"
            found = list(clients.map(lambda n: ask(port, bytes([n, n + 2])), range(CLIENTS)))
            assert [brightness for brightness, _ in found] == [n + 1.0 for n in range(CLIENTS)]
            sizes |= {batch for _, batch in found}
            reported += sum(int(told.items.sum()) for told in server.poll())
        assert 1 < max(sizes) <= 8


def test_the_fastapi_app_may_be_started_again(tmp_path: Path) -> None:
    """As test clients do with one app: each start has a batcher of its event loop."""
    app = create_app(tmp_path)

    async def start() -> object:
        async with app.router.lifespan_context(app):
            return await app.state.batcher.submit(bytes([9, 11]))

    assert [asyncio.run(start()) for _ in range(2)] == [(10.0, 1), (10.0, 1)]


def test_the_socket_loop_ends_by_ctrl_c(tmp_path: Path) -> None:
    """Without a traceback."""
    port = free_port(socket.SOCK_DGRAM)
    command = [sys.executable, "-m", "tools.examples.socket_service", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        send(port, bytes([9, 11]))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert b"Traceback" not in said
