"""Replicas that differ from their peers are found, by their own reports; those that do not are left alone."""

from collections.abc import Callable, Mapping
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import Role, resolve_profile
from headway.engine.observed_latency import LatencyReport, Phase
from headway.engine.refinement import Refinement, learn, measured
from headway.engine.replica_speeds import HALF_LIFE_S, Lengths, ReplicaSpeeds, batch_line
from headway.routing.shared_rules import felt_load
from interp import load_profile

PROFILE = load_profile(resolve_profile("llama-3.1-8b_h100_tp1"))
EVERY_S = 5.0
Slowness = Callable[[str, int], float]


def itl(replica: str, slowness: float, context: float = 1000.0, batch: float = 40.0) -> LatencyReport:
    usage = batch * context / float(PROFILE.decode.table.max_kv_tokens)
    latency_s = float(PROFILE.decode.itl_s(usage, context)) * slowness
    return LatencyReport(Phase.DECODE, context, latency_s, batch, replica)


def prompt(replica: str, slowness: float) -> LatencyReport:
    return LatencyReport(
        Phase.PREFILL, 1000.0, float(PROFILE.prefill.ttft_s(1000.0)) * slowness, 1.0, replica
    )


def fleet(count: int, slowness: Slowness, rounds: int, before: ReplicaSpeeds | None = None) -> ReplicaSpeeds:
    """So many rounds of reports, of everybody."""
    speeds = before or ReplicaSpeeds()
    for number in range(rounds):
        seen = [itl(str(replica), slowness(str(replica), number)) for replica in range(count)]
        speeds = speeds.with_reports(Refinement(), measured(PROFILE, seen), number * EVERY_S)
    return speeds


def slow(speeds: ReplicaSpeeds, role: Role = Role.DECODE) -> Mapping[str, float]:
    return {replica: each.slowness for replica, each in speeds.of_role(role).items()}


@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize("times", [2.0, 1.4, 0.5])
def test_one_that_differs_is_found_within_three_reports(count, times):
    speeds = fleet(count, lambda replica, _: times if replica == "0" else 1.0, 3)
    if count == 2 and times < 1.0:
        # Of two nobody can say which is the usual one: the faster counts as such.
        assert slow(speeds) == {"1": pytest.approx(2.0, rel=0.15)}
    else:
        assert slow(speeds) == {"0": pytest.approx(times, rel=0.15)}
    assert not speeds.of_role(Role.PREFILL)


def test_a_quarter_of_a_fleet_may_be_slow():
    speeds = fleet(12, lambda replica, _: 1.4 if int(replica) % 4 == 0 else 1.0, 10)
    assert slow(speeds) == {replica: pytest.approx(1.4, rel=0.03) for replica in ("0", "4", "8")}


def test_engines_that_are_all_as_slow_do_not_differ():
    assert not fleet(10, lambda *_: 1.7, 20).differ


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.25), st.integers(2, 30))
def test_noise_makes_no_slow_replica_beyond_its_size(seed, spread, count):
    """Where it does by chance, for a replica whose reports were by far the worst, it takes it for little."""
    draw = np.random.default_rng(seed)
    speeds = fleet(count, lambda *_: float(np.exp(draw.normal(0.0, spread))), 12)
    assert all(each < 2.0 for each in slow(speeds).values())
    if spread < 0.02:
        assert not slow(speeds)


def test_a_fleet_of_every_speed_has_no_slow_ones():
    assert not fleet(21, lambda replica, _: 1.0 + 0.05 * int(replica), 20).differ


def test_one_bad_report_does_not_count():
    speeds = fleet(6, lambda replica, number: 8.0 if (replica, number) == ("0", 5) else 1.0, 7)
    assert not speeds.differ


def test_a_replica_that_turns_slow_and_is_mended_is_found_both_times():
    turned = fleet(5, lambda replica, number: 2.0 if replica == "0" and number >= 20 else 1.0, 32)
    assert slow(turned) == {"0": pytest.approx(1.7, rel=0.2)}
    assert turned.apart[Phase.DECODE]["0"].since_s > 20 * EVERY_S
    assert not fleet(5, lambda *_: 1.0, 30, turned).differ


def test_without_reports_it_is_forgotten_in_the_end():
    known = fleet(5, lambda replica, _: 2.0 if replica == "0" else 1.0, 12)
    others = [itl(str(replica), 1.0) for replica in range(1, 5)]

    def later(seconds: float) -> ReplicaSpeeds:
        return known.with_reports(Refinement(), measured(PROFILE, others), 60.0 + seconds)

    assert slow(later(0.5 * HALF_LIFE_S))["0"] > 1.8
    assert not later(4.0 * HALF_LIFE_S).differ


def test_replicas_that_are_gone_are_no_peers():
    known = fleet(5, lambda replica, _: 2.0 if replica == "0" else 1.0, 12)
    left = known.with_reports(Refinement(), measured(PROFILE, []), 60.0, present=frozenset("1234"))
    assert not left.differ
    assert set(left.observed[Phase.DECODE]) == set("1234")


def test_reports_of_slow_replicas_do_not_move_the_surfaces():
    speeds, refinement = ReplicaSpeeds(), Refinement()
    for number in range(60):
        seen = [itl(str(replica), 3.0 if replica == 0 else 1.0) for replica in range(4)]
        speeds = speeds.with_reports(refinement, measured(PROFILE, seen), number * EVERY_S)
        refinement = learn(refinement, speeds.typical_reports(measured(PROFILE, seen)), number * EVERY_S)
    assert refinement.factor(Phase.DECODE) == pytest.approx(1.0, abs=0.03)
    assert slow(speeds) == {"0": pytest.approx(3.0, rel=0.1)}


def test_the_slower_phase_of_a_mixed_replica_counts():
    speeds = ReplicaSpeeds()
    for number in range(6):
        seen = [itl(name, 1.5 if name == "a" else 1.0) for name in "abcd"]
        seen += [prompt(name, 3.0 if name == "a" else 1.0) for name in "abcd"]
        speeds = speeds.with_reports(Refinement(), measured(PROFILE, seen), number * EVERY_S)
    assert slow(speeds, Role.MIXED) == {"a": pytest.approx(3.0, rel=0.1)}
    assert slow(speeds) == {"a": pytest.approx(1.5, rel=0.1)}


def test_reports_without_a_name_or_without_sense_are_left_out():
    seen = [itl("", 2.0), itl("a", 1.0)._replace(latency_s=-1.0), itl("b", 1.0)._replace(tokens=inf)]
    speeds = ReplicaSpeeds().with_reports(Refinement(), measured(PROFILE, seen), 0.0)
    assert not any(speeds.observed.values())


@given(st.integers(0, 10**6), st.floats(0.0, 1e5), st.floats(0.0, 1e4))
def test_felt_load_of_equal_replicas_is_their_load_exactly(load, own, idle):
    assert felt_load(load, own, 1.0, idle) == load


def test_felt_load_makes_latencies_equal():
    """With x of its own a slow replica is as late as a typical one with what is felt."""
    idle, slowness = 30.0, 1.6
    for load in (0, 3, 20):
        felt = felt_load(load, 1.0, slowness, idle)
        assert slowness * (idle + load + 1.0) == pytest.approx(idle + felt + 1.0)


def test_what_a_slow_replica_is_worth():
    lengths = Lengths(1000.0, 200.0)
    line = batch_line(PROFILE, Role.DECODE, lengths, 512.0)
    full_s = line.idle_s + line.each_s * line.most
    assert line.worth(1.0, 0.02) == 1.0
    assert line.worth(2.0, 10.0 * full_s) == pytest.approx(0.5)
    assert line.worth(2.0, 1.9 * line.idle_s) == 0.0
    assert line.worth(0.5, 0.02) == 1.0
    worths = [line.worth(slowness, 0.6 * full_s) for slowness in (1.0, 1.2, 1.5, 2.0, 4.0)]
    assert worths == sorted(worths, reverse=True)
    mixed = batch_line(PROFILE, Role.MIXED, lengths, 512.0)
    assert mixed.idle_s == line.idle_s
    assert mixed.each_s > line.each_s
