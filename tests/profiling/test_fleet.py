"""The profile of a fleet that serves: in virtual time, where the truth is known, and the parts of it."""

import asyncio
from typing import Any

import pytest
from fleet_cases import KNOWN, SLO, TRUTH, SimulatedReplica, errors, watched

from headway.config import HeadwayConfig
from headway.engine.observed_latency import Phase
from headway.loadgen import LoadPlan
from headway.planning.types import Slo
from headway.profiling import RequestError, TargetError
from headway.profiling.fleet_probing import (
    DUTY,
    FleetEvidence,
    FleetOptions,
    fleet_meta,
    probe_reports,
    rebased,
    watch_fleet,
)
from headway.profiling.fleet_replica import (
    GATEWAY,
    VLLM,
    EndpointReplica,
    ReplicaLoad,
    beside,
    empty_s,
    prompt_work_s,
    read_load,
    shown,
)
from headway.profiling.sweep.measure import Arrival, StreamTimes
from headway.profiling.sweep.points import Limits
from tests.engines.virtual_loop import run
from tests.gateway.doubles import ScriptedBackend, chunks
from tests.gateway.serving import serving
from tests.patience import PATIENCE_S


@pytest.mark.slow
def test_traffic_and_probes_find_the_truth_and_cost_no_user_the_slo() -> None:
    found = watched(1.0)
    assert min(errors(found.base)) > 0.4
    ttft, itl = errors(found.profile)
    assert ttft < 0.04
    assert itl < 0.06
    assert found.late == 0
    assert found.served > 400
    assert found.evidence.probe_s <= 1.5 * DUTY * 300.0
    assert found.meta["coverage"]["prefill"] > 0.8
    assert 0.3 < found.meta["coverage"]["decode"] < 0.9
    assert found.meta["error"]["prefill"] == pytest.approx(ttft, abs=0.08)


@pytest.mark.slow
def test_without_probes_the_first_tokens_of_traffic_are_a_worse_witness() -> None:
    alone, probed = watched(2.0, probes=False), watched(2.0)
    assert alone.evidence.probes == 0
    assert errors(probed.profile)[0] < 0.5 * errors(alone.profile)[0] < 0.15
    assert errors(alone.profile)[1] < 0.08


def test_an_overloaded_fleet_is_left_alone() -> None:
    found = watched(7.0, budget_s=40.0)
    assert found.evidence.probes <= 1
    assert sum(found.evidence.held_back.values()) > 3
    notes = fleet_meta(found.base, found.evidence, 2)["notes"]
    assert any("no probe was begun" in note for note in notes)


def test_an_idle_fleet_is_known_by_probes_alone() -> None:
    found = watched(1e-9)
    assert found.served == 0
    assert errors(found.profile)[0] < 0.05
    # One request at a time shows nothing of a full cache.
    assert found.meta["coverage"]["decode"] < 0.7


def test_a_replica_that_stops_to_answer_is_left_out() -> None:
    class Failing(SimulatedReplica):
        async def load(self) -> ReplicaLoad:
            if asyncio.get_running_loop().time() > 30.0:
                raise TargetError("http://b: gone")
            return await super().load()

    limits = Limits(max_request_tokens=4096, max_kv_tokens=432_992, max_batch=64)

    async def watch(*replicas: SimulatedReplica) -> FleetEvidence:
        clock = asyncio.get_running_loop().time
        asked = FleetOptions(slo=SLO, attainment=0.95, budget_s=60.0, clock=clock)
        return await watch_fleet(replicas, KNOWN, limits, asked)

    evidence = run(watch(SimulatedReplica(TRUTH), Failing(TRUTH)))
    assert evidence.left_out == ["http://b: gone"]
    assert "a replica was left out: http://b: gone" in fleet_meta(KNOWN, evidence, 2)["notes"]
    with pytest.raises(TargetError, match="gone"):
        run(watch(Failing(TRUTH)))


def test_no_replica_and_short_requests_are_refused() -> None:
    options = FleetOptions(slo=SLO, attainment=0.9, budget_s=1.0, clock=lambda: 0.0)
    limits = Limits(max_request_tokens=512, max_kv_tokens=4096)
    with pytest.raises(RequestError, match="no replica"):
        asyncio.run(watch_fleet([], KNOWN, limits, options))


def test_a_base_keeps_its_times_at_another_cache() -> None:
    limits = Limits(max_request_tokens=4096, max_kv_tokens=50_000, max_batch=16)
    base = rebased(KNOWN, limits, 2)
    assert base.gpus_per_engine == 2
    assert base.decode.table.max_kv_tokens == 50_000
    usage = 8 * 1000.0
    assert base.decode.itl_s(usage / 50_000, 1000.0) == pytest.approx(
        float(KNOWN.decode.itl_s(usage / KNOWN.decode.table.max_kv_tokens, 1000.0)), rel=0.02
    )


def reading(at_s: float, **values: float) -> ReplicaLoad:
    return ReplicaLoad(at_s=at_s, running=4.0, kv_usage=0.1, **values)


def test_what_two_readings_show() -> None:
    work_s = prompt_work_s(KNOWN, 1000.0)
    # 10 seconds in which 2 prompts of 1000 tokens stretched gaps that would have been 0.030 s.
    mean_s = 0.030 / (1.0 - 2 * work_s / 10.0)
    seen_s = 2 * (0.2 + beside(KNOWN, 0.030))
    last = reading(10.0, prompts=2, first_token_s=seen_s, prompt_tokens=2000, computed_tokens=2000,
                   gaps=1000, gap_s=1000 * mean_s)  # fmt: skip
    decode, prefill = shown(KNOWN, [reading(0.0), last])
    assert (decode.phase, decode.batch) == (Phase.DECODE, 4.0)
    assert decode.latency_s == pytest.approx(0.030)
    assert decode.tokens == pytest.approx(0.1 * KNOWN.decode.table.max_kv_tokens / 4)
    assert (prefill.phase, prefill.tokens) == (Phase.PREFILL, 1000.0)
    assert prefill.latency_s == pytest.approx(0.2)


def test_what_readings_do_not_show() -> None:
    first, last = (
        reading(0.0),
        reading(10.0, prompts=2, first_token_s=1, prompt_tokens=2000, computed_tokens=2000),
    )
    assert [each.phase for each in shown(KNOWN, [first, last])] == [Phase.PREFILL]
    assert shown(KNOWN, [first]) == []
    assert shown(KNOWN, [first, first._replace(waiting=1.0), last]) == []
    assert shown(KNOWN, [first, last._replace(computed_tokens=1000)]) == []
    assert shown(KNOWN, [last, reading(20.0)]) == []  # it began anew
    assert shown(KNOWN, [first, last._replace(prompts=60, prompt_tokens=6e5, computed_tokens=6e5)]) == []


def stream(sent_s: float, first_s: float, itl_s: float) -> StreamTimes:
    return StreamTimes(
        sent_s=sent_s, arrivals=tuple(Arrival(first_s + number * itl_s, 1.0) for number in range(33))
    )


def test_a_probe_counts_where_no_other_prompt_came_between() -> None:
    times = stream(1.0, 1.2, 0.02)
    alone = [
        ReplicaLoad(at_s=0.9),
        ReplicaLoad(at_s=1.3, running=1, prompts=1),
        ReplicaLoad(at_s=1.9, prompts=1),
    ]
    decode, prefill = probe_reports(KNOWN, alone, times, 1000, 2048)
    assert (decode.batch, decode.tokens, decode.latency_s) == (1.0, 1016.5, pytest.approx(0.02))
    assert prefill.latency_s == pytest.approx(0.2)
    others = [
        reading(0.9),
        reading(1.3, prompts=1)._replace(running=5.0),
        reading(1.9, prompts=1)._replace(running=5.0),
    ]
    decode, prefill = probe_reports(KNOWN, others, times, 1000, 2048)
    assert decode.batch == 5.0
    assert prefill.latency_s == pytest.approx(0.2 - beside(KNOWN, 0.02))
    disturbed = [others[0], others[1]._replace(prompts=2), others[2]._replace(prompts=2)]
    assert [each.phase for each in probe_reports(KNOWN, disturbed, times, 1000, 2048)] == [Phase.DECODE]
    assert 0 < empty_s(KNOWN) < 0.1


METRICS = """# HELP x
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0"} 2
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:prompt_tokens_total{engine="0"} 1e+03
vllm:prompt_tokens_by_source_total{source="local_compute"} 600
vllm:prompt_tokens_by_source_total{source="local_cache_hit"} 400
vllm:time_to_first_token_seconds_bucket{le="0.1"} 10
vllm:time_to_first_token_seconds_bucket{le="0.2"} 20
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 25
vllm:time_to_first_token_seconds_count{} 25
vllm:time_to_first_token_seconds_sum 3.5
vllm:inter_token_latency_seconds_count{a="b"} 100
vllm:inter_token_latency_seconds_sum{a="b"} 2
"""


def test_vllms_metrics_are_read() -> None:
    load = read_load(METRICS, VLLM, 7.0, 0.15)
    assert load == ReplicaLoad(
        at_s=7.0,
        running=4.0,
        waiting=2.0,
        kv_usage=0.5,
        prompts=25.0,
        first_token_s=3.5,
        first_in_time=15.0,
        prompt_tokens=1000.0,
        computed_tokens=600.0,
        gaps=100.0,
        gap_s=2.0,
    )
    assert read_load(METRICS, VLLM, 7.0, 9.0).first_in_time == 20.0
    assert read_load("", VLLM, 1.0, 0.15) == ReplicaLoad(at_s=1.0)


def test_a_gateway_is_read_and_asked() -> None:
    # In time means: in time on a busy machine.
    slo = Slo(ttft_s=600.0, itl_s=0.05)
    config = HeadwayConfig.model_validate({"model": "m", "slo": {"ttft_ms": 600_000}})

    async def ask(url: str, names: Any) -> tuple[ReplicaLoad, ReplicaLoad]:
        plan = LoadPlan(url=url, model="m", slo=slo, timeout_s=PATIENCE_S)
        async with EndpointReplica(plan, names, asyncio.get_running_loop().time) as replica:
            before = await replica.load()
            await replica.stream(range(64, 164), 5)
            return before, await replica.load()

    with serving(config, ScriptedBackend(chunks(*["word "] * 5))) as running:
        before, after = asyncio.run(ask(running.url, GATEWAY))
        assert after.prompts - before.prompts == 1
        assert after.first_in_time - before.first_in_time == pytest.approx(1.0)
        assert after.gaps > before.gaps
        with pytest.raises(TargetError, match="has no vllm:time_to_first_token_seconds"):
            asyncio.run(ask(running.url, VLLM))
