"""LoRA affinity: requests go where their adapter is, and adapters have as many homes as their load needs."""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from headway.config import Role
from headway.routing import ReplicaState, ReplicaUpdate, RouteRequest
from headway.routing.decide.lora_affinity import LoraAffinityScorer
from headway.routing.fleet.adapters import AdapterIndex
from headway.routing.fleet.fleet import RoutedFleet
from headway.routing.fleet.table import FleetRow
from headway.routing.types import ReplicaLoad
from tests.routing.routers import MIXED, SPLIT, SeenRouter, gone, join, question, router

AFFINE = {"lora-affinity-scorer": 4, "least-load": 1}
ROOM = 8


def routed(
    plugins: Mapping[str, float], pools: Mapping[str, Any] = MIXED, *, count: int = 8, room: int = ROOM
) -> SeenRouter:
    """A router of these plugins, whose replicas have room for so many adapters."""
    references = [{"pluginRef": name, "weight": weight} for name, weight in plugins.items()]
    own = [{"name": "own", "plugins": references}]
    made = router("own", pools, count=count, scheduling_profiles=own)
    for role in pools:
        for number in range(count):
            report(made, f"{role}-{number}", role=Role(role), room=room)
    return made


def report(
    made: SeenRouter,
    name: str,
    *adapters: str,
    role: Role = Role.MIXED,
    room: int = ROOM,
    now_s: float = 0.0,
) -> None:
    load = ReplicaLoad(running=0, waiting=0, kv_usage=0.0, adapters=adapters, adapter_room=room)
    made.replica_changed(now_s, ReplicaUpdate(replica=name, role=role, load=load))


def asked(name: str, adapter: str, at_s: float = 0.0) -> RouteRequest:
    return RouteRequest(request_id=name, arrival_s=at_s, input_tokens=500, max_tokens=200, adapter=adapter)


def submit(made: SeenRouter, name: str, adapter: str, at_s: float = 0.0) -> str:
    (placement,) = made.submit(at_s, asked(name, adapter, at_s)).placements
    return placement.decode_replica


def scores(made: SeenRouter, adapter: str, role: Role = Role.MIXED) -> list[float]:
    """What the plugin says of all replicas, in order of their names."""
    return LoraAffinityScorer().score(question(made, role, adapter=adapter)).round(1).tolist()


def homes(made: SeenRouter, adapter: str) -> list[str]:
    """The replicas that have the adapter, as far as is known."""
    return [made.state.fleet.at(slot).name for slot in made.state.adapters.homes(adapter)]


@dataclass
class RealEngine:
    """What an engine does, which the router does not see: an LRU of adapters in which those in use stay."""

    adapters: OrderedDict[str, int] = field(default_factory=OrderedDict)
    loads: int = 0

    def begin(self, adapter: str) -> None:
        if adapter not in self.adapters:
            self.loads += 1
            self.adapters[adapter] = 0
            idle = (each for each, users in self.adapters.items() if not users and each != adapter)
            if len(self.adapters) > ROOM and (dropped := next(idle, None)) is not None:
                del self.adapters[dropped]
        self.adapters[adapter] += 1
        self.adapters.move_to_end(adapter)

    def end(self, adapter: str) -> None:
        self.adapters[adapter] -= 1


@dataclass
class Served:
    """Loads per request, and the greatest share of the requests that one replica had, over the mean."""

    loads: float
    imbalance: float


def served(
    plugins: Mapping[str, float], draw: Callable[[np.random.Generator], str], requests: int = 3000
) -> Served:
    """Poisson arrivals, 5 in flight at each of 8 replicas; the first quarter is not counted."""
    made, generator, now_s = routed(plugins), np.random.default_rng(1), 0.0
    engines = {f"mixed-{number}": RealEngine() for number in range(8)}
    ends: list[tuple[float, str, str, str]] = []
    counts = dict.fromkeys(engines, 0)
    for number in range(requests):
        now_s += generator.exponential(1.0 / 40.0)
        while ends and ends[0][0] <= now_s:
            end_s, name, replica, adapter = heapq.heappop(ends)
            made.complete(end_s, name, 100)
            engines[replica].end(adapter)
        if number == requests // 4:
            counts = dict.fromkeys(engines, 0)
            for engine in engines.values():
                engine.loads = 0
        adapter = draw(generator)
        replica = submit(made, f"r{number}", adapter, now_s)
        engines[replica].begin(adapter)
        counts[replica] += 1
        heapq.heappush(ends, (now_s + generator.exponential(1.0), f"r{number}", replica, adapter))
    counted = sum(counts.values())
    loads = sum(engine.loads for engine in engines.values())
    return Served(loads / counted, 8 * max(counts.values()) / counted)


def test_a_hot_adapter_has_many_homes_and_the_rare_ones_keep_theirs() -> None:
    def hot(generator: np.random.Generator) -> str:
        return "hot" if generator.random() < 0.6 else f"a{generator.integers(40)}"

    random, affine = served({"random": 1}, hot), served(AFFINE, hot)
    assert affine.imbalance < 1.35
    assert affine.loads < random.loads / 10


def test_an_adapter_with_little_to_do_stays_where_it_is() -> None:
    made = routed(AFFINE)
    placed = set()
    for number in range(20):
        placed.add(submit(made, f"r{number}", "a", float(number)))
        made.complete(number + 0.5, f"r{number}", 10)
    assert len(placed) == 1


def test_by_default_a_request_goes_where_its_adapter_is() -> None:
    made = router("slo", count=8)
    for number in range(8):
        report(made, f"mixed-{number}", *(["a"] if number == 5 else []))
    for number in range(10):
        assert submit(made, f"r{number}", "a", float(number)) == "mixed-5"
        made.complete(number + 0.5, f"r{number}", 10)


def test_without_an_adapter_all_are_alike() -> None:
    assert scores(routed(AFFINE, count=3), "") == [1.0, 1.0, 1.0]


def test_first_the_homes_then_room_then_what_is_idle_and_last_what_would_wait() -> None:
    made = routed({"first-max-picker": 1}, count=4, room=1)
    report(made, "mixed-1", "other", room=1)
    report(made, "mixed-2", "a", room=1)
    submit(made, "r", "third")
    assert scores(made, "a") == [0.0, 0.3, 1.0, 0.5]
    assert scores(made, "new") == [0.0, 0.7, 0.7, 1.0]


def test_an_engine_knows_better_but_for_what_is_on_its_way() -> None:
    made = routed(AFFINE, count=2)
    home = submit(made, "r", "a")
    report(made, home, now_s=5.0)
    assert homes(made, "a") == [home]
    made.complete(5.0, "r", 10)
    report(made, home, "b", "c", now_s=5.0)
    assert [homes(made, adapter) for adapter in "abc"] == [[], [home], [home]]


def test_a_report_may_be_older_than_what_came_and_went_since() -> None:
    made = routed(AFFINE, count=2)
    home = submit(made, "r", "a", 5.0)
    made.complete(5.1, "r", 10)
    report(made, home, now_s=5.2)
    assert submit(made, "again", "a", 5.3) == home
    made.complete(5.4, "again", 10)
    report(made, home, now_s=9.0)
    assert not homes(made, "a")


def test_a_replica_that_is_gone_is_no_home() -> None:
    made = routed(AFFINE, count=2)
    home = submit(made, "r", "a")
    gone(made, home, now_s=1.0)
    assert not homes(made, "a")
    made.failed(1.0, "r", retry=True)
    join(made, "mixed-9", now_s=2.0)
    made.complete(3.0, "r", 10)
    assert not made.state.fleet.table[FleetRow.ADAPTERS_IN_USE].any()


def test_one_that_drains_is_no_home() -> None:
    made = routed(AFFINE, count=2)
    home = submit(made, "r", "a")
    made.replica_changed(1.0, ReplicaUpdate(replica=home, role=Role.MIXED, state=ReplicaState.DRAINING))
    assert scores(made, "a") == [1.0]


def test_both_roles_have_the_adapter() -> None:
    made = routed(AFFINE, SPLIT, count=3)
    for number in range(4):
        submit(made, f"r{number}", "a")
        made.complete(0.0, f"r{number}", 10)
    assert [scores(made, "a", role).count(1.0) for role in (Role.PREFILL, Role.DECODE)] == [1, 1]
    assert len(homes(made, "a")) == 2


@pytest.mark.parametrize("end", ["complete", "failed"])
def test_what_is_put_on_a_replica_is_taken_off_again(end: str) -> None:
    made = routed(AFFINE, count=3, room=2)
    for number in range(30):
        submit(made, f"r{number}", f"a{number % 7}", 0.1 * number)
    for number in range(30):
        if end == "complete":
            made.complete(10.0, f"r{number}", 5)
        else:
            made.failed(10.0, f"r{number}", retry=False)
    table = made.state.fleet.table
    assert not table[FleetRow.ADAPTERS_IN_USE].any()
    assert table[FleetRow.ADAPTERS].max() <= 2.0


def test_work_is_forgotten_and_long_times_keep_it_finite() -> None:
    fleet = RoutedFleet(8.0)
    index = AdapterIndex(fleet)
    for name in "ab":
        fleet.add(name, Role.MIXED, "", {})
    for _ in range(90):
        index.placed(0.0, "a", [0], 10.0)
    assert index.wanted("a", 8) == 8
    for number in range(100):
        index.placed(1e6 * number + 600.0, "b", [1], 10.0)
    assert index.wanted("a", 8) == 1
    assert np.isfinite(fleet.table[FleetRow.ADAPTER_WORK]).all()
