"""One point on a target whose times are scripted: which requests it gets, and what comes of them."""

import asyncio

import pytest
from scripted_target import ScriptedTarget

from headway.profiling import Phase, TargetError, UnmeasurableError
from headway.profiling.sweep.measure import measure
from headway.profiling.sweep.points import WINDOW_TOKENS, SweepPoint

DECODE = SweepPoint(phase=Phase.DECODE, tokens=400, batch=8)


def run(target: ScriptedTarget, point: SweepPoint, repeats: int = 3) -> tuple[float, ...]:
    return asyncio.run(measure(target, point, repeats=repeats, seed=1))


def test_a_prefill_asks_for_one_token_with_a_new_prompt_of_a_new_length_each_time() -> None:
    target = ScriptedTarget(itl_s=0.05)
    assert run(target, SweepPoint(phase=Phase.PREFILL, tokens=300)) == (0.05, 0.05, 0.05)
    assert target.asked == [(tokens, 1) for tokens in (300, 299, 298, 297)]
    assert len(set(target.prompts)) == 4


def test_decode_runs_have_a_mean_context_of_the_point() -> None:
    target = ScriptedTarget(stagger=1)
    assert run(target, DECODE) == pytest.approx((0.01, 0.01, 0.01))
    for prompt_tokens, output_tokens in target.asked:
        assert abs(prompt_tokens + output_tokens / 2 - DECODE.tokens) <= 0.5


def test_outputs_are_as_long_as_the_warm_up_shows_to_be_needed() -> None:
    target = ScriptedTarget(stagger=20)
    run(target, DECODE)
    assert target.asked[0][1] == DECODE.output_tokens
    assert target.asked[-1][1] == 7 * 20 + WINDOW_TOKENS


def test_a_prefix_cache_spares_the_prefills_of_the_runs_that_count() -> None:
    target = ScriptedTarget(stagger=20, caches=True)
    run(target, DECODE)
    assert len({prompt[:300] for prompt in target.prompts}) == DECODE.batch
    assert target.asked[-1][1] == WINDOW_TOKENS


def test_what_never_fits_is_said() -> None:
    with pytest.raises(UnmeasurableError, match="too long"):
        run(ScriptedTarget(most=100), DECODE)


def test_an_engine_that_fails_ends_it() -> None:
    target = ScriptedTarget()
    target.fails_after = 10
    with pytest.raises(TargetError, match="the engine died"):
        run(target, DECODE)
