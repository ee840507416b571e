"""The virtual connector on a real Ray: kill -9 of the coordinator, clients elsewhere, and over HTTP."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import ray
from ray.exceptions import RayActorError
from starlette.applications import Starlette

from actors.connectors.protocol import Unreachable
from actors.names import (
    NAMESPACE,
    VIRTUAL_CONNECTOR,
    VIRTUAL_CONNECTOR_CLIENT,
    ActorGone,
    NamedActor,
    TooSlow,
)
from actors.store import InternalKvStore
from actors.virtual_connector import (
    AsyncVirtualConnectorClient,
    CoordinatorUnreachable,
    VirtualConnectorClient,
    start_client,
    start_coordinator,
)
from actors.virtual_connector.connector import VirtualConnector
from actors.virtual_connector.coordinator import KEY
from headway.config import HeadwayConfig
from headway.planning import Role
from serve_apps.control_api import control_routes, scaling_routes
from serve_apps.control_plane import ActorControlPlane, ActorScaling
from serve_apps.http_server import HttpServer
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.ray.clusters import wait_until

HERE = Path(__file__).parent
KILLS = 4

pytestmark = pytest.mark.usefixtures("ray_cluster")


def config(scaling_timeout_s: float = 1800.0) -> HeadwayConfig:
    return HeadwayConfig.model_validate({"connector": {"scaling_timeout_s": scaling_timeout_s}})


@pytest.fixture
def start() -> Iterator[Callable[..., VirtualConnector]]:
    """Starts a coordinator that knows nothing yet, and gives the planner's side of it."""

    def starting(scaling_timeout_s: float = 1800.0) -> VirtualConnector:
        settings = config(scaling_timeout_s)
        start_coordinator(settings.model_dump_json())
        assert VirtualConnectorClient().get() is None
        return VirtualConnector(settings)

    yield starting
    end_actors()
    InternalKvStore().delete(KEY)


def end_actors() -> None:
    for name in (VIRTUAL_CONNECTOR_CLIENT, VIRTUAL_CONNECTOR):
        try:
            ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
        except ValueError:
            continue
        until(lambda name=name: not is_there(name))


def is_there(name: str) -> bool:
    try:
        ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return False
    return True


def until(holds: Callable[[], bool]) -> None:
    wait_until(holds)


def state() -> dict[str, object]:
    """The coordinator's, also while it restarts."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return VirtualConnectorClient().state()
        except CoordinatorUnreachable:
            assert time.monotonic() < deadline, "the coordinator did not come back"
            time.sleep(0.05)


def kill_coordinator() -> None:
    os.kill(state()["pid"], signal.SIGKILL)


def propose(connector: VirtualConnector, prefill: int, decode: int):
    """As the planner does: again, until it is taken."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return asyncio.run(connector.set_targets({Role.PREFILL: prefill, Role.DECODE: decode}, {}))
        except Unreachable:
            assert time.monotonic() < deadline, "the coordinator did not come back"
            time.sleep(0.05)


def test_waiting_clients_outlast_a_kill_and_all_get_the_next_decision(start):
    connector = start()

    async def waits() -> list[int]:
        clients = [AsyncVirtualConnectorClient() for _ in range(100)]
        calls = [asyncio.create_task(client.wait(PATIENCE_S)) for client in clients]
        await asyncio.to_thread(until, lambda: state()["waiters"] == len(clients))
        await asyncio.to_thread(kill_coordinator)
        await asyncio.to_thread(until, lambda: state()["waiters"] == len(clients))
        await asyncio.to_thread(propose, connector, 1, 2)
        return [decision["decision_id"] for decision in await asyncio.gather(*calls)]

    assert asyncio.run(waits()) == [0] * 100


def test_more_calls_may_wait_than_ray_admits_by_default(start):
    connector = start()
    handle = ray.get_actor(VIRTUAL_CONNECTOR, namespace=NAMESPACE)
    calls = [handle.next.remote(None, PATIENCE_S) for _ in range(1_500)]
    until(lambda: state()["waiters"] == len(calls))
    propose(connector, 1, 2)
    assert {decision["decision_id"] for decision in ray.get(calls, timeout=PATIENCE_S)} == {0}


def test_no_id_is_lost_or_repeated_over_many_kills(start):
    connector, client, chance = start(), VirtualConnectorClient(), random.Random(5)
    told = []
    for number in range(KILLS):
        handle = ray.get_actor(VIRTUAL_CONNECTOR, namespace=NAMESPACE)
        pid = state()["pid"]
        targets = {"prefill": 1 + number % 2, "decode": number}
        in_flight = handle.propose.options(max_task_retries=0).remote(targets, {})
        time.sleep(chance.uniform(0.0, 0.004))
        os.kill(pid, signal.SIGKILL)
        with suppress(RayActorError):
            assert ray.get(in_flight, timeout=PATIENCE_S)["decision_id"] == number
        until(lambda pid=pid: state()["pid"] != pid)
        assert propose(connector, **targets).status in ("sent", "unchanged")
        decision = client.wait(PATIENCE_S)
        told.append((decision.decision_id, decision.num_decode))
        assert client.complete(decision)
        assert state()["acknowledged_id"] == number
    assert told == [(number, number) for number in range(KILLS)]


def test_without_a_coordinator_everyone_is_told_so():
    with pytest.raises(CoordinatorUnreachable, match="no actor VirtualConnectorCoordinator"):
        VirtualConnectorClient().wait(0.3)
    with pytest.raises(CoordinatorUnreachable, match="no actor VirtualConnectorCoordinator"):
        VirtualConnectorClient().get()
    ready = asyncio.run(VirtualConnector(config()).ready())
    assert not ready.ok
    assert "VirtualConnectorCoordinator" in ready.reason


def test_a_client_may_wait_before_there_is_a_coordinator(start):
    async def early() -> int:
        call = asyncio.create_task(AsyncVirtualConnectorClient().wait(PATIENCE_S))
        await asyncio.sleep(0)
        connector = await asyncio.to_thread(start)
        await asyncio.to_thread(propose, connector, 1, 1)
        return (await call)["decision_id"]

    assert asyncio.run(early()) == 0


@pytest.fixture(scope="module")
def ray_client_address(ray_cluster) -> Iterator[str]:
    """A Ray Client server of this cluster."""
    port = free_port()
    command = [sys.executable, "-m", "ray.util.client.server", "--mode", "specific-server"]
    command += ["--address", ray_cluster, "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: listens(port))
        yield f"ray://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("program", ["bare", "package"])
def test_an_outside_program_comes_in_through_ray_client(start, ray_client_address, program):
    connector = start()
    ray.get(start_client().__ray_ready__.remote())
    command = [sys.executable, str(HERE / "ray_client_programs.py"), program, ray_client_address]
    outside = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: state()["waiters"] == 1 or outside.poll() is not None)
    propose(connector, 2, 5)
    seen, errors = outside.communicate(timeout=PATIENCE_S)
    assert outside.returncode == 0, errors
    found = json.loads(seen)
    assert (found["decision"]["decision_id"], found["decision"]["num_decode"]) == (0, 5)
    assert found["counted"]
    assert "decision 1 was never issued: the newest is 0" in found["refused"]
    assert state()["acknowledged_id"] == 0


@contextmanager
def control_server() -> Iterator[str]:
    """The control API over the actors, on a port of its own, in a thread."""
    loop = asyncio.new_event_loop()
    app = Starlette(
        routes=[
            *control_routes(ActorControlPlane("Router:m", timeout_s=2.0)),
            *scaling_routes(ActorScaling(2.0)),
        ]
    )
    server = HttpServer(app, "127.0.0.1", free_port())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(PATIENCE_S)
        yield server.address
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def orchestrator(url: str, journal: Path, work_s: float) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(HERE / "orchestrator.py"), url, str(journal), str(work_s)]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_an_orchestrator_over_http_dies_midway_and_comes_back(start, tmp_path):
    connector, journal = start(), tmp_path / "journal"
    journal.touch()
    with control_server() as url:
        with orchestrator(url, journal, work_s=0.0):
            propose(connector, 1, 2)
            until(lambda: "done 0" in journal.read_text())
        with orchestrator(url, journal, work_s=PATIENCE_S) as dying:
            propose(connector, 1, 3)
            until(lambda: "begin 1" in journal.read_text())
            dying.kill()
            dying.wait()
        for decode in (4, 5, 6):
            assert propose(connector, 1, decode).status == "pending"
        kill_coordinator()
        with orchestrator(url, journal, work_s=0.0):
            until(lambda: "done 2" in journal.read_text())
    assert journal.read_text().splitlines() == [
        "begin 0 1 2",
        "done 0",
        "begin 1 1 3",
        "begin 1 1 3",
        "done 1",
        "begin 2 1 6",
        "done 2",
    ]
    ready = asyncio.run(connector.state())[Role.DECODE].ready
    assert ready == 6


def test_over_http_a_coordinator_that_is_gone_is_503():
    with control_server() as url:
        host, port = url.removeprefix("http://").split(":")
        for path in ("/v1/scaling/decisions/latest", "/v1/control/status"):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(f"GET {path} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
                answer = connection.makefile("rb").read().decode()
            assert answer.startswith("HTTP/1.1 503")
            assert "there is no actor" in answer


def test_a_call_by_name_tells_slow_from_gone(start):
    start()
    actor = NamedActor(VIRTUAL_CONNECTOR)
    for slow in (
        lambda: actor.call_now("next", None, PATIENCE_S, timeout_s=0.2),
        lambda: asyncio.run(actor.call("next", None, PATIENCE_S, timeout_s=0.2)),
    ):
        with pytest.raises(TooSlow, match=r"^VirtualConnectorCoordinator.next did not answer within 0.2 s$"):
            slow()
    until(lambda: state()["waiters"] == 0)
    with pytest.raises(ActorGone, match=r"^there is no actor Nobody in the namespace headway$"):
        NamedActor("Nobody").call_now("get", timeout_s=PATIENCE_S)
