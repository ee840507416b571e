"""The planner's loop on a virtual clock: exact ticks, holds, re-assertions, restarts."""

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from actors.collector.interval import HealthStatus, PoolLoad
from actors.connectors.protocol import Action, Ready, Refused, Unreachable
from actors.performance_model import LatencyRatio, PerformanceModel
from actors.planning.context import ActorFailure
from headway.config import ConfigError
from headway.engine.observed_metrics import EngineReading, EngineTotals
from headway.planning import LoadForecast, Observation, PlanningError, Role, Traffic
from headway.planning.synthetic import CountedTraffic, LengthHistogram, made_of
from interp import scaled
from tests.actors.planner_cases import (
    EPOCH,
    NEVER,
    Deployment,
    Script,
    ScriptedActors,
    ScriptedPools,
    busy,
    settings,
    unhealthy,
)
from tests.engines.virtual_loop import on_virtual_time
from tests.engines.virtual_loop import run as in_virtual_time
from tests.planning.planning_cases import PROFILE
from tests.stores import MemoryStore

HEAVY, LIGHT = 800.0, 10.0


def test_ticks_come_on_a_steady_grid_from_one_interval_after_ready() -> None:
    deployment = Deployment()
    in_virtual_time(deployment.run_for(45.0))
    assert deployment.times() == [10.0, 20.0, 30.0, 40.0]
    assert [record["id"] for record in deployment.records()] == [0, 1, 2, 3]


def test_a_planner_beside_others_begins_a_part_of_an_interval_later() -> None:
    deployment = Deployment(phase=0.75)
    in_virtual_time(deployment.run_for(45.0))
    assert deployment.times() == [17.5, 27.5, 37.5]
    assert deployment.status()["planner"]["late_ticks"] == 0


def test_a_slow_collector_does_not_make_the_grid_drift() -> None:
    deployment = Deployment(actors=ScriptedActors(collecting=Script(busy, delay_s=1.5)))
    in_virtual_time(deployment.run_for(45.0))
    assert deployment.times() == [11.5, 21.5, 31.5, 41.5]
    assert deployment.actors.collecting.calls == [10.0, 20.0, 30.0, 40.0]
    assert deployment.status()["planner"]["late_ticks"] == 0


def test_repeats_are_no_load_and_the_decision_says_so() -> None:
    config = settings(planner__policy="headway")
    stormy = ScriptedActors(collecting=Script(lambda: busy(200.0, repeats=140.0)))
    calm = ScriptedActors(collecting=Script(lambda: busy(200.0)))
    records = []
    for actors in (stormy, calm):
        deployment = Deployment(config=config, actors=actors)
        in_virtual_time(deployment.run_for(45.0))
        records.append(deployment.records()[-1])
    assert (records[0]["measured"]["requests"], records[0]["measured"]["repeats"]) == (200.0, 140.0)
    assert records[0]["targets"] == records[1]["targets"]
    assert "41 % of the arrivals are repeats of failed requests" in records[0]["summary"]
    assert "repeats" not in records[1]["summary"]


@on_virtual_time
async def test_nothing_is_decided_before_everything_is_ready_and_the_reason_shows() -> None:
    deployment = Deployment()
    deployment.pools.readiness.answers = [Ready(ok=False, reason="Decode has no running replica")] * 3
    missing = "Interpolator: no such profile directory"
    deployment.actors.readiness.answers = [missing, missing, "", missing, missing]
    reasons = []
    async with deployment.running():
        for _ in range(6):
            await asyncio.sleep(1.0 - 1e-9)
            planner = deployment.status()["planner"]
            reasons.append(f"{planner['state']}: {planner['reason']}")
        await asyncio.sleep(10.0)
    deployment_waits = "waiting: deployment: Decode has no running replica"
    assert reasons[0] == f"{deployment_waits}; Interpolator: no such profile directory"
    assert reasons[2] == deployment_waits
    assert reasons[3] == "waiting: Interpolator: no such profile directory"
    assert reasons[5] == "running: "
    assert deployment.pools.readiness.calls == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert deployment.times() == [15.0]


@on_virtual_time
async def test_since_when_nothing_was_decided_is_told_until_the_first_decision() -> None:
    deployment = Deployment()
    deployment.pools.readiness.answers = [Ready(ok=False, reason="Decode has no running replica")] * 3
    told = []
    async with deployment.running():
        for _ in range(3):
            await asyncio.sleep(6.0)
            told.append(deployment.status()["planner"]["undecided_since"])
    assert told == [EPOCH, EPOCH, None]


def test_metrics_without_single_requests_are_judged_by_their_ttft() -> None:
    lengths = LengthHistogram(bounds=(100.0, 5_000.0), counts=(90.0, 10.0, 0.0), mean=400.0)
    counted = CountedTraffic(
        start_s=0.0,
        steps=((4.0, 100.0),),
        input_tokens=lengths,
        output_tokens=lengths,
        completed=100.0,
        ttft_s=LengthHistogram(bounds=(0.2, 0.9, 4.0), counts=(60.0, 0.0, 40.0, 0.0), mean=1.0),
    )
    deployment = Deployment(config=settings(slo__ttft_ms=900.0))
    deployment.actors.collecting.usual = lambda: busy(100.0, attainment=math.nan, counted=counted)
    in_virtual_time(deployment.run_for(15.0))
    (record,) = deployment.records()
    assert (record["measured"]["attainment"], record["measured"]["ttft_only"]) == (0.6, True)
    assert record["summary"].startswith("Only 60 % of requests met their TTFT, target 99 %")
    attained = deployment.status()["attainment"]
    assert (attained["last_interval"], attained["ttft_only"]) == (0.6, True)


def test_pools_follow_the_load_up_and_down() -> None:
    deployment = Deployment()
    deployment.actors.collecting.answers = [lambda: busy(HEAVY)] * 2 + [lambda: busy(LIGHT)] * 2
    in_virtual_time(deployment.run_for(45.0))
    decode = [record["targets"]["decode"] for record in deployment.records()]
    assert decode[0] == decode[1] > 1
    assert decode[2] == decode[3] == 1
    assert [record["connector"]["status"] for record in deployment.records()] == [
        "sent",
        "unchanged",
        "sent",
        "unchanged",
    ]


def test_the_policy_sees_requests_made_of_counts_and_a_record_can_make_them_again() -> None:
    lengths = LengthHistogram(bounds=(100.0, 5_000.0), counts=(90.0, 10.0, 0.0), mean=400.0)
    counted = CountedTraffic(start_s=0.0, steps=((2.0, 70.0), (4.0, 30.0)), input_tokens=lengths)
    deployment = Deployment()
    deployment.actors.collecting.usual = lambda: busy(HEAVY, counted=counted)
    in_virtual_time(deployment.run_for(15.0))
    (record,) = deployment.records()
    (traffic,) = deployment.actors.traffic
    assert record["reasons"]["inputs"]["traffic"] == {"arrivals": 100, "completions": 0}
    stored = json.loads(json.dumps(record["measured"]["counted"]))
    stored["input_tokens"] = LengthHistogram(**stored["input_tokens"])
    again = made_of(CountedTraffic(**stored))
    assert traffic.arrival_s.tobytes() == again.arrival_s.tobytes()
    assert traffic.input_tokens.tobytes() == again.input_tokens.tobytes()


def test_the_policy_sees_single_requests_and_records_hold_their_counts() -> None:
    count = 50_000
    columns = ("arrival_s", "input_tokens", "completed_input_tokens", "completed_output_tokens")
    traffic = Traffic(**{name: np.full(count, 7.0) for name in columns})
    deployment = Deployment()
    deployment.actors.collecting.usual = lambda: busy(HEAVY, traffic=traffic)
    in_virtual_time(deployment.run_for(15.0))
    (record,) = deployment.records()
    assert deployment.actors.traffic == [traffic]
    counts = {"arrivals": count, "completions": count}
    assert record["measured"]["traffic"] == record["reasons"]["inputs"]["traffic"] == counts
    assert deployment.status()["measured"]["traffic"] == counts
    assert len(json.dumps(record)) < 10_000
    assert sum(len(deployment.store.get(key)) for key in deployment.store.keys("")) < 50_000


@on_virtual_time
async def test_counts_that_someone_else_changed_are_set_back_at_the_next_tick() -> None:
    deployment = Deployment()
    async with deployment.running():
        await asyncio.sleep(15.0)
        deployment.pools.counts = {Role.PREFILL: 7, Role.DECODE: 7}
        await asyncio.sleep(10.0)
    first, second = deployment.records()
    assert second["targets"] == first["targets"]
    assert second["connector"]["status"] == "sent"
    assert deployment.pools.counts[Role.DECODE] == first["targets"]["decode"]


@pytest.mark.parametrize("status", [HealthStatus.STARTING, HealthStatus.STALE, HealthStatus.DOWN])
def test_data_that_is_not_fit_to_plan_on_is_a_hold(status: HealthStatus) -> None:
    deployment = Deployment()
    deployment.actors.collecting.answers = [lambda: busy(HEAVY)]
    deployment.actors.collecting.usual = lambda: unhealthy(status, "the newest sample is old")
    in_virtual_time(deployment.run_for(25.0))
    first, second = deployment.records()
    assert second["targets"] == first["targets"]
    assert second["reasons"]["kind"] == "hold"
    planner = deployment.status()["planner"]
    assert second["notes"] == [f"metrics {status}: the newest sample is old"]
    assert planner["failed_ticks"] == 0
    assert len(deployment.pools.calls) == 2


@on_virtual_time
async def test_the_state_says_holding_and_why_and_running_again_afterwards() -> None:
    deployment = Deployment()
    deployment.actors.collecting.answers = [lambda: unhealthy(HealthStatus.DOWN, "refused")]
    seen = []
    async with deployment.running():
        for _ in range(2):
            await asyncio.sleep(10.5)
            planner = deployment.status()["planner"]
            seen.append((planner["state"], planner["reason"]))
    assert seen == [("holding", "metrics down: refused"), ("running", "")]


@pytest.mark.parametrize(
    "answer", [ActorFailure("MetricCollector: gone"), Script], ids=["error", "no answer at all"]
)
def test_a_collector_that_does_not_answer_is_a_hold_within_the_deadline(answer: object) -> None:
    script = Script(busy, delay_s=NEVER) if answer is Script else Script(answer)
    deployment = Deployment(actors=ScriptedActors(collecting=script))
    in_virtual_time(deployment.run_for(15.0))
    (record,) = deployment.records()
    assert record["targets"] == {"prefill": 1, "decode": 1}
    assert record["measured"]["health"]["status"] == "down"
    assert "MetricCollector" in record["notes"][0]
    assert record["created_at"] - EPOCH == (12.0 if answer is Script else 10.0)


@on_virtual_time
async def test_without_the_state_of_the_pools_the_last_counts_hold() -> None:
    deployment = Deployment()
    deployment.actors.collecting.answers = [lambda: busy(HEAVY)]
    async with deployment.running():
        await asyncio.sleep(15.0)
        deployment.pools.reading.usual = Unreachable("Serve's controller does not answer")
        deployment.actors.collecting.usual = lambda: busy(LIGHT)
        await asyncio.sleep(10.0)
    first, second = deployment.records()
    assert second["targets"] == first["targets"]
    assert "Serve's controller does not answer" in second["notes"][0]
    assert deployment.status()["planner"]["state"] in ("holding", "stopped")


def test_a_late_forecast_is_not_waited_for() -> None:
    deployment = Deployment(actors=ScriptedActors(forecasting=Script(None, delay_s=NEVER)))
    in_virtual_time(deployment.run_for(25.0))
    record = deployment.records()[0]
    assert record["created_at"] - EPOCH == 13.5
    assert record["forecast"] is None
    assert record["notes"] == ["no forecast: Predictor: not in time"]
    assert record["reasons"]["kind"] == "sized"


def test_a_forecast_is_what_is_planned_for() -> None:
    given = LoadForecast(requests=HEAVY, isl_tokens=1000.0, osl_tokens=200.0, source={"requests": "kalman"})
    quiet = Deployment(actors=ScriptedActors(collecting=Script(lambda: busy(LIGHT))))
    warned = Deployment(
        actors=ScriptedActors(collecting=Script(lambda: busy(LIGHT)), forecasting=Script(given))
    )
    for deployment in (quiet, warned):
        in_virtual_time(deployment.run_for(15.0))
    assert warned.records()[0]["targets"]["decode"] > quiet.records()[0]["targets"]["decode"] == 1
    assert warned.records()[0]["forecast"]["requests"] == HEAVY


def test_a_refusal_is_recorded_and_the_next_tick_asserts_again() -> None:
    deployment = Deployment()
    deployment.pools.setting.answers = [Refused("headway: has no deployment Decode"), Unreachable("")]
    in_virtual_time(deployment.run_for(35.0))
    statuses = [record["connector"]["status"] for record in deployment.records()]
    assert statuses == ["refused", "unreachable", "sent"]
    assert deployment.records()[0]["connector"]["detail"] == {"error": "headway: has no deployment Decode"}
    assert len(deployment.pools.calls) == 3


def test_a_connector_that_hangs_ends_with_the_deadline_and_the_grid_stays() -> None:
    deployment = Deployment()
    deployment.pools.setting.delay_s = NEVER
    in_virtual_time(deployment.run_for(36.0))
    assert [record["connector"]["status"] for record in deployment.records()] == ["unreachable"] * 3
    assert [time for time, _ in deployment.pools.calls] == [10.0, 20.0, 30.0]


def test_dry_run_decides_and_sets_nothing() -> None:
    deployment = Deployment(config=settings(planner__dry_run=True))
    deployment.actors.collecting.usual = lambda: busy(HEAVY)
    in_virtual_time(deployment.run_for(15.0))
    (record,) = deployment.records()
    assert record["targets"]["decode"] > 1
    assert record["connector"]["status"] == "dry_run"
    assert record["dry_run"]
    assert deployment.pools.calls == []


def test_a_dry_run_decides_from_the_fleet_that_its_plan_would_have() -> None:
    deployment = Deployment(config=settings(planner__dry_run=True, planner__advice__start_up_s=12.0))
    deployment.actors.collecting.usual = lambda: busy(HEAVY)
    in_virtual_time(deployment.run_for(45.0))
    first, second, third, fourth = deployment.records()
    assert deployment.pools.calls == []
    assert first["advice"]["stood_gpus"] == first["advice"]["planned_gpus"]
    ordered = first["targets"]["decode"]
    shown = [record["reasons"]["inputs"]["pools"]["decode"] for record in (second, third)]
    assert [(pool["desired"], pool["starting"]) for pool in shown] == [(ordered, ordered - 1), (ordered, 0)]
    assert second["pools"]["decode"]["desired"] == 1
    assert second["reasons"]["inputs"]["stood"]["decode"]["ready"] == 1
    assert fourth["advice"]["planned_gpus"] > fourth["advice"]["stood_gpus"]
    advice = deployment.status()["advice"]
    assert advice["start"]["covered_s"] == 40.0
    assert advice["start"]["saved_share"]["value"] < 0.0
    assert advice["pools"]["decode"]["ready"] == fourth["targets"]["decode"]
    assert advice["start"]["stood"]["attainment"]["value"] == pytest.approx(0.9)


def test_a_planner_that_acts_says_so_and_keeps_the_advice_of_before() -> None:
    deployment = Deployment(config=settings(planner__dry_run=True))
    in_virtual_time(deployment.run_for(25.0))
    assert "advice" not in Deployment().status()
    deployment.loop.update_settings({"planner.dry_run": False})
    in_virtual_time(deployment.run_for(25.0))
    found = deployment.status()["advice"]
    assert (found["acting"], found["pools"], found["start"]["covered_s"]) == (True, {}, 20.0)
    assert "advice" not in deployment.records()[-1]


@on_virtual_time
async def test_acting_is_compared_with_the_fleet_that_stood_there_when_the_dry_run_ended() -> None:
    deployment = Deployment(config=settings(planner__dry_run=True))
    deployment.pools = deployment.pools.__class__(counts={Role.PREFILL: 4, Role.DECODE: 6})
    deployment = deployment.again()
    await deployment.run_for(25.0)
    assert "acted" not in deployment.status()["advice"]
    deployment.loop.update_settings({"planner.dry_run": False})
    await deployment.run_for(35.0)
    found = deployment.status()["advice"]["acted"]
    assert found["against"] == {"prefill": 4, "decode": 6}
    whole = found["start"]
    # The interval in which it began to act is of neither: three intervals, of which two are later.
    assert whole["covered_s"] == 20.0
    assert whole["stood"]["gpu_hours"] == pytest.approx(10 * 20.0 / 3600.0)
    taken = sum(deployment.pools.counts.values())
    assert taken < 10
    assert whole["planned"]["gpu_hours"] == pytest.approx(taken * 20.0 / 3600.0)
    assert whole["saved_share"]["value"] == pytest.approx(1.0 - taken / 10.0)
    assert whole["planned"]["attainment"]["value"] == pytest.approx(0.9)
    again = deployment.again()
    await again.run_for(15.0)
    later = again.status()["advice"]["acted"]
    assert (later["against"], later["start"]["covered_s"]) == (found["against"], 40.0)
    document = again.loop.advice(10.0).document()["acted"]
    assert (document["window"]["covered_s"], len(document["points"])) == (10.0, 1)
    assert document["points"][0]["stood_gpus"] == 10.0
    assert document["points"][0]["planned_gpus"] == pytest.approx(taken)


@on_virtual_time
async def test_a_planner_that_always_acted_is_compared_with_a_fleet_that_is_named_alone() -> None:
    deployment = Deployment(config=settings())
    await deployment.run_for(30.0)
    assert "advice" not in deployment.status()
    # A look in between does not make a fleet of Headway's own the yardstick.
    for dry_run in (True, False):
        deployment.loop.update_settings({"planner.dry_run": dry_run})
        await deployment.run_for(15.0)
    assert "acted" not in deployment.status()["advice"]
    for fleet in ({"prefill": 3, "decode": 5}, {"prefill": 2, "decode": 2}):
        deployment.config = settings(planner__advice__against=fleet)
        deployment = deployment.again()
        await deployment.run_for(30.0)
        found = deployment.status()["advice"]["acted"]
        assert found["against"] == fleet
        # With another fleet the comparison begins anew.
        assert found["start"]["covered_s"] == 30.0
        assert found["start"]["stood"]["gpu_hours"] == pytest.approx(sum(fleet.values()) * 30.0 / 3600.0)


def test_a_store_that_takes_no_advice_fails_no_tick(caplog: pytest.LogCaptureFixture) -> None:
    class Picky(MemoryStore):
        def put(self, key: str, value: bytes) -> None:
            if key.startswith("planner/advice/"):
                raise OSError("the GCS is away")
            super().put(key, value)

    deployment = Deployment(config=settings(planner__dry_run=True), store=Picky())
    in_virtual_time(deployment.run_for(25.0))
    assert deployment.status()["planner"]["failed_ticks"] == 0
    assert deployment.status()["advice"]["start"]["covered_s"] == 20.0
    assert "the store does not take the advice" in caplog.text


def test_advice_survives_a_restart() -> None:
    deployment = Deployment(config=settings(planner__dry_run=True, planner__advice__start_up_s=12.0))
    deployment.actors.collecting.usual = lambda: busy(HEAVY)
    in_virtual_time(deployment.run_for(25.0))
    before, planned = deployment.status()["advice"], deployment.records()[-1]["targets"]
    later = deployment.again()
    in_virtual_time(later.run_for(15.0))
    found = later.status()["advice"]
    assert found["start"]["covered_s"] == before["start"]["covered_s"] + 10.0
    record = later.records()[-1]
    assert record["reasons"]["inputs"]["pools"]["decode"]["desired"] == planned["decode"]


def test_a_failure_that_nobody_foresaw_is_counted_and_the_loop_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deployment = Deployment()
    deployment.actors.collecting.answers = [ZeroDivisionError("what is this?")]
    in_virtual_time(deployment.run_for(25.0))
    assert deployment.status()["planner"]["failed_ticks"] == 1
    assert deployment.times() == [20.0]
    assert "what is this?" in caplog.text


@on_virtual_time
async def test_a_policy_that_cannot_plan_is_a_failed_tick() -> None:
    failing = Deployment()
    async with failing.running():
        await asyncio.sleep(5.0)

        async def broken(work: object) -> None:
            raise PlanningError("observation.pools: no entry for decode")

        failing.compute = broken
        await asyncio.sleep(10.0)
    assert failing.records() == []
    assert failing.status()["planner"]["failed_ticks"] == 1


@on_virtual_time
async def test_ticks_that_were_missed_are_skipped_and_counted() -> None:
    deployment = Deployment(config=settings(planner__tick_deadline_s=40.0))
    deployment.pools.setting.delay_s = 25.0
    async with deployment.running():
        await asyncio.sleep(20.0)
        deployment.pools.setting.delay_s = 0.0
        await asyncio.sleep(35.0)
    assert [time for time, _ in deployment.pools.calls] == [10.0, 40.0, 50.0]
    assert deployment.status()["planner"]["missed_ticks"] == 2
    ticks = [tick for tick, _ in deployment.actors.seen]
    assert [tick - ticks[0] for tick in ticks] == [0, 3, 4]


def test_reached_at_and_the_times_of_each_new_replica() -> None:
    deployment = Deployment(pools=ScriptedPools(start_s=3.1))
    deployment.actors.collecting.usual = lambda: busy(HEAVY)
    in_virtual_time(deployment.run_for(15.0))
    (record,) = deployment.records()
    new = record["targets"]["decode"] - 1 + record["targets"]["prefill"] - 1
    assert len(record["replicas"]) == new > 0
    for entry in record["replicas"]:
        assert entry["starting_at"] - EPOCH == 10.0
        assert entry["running_at"] - EPOCH == pytest.approx(13.25)
    assert record["reached_at"] - EPOCH == pytest.approx(13.25)


def test_a_decision_that_waits_behind_another_is_not_reached_by_counts_that_happen_to_fit() -> None:
    class Waiting(ScriptedPools):
        async def set_targets(self, targets: Mapping[Role, int], reasons: Mapping[str, Any]) -> Action:
            return Action(status="pending", detail={"decision_id": 1})

    deployment = Deployment(pools=Waiting(counts={Role.PREFILL: 2, Role.DECODE: 2}))
    in_virtual_time(deployment.run_for(15.0))
    (record,) = deployment.records()
    assert record["targets"] == {role: pool["ready"] for role, pool in record["pools"].items()}
    assert record["reached_at"] is None
    last = deployment.status()["last_decision"]
    assert (last["reached_at"], last["already"]) == (None, False)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"planner__policy": "reference", "planner__predictor": "arima"}, "arima"),
        ({"planner__policy": "headway"}, None),
        (
            {"planner__policy": "headway", "planner__headway__predictors": ["kalman", "arima"]},
            "kalman, arima",
        ),
    ],
)
def test_the_status_names_the_predictors_that_the_policy_asks(changes, named) -> None:
    deployment = Deployment(config=settings(**changes))
    in_virtual_time(deployment.run_for(1.0))
    assert deployment.status()["planner"]["predictor"] == named


@on_virtual_time
async def test_a_restarted_planner_continues_grid_ids_state_and_asserts_the_last_targets_at_once() -> None:
    deployment = Deployment()
    deployment.actors.collecting.usual = lambda: busy(HEAVY)
    await deployment.run_for(24.0)
    wanted = dict(deployment.pools.calls[-1][1])
    deployment.pools.counts = {Role.PREFILL: 1, Role.DECODE: 1}
    deployment.actors.collecting.usual = lambda: unhealthy(HealthStatus.DOWN)
    again = deployment.again()
    await again.run_for(20.0)
    assert again.pools.calls[2] == (24.0, wanted)
    assert again.times() == [10.0, 20.0, 30.0, 40.0]
    assert [record["id"] for record in again.records()] == [0, 1, 2, 3]
    assert again.records()[2]["targets"] == again.records()[1]["targets"]


@on_virtual_time
async def test_a_planner_that_died_before_it_applied_its_decision_leaves_it_to_the_next() -> None:
    deployment = Deployment()
    deployment.actors.collecting.usual = lambda: busy(HEAVY)
    deployment.pools.setting.delay_s = NEVER
    await deployment.run_for(10.5)
    assert deployment.records()[0]["connector"]["status"] == "planned"
    deployment.pools.setting.delay_s = 0.0
    again = deployment.again()
    await again.run_for(5.0)
    (record,) = again.records()
    assert record["connector"]["status"] == "sent"
    assert deployment.pools.counts[Role.DECODE] == record["targets"]["decode"] > 1
    assert record["reached_at"] is not None


@on_virtual_time
async def test_a_restart_after_a_long_absence_skips_what_was_missed() -> None:
    deployment = Deployment()
    await deployment.run_for(24.0)
    await asyncio.sleep(100.0)
    again = deployment.again()
    await again.run_for(10.0)
    assert again.times() == [10.0, 20.0, 130.0]
    assert again.status()["planner"]["missed_ticks"] == 10


@on_virtual_time
async def test_a_planner_that_was_stopped_and_started_anew_does_not_bring_old_targets_back() -> None:
    deployment = Deployment()
    deployment.actors.collecting.usual = lambda: busy(HEAVY)
    await deployment.run_for(14.0)
    fresh = Deployment(deployment.config, deployment.store, deployment.actors, ScriptedPools())
    fresh.actors.collecting.usual = lambda: unhealthy(HealthStatus.STARTING)
    await fresh.run_for(15.0)
    assert fresh.pools.calls == [(24.0, {Role.PREFILL: 1, Role.DECODE: 1})]
    assert [record["id"] for record in fresh.records()] == [0, 1]


@on_virtual_time
async def test_targets_asserted_after_a_restart_are_cut_to_todays_limits() -> None:
    deployment = Deployment()
    deployment.actors.collecting.usual = lambda: busy(HEAVY)
    await deployment.run_for(14.0)
    assert deployment.pools.calls[0][1][Role.DECODE] > 2
    less = Deployment(
        settings(pools__decode__max_replicas=2),
        deployment.store,
        deployment.actors,
        deployment.pools,
        resumed=True,
    )
    await less.run_for(1.0)
    assert less.pools.calls[1][1][Role.DECODE] == 2


@on_virtual_time
async def test_settings_change_the_next_decision_without_a_restart() -> None:
    deployment = Deployment()
    deployment.actors.collecting.usual = lambda: busy(LIGHT)
    async with deployment.running():
        await asyncio.sleep(15.0)
        deployment.loop.update_settings({"pools.decode.min_replicas": 3, "slo": {"itl_ms": 15}})
        await asyncio.sleep(10.0)
    assert [record["targets"]["decode"] for record in deployment.records()] == [1, 3]
    status = deployment.status()
    assert status["slo"]["itl_ms"] == 15
    assert status["pools"]["decode"]["min_replicas"] == 3
    assert deployment.again().settings.config.slo.itl_ms == 15


def test_settings_that_change_while_the_policy_is_at_work_make_it_plan_again() -> None:
    deployment = Deployment()
    deployment.actors.collecting.usual = lambda: busy(LIGHT)
    work_done = []

    async def meddling(work):
        decision = work()
        work_done.append(decision)
        if len(work_done) == 2:  # the first one is the rehearsal
            deployment.loop.update_settings({"pools.decode.min_replicas": 4})
        return decision

    deployment.compute = meddling
    in_virtual_time(deployment.run_for(15.0))
    assert [decision.targets[Role.DECODE] for decision in work_done[1:]] == [1, 4]
    assert deployment.records()[0]["targets"]["decode"] == 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pools.decode.min_replicas": 17}, "min_replicas 17 is above max_replicas 16"),
        ({"slo.ttft_ms": -5}, "slo.ttft_ms"),
        ({"slo.ttft_ms": 200, "planner.max_gpu_budget": 1}, "do not hold the min_replicas"),
        ({"planner.policy": "static"}, "cannot be changed while running"),
        ({"pools.mixed.min_replicas": 2}, "there is no pool mixed"),
        ({"slo.ttft": 200}, "cannot be changed while running"),
        ({"pools.decode.min_replicas": 0}, "pools.decode.min_replicas: for 0 start with it"),
    ],
)
def test_impossible_settings_are_refused_whole(changes: dict, says: str) -> None:
    deployment = Deployment()
    in_virtual_time(deployment.run_for(5.0))
    with pytest.raises(ConfigError, match=says) as refusal:
        deployment.loop.update_settings(changes)
    assert "\n" not in str(refusal.value)
    assert deployment.status()["slo"]["ttft_ms"] == 300
    assert deployment.status()["changes"] == {}


def test_the_status_is_json_from_the_first_moment_on() -> None:
    deployment = Deployment()
    text = json.dumps(deployment.status(), allow_nan=False)
    assert json.loads(text)["planner"]["state"] == "waiting"
    deployment.actors.collecting.usual = lambda: busy(isl_tokens=math.nan)
    in_virtual_time(deployment.run_for(15.0))
    status = json.loads(json.dumps(deployment.status(), allow_nan=False))
    assert status["measured"]["isl_tokens"] is None
    begun_s = deployment.log.last.interval.start_s
    expected = {"last_interval": 0.9, "total": pytest.approx(0.9), "missed_since": begun_s}
    expected |= {"unended_since": None, "usual_s": 2.5}
    assert status["attainment"].pop("ttft_only") is False
    assert set(status["attainment"].pop("windows")) == {"all"}
    assert status["attainment"] == expected
    assert status["last_decision"]["id"] == 0
    assert status["last_decision"]["summary"].startswith("Only 90 % of requests met their SLO, target 99 %")
    well = {"ok": True, "detail": ""}
    assert status["components"] == {"Interpolator": well, "Connector": well}
    assert set(status["pools"]["decode"]) == {
        *("desired", "starting", "ready", "draining", "asleep", "running", "waiting", "kv_usage"),
        *("min_replicas", "max_replicas", "gpus_per_replica", "schedule"),
    }


def test_attainment_counts_an_outage() -> None:
    deployment = Deployment()
    outage = lambda: busy(100.0, completed=0.0, attainment=0.0)  # noqa: E731
    deployment.actors.collecting.answers = [lambda: busy(100.0, attainment=1.0), outage]
    in_virtual_time(deployment.run_for(25.0))
    attained = deployment.status()["attainment"]
    assert (attained["last_interval"], attained["total"]) == (0.0, 0.5)
    # Of two intervals the second one missed it.
    assert attained["missed_since"] == deployment.log.last.interval.start_s


@pytest.mark.parametrize("policy", ["reference", "threshold"])
@pytest.mark.parametrize(
    ("seen", "why"),
    [
        ({"unended": 3.0}, "none of 3 requests under way ended"),
        ({"repeats": 3.0, "completed": 2.0}, "3 repeats came, more than the 2 requests that ended well"),
    ],
)
def test_while_little_of_what_there_is_is_served_no_pool_shrinks(policy: str, seen, why: str) -> None:
    load = {role: PoolLoad(running=0.0, waiting=0.0, kv_usage=0.0) for role in (Role.PREFILL, Role.DECODE)}
    for figures, shrinks in ((seen, False), ({}, True)):
        quiet = {"completed": 0.0, "attainment": math.nan, "load": load, **figures}
        quick = {"planner__threshold__downscale_delay_s": 1.0, "planner__threshold__interval_s": 10.0}
        deployment = Deployment(config=settings(planner__policy=policy, **quick))
        deployment.pools.counts[Role.DECODE] = 4
        deployment.pools.__post_init__()
        calm = {**quiet, "isl_tokens": math.nan, "osl_tokens": math.nan}
        deployment.actors.collecting.usual = lambda calm=calm: busy(0.0, **calm)
        in_virtual_time(deployment.run_for(75.0))
        counts = deployment.records()[-1]["targets"]
        assert (counts["decode"] < 4) is shrinks
        assert (f"{why}: no pool shrinks" in deployment.records()[0]["notes"]) is not shrinks


def test_threshold_has_its_own_interval() -> None:
    config = settings(planner__policy="threshold", planner__threshold__interval_s=10.0)
    config = config.model_copy(
        update={"planner": config.planner.model_copy(update={"adjustment_interval_s": 180.0})}
    )
    deployment = Deployment(config=config)
    in_virtual_time(deployment.run_for(25.0))
    assert deployment.times() == [10.0, 20.0]
    assert deployment.actors.seen == []


@on_virtual_time
async def test_engines_that_change_are_planned_for_before_the_next_tick_is_due() -> None:
    deployment = Deployment()
    async with deployment.running():
        await asyncio.sleep(11.0)
        deployment.actors.mapping.usual = (2, scaled(PROFILE, 0.95))
        await asyncio.sleep(12.0)
        deployment.actors.mapping.usual = (3, scaled(PROFILE, 0.7))
        await asyncio.sleep(25.0)
    # A look every five seconds between ticks: 5 % is for the next tick, 30 % is for now.
    assert deployment.times() == [10.0, 20.0, 25.0, 35.0, 45.0]
    assert [record["id"] for record in deployment.records()] == [0, 1, 2, 3, 4]


@on_virtual_time
async def test_what_engines_showed_goes_to_the_interpolator_after_the_decision() -> None:
    reading = EngineReading("a", 0.0, 15.0, EngineTotals(gaps=1000.0, gap_s=10.0))
    deployment = Deployment()
    deployment.actors.collecting.usual = lambda: busy(engines=(reading,))
    async with deployment.running():
        await asyncio.sleep(15.0)
    assert deployment.actors.shown == [reading]
    assert "engines" not in deployment.records()[0]["measured"]


@on_virtual_time
async def test_an_interpolator_that_died_leaves_the_last_surfaces() -> None:
    deployment = Deployment()
    async with deployment.running():
        await asyncio.sleep(5.0)
        deployment.actors.mapping.usual = ActorFailure("Interpolator: gone")
        await asyncio.sleep(10.0)
    assert deployment.records()[0]["reasons"]["kind"] == "sized"


@dataclass
class HangingCalibration(ScriptedActors):
    """An Interpolator that does not come back from a calibration."""

    async def calibrate(self, observation: Observation, engines: object = ()) -> None:
        await asyncio.Event().wait()
        return {}


class Calibrated(ScriptedActors):
    """An Interpolator whose model has a ratio."""

    async def model(self, known: int) -> PerformanceModel | None:
        model = await super().model(known)
        ratio = LatencyRatio(smoothed=1.5, last=1.4, count=3)
        return model and replace(model, calibration={Role.PREFILL: ratio})


def test_the_status_has_the_ratios_of_the_newest_model() -> None:
    deployment = Deployment(actors=Calibrated())
    in_virtual_time(deployment.run_for(15.0))
    assert deployment.status()["calibration"] == {"prefill": {"smoothed": 1.5, "last": 1.4, "count": 3}}


def test_a_calibration_that_hangs_does_not_hold_up_the_next_tick() -> None:
    actors = HangingCalibration(collecting=Script(busy, delay_s=7.0))
    deployment = Deployment(config=settings(planner__tick_deadline_s=20.0), actors=actors)
    in_virtual_time(deployment.run_for(48.0))
    planner = deployment.status()["planner"]
    assert actors.collecting.calls == [10.0, 20.0, 30.0, 40.0]
    assert (planner["late_ticks"], planner["missed_ticks"]) == (0, 0)


PAST = "planner__load_predictor_warmup_trace"


def test_headway_begins_with_the_warm_up_trace_and_asks_its_predictors() -> None:
    past = "steady:rate_rps=20,duration_s=400,seed=1"
    said = {"kalman": np.full(64, 250.0)}
    changes = {PAST: past, "planner__policy": "headway", "planner__headway__predictors": ["kalman"]}
    deployment = Deployment(
        config=settings(**changes), actors=ScriptedActors(forecasting=Script(lambda: said))
    )
    in_virtual_time(deployment.run_for(15.0))
    (record,) = deployment.records()
    needs = record["reasons"]["needs"]
    assert needs["prefill"]["recalled"] == 40
    assert needs["prefill"]["intervals"] == 41
    assert record["reasons"]["inputs"]["ahead"] == {"kalman": 250.0}
    assert deployment.actors.seen == [(record["tick"], 200.0)]
    resumed = deployment.again()
    in_virtual_time(resumed.run_for(15.0))
    # The stored past goes on, and nothing is learnt twice.
    assert resumed.records()[-1]["reasons"]["needs"]["prefill"]["recalled"] == 40
    assert resumed.records()[-1]["reasons"]["needs"]["prefill"]["intervals"] == 42


def test_a_warm_up_trace_that_cannot_be_read_is_no_reason_not_to_plan(caplog) -> None:
    deployment = Deployment(config=settings(**{PAST: "past.csv", "planner__policy": "headway"}))
    in_virtual_time(deployment.run_for(15.0))
    (record,) = deployment.records()
    assert record["reasons"]["needs"]["prefill"]["recalled"] == 0
    assert "the warm-up trace cannot be learnt: " in caplog.text


@on_virtual_time
async def test_what_the_store_does_not_take_is_not_carried_out_and_no_id_is_lost() -> None:
    """A GCS that is away for three ticks: held meanwhile, and the ids go on without a gap."""
    deployment = Deployment()
    async with deployment.running():
        await asyncio.sleep(25.0)
        before, calls = deployment.records(), len(deployment.pools.calls)
        deployment.store_away = True
        await asyncio.sleep(30.0)
        assert deployment.records() == before
        assert len(deployment.pools.calls) == calls
        planner = deployment.status()["planner"]
        assert (planner["state"], planner["failed_ticks"]) == ("holding", 3)
        assert planner["reason"] == "the store does not answer within 2 s"
        deployment.store_away = False
        await asyncio.sleep(10.0)
        assert [record["id"] for record in deployment.records()] == list(range(len(before) + 1))
        assert deployment.status()["planner"]["state"] == "running"
