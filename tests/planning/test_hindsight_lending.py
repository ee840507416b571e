"""Who gives replicas to whom: for a need, of what is spare, of the same GPUs, never below minimums."""

import json

from hypothesis import given
from hypothesis import strategies as st
from planning_cases import limits, observed
from test_hindsight_policy import INTERVAL_S, Fleet, policy, traffic

from headway.planning import PoolLimits, PoolState, Role
from headway.planning.budget import fit
from headway.planning.hindsight import HeadwaySettings
from headway.planning.hindsight.role_changes import give_to_rising, role_changes
from headway.planning.hindsight.state import ReleaseDelay
from headway.words import plural

PREFILL, DECODE = Role.PREFILL, Role.DECODE
counts = st.integers(0, 12)


def pool(ready, starting=0):
    return PoolState(desired=ready + starting, starting=starting, ready=ready, draining=0)


def lent(targets, enough, pools, bounds=None):
    delays = {role: ReleaseDelay(target=target) for role, target in targets.items()}
    after = give_to_rising(delays, enough, pools, bounds or limits(prefill=PoolLimits(), decode=PoolLimits()))
    return {role: delay.target for role, delay in after.items()}


def changed(targets, pools, bounds=None):
    return role_changes(targets, pools, bounds or limits(prefill=PoolLimits(), decode=PoolLimits()))


POOLS = {PREFILL: pool(2), DECODE: pool(8)}


def test_a_pool_that_rises_is_given_what_the_other_holds_beyond_enough():
    targets = lent({PREFILL: 5, DECODE: 8}, {PREFILL: 5, DECODE: 6}, POOLS)
    assert targets == {PREFILL: 5, DECODE: 6}
    assert changed(targets, POOLS) == {(DECODE, PREFILL): 2}


def test_no_more_is_given_than_is_needed_nor_than_the_riser_may_have():
    assert lent({PREFILL: 3, DECODE: 8}, {PREFILL: 3, DECODE: 1}, POOLS) == {PREFILL: 3, DECODE: 7}
    bounds = limits(prefill=PoolLimits(max_replicas=4), decode=PoolLimits())
    assert lent({PREFILL: 9, DECODE: 8}, {PREFILL: 9, DECODE: 1}, POOLS, bounds) == {PREFILL: 9, DECODE: 6}


def test_nobody_gives_who_rises_too_or_has_nothing_to_spare():
    for decode in (8, 10):
        targets = {PREFILL: 5, DECODE: decode}
        assert lent(targets, targets, POOLS) == targets
        assert changed(targets, POOLS) == {}


def test_what_is_still_starting_is_not_spare():
    pools = {PREFILL: pool(2), DECODE: pool(6, starting=2)}
    assert lent({PREFILL: 5, DECODE: 8}, {PREFILL: 5, DECODE: 5}, pools) == {PREFILL: 5, DECODE: 7}
    assert changed({PREFILL: 5, DECODE: 5}, pools) == {(DECODE, PREFILL): 1}


def test_replicas_of_other_gpus_do_not_change():
    bounds = limits(prefill=PoolLimits(gpus_per_replica=2), decode=PoolLimits())
    assert lent({PREFILL: 5, DECODE: 8}, {PREFILL: 5, DECODE: 6}, POOLS, bounds) == {PREFILL: 5, DECODE: 8}
    assert changed({PREFILL: 5, DECODE: 6}, POOLS, bounds) == {}


@given(
    ready=st.tuples(counts, counts),
    starting=st.tuples(counts, counts),
    wanted=st.tuples(counts, counts),
    enough=st.tuples(counts, counts),
    least=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    budget=st.none() | st.integers(6, 30),
)
def test_changes_are_for_a_need_and_add_no_gpu(ready, starting, wanted, enough, least, budget):
    roles = (PREFILL, DECODE)
    pools = {role: pool(ready[at], starting[at]) for at, role in enumerate(roles)}
    bounds = {role: PoolLimits(min_replicas=least[at]) for at, role in enumerate(roles)}
    asked = {role: max(wanted[at], least[at]) for at, role in enumerate(roles)}
    targets = lent(asked, dict(zip(roles, enough, strict=True)), pools, bounds)
    rises = {role: max(0, asked[role] - pools[role].desired) for role in roles}
    for role, other in (roles, roles[::-1]):
        assert min(asked[role], max(least[at_(role)], enough[at_(role)])) <= targets[role] <= asked[role]
        assert asked[role] - targets[role] <= rises[other]
    fitted = fit(targets, bounds, budget).targets
    changes = changed(fitted, pools, bounds)
    for (giver, taker), count in changes.items():
        assert count > 0
        assert fitted[taker] >= pools[taker].desired + count
        assert pools[giver].ready - count >= fitted[giver] >= least[at_(giver)]
    backwards = {role: pools[role] for role in reversed(roles)}
    assert changed(dict(reversed(fitted.items())), backwards, bounds) == changes


def at_(role):
    return (PREFILL, DECODE).index(role)


def shifted(planner, calm=40, ticks=60):
    """Decisions while short prompts with long outputs turn into long prompts with short outputs."""
    fleet, state, decisions = Fleet(), planner.initial_state(), []
    for tick in range(ticks):
        fleet.arrive(tick)
        isl, osl = (200.0, 400.0) if tick < calm else (4000.0, 10.0)
        decision = planner.plan(
            observed(
                now_s=(tick + 1) * INTERVAL_S,
                interval_s=INTERVAL_S,
                requests=20.0 * INTERVAL_S,
                pools=fleet.pools(),
                traffic=traffic(tick, 20.0, even=True, isl=isl, osl=osl),
            ),
            state,
        )
        state = decision.next_state
        fleet.scale(tick, decision.targets)
        decisions.append(decision)
    return decisions


def test_a_pool_that_is_held_gives_when_the_mix_of_requests_shifts():
    changing = policy(sections={"headway": HeadwaySettings(role_change_s=10.0)})
    given_away = [decision for decision in shifted(changing) if decision.changes]
    assert given_away
    assert {pair for decision in given_away for pair in decision.changes} == {(DECODE, PREFILL)}
    reasons = given_away[0].reasons
    (count,) = given_away[0].changes.values()
    assert f"{plural(count, 'decode replica')} will serve prefill, 10 s after draining." in reasons["summary"]
    assert reasons["changes"] == {"decode→prefill": count}
    json.dumps(reasons)


def test_nothing_changes_where_replicas_cannot():
    assert not any(decision.changes for decision in shifted(policy()))
