"""A Ray cluster for one command: a local one that ends with the command, or one that is there already.

The local one has a temporary directory of its own and free ports, so that it
disturbs no other Ray. Its processes end with the command, also when that is killed.
"""

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from actors.hosts import addresses, is_loopback
from headway_cli.errors import CliError

LEAST_CPUS = 8
"""Logical CPUs that a local Ray counts at least: engines and actors ask for none, and share what there is."""

LONGEST_PARENT = 40
"""Characters of a directory in which Ray's sockets still have names short enough for the system."""

REACHED_WITHIN_S = 10.0

APPLICATION = "headway"
"""The Serve application that our verbs deploy."""
INSECURE = "--insecure"

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # gRPC's handlers for forks crash some of the children with which Ray starts its processes, before they
    # have become those, and Ray does not notice. Read when grpc is imported, which Ray does.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    # Processes that start at once: otherwise as many as there are cores, and Ray warns of three times as many
    # in all, of which most of ours wait.
    "RAY_worker_maximum_startup_concurrency": str(max(LEAST_CPUS, os.cpu_count() or 1)),
}

STOPPING = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A Ray cluster that this process is connected to. `directory` holds a local one's files."""

    address: str
    directory: Path | None = None


@contextmanager
def cluster(address: str | None, *, insecure: bool = True, warn: bool = True) -> Iterator[Cluster]:
    """Join the cluster at `address`, or start a local one; leave or end it afterwards.

    CliError for one that asks for no token and that others can reach; with `insecure` it is joined, with a
    warning unless `warn` is False.
    """
    with _joined(address, insecure=insecure, warn=warn) if address else _local() as found:
        yield found


@contextmanager
def _local() -> Iterator[Cluster]:
    parent = tempfile.gettempdir()
    short = parent if len(parent) <= LONGEST_PARENT else "/tmp"
    directory = Path(tempfile.mkdtemp(prefix="headway-", dir=short))
    # Ray's own default depends on what ran here before. It makes a token where there is none.
    os.environ["RAY_AUTH_MODE"] = "token"
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


TOO_SLOW = "timed out during startup"
WAKES_S = 1.0


def prepare_environment() -> None:
    """Set what Ray reads when it is imported or started, unless it is set already."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def start_ray(**settings: Any) -> None:  # noqa: ANN401 - as ray.init takes them
    """`ray.init` with these settings; CliError with Ray's reason if it does not start.

    A busy machine may need longer than the 30 s that Ray gives a node: it has a second try.
    """
    prepare_environment()
    import ray

    for tries_left in (1, 0):
        try:
            ray.init(**settings)
            return
        except Exception as error:
            if tries_left and TOO_SLOW in str(error):
                ray.shutdown()
                continue
            raise CliError(f"Ray did not start: {' '.join(str(error).split())}") from error


@contextmanager
def _joined(address: str, *, insecure: bool, warn: bool) -> Iterator[Cluster]:
    _check_reachable(address)
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        why = " ".join(str(error).split())
        cure = ": run Headway with the Ray and Python of the cluster" if "Version mismatch" in why else ""
        raise CliError(f"--address {address}: {why}{cure}") from error
    try:
        _quieten()
        if why := exposed():
            if not insecure:
                wanted = f"turn on Ray's token (RAY_AUTH_MODE=token), or {INSECURE}"
                raise CliError(f"--address {address}: {why}; {wanted}")
            if warn:
                print(f"{INSECURE}: {why}", file=sys.stderr)
        yield Cluster(address=address)
    finally:
        ray.shutdown()


def exposed() -> str:
    """Empty, or why others may run code on the cluster that this process has joined."""
    import ray

    found = [address for address in addresses() if not is_loopback(address)]
    if not found or _asks_for_token(ray.get_runtime_context().gcs_address):
        return ""
    return f"this Ray asks for no token, and whoever reaches {', '.join(found)} may run code there"


def _asks_for_token(gcs_address: str) -> bool:
    """True if the GCS refuses a question that comes without one."""
    import grpc  # type: ignore[import-untyped] # it comes with Ray, without types
    from ray.core.generated import gcs_service_pb2 as messages
    from ray.core.generated import gcs_service_pb2_grpc as services

    # Ray's own client would send the token that this process has.
    with grpc.insecure_channel(gcs_address) as channel:
        try:
            stub = services.NodeInfoGcsServiceStub(channel)  # type: ignore[no-untyped-call] # generated
            stub.CheckAlive(messages.CheckAliveRequest(), timeout=REACHED_WITHIN_S)  # type: ignore[attr-defined] # generated
        except grpc.RpcError as error:
            return error.code() is grpc.StatusCode.UNAUTHENTICATED
    return False


def _check_reachable(address: str) -> None:
    """CliError unless HOST:PORT lets us in; Ray itself would go on trying, for half a minute or for many."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()) or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACHED_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise CliError(f"--address {address}: cannot be reached: {error}") from error
    if os.environ.get("RAY_AUTH_MODE", "disabled") == "disabled" and _asks_for_token(address):
        raise CliError(
            f"--address {address}: this Ray asks for its token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN "
            "unless ~/.ray/auth_token has it"
        )


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
def reload_signals() -> Iterator[threading.Event]:
    """An event that SIGUSR1 sets."""
    again = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: again.set())
    try:
        yield again
    finally:
        signal.signal(signal.SIGUSR1, before)


def wait_for(stopped: threading.Event, again: threading.Event | None = None) -> bool:
    """Until a signal has set one of them; True for the second, which is cleared.

    A signal that reached a thread of Ray's is handled once this one wakes.
    """
    while not stopped.wait(WAKES_S):
        if again is not None and again.is_set():
            again.clear()
            return True
    return False


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
