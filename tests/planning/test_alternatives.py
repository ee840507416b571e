"""The best fixed fleet and the best threshold on a past, against trying all of them."""

from itertools import product
from math import ceil

import numpy as np
import pytest

from headway.planning.hindsight.history import PoolHistory
from headway.planning.hindsight.reasons import UTILISATIONS, alternatives
from headway.planning.hindsight.state import HindsightState, PoolMemory
from headway.planning.replay import LossCurve
from headway.planning.types import Alternatives, Role

BUDGET = 0.02
GPUS = {Role.PREFILL: 2, Role.DECODE: 1}
LEADS = {Role.PREFILL: 2, Role.DECODE: 3}


def curve(requests: int, enough: int) -> LossCurve:
    """A third fewer lost with each replica more, none with `enough`."""
    lost = [int(requests * (2 / 3) ** n) if n < enough else 0 for n in range(enough + 1)]
    return LossCurve(requests, np.array([requests, *lost[1:]], np.int64))


def past(seed: int, intervals: int, scale: float) -> PoolHistory:
    generator, history = np.random.default_rng(seed), PoolHistory()
    for number in range(intervals):
        work = scale * (1.2 + np.sin(number / 5.0) + 0.1 * generator.random())
        history = history.add(work, curve(100, ceil(work * 1.4)), 1000)
    return history


def state(intervals: int = 40) -> HindsightState:
    scales = {Role.PREFILL: 1.0, Role.DECODE: 3.0}
    pasts = {role: past(place, intervals, scale) for place, (role, scale) in enumerate(scales.items())}
    return HindsightState(pools={role: PoolMemory(history=each) for role, each in pasts.items()})


def lost_with(history: PoolHistory, counts: list[int]) -> int:
    found = 0
    for number, count in enumerate(counts):
        lost = history.lost[history.starts[number] : history.starts[number + 1]]
        found += int(lost[min(count, len(lost) - 1)])
    return found


def found_in(given: HindsightState) -> Alternatives:
    found = alternatives(given, GPUS, LEADS, BUDGET)
    assert found is not None
    return found


def test_no_fixed_fleet_within_the_budget_is_smaller() -> None:
    given = state()
    pasts = {role: memory.history for role, memory in given.pools.items()}
    possible = []
    for sizes in product(range(1, 12), repeat=2):
        lost = sum(lost_with(past, [n] * 40) for past, n in zip(pasts.values(), sizes, strict=True))
        if lost <= BUDGET * 4000:
            possible.append((2 * sizes[0] + sizes[1], lost, sizes))
    fixed = found_in(given).fixed
    assert fixed.gpus == min(possible)[0]
    assert (fixed.gpus, round(fixed.lost * 4000), tuple(fixed.pools.values())) in possible


def test_a_threshold_orders_by_the_work_of_a_lead_before() -> None:
    given = state()
    law = found_in(given).threshold
    lost, gpus = 0, 0.0
    for role, memory in given.pools.items():
        work = memory.history.work
        counts = [
            max(1, ceil(work[max(0, at - LEADS[role])] / law.pools[role] - 1e-9)) for at in range(len(work))
        ]
        assert law.pools[role] in UTILISATIONS
        lost += lost_with(memory.history, counts)
        gpus += GPUS[role] * float(np.mean(counts))
    assert law.gpus == pytest.approx(gpus)
    assert law.lost == pytest.approx(lost / 4000)
    assert law.lost <= BUDGET


def test_where_none_keeps_the_budget_the_least_loss_is_told() -> None:
    history = PoolHistory()
    for _ in range(20):
        history = history.add(1.0, LossCurve(10, np.array([10, 5], np.int64)), 1000)
    given = HindsightState(pools={Role.MIXED: PoolMemory(history=history)})
    found = alternatives(given, {Role.MIXED: 4}, {Role.MIXED: 1}, 0.01)
    assert found is not None
    assert (found.fixed.pools[Role.MIXED], found.fixed.gpus, found.fixed.lost) == (1.0, 4.0, 0.5)


def test_intervals_that_were_not_measured_are_no_reason_to_fail() -> None:
    history = past(0, 20, 2.0).skip(1000).skip(1000)
    given = HindsightState(pools={Role.DECODE: PoolMemory(history=history)})
    found = alternatives(given, GPUS, LEADS, BUDGET)
    assert found is not None
    assert found.intervals == 22


def test_a_short_past_is_not_compared() -> None:
    assert alternatives(state(9), GPUS, LEADS, BUDGET) is None
    assert alternatives(HindsightState(), GPUS, LEADS, BUDGET) is None
