"""Little's law, and set-ups that are none."""

import pytest

from headway_studies.queue_simulator.load import fluid_load
from headway_studies.queue_simulator.model import (
    SETUPS,
    Consumer,
    Pattern,
    Profile,
    QueueingError,
    Setup,
    documented,
)
from tests.studies.queue_simulator.worlds import alike


@pytest.mark.parametrize(
    ("throughput_rps", "latency_s", "capacity"), [(4.0, 0.5, 2.0), (1.0, 5.0, 5.0), (4.1, 0.5, 2.05)]
)
def test_capacity(throughput_rps, latency_s, capacity):
    """The first two are the document's own examples."""
    profile = Profile(throughput_rps=throughput_rps, latency_s=latency_s)
    assert profile.capacity == pytest.approx(capacity)
    assert profile.load == pytest.approx(1 / capacity)


def test_capacity_below_one_is_refused():
    with pytest.raises(QueueingError, match=r"capacity 0\.5"):
        Profile(throughput_rps=1.0, latency_s=0.5)


def test_capacity_of_one_survives_rounding():
    assert Profile(throughput_rps=0.1 * 3, latency_s=1 / 0.3).load <= 1
    assert Profile(throughput_rps=10 / 3, latency_s=0.3 - 1e-17).load <= 1


@pytest.mark.parametrize(
    ("name", "offered"), [("ideal-single", 4.976), ("ideal-double", 4.976), ("multi", 3.586)]
)
def test_offered_load(name, offered):
    setup = SETUPS[name]
    assert fluid_load(setup) * len(setup.consumers) == pytest.approx(offered, abs=5e-4)


def test_multi_has_the_fewest_consumers_that_carry_it():
    setup = SETUPS["multi"]
    assert fluid_load(setup) < 1 < fluid_load(setup.resized(len(setup.consumers) - 1))


def test_claims_belong_to_the_patterns_of_the_document():
    setup = SETUPS["ideal-single"]
    assert documented(setup.resized(5)) is not None
    assert documented(setup.scaled(0.2)) is None
    assert documented(alike([(1, 1, 2, 5)], 1, name="multi")) is None


def test_wrong_setups():
    good = alike([(1, 1, 2, 5), (1, 1, 2, 5)], 2)
    pattern, consumer = good.patterns[0], good.consumers[0]
    for patterns, consumers, word in (
        ((), good.consumers, "at least one"),
        (good.patterns, (), "at least one"),
        ((pattern, pattern), good.consumers, "same name"),
        ((pattern,), good.consumers, "no pattern"),
        ((*good.patterns, Pattern(name="2", arrival_rps=1, slo_s=1)), (consumer,), "no consumer serves it"),
    ):
        with pytest.raises(QueueingError, match=word):
            Setup(name="wrong", patterns=patterns, consumers=consumers)


def two_types(small: int) -> Setup:
    """Pattern a runs on both types, twice as fast on the large one; pattern b on the large one alone."""
    fast = {
        "a": Profile(throughput_rps=2, latency_s=1),
        "b": Profile(throughput_rps=1, latency_s=1),
    }
    slow = {"a": Profile(throughput_rps=1, latency_s=1)}
    patterns = (Pattern(name="a", arrival_rps=2, slo_s=9), Pattern(name="b", arrival_rps=0.5, slo_s=9))
    consumers = (Consumer(kind="large", profiles=fast), *(Consumer(kind="small", profiles=slow),) * small)
    return Setup(name="two types", patterns=patterns, consumers=consumers)


def test_load_of_two_types():
    """One small: with x of a on it, (2 − x)/2 + 0.5 = x, so x = 1. Many: b alone sets it."""
    assert fluid_load(two_types(1)) == pytest.approx(1.0)
    assert fluid_load(two_types(40)) == pytest.approx(0.5)
    for factor in (1e-12, 0.1, 1e12):
        assert fluid_load(two_types(1).scaled(factor)) == pytest.approx(factor)
