"""The searches find what holds, and what is cheapest, with few measurements."""

from dataclasses import dataclass

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


def test_a_geometric_grid_goes_from_end_to_end_either_way() -> None:
    assert geometric(1.0, 8.0, 2.0) == (1.0, 2.0, 4.0, 8.0)
    assert geometric(8.0, 1.0, 2.0) == (8.0, 4.0, 2.0, 1.0)
    assert geometric(1.0, 5.0, 2.0) == (1.0, 2.0, 4.0, 5.0)


@pytest.mark.parametrize("threshold", range(9))
def test_least_is_found_with_few_trials(threshold: int) -> None:
    tried: list[int] = []

    def holds(position: int) -> bool:
        tried.append(position)
        return position >= threshold

    assert least(holds, 8) == (threshold if threshold < 8 else None)
    assert len(tried) <= 4


@given(count=st.integers(1, 40), data=st.data())
def test_a_guess_finds_the_same_and_is_tried_first(count: int, data: st.DataObject) -> None:
    threshold, guess = data.draw(st.integers(0, count)), data.draw(st.integers(0, count - 1))
    tried: list[int] = []

    def holds(position: int) -> bool:
        tried.append(position)
        return position >= threshold

    assert least(holds, count, guess) == (threshold if threshold < count else None)
    assert tried[0] == guess
    assert len(tried) == len(set(tried))


@pytest.mark.parametrize(("threshold", "guess", "trials"), [(9, 9, 2), (10, 9, 2), (8, 9, 4), (26, 25, 1)])
def test_a_good_guess_takes_few_trials(threshold: int, guess: int, trials: int) -> None:
    tried: list[int] = []

    def holds(position: int) -> bool:
        tried.append(position)
        return position >= threshold

    least(holds, 26, guess)
    assert len(tried) == trials


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

    def holds(fleet: Fleet) -> bool:
        tried.append(fleet)
        return False

    assert cheapest_fleet(holds, (3, 1), (1, 1)) is None
    assert tried[-1] == (MOST_REPLICAS, MOST_REPLICAS) or max(tried[-1]) == MOST_REPLICAS


def test_the_corner_is_what_the_hardest_cells_need() -> None:
    assert corner([(3, 1), (2, 5)]) == (3, 5)
    assert corner([(3, 1), (2, None)]) is None
    assert corner([]) is None


def test_one_knob_stops_at_the_first_position_that_holds() -> None:
    found = cheapest_corner(lambda knobs: Run(knobs[0] >= 5, float(knobs[0])), (3,), 10)
    assert found == ((5,), Run(True, 5.0))


def test_two_knobs_end_where_neither_can_be_lower() -> None:
    tried: list[Knobs] = []

    def measure(knobs: Knobs) -> Run:
        tried.append(knobs)
        prefill, decode = knobs
        return Run(prefill + decode >= 7, 10.0 * prefill + decode)

    found = cheapest_corner(measure, (2, 2), 10)
    assert found == ((2, 5), Run(True, 25.0)) or found == ((3, 4), Run(True, 34.0))
    assert min(prefill for prefill, _ in tried) >= 2
    assert len(tried) == len(set(tried)) <= 9


def test_positions_end_with_the_grid() -> None:
    tried: list[Knobs] = []

    def measure(knobs: Knobs) -> Run:
        tried.append(knobs)
        return Run(False, 1.0)

    assert cheapest_corner(measure, (7, 2), 10) is None
    assert tried[-1] == (9, 9)
