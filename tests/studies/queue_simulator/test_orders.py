"""The result orders of AIBrix's queue simulator over 20 seeds, by paired differences with 95 % intervals.

Where an order does not come out, the test states the one that does; docs/queue-simulator.md says why.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from operator import attrgetter

import pytest

from headway_studies.queue_simulator.experiment import Estimate, Experiment, PolicyResult, run_experiment
from headway_studies.queue_simulator.load import RequestCount
from headway_studies.queue_simulator.model import SETUPS
from headway_studies.queue_simulator.waiting import (
    DispatchPolicy,
    DispatchRouting,
    Passing,
    QueuePolicy,
    all_policies,
)

pytestmark = pytest.mark.slow
SIMPLE, SLO, SAVABLE = QueuePolicy
RANDOM, PUSH, PULL, BIN_PACK = DispatchRouting
WAIT, MISSED = attrgetter("total.mean_wait_s"), attrgetter("total.slo_violations")
SEEDS = 20
Results = dict[tuple[DispatchRouting, QueuePolicy], PolicyResult]


@cache
def results(name: str, consumers: int, passing: Passing = Passing.SLACK, requests: int = 2_000) -> Results:
    """Every policy on one set-up."""
    experiment = Experiment(
        setup=SETUPS[name].resized(consumers),
        policies=all_policies(passing=passing),
        seeds=SEEDS,
        amount=RequestCount(requests),
    )
    return {(one.policy.routing, one.policy.queue): one for one in run_experiment(experiment)}


def is_below_zero(difference: Estimate) -> bool:
    """True if the whole interval is negative."""
    return difference.mean + difference.half_width < 0


def waits(found: Results, less: DispatchRouting, more: DispatchRouting, queue: QueuePolicy) -> Estimate:
    """The paired difference of mean waits."""
    return found[less, queue].difference(found[more, queue], WAIT)


def missed(found: Results, routing: DispatchRouting, less: QueuePolicy, more: QueuePolicy) -> Estimate:
    """The paired difference of the shares that missed their SLO."""
    return found[routing, less].difference(found[routing, more], MISSED)


def assert_rising(found: Results, order: Sequence[DispatchRouting], queue: QueuePolicy) -> None:
    for less, more in pairwise(order):
        assert is_below_zero(waits(found, less, more, queue)), (less, more, queue)


class TestFiveOfOneType:
    """A single GPU type instead of a single GPU, and the five that the arrivals need: all of it comes out."""

    found = staticmethod(lambda: results("ideal-single", 5))

    @pytest.mark.parametrize("queue", QueuePolicy)
    def test_waits(self, queue):
        """Document: bin-pack < least load (pull) < least load (push) < random."""
        assert_rising(self.found(), (BIN_PACK, PULL, PUSH, RANDOM), queue)

    @pytest.mark.parametrize("routing", DispatchRouting)
    def test_violations(self, routing):
        """Document: per-pattern queue < simple queue."""
        assert is_below_zero(missed(self.found(), routing, SLO, SIMPLE))
        assert is_below_zero(missed(self.found(), routing, SAVABLE, SLO))


class TestIdealSingle:
    """One GPU: there is nothing to route, and it is asked for five times what it can do."""

    found = staticmethod(lambda: results("ideal-single", 1))

    def test_bin_pack_waits_less(self):
        """Document: bin-pack < least load (pull). It does where it may fill the gap before a blocked head."""
        assert is_below_zero(waits(self.found(), BIN_PACK, PULL, SIMPLE))

    @pytest.mark.parametrize("routing", DispatchRouting)
    def test_violations(self, routing):
        """Document: per-pattern < simple. Serving what is lost first helps nobody; leaving it out does."""
        found = self.found()
        assert found[routing, SLO].estimate(MISSED).mean > 0.98
        assert found[routing, SIMPLE].estimate(MISSED).mean > 0.98
        assert is_below_zero(missed(found, routing, SAVABLE, SIMPLE))


class TestIdealDouble:
    """Two GPUs, asked for two and a half times what they can do."""

    found = staticmethod(lambda: results("ideal-double", 2))

    @pytest.mark.parametrize("queue", [SIMPLE, SLO])
    def test_bin_pack_equals_least_load_pull(self, queue):
        """Document: bin-pack = least load (pull). Within 1 %."""
        difference = waits(self.found(), BIN_PACK, PULL, queue)
        mean_s = self.found()[PULL, queue].estimate(WAIT).mean
        assert abs(difference.mean) + difference.half_width < 0.01 * mean_s

    @pytest.mark.parametrize("queue", QueuePolicy)
    def test_pull_waits_less_than_push(self, queue):
        """Document: least load (pull) < least load (push)."""
        assert is_below_zero(waits(self.found(), PULL, PUSH, queue))
        assert is_below_zero(waits(self.found(), PULL, RANDOM, queue))

    @pytest.mark.parametrize("queue", QueuePolicy)
    def test_random_is_not_ahead_of_least_load_push(self, queue):
        """Document: least load (push) < random. Where no queue is ever empty, which one hardly counts."""
        assert not is_below_zero(waits(self.found(), RANDOM, PUSH, queue))

    @pytest.mark.parametrize("routing", DispatchRouting)
    def test_violations(self, routing):
        """Document: per-pattern < simple."""
        assert is_below_zero(missed(self.found(), routing, SAVABLE, SIMPLE))
        assert is_below_zero(missed(self.found(), routing, SAVABLE, SLO))


class TestMulti:
    """Four GPUs at a load of 0.90: runs as long as the default, since few of them have violations at all."""

    found = staticmethod(lambda: results("multi", 4, requests=4_000))

    @pytest.mark.parametrize("queue", QueuePolicy)
    def test_waits(self, queue):
        """Document: bin-pack = least load (pull) = least load (push) < random. Here the equals differ."""
        assert_rising(self.found(), (BIN_PACK, PULL, PUSH, RANDOM), queue)

    @pytest.mark.parametrize("queue", QueuePolicy)
    def test_the_equals_are_close_beside_random(self, queue):
        """Random waits more than twice as long as the worst of the three."""
        found = self.found()
        worst = max(found[routing, queue].estimate(WAIT).mean for routing in (BIN_PACK, PULL, PUSH))
        assert found[RANDOM, queue].estimate(WAIT).mean > 2 * worst

    @pytest.mark.parametrize("routing", DispatchRouting)
    def test_violations(self, routing):
        """Document: per-pattern < simple."""
        assert is_below_zero(missed(self.found(), routing, SLO, SIMPLE))
        assert is_below_zero(missed(self.found(), routing, SAVABLE, SIMPLE))


def test_policies_are_all_there():
    assert len(all_policies()) == len(set(all_policies())) == len(DispatchRouting) * len(QueuePolicy)
    assert DispatchPolicy(routing=PULL, queue=SLO).label == "least-load-pull:slo"
