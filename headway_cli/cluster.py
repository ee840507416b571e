"""A Ray cluster for one command: a local one that ends with the command, or one that is there already.

The local one has a temporary directory of its own and free ports, so that it disturbs no other Ray, and
nothing listens for HTTP but the gateway. Its processes end with the command, also when that is killed.
"""

import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from headway_cli.errors import CliError

LEAST_CPUS = 8
"""Logical CPUs that a local Ray counts at least: engines and actors ask for none, and share what there is."""

LONGEST_PARENT = 40
"""Characters of a directory in which Ray's sockets still have names short enough for the system."""

REACHED_WITHIN_S = 10.0

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # gRPC's handlers for forks crash some of the children with which Ray starts its processes, before they
    # have become those, and Ray does not notice. Read when grpc is imported, which Ray does.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}

STOPPING = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A Ray cluster that this process is connected to. `directory` holds a local one's files."""

    address: str
    directory: Path | None = None


@contextmanager
def cluster(address: str | None) -> Iterator[Cluster]:
    """Join the cluster at `address`, or start a local one; leave or end it afterwards."""
    with _joined(address) if address else _local() as found:
        yield found


@contextmanager
def _local() -> Iterator[Cluster]:
    parent = tempfile.gettempdir()
    short = parent if len(parent) <= LONGEST_PARENT else "/tmp"
    directory = Path(tempfile.mkdtemp(prefix="headway-", dir=short))
    prepare_environment()
    import ray

    try:
        start_ray(
            address="local",
            num_cpus=max(LEAST_CPUS, os.cpu_count() or 1),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=str(directory),
        )
        _quieten()
        yield Cluster(address=ray.get_runtime_context().gcs_address, directory=directory)
    finally:
        with uninterrupted():
            ray.shutdown()
            shutil.rmtree(directory, ignore_errors=True)


def prepare_environment() -> None:
    """Set what Ray reads when it is imported or started, unless it is set already."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def start_ray(**settings: Any) -> None:  # noqa: ANN401 - as ray.init takes them
    """`ray.init` with these settings; CliError with Ray's reason if it does not start."""
    prepare_environment()
    import ray

    try:
        ray.init(**settings)
    except Exception as error:
        raise CliError(f"Ray did not start: {' '.join(str(error).split())}") from error


@contextmanager
def _joined(address: str) -> Iterator[Cluster]:
    _check_reachable(address)
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise CliError(f"--address {address}: {' '.join(str(error).split())}") from error
    try:
        _quieten()
        yield Cluster(address=address)
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """CliError unless something listens at HOST:PORT; Ray itself would go on trying for minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()) or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACHED_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise CliError(f"--address {address}: cannot be reached: {error}") from error


def _quieten() -> None:
    """Let Ray and Serve log errors only; the rest is for the command to say."""
    from ray import serve  # noqa: F401 - sets up its logger when it is imported

    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, instead of what they did before."""
    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    with _handled_by(stop):
        yield stopped


@contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGINT and SIGTERM have no effect within."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextmanager
def _handled_by(handler: signal.Handlers | Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in STOPPING}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
