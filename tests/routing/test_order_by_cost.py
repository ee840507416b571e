"""What is served first of what waits, where not all can be saved: beside the best that is possible."""

import heapq
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from headway.routing.queue.heads import HeadRow
from headway.routing.queue.held_lines import WaitingRequest
from tests.routing.test_urgency_queue import PATTERNS, empty, entry, names


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


def served_in_time(jobs: list[OneJob]) -> int:
    queue, now_s, count = empty(), 0.0, 0
    for number, job in enumerate(jobs):
        one = entry(str(number), pattern=number % 3, start_by=job.due_s - job.cost)
        queue.push(replace(one, cached_tokens=10.0, output_tokens=0.5 * job.cost))
    while (one := next(queue.ordered(now_s), None)) is not None and one.latest_start_s >= now_s:
        queue.remove(one.request.request_id)
        now_s += jobs[int(one.request.request_id)].cost
        count += 1
    return count


@pytest.mark.parametrize("seed", range(4))
def test_nearly_as_many_are_served_in_time_as_can_be(seed: int) -> None:
    jobs = overload(seed)
    assert served_in_time(jobs) > 0.85 * most_in_time(jobs)


def test_of_equal_latest_starts_the_cheaper_goes_first_within_a_line_and_between() -> None:
    queue, costs = empty(), {"a": 300.0, "b": 100.0, "c": 400.0, "d": 200.0}
    for number, (name, tokens) in enumerate(costs.items()):
        queue.push(replace(entry(name, pattern=number // 2, start_by=5.0), output_tokens=tokens))
    order = []
    for one in queue.ordered(0.0):
        order.append(one)
        queue.remove(one.request.request_id)
    assert names(order) == ["b", "d", "a", "c"]


def test_one_that_is_lost_behind_a_cheaper_one_is_no_longer_in_its_way() -> None:
    queue = empty()
    queue.push(replace(entry("cheap", start_by=9.0), output_tokens=1.0))
    queue.push(replace(entry("dear", start_by=2.0), output_tokens=1e6))
    assert names(queue.ordered(1.0)) == ["cheap"]
    assert names(queue.ordered(3.0)) == ["cheap", "dear"]


def test_a_line_keeps_to_one_price_until_it_is_another() -> None:
    def one(name: str, pattern: int, start_by_s: float, tokens: float) -> WaitingRequest:
        return replace(entry(name, pattern=pattern, start_by=start_by_s), output_tokens=tokens)

    queue = empty()
    for number in range(50):
        queue.push(one(f"impatient-{number}", 1, 0.1, 1000.0))
    queue.push(one("dear", 0, 5.0, 1000.0))
    queue.push(one("cheap", 0, 6.0, 10.0))
    in_line = [each for each in queue.ordered(0.0) if each.pattern == PATTERNS[0]]
    assert names(in_line) == ["dear"]
    for number in range(500):
        queue.push(one(f"patient-{number}", 2, 1e4, 1000.0))
    queue.push(one("last", 0, 7.0, 1000.0))
    assert queue.due_s("last") - 7.0 == pytest.approx(queue.due_s("dear") - 5.0)
    assert queue.due_s("dear") > queue.due_s("cheap") + 100.0
    in_line = [each for each in queue.ordered(0.0) if each.pattern == PATTERNS[0]]
    assert names(in_line) == ["cheap"]
    assert queue.due_s("cheap") in queue.heads[HeadRow.KEY_S], "what lines are compared by"


def test_the_order_of_a_tenants_requests_does_not_go_by_anothers() -> None:
    def dues(others_start_by_s: float) -> list[float]:
        queue = empty()
        for number in range(200):
            queue.push(entry(f"other-{number}", tenant="other", start_by=others_start_by_s))
        for number, tokens in enumerate([100.0, 100.0, 30.0, 10.0]):
            own = entry(f"{number}", start_by=5.0 + number, tenant="own")
            queue.push(replace(own, output_tokens=tokens))
        return [queue.due_s(str(number)) for number in range(4)]

    assert dues(1.0) == dues(1e9)
