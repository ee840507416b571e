"""The searches find what holds, and what is cheapest, with few measurements."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.policies.search import (
    MOST_REPLICAS,
    Fleet,
    Knobs,
    cheapest_corner,
    cheapest_fleet,
    corner,
    geometric,
    least,
)


@dataclass(frozen=True)
class Run:
    held: bool
    gpu_hours: float


def noted(tried: list[Any], outcome: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`outcome`, with everything that is tried in the list."""

    def measure(tries: Any) -> Any:
        tried.append(tries)
        return outcome(tries)

    return measure


def test_a_geometric_grid_goes_from_end_to_end_either_way() -> None:
    assert geometric(1.0, 8.0, 2.0) == (1.0, 2.0, 4.0, 8.0)
    assert geometric(8.0, 1.0, 2.0) == (8.0, 4.0, 2.0, 1.0)
    assert geometric(1.0, 5.0, 2.0) == (1.0, 2.0, 4.0, 5.0)


@given(count=st.integers(1, 40), data=st.data())
def test_the_least_is_found_with_and_without_a_guess_which_is_tried_first(
    count: int, data: st.DataObject
) -> None:
    threshold, guess = data.draw(st.integers(0, count)), data.draw(st.integers(0, count - 1))
    expected = threshold if threshold < count else None
    tried: list[int] = []
    assert least(lambda position: position >= threshold, count) == expected
    assert least(noted(tried, lambda position: position >= threshold), count, guess) == expected
    assert tried[0] == guess
    assert len(tried) == len(set(tried))


@pytest.mark.parametrize(
    ("threshold", "guess", "trials"), [(13, None, 5), (9, 9, 2), (10, 9, 2), (8, 9, 4), (26, 25, 1)]
)
def test_few_trials_do(threshold: int, guess: int | None, trials: int) -> None:
    tried: list[int] = []
    least(noted(tried, lambda position: position >= threshold), 26, guess)
    assert len(tried) <= trials


@given(
    need=st.integers(1, 30),
    work=st.integers(1, 60),
    first=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    gpus=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_the_cheapest_fleet_is_the_cheapest(need: int, work: int, first: Fleet, gpus: Fleet) -> None:
    """Prefill below `need` never holds, and more of it takes a little work off decode."""

    def holds(fleet: Fleet) -> bool:
        prefill, decode = fleet
        return prefill >= need and decode >= work - min(2, prefill - need)

    def cost(fleet: Fleet) -> int:
        return fleet[0] * gpus[0] + fleet[1] * gpus[1]

    found = cheapest_fleet(holds, first, gpus)
    assert found is not None
    assert holds(found)
    fleets = [(prefill, decode) for prefill in range(1, 100) for decode in range(1, 100)]
    best = min(cost(fleet) for fleet in fleets if holds(fleet))
    # Above 25 prefill replicas the search takes steps of two and more.
    assert best <= cost(found) <= best * 1.1 + gpus[0]


def test_no_fleet_holds_what_cannot_be_held() -> None:
    tried: list[Fleet] = []
    assert cheapest_fleet(noted(tried, lambda _: False), (3, 1), (1, 1)) is None
    assert max(tried[-1]) == MOST_REPLICAS


def test_the_corner_is_what_the_hardest_cells_need() -> None:
    assert corner([(3, 1), (2, 5)]) == (3, 5)
    assert corner([(3, 1), (2, None)]) is None
    assert corner([]) is None


def test_knobs_end_where_none_can_be_lower() -> None:
    one = cheapest_corner(lambda knobs: Run(knobs[0] >= 5, float(knobs[0])), (3,), 10)
    assert one == ((5,), Run(True, 5.0))
    tried: list[Knobs] = []
    run = noted(tried, lambda knobs: Run(sum(knobs) >= 7, 10.0 * knobs[0] + knobs[1]))
    assert cheapest_corner(run, (2, 2), 10) == ((3, 4), Run(True, 34.0))
    assert min(prefill for prefill, _ in tried) >= 2
    assert len(tried) == len(set(tried)) <= 9


def test_positions_end_with_the_grid() -> None:
    tried: list[Knobs] = []
    assert cheapest_corner(noted(tried, lambda _: Run(False, 1.0)), (7, 2), 10) is None
    assert tried[-1] == (9, 9)
