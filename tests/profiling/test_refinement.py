from math import nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import resolve_profile
from headway.profiling import Phase
from headway.profiling.observed_latency import LatencyReport
from headway.profiling.refinement import (
    LEAST_SAMPLES,
    MOST_CELLS,
    MOST_RATIO,
    Refinement,
    learn,
    moved,
    refined,
)
from interp import load_profile

PROFILE = load_profile(resolve_profile("llama-3.1-8b_h100_tp1"))
LONGEST = float(PROFILE.prefill.table.isl_tokens[-1])


def prefill(tokens: float, slower: float = 1.0) -> LatencyReport:
    return LatencyReport(Phase.PREFILL, tokens, PROFILE.prefill.ttft_s(tokens) * slower)


def decode(kv_usage: float, tokens: float, slower: float = 1.0) -> LatencyReport:
    batch = kv_usage * float(PROFILE.decode.table.max_kv_tokens) / tokens
    return LatencyReport(Phase.DECODE, tokens, PROFILE.decode.itl_s(kv_usage, tokens) * slower, batch)


def taught(*reports: LatencyReport, times: int = LEAST_SAMPLES) -> Refinement:
    return learn(Refinement(), PROFILE, reports * times)


def test_the_profile_follows_where_traffic_is_and_stays_elsewhere() -> None:
    found = refined(PROFILE, taught(prefill(3000.0, 1.3), decode(0.35, 3104.0, 0.8)))
    prefill_ratio = found.prefill.samples.ttft_s / PROFILE.prefill.samples.ttft_s
    near = PROFILE.prefill.samples.isl_tokens == 3069
    assert prefill_ratio[near] == pytest.approx(1.3)
    assert set(np.round(prefill_ratio[~near], 9)) == {1.0}
    known, now = PROFILE.decode.samples, found.decode.samples
    assert len(now.itl_s) == len(known.itl_s)
    near = (known.context_tokens == 3104) & (known.kv_usage >= 0.3) & (known.kv_usage < 0.4)
    assert near.any()
    assert now.itl_s[near] == pytest.approx(known.itl_s[near] * 0.8)
    assert now.itl_s[~near] == pytest.approx(known.itl_s[~near])
    assert now.throughput_per_gpu[near] == pytest.approx(known.throughput_per_gpu[near] / 0.8)


def test_the_sampled_range_grows_to_where_traffic_is() -> None:
    beyond = LONGEST * 1.6
    assert PROFILE.prefill.extrapolated(beyond)
    found = refined(PROFILE, taught(prefill(beyond, 1.2), decode(0.5, 200_000.0)))
    assert not found.prefill.extrapolated(beyond)
    assert found.prefill.ttft_s(beyond) == pytest.approx(1.2 * PROFILE.prefill.ttft_s(beyond))
    assert found.decode.domain.context_tokens[-1] == pytest.approx(200_000.0)


def test_a_few_reports_change_nothing() -> None:
    found = taught(prefill(3000.0, 1.5), times=LEAST_SAMPLES - 1)
    assert found.version == 1
    assert refined(PROFILE, found) is PROFILE


def test_ratios_are_bounded_and_do_not_compound() -> None:
    once = taught(prefill(3069.0, 50.0))
    twice = learn(once, PROFILE, [prefill(3069.0, 50.0)] * 100)
    for state in (once, twice):
        found = refined(PROFILE, state).prefill.ttft_s(3069.0)
        assert found == pytest.approx(MOST_RATIO * PROFILE.prefill.ttft_s(3069.0))


def test_old_traffic_is_forgotten() -> None:
    state = learn(taught(prefill(3069.0, 1.5)), PROFILE, [prefill(3069.0, 1.0)] * 500)
    assert refined(PROFILE, state).prefill.ttft_s(3069.0) == pytest.approx(
        PROFILE.prefill.ttft_s(3069.0), rel=1e-3
    )


def test_versions_rise_with_every_change_and_meta_says_which() -> None:
    state = taught(prefill(3000.0))
    assert learn(state, PROFILE, []) is state
    assert (
        learn(
            state,
            PROFILE,
            [LatencyReport(Phase.PREFILL, nan, 1.0), LatencyReport(Phase.DECODE, 10.0, 1.0, 0.0)],
        )
        is state
    )
    again = learn(state, PROFILE, [prefill(3000.0)])
    assert again.version == state.version + 1
    assert refined(PROFILE, again).meta["refined"] == {"version": 2, "cells": 1}


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
    found = refined(PROFILE, taught(*reports))
    isl = PROFILE.prefill.samples.isl_tokens
    ratio = found.prefill.ttft_s(isl) / PROFILE.prefill.ttft_s(isl)
    assert (ratio >= 1 / MOST_RATIO - 1e-9).all()
    assert (ratio <= MOST_RATIO + 1e-9).all()


def test_memory_is_bounded_and_the_cell_fed_longest_ago_goes() -> None:
    state = Refinement()
    for place in range(MOST_CELLS + 20):
        tokens = 300.0 * 2 ** ((place // 10) * 0.5)
        state = learn(state, PROFILE, [decode(0.05 + 0.1 * (place % 10), tokens)])
    assert len(state.cells) == MOST_CELLS
    assert min(cell.tokens for cell in state.cells) > min(
        cell.tokens for cell in learn(Refinement(), PROFILE, [decode(0.05, 300.0)]).cells
    )


def test_a_new_profile_is_worth_a_new_cell_or_two_per_cent() -> None:
    unsure, sure = taught(prefill(3069.0, 1.5), times=LEAST_SAMPLES - 1), taught(prefill(3069.0, 1.5))
    assert not moved(Refinement(), unsure)
    assert moved(unsure, sure)
    assert not moved(sure, learn(sure, PROFILE, [prefill(3069.0, 1.5)] * 100))
    assert not moved(sure, learn(sure, PROFILE, [prefill(3069.0, 1.4)]))
    assert moved(sure, learn(sure, PROFILE, [prefill(3069.0, 1.0)] * 5))
    assert moved(sure, learn(sure, PROFILE, [decode(0.35, 3104.0)] * LEAST_SAMPLES))


def test_the_engines_largest_batch_stays() -> None:
    known = PROFILE.decode.largest_batch
    short = float(PROFILE.decode.domain.context_tokens[0])
    found = refined(PROFILE, taught(decode(1.0, short * 1.4), decode(1.0, short / 4)))
    assert float((found.decode.samples.batch_size).max()) > known
    assert found.decode.largest_batch == known
