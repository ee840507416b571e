"""What is served first of what waits, where not all can be saved: beside the best that is possible."""

import heapq
from typing import Any, NamedTuple

import numpy as np
import pytest

from headway.routing.queue.held_lines import HeldRequest
from tests.routing.test_urgency_queue import drained, empty, entry, name_of, names, ordered


class OneJob(NamedTuple):
    """A job of one machine, which takes `cost` seconds."""

    cost: float
    due_s: float


def overload(seed: int) -> list[OneJob]:
    """Twice as much as can be done by then, of long tails."""
    draw = np.random.default_rng(seed)
    costs = draw.lognormal(5.0, 1.0, 300)
    ends = draw.uniform(0.0, 0.5 * costs.sum(), len(costs))
    return [OneJob(float(cost), float(cost + end_s)) for cost, end_s in zip(costs, ends, strict=True)]


def most_in_time(jobs: list[OneJob]) -> int:
    """Moore and Hodgson's algorithm: the most jobs that one machine can do in time."""
    now_s, kept = 0.0, list[float]()
    for job in sorted(jobs, key=lambda job: job.due_s):
        heapq.heappush(kept, -job.cost)
        now_s += job.cost
        if now_s > job.due_s:
            now_s += heapq.heappop(kept)
    return len(kept)


def priced(name: str, start_by_s: float, tokens: float, **more: Any) -> HeldRequest:
    """A request with so many output tokens."""
    return entry(name, start_by=start_by_s, output_tokens=tokens, **more)


def served_in_time(jobs: list[OneJob]) -> int:
    queue, now_s, count = empty(), 0.0, 0
    for number, job in enumerate(jobs):
        queue.push(priced(str(number), job.due_s - job.cost, 0.5 * job.cost, cached_tokens=10.0))
    while (one := next(ordered(queue, now_s), None)) is not None and one.latest_start_s >= now_s:
        queue.remove(name_of(one))
        now_s += jobs[int(name_of(one))].cost
        count += 1
    return count


@pytest.mark.parametrize("seed", range(4))
def test_nearly_as_many_are_served_in_time_as_can_be(seed: int) -> None:
    jobs = overload(seed)
    assert served_in_time(jobs) > 0.85 * most_in_time(jobs)


def test_of_equal_latest_starts_the_cheaper_goes_first() -> None:
    queue, costs = empty(), {"a": 300.0, "b": 100.0, "c": 400.0, "d": 200.0}
    for name, tokens in costs.items():
        queue.push(priced(name, 5.0, tokens))
    assert drained(queue, 0.0) == ["b", "d", "a", "c"]


@pytest.mark.parametrize("lines", [1, 2, 6])
def test_of_equal_costs_the_one_that_has_to_start_first_goes_first_from_the_start(lines: int) -> None:
    """A line kept the price at which it began: six at a cold start went A B C E D F."""
    queue, starts = empty(), {"A": 1.0, "B": 2.0, "C": 3.0, "D": 4.0, "E": 5.0, "F": 6.0}
    for number, name in enumerate(["A", "B", "C", "E", "D", "F"]):
        queue.push(entry(name, pattern=number % lines, start_by=starts[name], output_tokens=500))
    assert drained(queue, 0.0) == ["A", "B", "C", "D", "E", "F"]


def test_a_critical_one_counts_as_several_others() -> None:
    queue = empty()
    for number in range(50):
        queue.push(priced(f"usual-{number}", 10.0, 100.0))
    queue.push(priced("long", 10.0, 1000.0, critical=True))
    queue.push(priced("like", 12.0, 100.0, critical=True))
    order = drained(queue, 0.0)
    assert order[0] == "like"
    assert order[-1] == "long", "it takes as much as ten others"


def test_one_that_is_lost_behind_a_cheaper_one_is_no_longer_in_its_way() -> None:
    queue = empty()
    queue.push(priced("cheap", 9.0, 1.0))
    queue.push(priced("dear", 2.0, 1e6))
    assert names(ordered(queue, 1.0)) == ["cheap", "dear"]
    assert names(ordered(queue, 3.0)) == ["cheap", "dear"]


def test_a_tenants_lines_go_by_one_price_that_follows_its_requests() -> None:
    queue = empty()
    for number in range(50):
        queue.push(priced(f"impatient-{number}", 0.1, 1000.0))
    queue.push(priced("dear", 5.0, 500.0))
    queue.push(priced("cheap", 6.0, 10.0))
    assert [name for name in names(ordered(queue, 0.0)) if name in {"dear", "cheap"}] == ["dear", "cheap"]
    for number in range(500):
        queue.push(priced(f"patient-{number}", 1e4, 1000.0))
    assert [name for name in drained(queue, 0.0) if name in {"dear", "cheap"}] == ["cheap", "dear"]


def test_the_order_of_a_tenants_requests_does_not_go_by_anothers() -> None:
    def order(others_start_by_s: float) -> list[str]:
        queue = empty()
        for number in range(200):
            queue.push(entry(f"other-{number}", tenant="other", start_by=others_start_by_s))
        for number, tokens in enumerate([100.0, 100.0, 30.0, 10.0]):
            queue.push(priced(f"{number}", 5.0 + number, tokens, tenant="own"))
        return [name for name in drained(queue, 0.0) if name.isdigit()]

    assert order(1.0) == order(1e9) == ["3", "2", "0", "1"]
