"""Intervals, and orders by paired differences."""

from dataclasses import replace
from math import isnan, nan
from operator import attrgetter

import numpy as np
import pytest

from headway_studies.queue_simulator.experiment import Figures, PolicyResult, RunFigures, estimate, order_by
from headway_studies.queue_simulator.waiting import all_policies

NONE = Figures(
    requests=1, mean_wait_s=0, p50_wait_s=0, p95_wait_s=0, p99_wait_s=0, max_wait_s=0, slo_violations=0
)
WAIT = attrgetter("total.mean_wait_s")


def result(index: int, *waits_s: float) -> PolicyResult:
    runs = (
        RunFigures(total=replace(NONE, mean_wait_s=wait_s), patterns=(), utilisation=0) for wait_s in waits_s
    )
    return PolicyResult(policy=all_policies()[index], runs=tuple(runs))


def test_interval_by_hand():
    """1, 2, 3: s = 1, t(0.975, 2) = 4.303."""
    found = estimate([1, 2, nan, 3])
    assert (found.mean, found.half_width) == (2, pytest.approx(4.3027 / 3**0.5, rel=1e-4))


def test_intervals_without_enough_values():
    assert isnan(estimate([]).mean)
    assert isnan(estimate([nan]).mean)
    assert estimate([4.0]).mean == 4.0
    assert isnan(estimate([4.0]).half_width)


def test_intervals_cover_the_mean():
    generator = np.random.default_rng(8)
    found = [estimate(generator.normal(3.0, 1.0, 20)) for _ in range(2_000)]
    covered = np.mean([abs(one.mean - 3.0) <= one.half_width for one in found])
    assert covered == pytest.approx(0.95, abs=0.015)


def test_pairs_are_told_apart_where_single_means_are_not():
    """Seeds differ by tens, the two policies by 1 in every seed."""
    order = order_by([result(0, 11, 31.1, 61), result(1, 10, 30, 60)], WAIT)
    assert [place.result.policy for place in order] == [all_policies()[1], all_policies()[0]]
    assert order[1].relation == "<"
    assert order[1].difference.mean == pytest.approx(1.0333, abs=1e-3)


def test_relations():
    def relations(*results: PolicyResult) -> list[str]:
        return [place.relation for place in order_by(results, WAIT)]

    assert relations(result(0, 1, 5, 3), result(1, 2, 4, 4)) == ["", "="]
    assert relations(result(0, 1, 5, 3), result(1, 1, 5, 3)) == ["", "="]
    assert relations(result(0, 1), result(1, 2)) == ["", "?"]
    assert relations(result(0, nan, nan), result(1, 2, 3)) == ["", "?"]
    assert order_by([result(0, nan, nan), result(1, 2, 3)], WAIT)[1].result.policy == all_policies()[0]
