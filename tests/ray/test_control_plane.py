"""The control plane on a real Ray takes other settings, and ends with nothing left.

The metrics come from a script. What it decides with traffic is in test_one_system.py.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray import serve

from actors import control_plane, names
from actors.planning.log import DecisionLog
from actors.planning.settings import STARTED
from actors.store import InternalKvStore, StoreAway
from headway.config import HeadwayConfig, load_config
from tests.exporter import MODEL, Exporter
from tests.patience import PATIENCE_S
from tests.ray.clusters import start, wait_until
from tests.ray.live_system import pids

APP = "fed"


@serve.deployment(name="Prefill", ray_actor_options={"num_cpus": 0}, num_replicas=1)
class Prefill:
    async def describe(self) -> dict[str, str]:
        return {"model": MODEL}


@serve.deployment(name="Decode", ray_actor_options={"num_cpus": 0}, num_replicas=1)
class Decode:
    def __init__(self, prefill: Any) -> None:
        self.prefill = prefill

    async def describe(self) -> dict[str, str]:
        return {"model": MODEL}


@pytest.fixture(scope="module")
def exporter() -> Iterator[Exporter]:
    exporter = Exporter()
    yield exporter
    exporter.stop()


def config(exporter: Exporter, **changes: Any) -> HeadwayConfig:
    base = {
        "model": MODEL,
        "metrics.url": exporter.url,
        "metrics.scrape_interval_s": 0.5,
        "engine.time_scale": 0.1,
        "slo.ttft_ms": 3000.0,
        "slo.itl_ms": 200.0,
        "planner.policy": "reference",
        "planner.predictor": "constant",
        "planner.no_correction": True,
        "planner.adjustment_interval_s": 1.5,
        "planner.tick_deadline_s": 10.0,
        "pools.prefill.max_replicas": 3,
        "pools.decode.max_replicas": 3,
    }
    return load_config(None, base | {key.replace("__", "."): value for key, value in changes.items()})


@pytest.fixture(scope="module")
def plane(ray_cluster: str, exporter: Exporter) -> Iterator[None]:
    serve.run(Decode.bind(Prefill.bind()), name=APP, route_prefix=None)
    start(config(exporter), APP)
    yield
    control_plane.stop(purge=True)


def actor(name: str) -> Any:
    return ray.get_actor(name, namespace=names.NAMESPACE)


def planner(method: str, *arguments: object, **more: object) -> Any:
    """What it answers; while the store is slow, as beside replicas that start, it is asked again."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ray.get(getattr(actor(names.PLANNER), method).remote(*arguments, **more), timeout=30)
        except StoreAway:
            if time.monotonic() > deadline:
                raise


def records() -> list[dict[str, Any]]:
    return planner("decisions", -1, 1000)


def newest() -> int:
    return max((record["id"] for record in records()), default=-1)


def pid_of(name: str) -> int:
    return pids(name)[name]


def test_another_application_of_the_same_model_is_refused(plane: None, exporter: Exporter) -> None:
    started = control_plane.start({"other": config(exporter), "second": config(exporter, model="qwen3-32b")})
    assert "'fed' of this cluster serves" in str(started["other"])
    assert planner("status", application="second")["model"] == "qwen3-32b"
    for application in started:
        control_plane.stop(application=application)
    assert planner("status")["planner"]["state"] != "stopped"


def test_other_settings_replace_the_actors_and_ids_go_on(plane: None, exporter: Exporter) -> None:
    before, pid = newest(), pid_of(names.PLANNER)
    token = start(config(exporter), APP)
    assert pid_of(names.PLANNER) == pid
    start(config(exporter, model="qwen3-32b"), APP)
    assert pid_of(names.PLANNER) != pid
    wait_until(lambda: f"serves {MODEL}" in planner("status")["planner"]["reason"])
    assert planner("status")["planner"]["state"] == "waiting"
    control_plane.stop(token=token)
    assert names.PLANNER in control_plane.running()
    waiting = newest()  # the planner that was replaced may have been deciding when it ended
    last = config(exporter, planner__dry_run=True)
    token = start(last, APP)
    wait_until(lambda: newest() > waiting)
    record = planner("decision", waiting + 1)
    assert record["id"] > before
    assert record["connector"]["status"] == "dry_run"
    assert record["dry_run"]
    # Ray gives up an actor that was ended like this, or whose constructor raised.
    ray.kill(actor(names.PREDICTOR), no_restart=True)
    wait_until(lambda: names.PREDICTOR not in control_plane.running())
    assert control_plane.revive(last, APP, "another start's", control_plane.running()) == ()
    assert control_plane.revive(last, APP, token, control_plane.running()) == (names.PREDICTOR,)
    assert names.PREDICTOR in control_plane.running()


def test_stopped_it_stays_away_and_keeps_its_log_unless_purged(plane: None) -> None:
    last = newest()
    control_plane.stop()
    store = InternalKvStore()
    assert control_plane.running() == ()
    assert store.get(STARTED) is None
    assert DecisionLog(store).next_id > last
    control_plane.stop(purge=True)
    assert store.keys() == []
