"""Clients that give up and come again: by hand, in storms, and whatever the fleet and the routing."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import load_config
from headway.engine.kernel import layout
from headway.engine.kernel.layout import Routing
from headway.engine.kernel.state import RETURN_SPREAD
from headway.planning.types import PoolLimits, Role
from headway.simulation.build import make_plan, make_scenario
from headway.simulation.clients import Clients
from headway.simulation.scenario import EngineRules, PlannedCrash, Scenario, ScenarioRouter, StartUp
from headway.workload import open_trace
from tests.simulation.routers import Scripted, place, shed
from tests.simulation.test_routed import Moody, routed
from tests.simulation.worlds import (
    ArrayTrace,
    Schedule,
    constant_profile,
    poisson_trace,
    roofline_profile,
    run,
    scenario,
)

ITL_S, TOKEN_S = 0.01, 1e-4
SIMPLE, PROFILE = constant_profile(ITL_S, TOKEN_S), roofline_profile(capacity=40_000)
SPLIT, MIXED = {Role.PREFILL: 2, Role.DECODE: 3}, {Role.MIXED: 3}
SHAPES = pytest.mark.parametrize("shape", [SPLIT, MIXED], ids=["split", "mixed"])
IMPATIENT = Clients(patience_s=2.0, retries=3, retry_after_s=3.0)


def configured(shape, **changes) -> Scenario:
    """The scenario of a fixed fleet by its settings."""
    pools = {role.value: {} for role in shape}
    named = {f"planner.static.{role.value}": count for role, count in shape.items()}
    settings = {"planner.policy": "static", "pools": pools, **named, **changes}
    plan = make_plan(load_config(None, settings))
    with open_trace("steady:rate_rps=1,duration_s=10") as trace:
        return make_scenario(plan, trace)


def of_slo_router(shape) -> ScenarioRouter:
    """The profile `slo`, with predictions, holding and reports."""
    return configured(shape, **{"routing.profile": "slo"}).routing


def test_settings():
    given = {"patience_s": 2.0, "retries": 3, "retry_after_s": 3.0}
    assert configured(SPLIT, **{"simulation.clients": given}).clients == IMPATIENT
    assert configured(SPLIT).clients == Clients()


def assert_each_ended_once(result, records, trace):
    """Each request of the trace ended once, judged from its first arrival, and its repeats are told apart."""
    assert np.array_equal(records["number"], np.arange(len(trace.arrival_s)))
    assert np.array_equal(records["first_arrival_s"], trace.arrival_s)
    assert np.array_equal(records["input_tokens"], trace.input_tokens)
    assert np.array_equal(records["output_tokens"], trace.output_tokens)
    first = records["repeats"] == 0
    assert np.array_equal(records["arrival_s"][first], trace.arrival_s[first])
    assert (records["arrival_s"] >= records["first_arrival_s"]).all()
    done = records[records["outcome"] == layout.COMPLETED]
    assert (done["first_token_s"] >= done["arrival_s"]).all()
    tally = result.tally
    assert tally.requests == len(records) == tally.completed + tally.failed + tally.shed
    assert tally.gave_up == (records["outcome"] == layout.GAVE_UP).sum()
    assert tally.repeats == records["repeats"].sum()
    assert sum(each.requests for each in result.intervals) == len(records)


@given(
    seed=st.integers(0, 10**6),
    rate_rps=st.floats(5.0, 90.0),
    shape=st.sampled_from([SPLIT, MIXED]),
    routing=st.sampled_from([Routing.RANDOM, Routing.ROUND_ROBIN, Routing.LEAST_LOAD, "slo", "moody"]),
    rules=st.tuples(st.integers(1, 64), st.sampled_from([0, 256, 4096]), st.sampled_from([0, 20_000])),
    clients=st.tuples(st.floats(0.0, 3.0), st.integers(0, 4), st.floats(0.0, 4.0)),
    queueing_s=st.sampled_from([0.0, 0.2]),
)
def test_requests_are_conserved(seed, rate_rps, shape, routing, rules, clients, queueing_s):
    trace = poisson_trace(seed, 200, rate_rps)
    max_batch, chunk_tokens, cache = rules
    patience_s, retries, retry_after_s = clients
    moody = Scripted(Moody(seed), due_s=np.arange(0.25, 900.0, 0.5))
    routings = {"slo": of_slo_router(shape), "moody": routed(moody)}
    setting = scenario(
        PROFILE,
        shape,
        engine=EngineRules(max_batch_size=max_batch, chunk_tokens=chunk_tokens, prefix_cache_tokens=cache),
        routing=routings.get(routing, routing),
        clients=Clients(patience_s=patience_s, retries=retries, retry_after_s=retry_after_s),
        crashes=[PlannedCrash(at_s=at, role=role) for at in (1.0, 3.0) for role in shape],
        start_up=StartUp(delay_s=1.5),
        queueing_s=queueing_s,
        seed=seed,
    )
    lower = dict.fromkeys(shape, 1)
    policy = Schedule([shape, lower, shape, lower, shape], interval_s=1.0)
    result, records = run(setting, trace, policy)
    assert_each_ended_once(result, records, trace)
    assert moody.live == set()
    assert (records["repeats"] <= retries).all()
    assert (records["repeats"][records["outcome"] == layout.GAVE_UP] == retries).all()


def trace_of(*rows) -> ArrayTrace:
    """Rows of arrival, input, output."""
    arrival, isl, osl = zip(*rows, strict=True)
    return ArrayTrace(np.array(arrival, float), np.array(isl), np.array(osl))


def served(trace, shape, **changes):
    """The result and the records of a run with one replica of each role."""
    fleet = changes.pop("fleet", dict.fromkeys(shape, 1))
    result, records = run(scenario(SIMPLE, fleet, **{"clients": IMPATIENT, **changes}), trace)
    assert_each_ended_once(result, records, trace)
    return result, records


def came_again_s(record) -> float:
    """When one that came twice gave up, give or take the spread."""
    assert record["repeats"] == 1
    return record["arrival_s"] - IMPATIENT.retry_after_s


SPREAD_S = RETURN_SPREAD * IMPATIENT.retry_after_s


@SHAPES
@pytest.mark.parametrize("chunk_tokens", [0, 1000])
def test_one_under_computation_and_one_in_the_queue_leave_and_come_again(shape, chunk_tokens):
    """The second is computed from 1.5 s on and gives up at 2.1 s, the third waits for it until 2.2 s."""
    trace = trace_of((0.0, 15_000, 2), (0.1, 10_000, 2), (0.2, 1000, 2))
    result, records = served(trace, shape, engine=EngineRules(chunk_tokens=chunk_tokens))
    assert records["repeats"].tolist() == [0, 1, 1]
    assert came_again_s(records[1]) == pytest.approx(2.1, abs=SPREAD_S)
    assert came_again_s(records[2]) == pytest.approx(2.2, abs=SPREAD_S)
    waited_s = records["first_token_s"] - trace.arrival_s
    assert waited_s[1:].min() > 4.0
    assert result.tally.met == 0
    ttft = result.tally.latencies["ttft_s"]
    assert (ttft.count, ttft.total_s) == (3, pytest.approx(waited_s.sum()))


def test_one_that_waits_to_decode_leaves():
    """The only place in the batch is taken until 5.1 s."""
    trace = trace_of((0.0, 1000, 500), (0.1, 1000, 2))
    _, records = served(trace, SPLIT, engine=EngineRules(max_batch_size=1))
    assert records["repeats"].tolist() == [0, 1]
    assert came_again_s(records[1]) == pytest.approx(2.1, abs=SPREAD_S)


def test_one_whose_kv_travels_too_long_gives_up_for_good():
    rules = EngineRules(kv_bytes_per_token=1.0, transfer_bytes_per_s=1e9, transfer_latency_s=2.5)
    result, records = served(trace_of((0.0, 1000, 2), (0.1, 1000, 2)), SPLIT, engine=rules)
    assert records["outcome"].tolist() == [layout.GAVE_UP] * 2
    assert (result.tally.gave_up, result.tally.repeats, result.tally.attainment) == (2, 6, 0.0)


@pytest.mark.parametrize("missing", [Role.PREFILL, Role.DECODE])
def test_those_that_wait_for_a_replica_leave(missing):
    """It is ready at 60 s, in time for the last one only."""
    fleet = {Role.PREFILL: 1, Role.DECODE: 1, missing: 0}
    trace = trace_of(*((0.1 * n, 1000, 2) for n in range(3)), (59.0, 1000, 2))
    setting = scenario(SIMPLE, fleet, clients=IMPATIENT, start_up=StartUp(delay_s=59.0))
    setting = replace(setting, pools=dict.fromkeys(fleet, PoolLimits(min_replicas=0)))
    result, records = run(setting, trace, Schedule([dict.fromkeys(fleet, 1)], interval_s=1.0))
    assert_each_ended_once(result, records, trace)
    assert records["outcome"].tolist() == [layout.GAVE_UP] * 3 + [layout.COMPLETED]
    assert records["repeats"].tolist() == [3, 3, 3, 0]


def test_a_token_that_is_being_made_is_waited_for():
    """A first iteration of 3 s: the client gives up neither in it nor after it."""
    setting = scenario(constant_profile(3.0, TOKEN_S), {Role.PREFILL: 1, Role.DECODE: 1}, clients=IMPATIENT)
    result, records = run(setting, trace_of((0.0, 1000, 3)))
    assert result.tally.repeats == 0
    assert records["first_token_s"][0] == pytest.approx(3.1, abs=0.02)


def test_streams_that_fail_come_again():
    crash = [PlannedCrash(at_s=0.5, role=Role.MIXED)]
    _, records = served(trace_of((0.0, 1000, 200)), MIXED, crashes=crash)
    assert records["outcome"].tolist() == [layout.COMPLETED]
    assert came_again_s(records[0]) == pytest.approx(0.5, abs=SPREAD_S)


def test_one_that_fits_no_engine_is_not_tried_again():
    setting = scenario(PROFILE, MIXED, clients=IMPATIENT)
    result, records = run(setting, trace_of((0.0, 50_000, 2)))
    assert (records["outcome"][0], result.tally.repeats, result.tally.too_long) == (layout.FAILED, 0, 1)


def test_to_a_router_each_attempt_is_a_request():
    """The first of 0 is held until its client leaves, the first of 1 is shed."""
    again = [str(number + layout.REPEAT) for number in range(2)]

    def answer(router, event, now_s, name):
        if event == "submit":
            return [place(name, "mixed-0")] if name in again else [shed(name)] if name == "1" else []
        return []

    router = Scripted(answer)
    _, records = served(trace_of((0.0, 1000, 2), (0.1, 1000, 2)), {Role.MIXED: 1}, routing=routed(router))
    assert router.times("failed") == {"0": 2.0}
    assert set(router.times("complete")) == set(again)
    assert router.live == set()
    assert records["number"].tolist() == [0, 1]
    assert came_again_s(records[0]) == pytest.approx(2.0, abs=SPREAD_S)
    assert came_again_s(records[1]) == pytest.approx(0.1, abs=SPREAD_S)
    assert [router.requests[name].arrival_s for name in again] == records["arrival_s"].tolist()


def storm(rate_rps=60.0, seed=3) -> ArrayTrace:
    """A minute of overload, and one late request."""
    trace = poisson_trace(seed, int(60 * rate_rps), rate_rps)
    columns = (trace.arrival_s, [300.0]), (trace.input_tokens, [100]), (trace.output_tokens, [2])
    return ArrayTrace(*map(np.concatenate, columns))


@SHAPES
@pytest.mark.parametrize("routing", [Routing.LEAST_LOAD, "slo"])
def test_a_fixed_fleet_in_a_storm(shape, routing):
    """Repeats are seen apart, are much of the load, and end with it."""
    routing = of_slo_router(shape) if routing == "slo" else routing
    trace, policy = storm(), Schedule([dict.fromkeys(shape, 1)], interval_s=10.0)
    setting = scenario(PROFILE, dict.fromkeys(shape, 1), clients=IMPATIENT, routing=routing)
    result, records = run(setting, trace, policy)
    assert_each_ended_once(result, records, trace)
    assert result.tally.gave_up + result.tally.shed > 0
    assert result.tally.repeats > len(records)
    repeats = [each.repeats for each in policy.seen]
    assert sum(repeats) == result.tally.repeats
    assert repeats[8:] == [0] * len(repeats[8:])
    assert [len(each.traffic.arrival_s) for each in policy.seen] == [each.requests for each in policy.seen]
    document = result.report().document()
    assert (document["repeats"], document.get("gave_up", 0)) == (result.tally.repeats, result.tally.gave_up)


@pytest.mark.parametrize("routing", [Routing.RANDOM, Routing.LEAST_LOAD, "slo"])
def test_the_same_seed_gives_the_same_bytes(routing):
    def once(rows, seed):
        trace = storm(30.0)
        trace.rows = rows
        named = of_slo_router(SPLIT) if routing == "slo" else routing
        setting = scenario(PROFILE, SPLIT, clients=IMPATIENT, routing=named, seed=seed)
        setting = replace(setting, initial={Role.PREFILL: 1, Role.DECODE: 1})
        return json.dumps(run(setting, trace)[0].report().document())

    assert once(65536, 1) == once(65536, 1) == once(77, 1)
    assert once(65536, 1) != once(65536, 2)


@SHAPES
@pytest.mark.parametrize("clients", [Clients(patience_s=1e6, retries=3), Clients(retries=3)])
def test_those_with_patience_change_nothing(shape, clients):
    trace = storm()
    setting = scenario(PROFILE, dict.fromkeys(shape, 1))
    without = run(setting, trace)[0].report().document()
    assert run(replace(setting, clients=clients), trace)[0].report().document() == without
    assert "repeats" not in without
