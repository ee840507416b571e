"""Single decisions: who starts when and where, on arrivals written by hand."""

import pytest

from headway_studies.queue_simulator.model import Consumer, Pattern, Profile, Setup
from headway_studies.queue_simulator.waiting import DispatchPolicy, DispatchRouting, Passing, QueuePolicy
from tests.studies.queue_simulator.worlds import alike, serve

SIMPLE, SLO, SAVABLE = QueuePolicy
LARGE, SMALL = 0, 1


def policy(
    routing: DispatchRouting, queue: QueuePolicy = SIMPLE, passing: Passing = Passing.SLACK
) -> DispatchPolicy:
    return DispatchPolicy(routing=routing, queue=queue, passing=passing)


def mixed(consumers: int = 1, slo_s: float = 100.0) -> Setup:
    """Pattern 0: load 0.5 for 10 s. Pattern 1: load 0.25 for 10 s."""
    return alike([(1, 10, 0.2, slo_s), (1, 10, 0.4, slo_s)], consumers)


@pytest.mark.parametrize("routing", DispatchRouting)
def test_requests_within_capacity_run_in_parallel(routing):
    starts, _ = serve(mixed(), policy(routing), (0, LARGE), (1, SMALL), (2, SMALL), (3, SMALL))
    assert starts == [0, 1, 2, 10]


def test_least_load_spreads_and_bin_pack_fills():
    arrivals = [(0, SMALL), (1, SMALL), (2, SMALL), (3, SMALL)]
    for routing, places in (
        (DispatchRouting.LEAST_LOAD_PUSH, [0, 1, 0, 1]),
        (DispatchRouting.LEAST_LOAD_PULL, [0, 1, 0, 1]),
        (DispatchRouting.BIN_PACK_PULL, [0, 0, 0, 0]),
    ):
        assert serve(mixed(2), policy(routing), *arrivals) == ([0, 1, 2, 3], places)


def test_push_waits_where_it_was_sent_and_pull_where_room_comes_first():
    """The queue of consumer 0 is as loaded as that of 1, but moves on only later."""
    setup = alike([(1, 10, 0.1, 100), (1, 4, 0.25, 100)], 2)
    arrivals = [(0, 0), (0, 1), (1, 0), (2, 0)]
    assert serve(setup, policy(DispatchRouting.LEAST_LOAD_PUSH), *arrivals) == ([0, 0, 10, 4], [0, 1, 0, 1])
    assert serve(setup, policy(DispatchRouting.LEAST_LOAD_PULL), *arrivals) == ([0, 0, 4, 10], [0, 1, 1, 0])


def test_least_load_push_counts_what_waits():
    """Both run at full; the third request waits at 0, so the fourth goes to 1."""
    setup = alike([(1, 10, 0.1, 100)], 2)
    _, places = serve(setup, policy(DispatchRouting.LEAST_LOAD_PUSH), (0, 0), (1, 0), (2, 0), (3, 0))
    assert places == [0, 1, 0, 1]


def test_random_push_sends_to_every_consumer():
    _, places = serve(mixed(3), policy(DispatchRouting.RANDOM_PUSH), *((float(i), SMALL) for i in range(60)))
    assert set(places) == {0, 1, 2}


BLOCKED = [(0, LARGE), (0, SMALL), (1, LARGE), (2, SMALL)]
"""0.75 taken; the large one does not fit, the small one behind it would."""


@pytest.mark.parametrize(
    ("routing", "passing", "slo_s", "starts"),
    [
        (DispatchRouting.LEAST_LOAD_PULL, Passing.ALWAYS, 100, [0, 0, 10, 10]),
        (DispatchRouting.LEAST_LOAD_PUSH, Passing.ALWAYS, 100, [0, 0, 10, 10]),
        (DispatchRouting.BIN_PACK_PULL, Passing.NEVER, 100, [0, 0, 10, 10]),
        (DispatchRouting.BIN_PACK_PULL, Passing.SLACK, 100, [0, 0, 10, 2]),
        (DispatchRouting.BIN_PACK_PULL, Passing.SLACK, 10.5, [0, 0, 10, 10]),
        (DispatchRouting.BIN_PACK_PULL, Passing.ALWAYS, 10.5, [0, 0, 10, 2]),
    ],
)
def test_passing_a_request_that_does_not_fit(routing, passing, slo_s, starts):
    assert serve(mixed(slo_s=slo_s), policy(routing, passing=passing), *BLOCKED)[0] == starts


def test_greatest_risk_first():
    """At 10 s: (9 + 1)/50 = 0.2 for the first to come, (5 + 1)/10 = 0.6 for the second."""
    setup = alike([(1, 10, 0.1, 100), (1, 1, 1, 50), (1, 1, 1, 10)], 1)
    arrivals = [(0, 0), (1, 1), (5, 2)]
    assert serve(setup, policy(DispatchRouting.LEAST_LOAD_PULL), *arrivals)[0] == [0, 10, 11]
    assert serve(setup, policy(DispatchRouting.LEAST_LOAD_PULL, SLO), *arrivals)[0] == [0, 11, 10]


@pytest.mark.parametrize("routing", DispatchRouting)
def test_what_is_lost_waits_for_what_can_be_saved(routing):
    """At 10 s the second is at 9 + 1 > 5, lost, and has the greatest risk; the third can still be saved."""
    setup = alike([(1, 10, 0.1, 100), (1, 1, 1, 5), (1, 1, 1, 50)], 1)
    arrivals = [(0, 0), (1, 1), (2, 2), (3, 1)]
    assert serve(setup, policy(routing, SLO), *arrivals)[0] == [0, 10, 12, 11]
    assert serve(setup, policy(routing, SAVABLE), *arrivals)[0] == [0, 11, 10, 12]


def test_within_a_pattern_first_come_first_served():
    setup = alike([(1, 10, 0.1, 30)], 1)
    for queue in QueuePolicy:
        found = serve(setup, policy(DispatchRouting.LEAST_LOAD_PULL, queue), (0, 0), (1, 0), (2, 0))[0]
        assert found == [0, 10, 20]


def two_types() -> Setup:
    """Only `large` serves pattern b; both serve a, `large` twice as fast."""
    fast = {
        "a": Profile(throughput_rps=1, latency_s=1),
        "b": Profile(throughput_rps=0.1, latency_s=10),
    }
    slow = {"a": Profile(throughput_rps=0.5, latency_s=2)}
    return Setup(
        name="two types",
        patterns=(Pattern(name="a", arrival_rps=1, slo_s=9), Pattern(name="b", arrival_rps=1, slo_s=90)),
        consumers=(Consumer(kind="large", profiles=fast), Consumer(kind="small", profiles=slow)),
    )


@pytest.mark.parametrize("routing", [DispatchRouting.LEAST_LOAD_PULL, DispatchRouting.BIN_PACK_PULL])
def test_a_waiting_head_holds_only_consumers_that_serve_it(routing):
    """The second b waits for `large` and holds it; `small` takes an a meanwhile."""
    starts, places = serve(two_types(), policy(routing), (0, 1), (1, 1), (2, 0), (10.5, 0))
    assert (starts[:3], places[:3]) == ([0, 10, 2], [0, 0, 1])
    assert (starts[3], places[3]) == (10.5, 1)


@pytest.mark.parametrize("routing", DispatchRouting)
def test_a_pattern_runs_only_where_it_is_served(routing):
    _, places = serve(two_types(), policy(routing), *((i / 2, i % 2) for i in range(40)))
    assert set(places[1::2]) == {0}
