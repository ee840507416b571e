"""Parts that hang are named, and come back: processes that are stopped, an engine whose time stands still."""

import json
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import ray
from ray import serve

from actors import control_plane, names
from headway.planning.documents import StatusDocument
from headway.planning.health import health
from headway.planning.silence import SILENT_S
from tests.patience import PATIENCE_S
from tests.ray.clusters import wait_until
from tests.ray.live_system import APPLICATION, LiveSystem, alive_again, live_system, pids

SETTINGS = {
    "planner.policy": "static",
    "planner.static": {"prefill": 1, "decode": 2},
    "planner.dry_run": True,
    "routing.profile": "round_robin",
    "pools.decode.min_replicas": 2,
    "slo.itl_ms": 1000.0,
}
JSON = {"content-type": "application/json"}
LONG = {"prompt": "x", "max_tokens": 2000, "stream": True, "ignore_eos": True}


@pytest.fixture(scope="module")
def system(ray_cluster: str) -> Iterator[LiveSystem]:
    with live_system(SETTINGS) as system:
        yield system


@pytest.fixture(scope="module")
def streams(system: LiveSystem) -> Iterator[None]:
    """Long outputs on every decode replica, until the end."""
    over = threading.Event()
    body = json.dumps({**LONG, "model": system.get("/v1/models")["data"][0]["id"]}).encode()

    def read() -> None:
        while not over.is_set():
            try:
                request = urllib.request.Request(f"{system.url}/v1/completions", body, JSON)
                with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                    while not over.is_set() and answer.readline():
                        pass
            except OSError:
                over.wait(1.0)

    readers = [threading.Thread(target=read, daemon=True) for _ in range(4)]
    for reader in readers:
        reader.start()
    yield
    over.set()
    for reader in readers:
        reader.join(PATIENCE_S)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def silent() -> Mapping[str, int | None]:
    """Silent parts and their requests, as the planner says without any gateway."""
    return {each["part"]: each["requests"] for each in status()["silent"]}


def status() -> dict[str, Any]:
    planner = ray.get_actor(names.PLANNER, namespace=names.NAMESPACE)
    return ray.get(planner.status.remote(), timeout=PATIENCE_S)


def until_named(part: str) -> int | None:
    """Until that part alone is silent; its requests."""
    wait_until(lambda: any(name.startswith(part) for name in silent()))
    found = {name: requests for name, requests in silent().items() if name.startswith(part)}
    assert len(found) == 1, found
    return next(iter(found.values()))


def until_none() -> None:
    wait_until(lambda: not silent())


def some_pid(name: str) -> int:
    found = pids(name)
    return found[min(found)]


def test_a_decode_process_that_hangs_is_named_and_the_verdict_says_so(
    system: LiveSystem, streams: None
) -> None:
    with stopped(some_pid(f"{APPLICATION}#Decode#")):
        requests = until_named("Decode#")
        assert requests, "of ours there"
        document = StatusDocument.model_validate(status())
        found = health(document, document.silent[0].since_s + 8.0)
        assert not found.well
        assert f"{document.silent[0].part}: no progress on" in found.text
        assert system.counted("headway_silent_seconds", 'part="Decode#') >= SILENT_S
    until_none()


@pytest.mark.usefixtures("streams")
def test_an_engine_that_hangs_beside_its_process_is_named() -> None:
    handle = serve.get_deployment_handle("Decode", APPLICATION)
    handle.inject.remote("stall").result(timeout_s=PATIENCE_S)
    try:
        requests = until_named("Decode#")
        assert requests, "of ours there"
    finally:
        for clear in handle.broadcast("inject", "clear").results(timeout_s=PATIENCE_S):
            assert clear is None
    until_none()


@pytest.mark.parametrize("part", [names.PREDICTOR, names.GATEWAY])
@pytest.mark.usefixtures("system")
def test_an_actor_or_gateway_that_hangs_is_named(part: str) -> None:
    with stopped(some_pid(f"{APPLICATION}#{part}#" if part == names.GATEWAY else part)):
        assert until_named(part) is None
    until_none()


@pytest.mark.usefixtures("system")
def test_an_actor_that_hangs_is_ended_and_starts_again() -> None:
    pid = some_pid(names.PREDICTOR)
    with stopped(pid):
        control_plane.end_again(names.PREDICTOR)
        wait_until(lambda: alive_again(names.PREDICTOR, pid))
