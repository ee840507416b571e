"""Replicas that change their role drain, switch and serve, cost GPU time all along, and lose nothing."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.engine.kernel import layout
from headway.engine.kernel.layout import Routing
from headway.planning import Decision, PlanningError, PoolLimits, Role
from headway.simulation.scenario import PlannedCrash, StartUp
from tests.simulation.routers import Scripted, place
from tests.simulation.test_routed import routed
from tests.simulation.worlds import (
    ArrayTrace,
    Schedule,
    fleet,
    points,
    poisson_trace,
    roofline_profile,
    run,
    scenario,
    sparse_trace,
)

PROFILE = roofline_profile()
TO_PREFILL, TO_DECODE = (Role.DECODE, Role.PREFILL), (Role.PREFILL, Role.DECODE)


@dataclass
class Plan(Schedule):
    """Follows targets with role changes, one of each a tick; `missing`: changes of what did not serve."""

    changes: list = field(default_factory=list)
    missing: int = 0

    def plan(self, observation, state):
        decision = super().plan(observation, state)
        changes = self.changes[state] if state < len(self.changes) else {}
        for (giver, _), count in changes.items():
            self.missing += max(0, count - observation.pools[giver].ready)
        return Decision(targets=decision.targets, next_state=decision.next_state, reasons={}, changes=changes)


def busy_trace():
    """Long streams at the start, one request a minute later."""
    times = np.append(np.zeros(60), 60.0)
    return ArrayTrace(times, np.full(61, 200), np.full(61, 1500))


def counted(result, *columns):
    """Times at which any pool's counts changed, and the sum of these columns over all pools from then on."""
    times = np.unique(np.concatenate([series.time_s for series in result.replicas.values()]))
    total = np.zeros(len(times), int)
    for series in result.replicas.values():
        points = np.searchsorted(series.time_s, times, side="right") - 1
        total += sum(np.array(getattr(series, column))[points] for column in columns)
    return times, total


def one_change(trace, *, role_change_s=7.0, then=(2, 2), interval_s=10.0, **changes):
    """Of 1 prefill and 3 decode replicas one decode replica becomes a prefill replica at the first tick."""
    policy = Plan([fleet(2, 2), fleet(*then)], interval_s=interval_s, changes=[{TO_PREFILL: 1}])
    changes = {"start_up": StartUp(delay_s=60.0), "routing": Routing.ROUND_ROBIN, **changes}
    return run(scenario(PROFILE, fleet(1, 3), role_change_s=role_change_s, **changes), trace, policy)


def test_an_idle_replica_serves_in_the_other_pool_after_the_switch():
    result, records = one_change(sparse_trace(60.0))
    assert points(result.replicas[Role.DECODE], "ready") == [(0.0, 3), (10.0, 2)]
    assert points(result.replicas[Role.PREFILL], "ready") == [(0.0, 1), (10.0, 1), (17.0, 2)]
    assert points(result.replicas[Role.PREFILL], "starting") == [(0.0, 0), (10.0, 1), (17.0, 0)]
    assert len(set(records["prefill_replica"])) == 2


def test_a_busy_replica_first_finishes_its_streams():
    result, records = one_change(busy_trace(), interval_s=5.0)
    draining = points(result.replicas[Role.DECODE], "draining")
    gone_s = next(at_s for at_s, count in draining if at_s > 5.0 and not count)
    ready_s = next(at_s for at_s, count in points(result.replicas[Role.PREFILL], "ready") if count == 2)
    assert (5.0, 1) in draining
    assert gone_s > 10.0
    assert ready_s == gone_s + 7.0
    assert (records["outcome"] == layout.COMPLETED).all()


def test_gpu_time_goes_on_through_the_change():
    result, _ = one_change(sparse_trace(60.0))
    assert result.gpu_hours == pytest.approx(4 * result.simulated_s / 3600, rel=1e-9)


def test_who_is_no_longer_wanted_there_drains_and_goes():
    result, records = one_change(busy_trace(), interval_s=5.0, then=(1, 2))
    assert max(count for _, count in points(result.replicas[Role.PREFILL], "ready")) == 1
    assert points(result.replicas[Role.DECODE], "draining")[-1][1] == 0
    assert (records["outcome"] == layout.COMPLETED).all()


def test_one_that_switches_is_cancelled_like_one_that_starts():
    result, _ = one_change(sparse_trace(60.0), role_change_s=15.0, then=(1, 2))
    assert points(result.replicas[Role.PREFILL], "starting") == [(0.0, 0), (10.0, 1), (20.0, 0)]
    assert result.gpu_hours == pytest.approx((3 * result.simulated_s + 20.0) / 3600, rel=1e-9)


def test_a_router_hears_of_a_replica_with_a_new_name():
    def newest(router, event, now_s, name):
        first, last = router.ready[Role.PREFILL], router.ready[Role.DECODE]
        return [place(name, first[-1], last[0])] if event == "submit" else []

    router = Scripted(newest)
    _, records = one_change(sparse_trace(60.0), routing=routed(router))
    assert router.ready[Role.PREFILL] == ["prefill-0", "prefill-4"]
    assert router.ready[Role.DECODE] == ["decode-1", "decode-2"]
    assert (records["outcome"] == layout.COMPLETED).all()
    late = records[records["arrival_s"] > 18.0]
    assert len(set(late["prefill_replica"])) == 1


@given(
    seed=st.integers(0, 10**6),
    moves=st.lists(st.tuples(st.sampled_from([TO_PREFILL, TO_DECODE]), st.integers(0, 3)), max_size=8),
    routing=st.sampled_from([Routing.RANDOM, Routing.LEAST_LOAD]),
    role_change_s=st.sampled_from([0.0, 3.0]),
    crash=st.booleans(),
)
@example(
    # The third tick wants two prefill replicas and one serves, the others still drain from decode.
    seed=3,
    moves=[(TO_DECODE, 2), (TO_PREFILL, 2), (TO_DECODE, 2)],
    routing=Routing.RANDOM,
    role_change_s=3.0,
    crash=False,
)
def test_nothing_is_lost_and_no_gpu_is_added(seed, moves, routing, role_change_s, crash):
    trace = poisson_trace(seed, 201, 10.0)
    trace.arrival_s[-1] += 60.0  # the last change is over by then
    targets, changes, now = [], [], fleet(3, 3)
    for (giver, taker), count in moves or [(TO_PREFILL, 1)]:
        moved = min(count, now[giver] - 1)
        now = {**now, giver: now[giver] - moved, taker: now[taker] + moved}
        targets.append(now)
        changes.append({(giver, taker): moved})
    setting = scenario(
        PROFILE,
        fleet(3, 3),
        routing=routing,
        seed=seed,
        role_change_s=role_change_s,
        crashes=[PlannedCrash(at_s=5.5, role=Role.PREFILL)] if crash else [],
    )
    policy = Plan(targets, interval_s=2.0, changes=changes)
    result, records = run(setting, trace, policy)
    times, up = counted(result, "starting", "ready", "draining")
    held_s = np.diff(np.append(times, result.simulated_s))
    assert np.array_equal(records["number"], np.arange(201))
    assert crash or (records["outcome"] == layout.COMPLETED).all()
    assert result.gpu_hours == pytest.approx((up * held_s).sum() / 3600, rel=1e-9)
    assert up.min() == 6
    assert counted(result, "starting", "ready")[1].max() <= 6
    # Where fewer serve than shall change, others start while what they replace drains, as in any scaling.
    assert up.max() <= 6 + policy.missing
    assert policy.missing or result.gpu_hours <= 6 * result.simulated_s / 3600 * (1 + 1e-9)
    assert {role: series.ready[-1] for role, series in result.replicas.items()} == now


def test_what_cannot_be_is_refused():
    with pytest.raises(PlanningError, match="cannot change"):
        one_change(sparse_trace(20.0), role_change_s=None)
    pools = {Role.PREFILL: PoolLimits(gpus_per_replica=2), Role.DECODE: PoolLimits()}
    with pytest.raises(PlanningError, match="GPUs"):
        one_change(sparse_trace(20.0), role_change_s=1.0, pools=pools)
