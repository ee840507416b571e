"""The small parts of the planner: grid, runtime settings and the SLO that others follow, progress."""

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.connectors.protocol import PoolCounts, Replica
from actors.planning.log import Progress
from actors.planning.loop import first_tick, is_late, next_tick
from actors.planning.settings import KEPT_IN, KEY, KIND, PLACE, Author, RuntimeSettings, fixed, follow_slo
from actors.planning.tick import TickTime
from actors.stored import put, read
from headway.config import HeadwayConfig, load_config
from headway.planning import Role
from headway.planning.records import DecisionRecord, IntervalSpan, ReplicaTimes
from tests.patience import eventually
from tests.stores import FailingStore, MemoryStore

pytestmark = pytest.mark.anyio


def stored_slo(store: MemoryStore) -> dict[str, Any]:
    return read(store, KIND, KEY, lambda stored: stored["slo"]) or {}


# --- the grid


@given(
    start_s=st.floats(0, 2e9),
    interval_s=st.floats(0.5, 1000),
    phase=st.floats(0, 1, exclude_max=True),
    delays=st.lists(st.floats(0, 5000), max_size=20),
)
def test_due_times_stay_on_the_grid_and_never_lie_in_the_past(start_s, interval_s, phase, delays) -> None:
    first = time = first_tick(start_s, interval_s, phase)
    assert interval_s - 1e-5 <= first.due_s - start_s <= 2.0 * interval_s + 1e-5
    now_s = start_s
    for delay_s in delays:
        now_s = max(now_s, time.due_s) + delay_s
        following, missed = next_tick(time, now_s, interval_s)
        assert following.tick == time.tick + 1 + missed
        assert following.due_s >= now_s - 1e-5
        assert following.due_s - now_s <= interval_s + 1e-5
        steps = (following.due_s - first.due_s) / interval_s
        assert steps == pytest.approx(following.tick - first.tick, abs=1e-3)
        time = following


def test_a_clock_that_was_set_back_does_not_stop_the_ticks() -> None:
    time, missed = next_tick(TickTime(tick=7, due_s=10_000.0), 400.0, 10.0)
    assert (time, missed) == (TickTime(tick=8, due_s=410.0), 0)


def test_late_is_a_tenth_of_an_interval_or_a_second() -> None:
    time = TickTime(tick=0, due_s=100.0)
    assert not is_late(time, 100.15, 2.0)
    assert is_late(time, 100.25, 2.0)
    assert not is_late(time, 100.9, 180.0)
    assert is_late(time, 101.1, 180.0)


# --- settings


def config(**overrides: object) -> HeadwayConfig:
    return load_config(None, {key.replace("__", "."): value for key, value in overrides.items()})


def test_changes_survive_a_restart_and_the_slo_is_there_for_the_gateway() -> None:
    store = MemoryStore()
    RuntimeSettings(config(), store)
    assert stored_slo(store)["ttft_ms"] == 300
    RuntimeSettings(config(), store).update({"slo.ttft_ms": 250, "pools": {"decode": {"max_replicas": 4}}})
    again = RuntimeSettings(config(), store)
    assert again.config.slo.ttft_ms == 250
    assert again.config.pools["decode"].max_replicas == 4
    assert again.changes == {"slo.ttft_ms": 250, "pools.decode.max_replicas": 4}
    assert stored_slo(store) == {"ttft_ms": 250.0, "itl_ms": 20.0, "attainment": 0.99, "classes": {}}


def test_who_changed_a_setting_and_when_survives_a_restart() -> None:
    store = MemoryStore()
    running = RuntimeSettings(config(), store)
    running.update({"slo.ttft_ms": 250, "slo.itl_ms": 30}, author=Author(by="alice", at=10.0))
    # What stays as it is has not been changed again.
    running.update({"slo.ttft_ms": 250, "slo.itl_ms": 40}, author=Author(by="bob", at=20.0))
    again = RuntimeSettings(config(), store)
    assert again.authors == running.authors
    assert again.authors == {
        "slo.ttft_ms": Author(by="alice", at=10.0),
        "slo.itl_ms": Author(by="bob", at=20.0),
    }
    assert list(RuntimeSettings(config(slo__ttft_ms=400), store).authors) == ["slo.itl_ms"]


def test_changes_of_an_older_version_have_no_author() -> None:
    store = MemoryStore()
    stored = {"changes": {"slo.ttft_ms": {"value": 250, "covers": 300.0}}}
    store.put(KEY, json.dumps(stored).encode())
    again = RuntimeSettings(config(), store)
    assert (again.changes, again.authors) == ({"slo.ttft_ms": 250}, {"slo.ttft_ms": Author()})


def test_a_change_that_could_not_be_stored_is_not_in_force() -> None:
    store = FailingStore()
    running = RuntimeSettings(config(), store)
    store.fault = OSError("no answer")
    with pytest.raises(OSError, match="no answer"):
        running.update({"slo.ttft_ms": 250})
    assert running.config.slo.ttft_ms == 300
    assert (running.changes, running.version) == ({}, 0)


def test_a_newer_configuration_wins_over_an_older_change_of_the_same_key_only() -> None:
    store = MemoryStore()
    RuntimeSettings(config(), store).update({"slo.ttft_ms": 250, "slo.itl_ms": 30})
    again = RuntimeSettings(config(slo__ttft_ms=400), store)
    assert again.config.slo.ttft_ms == 400
    assert again.config.slo.itl_ms == 30


def test_changes_that_no_longer_hold_are_dropped() -> None:
    store = MemoryStore()
    RuntimeSettings(config(), store).update({"pools.decode.min_replicas": 8})
    again = RuntimeSettings(config(pools__decode__max_replicas=4), store)
    assert again.config.pools["decode"].min_replicas == 1
    assert again.changes == {}


def test_changes_outlive_a_store_in_the_file_that_it_names(tmp_path: Path) -> None:
    def store() -> MemoryStore:
        made = MemoryStore()
        put(made, PLACE, KEPT_IN, str(tmp_path / "kept.json"))
        return made

    author = Author(by="alice", at=10.0)
    RuntimeSettings(config(planner__dry_run=True), store()).update({"planner.dry_run": False}, author=author)
    again = RuntimeSettings(config(planner__dry_run=True), store())
    assert not again.config.planner.dry_run
    assert again.authors == {"planner.dry_run": author}
    # Who then writes another value into the file means that one.
    assert RuntimeSettings(config(slo__ttft_ms=400), store()).config.slo.ttft_ms == 400
    (tmp_path / "kept.json").write_text("no JSON")
    assert RuntimeSettings(config(planner__dry_run=True), store()).config.planner.dry_run


def test_a_folder_that_takes_no_file_refuses_no_change(tmp_path: Path) -> None:
    store = MemoryStore()
    put(store, PLACE, KEPT_IN, str(tmp_path / "gone" / "kept.json"))
    settings = RuntimeSettings(config(), store)
    settings.update({"slo.ttft_ms": 250})
    assert settings.config.slo.ttft_ms == 250


@pytest.mark.parametrize(
    "other",
    [{"model": "another"}, {"connector__kind": "virtual"}, {"connector__ray_serve__application": "another"}],
)
def test_what_may_act_on_one_fleet_may_not_on_another(other: dict[str, object]) -> None:
    store = MemoryStore()
    RuntimeSettings(config(planner__dry_run=True), store).update({"planner.dry_run": False})
    assert not RuntimeSettings(config(planner__dry_run=True, slo__itl_ms=44), store).config.planner.dry_run
    assert RuntimeSettings(config(planner__dry_run=True, **other), store).config.planner.dry_run


def test_a_budget_can_be_set_and_lifted() -> None:
    settings = RuntimeSettings(config(), MemoryStore())
    settings.update({"planner.max_gpu_budget": 8})
    assert settings.config.planner.max_gpu_budget == 8
    settings.update({"planner.max_gpu_budget": None})
    assert settings.config.planner.max_gpu_budget is None


def test_secrets_are_not_stored() -> None:
    store = MemoryStore()
    RuntimeSettings(load_config(None, {"gateway": {"api_keys": ["s3cret"]}}), store).update({"slo.itl_ms": 9})
    assert b"s3cret" not in (store.get(KEY) or b"")


# --- progress


def decided(number: int = 4, decode: int = 2, *replicas: ReplicaTimes) -> DecisionRecord:
    return DecisionRecord(
        id=number,
        created_at=100.0,
        interval=IntervalSpan(start_s=90.0, end_s=100.0),
        targets={Role.DECODE: decode},
        replicas=replicas,
    )


NEW = ReplicaTimes(role=Role.DECODE, replica="new", starting_at=100.0, running_at=None)


def pool(ready: int, starting: int = 0) -> dict[Role, PoolCounts]:
    return {Role.DECODE: PoolCounts(desired=2, starting=starting, ready=ready, draining=0)}


def replica(name: str, phase: str) -> Replica:
    return Replica(role=Role.DECODE, replica=name, phase=phase, started_s=100.0)  # type: ignore[arg-type]


def test_a_replica_belongs_to_the_decision_that_asked_for_it() -> None:
    progress = Progress()
    old, new = replica("old", "ready"), replica("new", "starting")
    assert progress.see(90.0, pool(1), [old]) == {}
    progress.begin(decided())
    assert progress.see(101.0, pool(1, 1), [old, new])[4]["replicas"] == (NEW,)
    done = progress.see(104.0, pool(2), [old, replace(new, phase="ready")])
    assert done[4]["reached_at"] == 104.0
    assert done[4]["replicas"][0].running_at == 104.0
    assert not progress.unfinished
    assert progress.see(105.0, pool(2), [old, replace(new, phase="ready")]) == {}


def test_a_superseded_decision_is_never_reached_but_its_replicas_are_followed() -> None:
    progress = Progress()
    progress.see(90.0, pool(1), [replica("old", "ready")])
    progress.begin(decided())
    progress.see(101.0, pool(1, 1), [replica("old", "ready"), replica("new", "starting")])
    progress.begin(decided(5, 1))
    changes = progress.see(104.0, pool(1), [replica("old", "draining"), replica("new", "ready")])
    assert changes[4]["replicas"][0].running_at == 104.0
    assert "reached_at" not in changes[4]
    assert changes[5] == {"reached_at": 104.0}


def test_the_same_targets_again_leave_the_first_decision_open() -> None:
    progress = Progress()
    progress.begin(decided())
    progress.begin(decided(5))
    changes = progress.see(104.0, pool(2))
    assert changes == {4: {"reached_at": 104.0}, 5: {"reached_at": 104.0}}


def test_a_replica_that_was_gone_before_it_ran_is_not_waited_for() -> None:
    progress = Progress()
    progress.see(90.0, pool(1), [])
    progress.begin(decided())
    progress.see(101.0, pool(1, 1), [replica("lost", "starting")])
    progress.see(102.0, pool(2), [])
    assert not progress.unfinished


def test_after_a_restart_what_already_runs_belongs_to_no_decision() -> None:
    progress = Progress()
    progress.begin(decided())
    changes = progress.see(101.0, pool(2), [replica("a", "ready"), replica("b", "ready")])
    assert changes == {4: {"reached_at": 101.0}}


def test_after_a_restart_a_replica_on_its_way_is_still_followed() -> None:
    progress = Progress()
    progress.begin(decided(4, 2, NEW))
    changes = progress.see(104.0, pool(2), [replica("new", "ready")])
    assert changes[4]["replicas"] == (NEW.model_copy(update={"running_at": 104.0}),)


class Failing(MemoryStore):
    """A store that fails once: its transport cannot be broken otherwise here."""

    looks = 0

    def get(self, key: str) -> bytes | None:
        self.looks += 1
        if self.looks == 1:
            raise ConnectionError("gone")
        return super().get(key)

    def seen(self, times: int) -> bool:
        return self.looks >= times


def stored(ttft_ms: float, itl_ms: float) -> bytes:
    return json.dumps({"slo": {"ttft_ms": ttft_ms, "itl_ms": itl_ms, "attainment": 0.99}}).encode()


async def test_targets_are_handed_over_once_a_change() -> None:
    taken: list[tuple[float, float]] = []
    store = Failing()
    store.put(KEY, b"{}")
    watch = asyncio.create_task(follow_slo(store, lambda *slo: taken.append(slo), period_s=0.001))
    for ttft_ms in (None, 200, 400):
        if ttft_ms is not None:
            store.put(KEY, stored(ttft_ms, 10))
        # One look may be under way, and the one after it is of what is there now; one more is no change.
        await eventually(partial(store.seen, store.looks + 3))
    watch.cancel()
    assert [(round(ttft_s, 9), round(itl_s, 9)) for ttft_s, itl_s in taken] == [
        (0.2, 0.01),
        (0.4, 0.01),
    ]


async def test_a_store_without_targets_changes_nothing() -> None:
    taken: list[object] = []
    store = Failing()
    watch = asyncio.create_task(follow_slo(store, lambda *slo: taken.append(slo), period_s=0.001))
    await eventually(lambda: store.looks >= 4)
    watch.cancel()
    assert taken == []


def test_another_configuration_is_taken_over_while_running() -> None:
    store = MemoryStore()
    running = RuntimeSettings(config(), store)
    running.update({"slo.ttft_ms": 250, "slo.itl_ms": 30})
    running.rebase(config(slo__ttft_ms=400))
    assert (running.config.slo.ttft_ms, running.config.slo.itl_ms) == (400, 30), "the newer value wins"
    assert (running.version, running.changes) == (2, {"slo.itl_ms": 30})
    assert stored_slo(store)["ttft_ms"] == 400


def test_what_a_running_planner_cannot_take_is_what_fixes_the_actors() -> None:
    same = config(slo__ttft_ms=400, planner__max_gpu_budget=5, pools__decode__max_replicas=9)
    assert fixed(same) == fixed(config())
    assert fixed(config(gateway__default_max_tokens=9)) == fixed(config()), "no actor goes by the gateway's"
    assert fixed(config(planner__policy="threshold")) != fixed(config())
    assert fixed(config(pools__decode__gpus_per_replica=2)) != fixed(config())


def test_serve_is_imported_before_two_threads_can():
    code = (
        "import sys; from actors.planning import part_watch; before = 'ray.serve' in sys.modules\n"
        "part_watch.PartWatch(part_watch.ServePages('headway', 1.0), list)\n"
        "print(before, 'ray.serve._private.replica' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False True\n"
