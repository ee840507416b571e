"""A router drives the kernel: nothing is lost, whatever it does, and it hears of everything in time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.engine.kernel import layout
from headway.engine.kernel.layout import Routing
from headway.planning.types import Role
from headway.routing import ReplicaState, RoutingOutcome
from headway.simulation.scenario import EngineRules, PlannedCrash, ScenarioRouter, StartUp
from headway.simulation.simulate import SimulationRun, Watchers
from tests.simulation.routers import Scripted, place, shed
from tests.simulation.worlds import Schedule, poisson_trace, roofline_profile, run, scenario

PROFILE = roofline_profile(capacity=40_000)
MIXED, POOLS = {Role.MIXED: 3}, {Role.PREFILL: 2, Role.DECODE: 3}


def routed(router) -> ScenarioRouter:
    return ScenarioRouter(name="scripted", make=lambda generator: router)


class Moody:
    """Holds, sheds, splits, changes its mind and retries, all by a seed."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.held, self.streaming = [], set()

    def __call__(self, router, event, now_s, name):
        if event in ("submit", "lost"):
            self.held.append(name)
        elif event == "first_token":
            self.streaming.add(name)
        self.held = [name for name in self.held if name in router.live]
        answers = []
        while self.held and (event == "expire" or self.draw.random() < 0.7):
            where = self.anywhere(router)
            if where is None:
                break
            name = self.held.pop(0)
            answers.append(shed(name) if self.draw.random() < 0.05 else place(name, *where))
        if answers or self.draw.random() < 0.8:
            return answers
        return self.another_mind(router)

    def another_mind(self, router):
        """Place or shed somebody who has no token yet, wherever that one is."""
        placed = sorted(router.live - self.streaming - set(self.held))
        where = self.anywhere(router)
        if not placed or where is None:
            return []
        name = placed[int(self.draw.integers(len(placed)))]
        return [shed(name) if self.draw.random() < 0.2 else place(name, *where)]

    def anywhere(self, router):
        first, last = [router.ready[role] for role in self.roles(router)]
        if not first or not last:
            return None
        prefill = first[int(self.draw.integers(len(first)))]
        if first is last and self.draw.random() < 0.5:
            return prefill, prefill
        return prefill, last[int(self.draw.integers(len(last)))]

    def roles(self, router):
        return (Role.MIXED, Role.MIXED) if router.ready[Role.MIXED] else (Role.PREFILL, Role.DECODE)


def assert_each_ended_once(result, records, trace, router):
    assert np.array_equal(records["number"], np.arange(len(trace.arrival_s)))
    assert np.array_equal(records["output_tokens"], trace.output_tokens)
    summary = result.report().document()
    outcomes = np.bincount(records["outcome"], minlength=3)
    assert outcomes.tolist() == [summary["completed"], summary["failed"], summary["shed"]]
    assert summary["requests"] == len(trace.arrival_s) == sum(outcomes)
    assert router.live == set()
    done = records[records["outcome"] == layout.COMPLETED]
    assert (done["first_token_s"] >= done["prefill_finished_s"]).all()
    assert (done["prefill_finished_s"] >= done["prefill_started_s"]).all()
    assert (done["prefill_started_s"] >= done["arrival_s"]).all()
    assert (records["first_token_s"][records["outcome"] == layout.SHED] < 0).all()


@pytest.mark.slow
@given(
    seed=st.integers(0, 10**6),
    rate_rps=st.floats(5.0, 60.0),
    shape=st.sampled_from([MIXED, POOLS]),
    max_batch=st.integers(1, 32),
    chunk_tokens=st.sampled_from([0, 256, 4096]),
    cache=st.sampled_from([0, 20_000]),
)
def test_requests_are_conserved_by_a_moody_router(seed, rate_rps, shape, max_batch, chunk_tokens, cache):
    trace = poisson_trace(seed, 150, rate_rps)
    draw = np.random.default_rng(seed)
    trace.prompts = [
        [0, int(who), *(1000 * int(who) + np.arange(int(more)))]
        for who, more in zip(draw.integers(1, 9, 150), draw.integers(0, 4, 150), strict=True)
    ]
    router = Scripted(Moody(seed), due_s=np.arange(0.25, 900.0, 0.5))
    crashes = [PlannedCrash(at_s=at, role=role) for at in (1.0, 3.0) for role in shape]
    setting = scenario(
        PROFILE,
        shape,
        engine=EngineRules(max_batch_size=max_batch, chunk_tokens=chunk_tokens, prefix_cache_tokens=cache),
        routing=routed(router),
        crashes=crashes,
        start_up=StartUp(delay_s=1.0, cv=0.5),
    )
    fewer = {role: count - 1 for role, count in shape.items()}
    policy = Schedule([shape, fewer, shape, fewer, shape], interval_s=1.3)
    records = []
    driven = SimulationRun(setting, trace, policy, None, Watchers(finished=records.append))
    result = driven.result()
    joined = np.concatenate(records)
    assert_each_ended_once(result, joined[np.argsort(joined["number"])], trace, router)
    assert result.tally.shed > 0 or max_batch > 1
    assert_nothing_is_left(driven.fleet.arrays)


def assert_nothing_is_left(world):
    """Idle replicas hold nothing; what still computes are prompts that were given up when all else ended."""
    clock, units = world.clock[0], world.replicas[world.replicas["state"] != layout.GONE]
    assert clock["active"] == 0
    assert len(world.requests) - clock["free_requests"] == units["waiting"].sum()
    assert (world.requests["number"] == layout.NONE).all()
    assert (units["phase"] != layout.DECODING).all()
    for held in ("running", "kv_tokens", "promised"):
        assert (units[held] == 0).all(), held
    for held in ("waiting", "reserved_tokens", "prompt_tokens"):
        assert (units[held][units["phase"] == layout.IDLE] == 0).all(), held
    for queue in ("arrived_head", "fresh_head"):
        assert (units[queue] == layout.NONE).all(), queue


def spread(router, event, now_s, name):
    """Round robin by number, as the compiled routing does it where every request needs a replica."""
    if event not in ("submit", "lost"):
        return None
    prefill, decode = router.ready[Role.PREFILL], router.ready[Role.DECODE]
    return [place(name, prefill[(int(name) + 1) % 2], decode[(int(name) + 1) % 3])]


def test_what_it_does_is_what_the_compiled_routing_does_where_their_rules_agree():
    """Round robin over prefill replicas; one decode replica, so that the order of transfers is no matter."""
    trace, fleet = poisson_trace(6, 2000, 40.0), {Role.PREFILL: 2, Role.DECODE: 1}
    profile = roofline_profile()

    def answer(router, event, now_s, name):
        prefill, decode = router.ready[Role.PREFILL], router.ready[Role.DECODE]
        return [place(name, prefill[(int(name) + 1) % 2], decode[0])] if event == "submit" else None

    router = Scripted(answer)
    ours, driven = run(scenario(profile, fleet, routing=routed(router)), trace)
    theirs, compiled = run(scenario(profile, fleet, routing=Routing.ROUND_ROBIN), trace)
    for column in ("prefill_started_s", "first_token_s", "decode_started_s", "finished_s"):
        assert driven[column] == pytest.approx(compiled[column], rel=1e-9)
    for name, latency in ours.tally.latencies.items():
        assert latency.count == theirs.tally.latencies[name].count
        assert latency.total_s == pytest.approx(theirs.tally.latencies[name].total_s, rel=1e-9)


def test_it_hears_of_each_event_at_its_time():
    trace, router = poisson_trace(3, 400, 30.0), Scripted(spread)
    _, records = run(scenario(roofline_profile(), POOLS, routing=routed(router)), trace)
    events = {"submit": "arrival_s", "prefilled": "prefill_finished_s", "first_token": "first_token_s"}
    for event, column in {**events, "complete": "finished_s"}.items():
        heard = router.times(event)
        assert [heard[str(number)] for number in range(400)] == records[column].tolist()
    started = [(event, name) for event, _, name in router.heard if event == ReplicaState.READY.value]
    assert len({name for _, name in started}) == len(started) == 5


def test_it_knows_no_more_than_a_gateway():
    trace = poisson_trace(3, 50, 30.0)
    trace.prompts = [[0, 7, number] for number in range(50)]
    router = Scripted(spread)
    run(scenario(roofline_profile(capacity=50_000), POOLS, routing=routed(router)), trace)
    asked = [router.requests[str(number)] for number in range(50)]
    assert [request.input_tokens for request in asked] == trace.input_tokens.tolist()
    assert {request.max_tokens + request.input_tokens for request in asked} == {50_000}
    assert [list(request.blocks) for request in asked] == trace.prompts
    assert {request.session for request in asked} == {"7"}


class Holding(Scripted):
    """Holds all until the first due time."""

    @property
    def queued(self):
        return len(self.live) if self.due_s else 0


def test_held_requests_wait_for_the_first_pool_and_cost_no_replica():
    trace = poisson_trace(5, 40, 40.0)

    def late(router, event, now_s, name):
        return [place(name, "mixed-0") for name in sorted(router.live)] if event == "expire" else None

    router = Holding(late, due_s=[5.0])
    policy = Schedule([{Role.MIXED: 1}], interval_s=2.0)
    result, records = run(scenario(PROFILE, {Role.MIXED: 1}, routing=routed(router)), trace, policy)
    assert (records["prefill_started_s"] >= 5.0).all()
    assert result.tally.completed == 40
    assert policy.seen[0].pools[Role.MIXED].waiting == 40
    assert policy.seen[0].pools[Role.MIXED].running == 0


def test_what_it_sheds_counts_as_missed():
    trace, router = (
        poisson_trace(5, 100, 20.0),
        Scripted(
            lambda router, event, now_s, name: (
                [shed(name) if int(name) % 4 == 0 else place(name, "mixed-0")] if event == "submit" else None
            )
        ),
    )
    result, records = run(scenario(roofline_profile(), {Role.MIXED: 1}, routing=routed(router)), trace)
    summary = result.report().document()
    assert (summary["shed"], summary["completed"]) == (25, 75)
    assert summary["attainment"] <= 0.75
    assert (records["finished_s"] == records["arrival_s"])[records["outcome"] == layout.SHED].all()
    assert summary["routing_metrics"] == {"heard": {"all": float(len(router.heard))}}


def test_a_request_that_never_fits_is_no_question_for_a_router():
    trace = poisson_trace(2, 50, 5.0)
    trace.input_tokens[10] = 50_000
    router = Scripted(spread)
    result, _ = run(scenario(PROFILE, POOLS, routing=routed(router)), trace)
    assert "10" not in router.requests
    assert result.tally.failed == result.tally.too_long == 1


def test_a_router_that_stays_due_does_not_stop_time():
    class Stuck(Scripted):
        next_due_s = 1.0

        def expire(self, now_s):
            return RoutingOutcome()

    trace = poisson_trace(5, 20, 10.0)
    result, _ = run(scenario(roofline_profile(), POOLS, routing=routed(Stuck(spread))), trace)
    assert result.tally.completed == 20
