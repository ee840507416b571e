"""Proxies that others made, each in front of one HTTP engine that costs nothing (`benchmarks.free_engine`).

haproxy          Debian's package; a reverse proxy that decides nothing by a body
vllm-router      PyPI, Rust; in an environment of its own, --peers DIR
sglang-router    PyPI, Rust; likewise

python3.11 -m venv DIR && DIR/bin/pip install vllm-router sglang-router
"""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port

STARTED_WITHIN_S = 60.0
MODEL = "free"

HAPROXY = """
global
    nbthread 1
    maxconn 4000
defaults
    mode http
    option http-no-delay
    option http-keep-alive
    http-reuse always
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    default-server maxconn 4000
frontend clients
    bind 127.0.0.1:{port}
    default_backend engines
backend engines
    server engine 127.0.0.1:{engine}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One proxy that runs, or the engine itself."""

    name: str
    url: str
    pid: int


@contextmanager
def running(folder: Path, environment: Path | None) -> Iterator[Sequence[Peer]]:
    """The engine, and all that are installed, each before it; those that are not are named."""
    with ExitStack() as stack:
        engine = free_port()
        command = [sys.executable, "-m", "benchmarks.free_engine", str(engine)]
        process = stack.enter_context(_process(command, engine))
        found = [Peer(name="engine", url=f"http://127.0.0.1:{engine}/v1/completions", pid=process.pid)]
        for name, command_of in COMMANDS.items():
            program = shutil.which(
                name, path=None if name == "haproxy" else str((environment or folder) / "bin")
            )
            if program is None:
                print(f"{name}: not installed")
                continue
            port = free_port()
            process = stack.enter_context(_process(command_of(program, port, engine, folder), port))
            found.append(Peer(name=name, url=f"http://127.0.0.1:{port}/v1/completions", pid=process.pid))
        yield found


def _haproxy(program: str, port: int, engine: int, folder: Path) -> Sequence[str]:
    file = folder / "haproxy.cfg"
    file.write_text(HAPROXY.format(port=port, engine=engine))
    return [program, "-db", "-f", str(file)]


def _vllm_router(program: str, port: int, engine: int, _: Path) -> Sequence[str]:
    worker = f"http://127.0.0.1:{engine}"
    return [program, "--host", "127.0.0.1", "--port", str(port), "--worker-urls", worker, *_plain()]


def _sglang_router(program: str, port: int, engine: int, folder: Path) -> Sequence[str]:
    command, *arguments = _vllm_router(program, port, engine, folder)
    return [command, "launch", *arguments]


def _plain() -> Sequence[str]:
    """The cheapest policy, quiet, metrics on a port that nobody else has."""
    metrics = ("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()))
    return ["--policy", "round_robin", "--log-level", "error", *metrics]


COMMANDS: dict[str, Callable[[str, int, int, Path], Sequence[str]]] = {
    "haproxy": _haproxy,
    "vllm-router": _vllm_router,
    "sglang-router": _sglang_router,
}


@contextmanager
def _process(command: Sequence[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A program, from when it listens on `port` until the block ends."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(process, command[0], port)
        yield process
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(process: subprocess.Popen[bytes], program: str, port: int) -> None:
    deadline_s = time.monotonic() + STARTED_WITHIN_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{program} does not listen")
