"""A GPU budget that binds: divided by what the past would have lost, and not passed to and fro."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.planning import PoolLimits, Role
from headway.planning.hindsight.choice import divide_budget
from headway.planning.hindsight.history import PoolHistory
from headway.planning.replay import LossCurve

PREFILL, DECODE = Role.PREFILL, Role.DECODE
LIMITS = {PREFILL: PoolLimits(), DECODE: PoolLimits()}


def past(needed, requests=100):
    """Intervals that lose everything below `needed` replicas, and nothing with them."""
    history = PoolHistory()
    for count in needed:
        history = history.add(1.0, LossCurve(requests, np.append(np.full(count, requests), 0)), 1000)
    return history


def divided(prefill, decode, budget, held=(1, 1), wished=(9, 9), moving=0.3, limits=LIMITS, needed=(9, 9)):
    histories = {PREFILL: past(prefill), DECODE: past(decode)}
    found = divide_budget(
        histories,
        wished=dict(zip(LIMITS, wished, strict=True)),
        needed=dict(zip(LIMITS, needed, strict=True)),
        held=dict(zip(LIMITS, held, strict=True)),
        limits=limits,
        budget=budget,
        moving=moving,
        half_life=240.0,
    )
    return found and (found[PREFILL], found[DECODE])


def test_what_one_pool_loses_anyhow_the_other_is_not_given():
    # A burst needs 6 and 4 replicas, calm times 1 and 2: no division of 6 GPUs carries a burst.
    found = divided([1, 1, 6, 1], [2, 2, 4, 2], 6)
    assert found is not None
    assert found[1] >= 2
    assert sum(found) == 6


def test_both_get_what_they_need_where_it_fits():
    assert divided([2] * 20, [4] * 20, 6) == (2, 4)
    assert divided([2] * 20, [4] * 20, 8, needed=(2, 4), wished=(3, 6)) in {(2, 6), (3, 5)}


@pytest.mark.parametrize(("moving", "found"), [(0.3, (3, 3)), (0.05, (4, 2))])
def test_a_little_better_is_no_reason_to_move(moving, found):
    # 60 intervals want (4, 2), 50 want (3, 3): one GPU less on either side loses those.
    assert divided([3] * 50 + [4] * 60, [3] * 50 + [2] * 60, 6, held=(3, 3), moving=moving) == found


def test_gpus_that_nobody_holds_go_where_they_save_most():
    assert divided([4] * 20, [2] * 20, 6, held=(2, 2), moving=0.99) == (4, 2)


def test_needs_that_fit_are_had_whatever_the_past_says():
    found = divided([5] * 20, [1] * 20, 7, held=(5, 2), needed=(1, 4))
    assert found is not None
    assert found[1] >= 4


def test_without_a_past_there_is_no_answer():
    assert divided([], [1], 6) is None


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=6),
    st.lists(st.integers(1, 6), min_size=1, max_size=6),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.tuples(st.integers(1, 2), st.integers(1, 3)),
    st.integers(5, 14),
)
def test_no_allowed_division_loses_less(prefill, decode, wished, each, budget):
    limits = {role: PoolLimits(gpus_per_replica=gpus) for role, gpus in zip(LIMITS, each, strict=True)}
    found = divided(prefill, decode, budget, wished=wished, moving=0.0, limits=limits)
    assert found is not None
    count = min(len(prefill), len(decode))

    def lost(way):
        intervals = zip(prefill[-count:], decode[-count:], strict=True)
        late = [way[0] < first or way[1] < second for first, second in intervals]
        return sum(0.5 ** ((count - 1 - age) / 240.0) for age, missed in enumerate(late) if missed)

    ways = product(range(1, wished[0] + 1), range(1, wished[1] + 1))
    fitting = [way for way in ways if way[0] * each[0] + way[1] * each[1] <= budget]
    assert found in fitting
    assert lost(found) == pytest.approx(min(map(lost, fitting)))
