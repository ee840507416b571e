"""Capacity that cannot be had: the plan does not grow, says what is missing, and goes on."""

import dataclasses
from functools import cache

import hypothesis
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_hindsight_policy import Fleet, policy, run, targets

from headway.planning import Role
from headway.planning.decision_text import reason_lines
from headway.planning.records import DecisionReasons

RISE = (*[10.0] * 20, *[60.0] * 40)


class FullCluster(Fleet):
    """Pools get no more than `most` replicas each in the ticks of `full`; `waiting` requests then queue."""

    def __init__(self, most, full=(0, 10**9), waiting=0.0, roles=(Role.PREFILL, Role.DECODE)):
        super().__init__()
        self.most, self.full, self.waiting, self.roles = most, range(*full), waiting, roles

    def arrive(self, tick):
        for role in self.ready:
            room = self.most - self.ready[role] if tick in self.full and role in self.roles else 10**9
            pending = []
            for due, count in self.ordered[role]:
                came = max(0, min(count, room)) if due <= tick else 0
                self.ready[role] += came
                room -= came
                pending += [(due, count - came)] if count > came else []
            self.ordered[role] = pending

    def scale(self, tick, targets):
        for role, target in targets.items():
            pending = self.ordered[role]
            while (excess := self.pools()[role].desired - target) > 0 and pending:
                due, count = pending.pop()
                pending += [(due, count - excess)] if count > excess else []
        super().scale(tick, targets)

    def pools(self):
        return {
            role: dataclasses.replace(pool, waiting=self.waiting if pool.starting else 0.0)
            for role, pool in super().pools().items()
        }


@cache
def decided(rates=RISE, **full):
    """The decisions for these rates in a full cluster, or, without `full`, where everything can be had."""
    return run(policy(), rates, FullCluster(**full) if full else None, even=True)


@pytest.mark.parametrize("waiting", [0.0, 1e5])
def test_replicas_that_never_start_do_not_let_the_plan_grow(waiting):
    decisions = decided(most=2, waiting=waiting)
    for role in (Role.PREFILL, Role.DECODE):
        assert max(targets(decisions[40:], role)) <= max(targets(decided(), role))
    last = decisions[-1].reasons["needs"]
    assert [need["extra"] for need in last.values()] == [0, 0]
    assert [need["lead_s"] for need in last.values()] == [60.0, 60.0]


def test_the_decision_says_what_is_missing_since_when_and_what_is_lost():
    decisions = decided(most=2, waiting=0.0)
    assert "missing" not in decisions[21].reasons
    reasons = decisions[-1].reasons
    missing = reasons["missing"]["prefill"]
    assert missing["replicas"] == targets(decisions)[-2] - 2 >= 2
    assert missing["since_s"] == 21 * 30.0
    assert (missing["ready"], missing["revoked"]) == (2, 0)
    assert missing["lost_share"] == 1.0
    line = (
        "prefill: {} replicas are missing, ordered but not started, 20 min ago; the 2 that serve lose 100.0 %"
    )
    assert any(warning.startswith(line.format(missing["replicas"])) for warning in reasons["warnings"])
    assert any("are missing" in each for each in reason_lines(DecisionReasons.model_validate(reasons)))


def test_release_goes_on_while_replicas_are_missing():
    decisions = decided((*RISE, *[10.0] * 60), most=3)
    assert targets(decisions)[59] > 3
    assert targets(decisions)[-1] <= 2
    assert "missing" not in decisions[-1].reasons


@pytest.mark.slow
def test_capacity_that_comes_back_is_normal_again():
    rates = (*RISE, *[60.0] * 40)
    decisions, usual = decided(rates, most=2, full=(0, 50)), decided(rates)
    assert "missing" in decisions[49].reasons
    assert "missing" not in decisions[-1].reasons
    assert decisions[-1].targets == usual[-1].targets
    for role in ("prefill", "decode"):
        assert decisions[-1].reasons["needs"][role]["lead_s"] <= 300.0


def test_one_pool_that_lacks_replicas_leaves_the_plan_of_the_other_alone():
    decisions, usual = decided(most=2, roles=(Role.PREFILL,)), decided()
    assert set(decisions[-1].reasons["missing"]) == {"prefill"}
    assert targets(decisions, Role.DECODE) == targets(usual, Role.DECODE)


@pytest.mark.slow
@hypothesis.settings(max_examples=6)
@example([400.0] * 40, 1)
@given(st.lists(st.floats(1.0, 400.0), min_size=12, max_size=40), st.integers(1, 8))
def test_whatever_the_load_targets_are_those_of_a_slow_start_at_most(rates, most):
    # Twice for the queue. Patience is 300 s at most, with the guess of 60 s and starts of 45 s.
    slow = run(policy(), rates, Fleet(delay=10), even=True)
    full = run(policy(), rates, FullCluster(most, waiting=1e5), even=True)
    for role in (Role.PREFILL, Role.DECODE):
        assert max(targets(full, role)) <= 2 * max(targets(slow, role))
