"""What traffic teaches of a profile: one factor first, places later; changes count, outliers do not."""

import json
from collections.abc import Callable
from math import exp, log, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import resolve_profile
from headway.engine.observed_latency import LatencyReport, Phase
from headway.engine.refinement import (
    HALF_LIFE_S,
    MOST_CELLS,
    MOST_RATIO,
    Refinement,
    corrections,
    gathered,
    learn,
    measured,
    moved,
    refined,
    within_reach,
)
from interp import load_profile

PROFILE = load_profile(resolve_profile("llama-3.1-8b_h100_tp1"))
PROMPTS, CONTEXTS = (256.0, 1024.0, 3000.0, 7000.0), (600.0, 1500.0, 4000.0)


def prefill(tokens: float, slower: float = 1.0) -> LatencyReport:
    return LatencyReport(Phase.PREFILL, tokens, PROFILE.prefill.ttft_s(tokens) * slower)


def decode(kv_usage: float, tokens: float, slower: float = 1.0) -> LatencyReport:
    batch = kv_usage * float(PROFILE.decode.table.max_kv_tokens) / tokens
    return LatencyReport(Phase.DECODE, tokens, PROFILE.decode.itl_s(kv_usage, tokens) * slower, batch)


def taught(*reports: LatencyReport, times: int = 40, every_s: float = 5.0) -> Refinement:
    """Each of the reports, so many times."""
    return after(Refinement(), lambda _: list(reports), times, every_s)


def after(
    state: Refinement, reports: Callable[[int], list[LatencyReport]], times: int, every_s: float = 5.0
) -> Refinement:
    begun_s = max((each.at_s for each in state.cells.values()), default=0.0)
    for number in range(times):
        state = learn(state, measured(PROFILE, reports(number)), begun_s + every_s * (number + 1))
    return state


def ttft(state: Refinement, tokens: float) -> float:
    """Corrected over measured."""
    return float(refined(PROFILE, state).prefill.ttft_s(tokens) / PROFILE.prefill.ttft_s(tokens))


def itl(state: Refinement, kv_usage: float, tokens: float) -> float:
    return float(
        refined(PROFILE, state).decode.itl_s(kv_usage, tokens) / PROFILE.decode.itl_s(kv_usage, tokens)
    )


def test_a_slower_engine_moves_the_whole_surface() -> None:
    state = taught(prefill(1024.0, 1.4), decode(0.2, 1500.0, 1.25))
    for tokens in PROMPTS:
        assert ttft(state, tokens) == pytest.approx(1.4, rel=0.01)
    for kv_usage in (0.05, 0.2, 0.5, 0.9):
        assert itl(state, kv_usage, 1500.0) == pytest.approx(1.25, rel=0.01)
    assert state.factor(Phase.PREFILL) == pytest.approx(1.4, rel=0.01)
    assert state.factor(Phase.DECODE) == pytest.approx(1.25, rel=0.01)


def test_where_traffic_differs_by_place_so_does_the_correction() -> None:
    state = taught(prefill(256.0, 1.6), prefill(7000.0, 1.1), times=100)
    assert ttft(state, 256.0) == pytest.approx(1.6, rel=0.04)
    assert ttft(state, 7000.0) == pytest.approx(1.1, rel=0.04)
    assert 1.1 < ttft(state, 1300.0) < 1.6


def test_one_report_moves_little_and_twenty_all_the_way() -> None:
    assert ttft(taught(prefill(1024.0, 1.5), times=1), 1024.0) == pytest.approx(1.5**0.5)
    assert ttft(taught(prefill(1024.0, 1.5), times=20), 1024.0) == pytest.approx(1.5, rel=0.03)


def test_noise_averages_out() -> None:
    noise = np.random.default_rng(1).normal(0.0, 0.2, 200)
    state = after(Refinement(), lambda n: [decode(0.3, 1500.0, 1.3 * exp(noise[n]))], 200)
    assert itl(state, 0.3, 1500.0) == pytest.approx(1.3, rel=0.05)


def test_a_change_is_followed_within_a_minute() -> None:
    state = taught(*(decode(kv, 1500.0) for kv in (0.1, 0.3)), times=300)
    assert state.since_s[Phase.DECODE] == 5.0
    slowed = after(state, lambda _: [decode(kv, 1500.0, 1 / 0.7) for kv in (0.1, 0.3)], 12)
    assert itl(slowed, 0.3, 1500.0) == pytest.approx(1 / 0.7, rel=0.08)
    assert 1500.0 < slowed.since_s[Phase.DECODE] <= 1530.0


def test_rare_outliers_change_little_and_show_no_change() -> None:
    def mostly(number: int) -> list[LatencyReport]:
        return [decode(0.3, 1500.0, 30.0 if number % 20 == 10 else 1.0)]

    state = after(Refinement(), mostly, 400)
    assert itl(state, 0.3, 1500.0) == pytest.approx(1.0, rel=0.06)
    assert state.since_s[Phase.DECODE] == 5.0


def test_ratios_are_bounded_and_do_not_compound() -> None:
    once = taught(prefill(3069.0, 5.0 * MOST_RATIO))
    for state in (once, after(once, lambda _: [prefill(3069.0, 5.0 * MOST_RATIO)], 100)):
        assert log(ttft(state, 3069.0)) == pytest.approx(log(MOST_RATIO), rel=0.04)
        assert ttft(state, 3069.0) <= MOST_RATIO * (1 + 1e-9)


def test_old_evidence_counts_less() -> None:
    state = taught(prefill(1024.0, 1.3), times=10)
    (before,) = state.cells.values()
    (later,) = learn(state, measured(PROFILE, [prefill(1024.0, 1.3)]), 50.0 + HALF_LIFE_S).cells.values()
    assert later.weight == pytest.approx(before.weight / 2.0 + 1.0)


def test_versions_rise_with_every_change_and_meta_says_which() -> None:
    state = taught(prefill(3000.0, 1.2), times=1)
    unusable = [LatencyReport(Phase.PREFILL, nan, 1.0), LatencyReport(Phase.DECODE, 10.0, 1.0, 0.0)]
    assert learn(state, measured(PROFILE, []), 9.0) is state
    assert learn(state, measured(PROFILE, unusable), 9.0) is state
    assert learn(state, measured(PROFILE, [prefill(3000.0)]), 9.0).version == state.version + 1
    assert refined(PROFILE, state).meta["refined"] == state.summary()
    assert refined(PROFILE, Refinement()) is PROFILE


@given(
    st.lists(
        st.one_of(
            st.builds(prefill, st.floats(1.0, 1e6), st.floats(0.01, 100.0)),
            st.builds(decode, st.floats(0.001, 1.0), st.floats(1.0, 5e5), st.floats(0.01, 100.0)),
        ),
        max_size=12,
    )
)
def test_whatever_is_reported_the_profile_stays_one_within_its_bounds(reports: list[LatencyReport]) -> None:
    found = refined(PROFILE, taught(*reports, times=10))
    isl, decodes = PROFILE.prefill.samples.isl_tokens, PROFILE.decode.samples
    ratios = (
        found.prefill.ttft_s(isl) / PROFILE.prefill.ttft_s(isl),
        found.decode.samples.itl_s / decodes.itl_s,
    )
    for ratio in ratios:
        assert (ratio >= 1 / MOST_RATIO - 1e-9).all()
        assert (ratio <= MOST_RATIO + 1e-9).all()
    assert found.decode.largest_batch == pytest.approx(PROFILE.decode.largest_batch)


def test_memory_is_bounded_and_the_cell_fed_longest_ago_goes() -> None:
    state = Refinement()
    for place in range(MOST_CELLS + 20):
        tokens = 300.0 * 2 ** ((place // 10) * 0.5)
        state = learn(state, measured(PROFILE, [decode(0.05 + 0.1 * (place % 10), tokens)]), float(place))
    assert len(state.cells) == MOST_CELLS
    first = next(iter(learn(Refinement(), measured(PROFILE, [decode(0.05, 300.0)]), 0.0).cells))
    assert first not in state.cells


def has_moved(before: Refinement, after: Refinement) -> bool:
    return moved(corrections(PROFILE, before), corrections(PROFILE, after))


def test_a_new_profile_is_worth_two_per_cent() -> None:
    known = taught(prefill(1024.0, 1.5))
    assert has_moved(Refinement(), known)
    assert not has_moved(known, after(known, lambda _: [prefill(1024.0, 1.5)], 10))
    assert has_moved(known, after(known, lambda _: [prefill(1024.0, 1.0)], 40))


def test_what_is_stored_comes_back() -> None:
    state = taught(prefill(1024.0, 1.5), decode(0.3, 1500.0, 0.8))
    assert Refinement.restored(json.loads(json.dumps(state.document()))) == state


def test_gathered_reports_take_the_median_of_each_cell_and_no_shape_for_a_change():
    at_2k = [prefill(2048.0, factor) for factor in (2.0, 2.0, 9.0)]
    at_16k = [prefill(16_384.0)] * 20
    found = gathered(PROFILE, [*at_2k, *at_16k, LatencyReport(Phase.PREFILL, 1.0, nan)])
    assert [exp(cell.log_ratio) for cell in found.cells.values()] == pytest.approx([2.0, 1.0])
    better = refined(PROFILE, found)
    # A fifth of the weight of one report lies in the phase as a whole.
    assert 1.2 < better.prefill.ttft_s(2048.0) / PROFILE.prefill.ttft_s(2048.0) < 2.0
    assert better.prefill.ttft_s(16384.0) / PROFILE.prefill.ttft_s(16384.0) < 1.1
    assert gathered(PROFILE, []).cells == {}


def test_samples_within_an_octave_of_a_report_are_within_reach():
    seen = gathered(PROFILE, [prefill(2048.0), decode(0.3, 2048.0)])
    of_prefill, of_decode = within_reach(PROFILE, seen)
    isl, samples = PROFILE.prefill.samples.isl_tokens, PROFILE.decode.samples
    assert (of_prefill == (np.abs(np.log2(isl / 2048.0)) <= 1.0)).all()
    far = np.hypot(np.log2(samples.context_tokens / 2048.0), (samples.kv_usage - 0.3) / 0.15)
    assert (of_decode == (far <= 1.0)).all()
    assert 0 < of_decode.sum() < len(of_decode)
