"""A fixed fleet stays fixed, and one that does not fit is refused at the start."""

import pytest
from planning_cases import NAN, OBSERVED, first, limits, observed, run, settings

from headway.planning import PlanningError, PoolLimits, Role, make_policy
from headway.planning.baselines import StaticFleet

FLEET = StaticFleet(prefill=2, decode=5, mixed=9)


def static(**changes):
    return make_policy("static", settings(**({"sections": {"static": FLEET}} | changes)))


def test_the_fleet_is_the_same_whatever_is_observed():
    decisions = run(
        static(), [OBSERVED, observed(requests=NAN), observed(requests=0.0), observed(requests=1e9)]
    )
    assert [decision.targets for decision in decisions] == [{Role.PREFILL: 2, Role.DECODE: 5}] * 4
    assert decisions[0].reasons["summary"] == "Fixed fleet: prefill 3 → 2, decode 3 → 5."


def test_a_mixed_fleet():
    mixed = {Role.MIXED: OBSERVED.pools[Role.DECODE]}
    assert first(static(limits=limits(mixed=PoolLimits())), observed(pools=mixed)).targets == {Role.MIXED: 9}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"limits": limits(prefill=PoolLimits(max_replicas=1), decode=PoolLimits())},
            r"static\.prefill: 2 is outside .* 1 to 1",
        ),
        (
            {"limits": limits(prefill=PoolLimits(), decode=PoolLimits(min_replicas=6))},
            r"static\.decode: 5 is outside .* 6 to ",
        ),
        ({"max_gpu_budget": 6}, r"static: needs 7 GPUs, planner\.max_gpu_budget is 6"),
    ],
)
def test_a_fleet_that_does_not_fit_is_refused(changes, message):
    with pytest.raises(PlanningError, match=message):
        static(**changes)
