"""What an engine's totals show: readings of them, and latencies of engines whose speed is known."""

from itertools import pairwise

import numpy as np
import pytest

from headway.engine import EngineRules
from headway.engine.observed_latency import LatencyReport, Phase
from headway.engine.observed_metrics import (
    LEAST_PROMPTS,
    WARM_TOKENS,
    WINDOW_S,
    EngineReading,
    EngineReadings,
    EngineTotals,
    LengthSpread,
    engine_reports,
)
from headway.engine.rules import EngineSpeeds
from headway.planning.synthetic import length_spread
from headway.planning.types import Role
from headway.simulation.observing import engine_totals
from headway.simulation.simulate import SimulationRun, Watchers
from interp import PrefillSamples, Profile, build_profile
from tests.simulation.worlds import Schedule, poisson_trace, roofline_profile, scenario

PROFILE = roofline_profile()
LENGTHS = LengthSpread(600.0, 120.0)
WARM = EngineTotals(prompt_tokens=WARM_TOKENS)


def after(before: EngineTotals, **gains: float) -> EngineTotals:
    return before._replace(**{name: getattr(before, name) + gain for name, gain in gains.items()})


def reading(seconds: float = 30.0, **gained: float) -> EngineReading:
    return EngineReading("a", 0.0, seconds, EngineTotals(**gained))


def reports(**gained: float) -> list[LatencyReport]:
    return list(engine_reports(PROFILE, [reading(**gained)], LENGTHS, 0))


def prompts(count: float, tokens: float, each_s: float) -> dict[str, float]:
    """What an engine shows of so many prompts."""
    names = ("first_tokens", "prompts", "prefills")
    totals = {"asked_tokens": count * tokens, "prompt_tokens": count * tokens, "prefill_s": count * each_s}
    return {**dict.fromkeys(names, count), **totals}


def test_readings_are_what_was_gained_in_a_window() -> None:
    readings, totals = EngineReadings(), WARM
    for at_s in range(0, 46, 5):
        readings.add({"a": totals}, float(at_s))
        totals = after(totals, gaps=10.0, gap_s=0.2)
    taken = readings.take()
    assert [(each.engine, each.begun_s, each.ended_s) for each in taken] == [
        ("a", start_s, end_s) for start_s, end_s in pairwise([0.0, 15.0, 30.0, 45.0])
    ]
    assert [each.gained.gaps for each in taken] == [30.0, 30.0, 30.0]
    assert readings.take() == ()


def test_an_engine_that_was_away_or_began_anew_is_followed_from_there() -> None:
    readings = EngineReadings()
    shown = [(WARM, 0.0), (None, WINDOW_S), (after(WARM, gaps=9.0), 2 * WINDOW_S), (WARM, 3 * WINDOW_S)]
    for totals, at_s in [*shown, (after(WARM, gaps=5.0), 4 * WINDOW_S)]:
        readings.add({"a": totals} if totals else {}, at_s)
    assert [(each.begun_s, each.gained.gaps) for each in readings.take()] == [(3 * WINDOW_S, 5.0)]


def test_what_an_engine_does_first_shows_nothing() -> None:
    readings = EngineReadings()
    for place, tokens in enumerate([0.0, 0.9 * WARM_TOKENS, 1.1 * WARM_TOKENS, 1.2 * WARM_TOKENS]):
        readings.add({"a": EngineTotals(prompt_tokens=tokens)}, place * WINDOW_S)
    assert [each.begun_s for each in readings.take()] == [2 * WINDOW_S]


def test_prompts_one_at_a_time_take_what_they_are_shown_to_take() -> None:
    each_s = 1.5 * PROFILE.prefill.ttft_s(600.0)
    (report,) = reports(**prompts(10.0, 600.0, each_s))
    assert report == LatencyReport(Phase.PREFILL, 600.0, pytest.approx(each_s), 1.0, "a")


def test_what_was_cached_is_not_counted() -> None:
    gained = prompts(10.0, 800.0, PROFILE.prefill.ttft_s(200.0)) | {"cached_tokens": 6000.0}
    (report,) = reports(**gained)
    assert (report.tokens, report.latency_s) == (
        pytest.approx(200.0),
        pytest.approx(PROFILE.prefill.ttft_s(200.0)),
    )


def test_prompts_of_mixed_lengths_are_no_slower_than_they_are() -> None:
    """TTFT grows with the square of the length: the mean is more than that of the mean length."""
    isl = np.array([16.0, 1000.0, 4000.0, 16_000.0, 64_000.0])
    ttft_s = 0.004 + 2e-5 * isl + 4e-9 * isl**2
    prefill = PrefillSamples(isl_tokens=isl, ttft_s=ttft_s, throughput_per_gpu=isl / ttft_s)
    profile = build_profile(prefill, PROFILE.decode.samples)
    lengths = np.random.default_rng(1).lognormal(np.log(6000.0), 0.8, 4000)
    mean_s = float(np.mean(profile.prefill.ttft_s(lengths)))
    spread = LengthSpread(float(lengths.mean()), 120.0, tuple(np.sort(lengths) / lengths.mean()))
    shown = reading(**prompts(4000.0, spread.isl_tokens, mean_s))
    (report,) = engine_reports(profile, [shown], spread, 0)
    assert mean_s > 1.3 * profile.prefill.ttft_s(report.tokens)
    assert report.latency_s == pytest.approx(profile.prefill.ttft_s(report.tokens), rel=0.04)


def test_gaps_between_tokens_are_those_of_the_mean_batch_by_littles_law() -> None:
    (report,) = reports(gaps=60_000.0, gap_s=600.0)
    assert report == LatencyReport(Phase.DECODE, 660.0, pytest.approx(0.01), pytest.approx(20.0), "a")


def test_where_iterations_are_counted_the_batch_is_theirs() -> None:
    """20,000 iterations of 3 requests each; others are there now and then."""
    (report,) = reports(gaps=60_000.0, gap_s=300.0, iterations=20_000.0)
    assert report.batch == pytest.approx(3.0 + 1.0 / 3.0)
    (alone,) = reports(gaps=1000.0, gap_s=10.0, iterations=1000.0)
    assert alone.batch == 1.0


def test_a_gap_of_several_tokens_counts_for_each_of_them() -> None:
    gained = {"gaps": 60_000.0, "gap_s": 600.0}
    (plain,) = reports(**gained, gap_tokens=60_300.0)
    (speculative,) = reports(**gained, gap_tokens=180_000.0)
    assert plain == reports(**gained)[0]
    assert speculative.latency_s == pytest.approx(plain.latency_s / 3.0)
    assert speculative.batch == plain.batch


def test_the_few_and_the_preempted_show_nothing() -> None:
    few = prompts(LEAST_PROMPTS - 1.0, 600.0, 0.05)
    assert reports(gaps=60_000.0, gap_s=600.0, **few) == []
    assert reports(gaps=60_000.0, gap_s=600.0, preemptions=1.0) == []
    assert reports(gaps=10.0, gap_s=0.1) == []
    assert reports() == []


SPLIT = {Role.PREFILL: 2, Role.DECODE: 2}
WHOLE, CHUNKED = (EngineRules(max_batch_size=64, chunk_tokens=tokens) for tokens in (0, 1024))


def seen(fleet: dict[Role, int], rules: EngineRules, speed: float, rate_rps: float) -> list[LatencyReport]:
    """The reports of a simulated fleet of that speed by its totals, read every 5 s."""
    speeds = EngineSpeeds(prefill={0.0: speed}, decode={0.0: speed})
    setting = scenario(PROFILE, fleet, engine=rules, speeds=speeds)
    trace = poisson_trace(3, int(240 * rate_rps), rate_rps)
    driven = SimulationRun(setting, trace, Schedule([fleet], interval_s=5.0), None, Watchers())
    readings = EngineReadings()
    while (observation := driven.advance()) is not None and observation.now_s < trace.duration_s:
        readings.add(engine_totals(driven.fleet), observation.now_s)
        driven.act(observation, driven.policy.plan(observation, 0))
    shares = np.array([each.mean() for each in np.array_split(np.sort(trace.input_tokens), 32)]) / 600.0
    lengths = LengthSpread(600.0, 120.0, tuple(shares), 1.0)
    return list(engine_reports(PROFILE, readings.take(), lengths, rules.chunk_tokens))


def slowness(profile: Profile, found: list[LatencyReport], phase: Phase) -> float:
    """How many times longer than profiled, in the geometric mean."""
    _, tokens, latency_s, batch, _ = zip(*(each for each in found if each.phase is phase), strict=True)
    if phase is Phase.PREFILL:
        expected_s = profile.prefill.ttft_s(np.array(tokens))
    else:
        usage = np.array(batch) * np.array(tokens) / profile.decode.table.max_kv_tokens
        expected_s = profile.decode.itl_s(np.minimum(1.0, usage), np.array(tokens))
    return float(np.exp(np.mean(np.log(np.array(latency_s) / expected_s))))


@pytest.mark.parametrize("load", [0.4, 0.8])
@pytest.mark.parametrize("speed", [0.6, 1.0, 1.5])
@pytest.mark.parametrize(("fleet", "rules"), [(SPLIT, WHOLE), (SPLIT, CHUNKED), ({Role.MIXED: 2}, CHUNKED)])
def test_engines_are_as_fast_as_their_totals_show(fleet, rules, speed, load):
    """Whatever the speed: within 9 % up to a load of 0.8 of those that compute prompts."""
    mixed = 0.5 if Role.MIXED in fleet else 1.0
    rate_rps = 2.0 * mixed * load * speed / float(PROFILE.prefill.ttft_s(600.0))
    found = seen(fleet, rules, speed, rate_rps)
    for phase in Phase:
        assert slowness(PROFILE, found, phase) == pytest.approx(1.0 / speed, rel=0.09)


def test_the_spread_of_lengths_is_that_of_what_came_and_ended() -> None:
    fleet = {Role.MIXED: 2}
    policy = Schedule([fleet], interval_s=60.0)
    driven = SimulationRun(scenario(PROFILE, fleet), poisson_trace(1, 600, 5.0), policy, None, Watchers())
    observation = driven.advance()
    assert observation is not None
    spread = length_spread(observation)
    assert spread[:2] == (observation.isl_tokens, observation.osl_tokens)
    assert np.mean(spread.isl_shares) == pytest.approx(1.0, abs=0.01)
    assert np.std(spread.isl_shares) == pytest.approx(1.0, abs=0.2)
    assert 0.3 < spread.osl_cv < 1.2
