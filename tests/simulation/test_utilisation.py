"""What a simulation records of offload: utilisation of replicas, traces of requests, transfers."""

from dataclasses import replace

import numpy as np
import pytest

from headway.config import load_config
from headway.planning.types import Role
from headway.simulation.build import make_plan, make_scenario
from headway.simulation.scenario import EngineRules, PlannedCrash, ScenarioRouter
from headway.simulation.simulate import SimulationRun, Watchers, simulate
from headway.workload import open_trace
from tests.simulation.routers import Scripted, place
from tests.simulation.worlds import ArrayTrace, Schedule, constant_profile, poisson_trace, scenario

OFFLOADING = {
    "pools": {"mixed": {}},
    "planner.policy": "static",
    "planner.static.mixed": 3,
    "routing.profile": "least_load",
    "routing.offload": {"mode": "always", "heavy_tokens": 600, "warm_tokens": 200},
}


def to_the_first(router, event, now_s, name):
    return [place(name, router.ready[Role.MIXED][0])] if event == "submit" else None


def scripted(initial, **changes):
    """A fleet whose requests all go to its first replica: 10 ms an iteration, 1 ms a prompt token."""
    profile = constant_profile(itl_s=0.01, prefill_s_per_token=0.001, capacity=10_000)
    routed = ScenarioRouter(name="scripted", make=lambda _: Scripted(to_the_first))
    return scenario(profile, {Role.MIXED: initial}, routing=routed, **changes)


def test_busy_share_and_kv_usage_are_those_of_the_engine():
    """A prompt of 1 s at 2 s, 600 further tokens of 10 ms: busy from 2 to 9 s, and with nothing after."""
    trace = ArrayTrace(np.array([2.0, 17.0]), np.array([1000, 1000]), np.array([601, 1]))
    summary = simulate(scripted(2), trace, Schedule([{Role.MIXED: 2}])).report().document()
    assert set(summary["utilisation"]) == {"mixed-0", "mixed-1"}
    first, second = summary["utilisation"]["mixed-0"], summary["utilisation"]["mixed-1"]
    at_s, busy, kv_usage = np.array(first["samples"]).T
    assert at_s.tolist() == [5.0, 10.0, 15.0]
    assert busy == pytest.approx([0.6, 0.8, 0.0])
    # 200 of the 600 iterations have ended by 5 s; the one that ends at that moment may count or not.
    assert kv_usage == pytest.approx([0.1201, 0.0, 0.0], abs=1.01e-4)
    assert first["mean_busy"] == pytest.approx(7.0 / 15.0)
    assert first["max_kv_usage"] == kv_usage[0]
    assert first["mean_kv_usage"] == pytest.approx(kv_usage[0] / 3)
    assert second["mean_busy"] == second["max_kv_usage"] == 0.0


def test_a_replica_is_sampled_while_it_serves():
    trace = ArrayTrace(np.array([0.0, 40.0]), np.array([10, 10]), np.array([5, 5]))
    crash = [PlannedCrash(at_s=12.0, role=Role.MIXED)]
    samples = simulate(scripted(2, crashes=crash), trace, Schedule([{Role.MIXED: 2}])).utilisation
    times = {name: [at_s for at_s, *_ in one["samples"]] for name, one in samples.items()}
    assert times["mixed-0"] == [5.0, 10.0]
    assert times["mixed-1"] == [5.0 * n for n in range(1, 9)]
    assert times["mixed-2"] == [5.0 * n for n in range(4, 9)]


def offloading_fleet(**more):
    """Three mixed replicas that compute every prompt from 600 tokens on elsewhere than it decodes."""
    plan = make_plan(load_config(None, {**OFFLOADING, **more}))
    with open_trace("steady:rate_rps=1,duration_s=10") as trace:
        return make_scenario(plan, trace), plan.policy


def offloading(seed, traces=None, utilised=True):
    setting, policy = offloading_fleet()
    trace = poisson_trace(seed, 300, 12.0, isl_mean=800)
    driven = SimulationRun(setting, trace, policy, None, Watchers(traces=traces))
    if not utilised:
        driven.utilisation = None
    return driven.result()


def test_samples_change_nothing():
    sampled, not_sampled = (
        offloading(1).report().document(),
        offloading(1, utilised=False).report().document(),
    )
    assert sampled.pop("utilisation")
    assert not_sampled.pop("utilisation") == {}
    assert sampled == not_sampled


def test_there_is_a_trace_of_every_request_and_its_stamps_are_in_order():
    batches = []
    result = offloading(2, batches.append)
    traces = [trace for batch in batches for trace in batch]
    assert sorted(int(trace.request_id) for trace in traces) == list(range(300))
    assert max(map(len, batches)) < 300
    placed = result.routing_metrics["placements"]
    for route_class in ("WARM", "HEAVY_P2P"):
        count = sum(value for name, value in placed.items() if route_class in name)
        assert sum(trace.route_class == route_class for trace in traces) == count > 0
    for trace in traces:
        done = (trace.t_prefill_sent, trace.t_prefill_done, trace.t_first_token, trace.t_done)
        assert trace.t_proxy_recv <= done[0] < done[1] <= done[2] <= done[3]
        assert (trace.t_first_token > trace.t_prefill_done) is (trace.route_class == "HEAVY_P2P")


@pytest.mark.parametrize("slower", [1.0, 4.0])
def test_the_measured_transfer_is_the_engines_whatever_the_rule_says(slower):
    """Engines whose network is `slower` than the router was told: it learns that, D's iterations apart."""
    rules = EngineRules(
        max_batch_size=64, chunk_tokens=2048, transfer_latency_s=0.05, transfer_bytes_per_s=2e9
    )
    setting, policy = offloading_fleet(**told(rules, slower))
    trace = poisson_trace(0, 500, 12.0, isl_mean=800)
    figures = simulate(replace(setting, engine=rules), trace, policy).routing_metrics["transfer"]
    assert figures["measured"] > 100
    assert figures["factor"] == pytest.approx(slower, rel=0.25)


def told(rules, slower):
    """What the router is told: a network faster than `rules` have it."""
    return {
        "engine.chunk_tokens": rules.chunk_tokens,
        "engine.max_batch_size": rules.max_batch_size,
        "engine.kv_transfer": {
            "latency_ms": 1000.0 * rules.transfer_latency_s / slower,
            "bandwidth_gb_s": rules.transfer_bytes_per_s * slower / 1e9,
            "bytes_per_token": int(rules.kv_bytes_per_token),
        },
    }
