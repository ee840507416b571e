"""What all surfaces' questions have in common: scalars, arrays, NaN, and what is refused."""

from typing import Any

import numpy as np
import pytest
from interp_cases import grid_profile

from interp import InterpError

PROFILE = grid_profile()
PREFILL, DECODE = PROFILE.prefill, PROFILE.decode
QUESTIONS = {
    "ttft_s": PREFILL.ttft_s,
    "prefill throughput": PREFILL.throughput_per_gpu,
    "itl_s": lambda context: DECODE.itl_s(0.5, context),
    "decode throughput": lambda context: DECODE.throughput_per_gpu(0.5, context),
    "domain_end_kv": DECODE.domain_end_kv,
    "best throughput": lambda context: DECODE.best_throughput_per_gpu(0.02, context).throughput_per_gpu,
}
"""By the tokens of a prompt or of a context."""
FLAGS = {
    "prefill extrapolated": PREFILL.extrapolated,
    "decode extrapolated": lambda context: DECODE.extrapolated(0.5, context),
    "best feasible": lambda context: DECODE.best_throughput_per_gpu(0.02, context).feasible,
}


@pytest.mark.parametrize("name", [*QUESTIONS, *FLAGS])
def test_scalars_give_scalars_and_arrays_keep_their_shape(name: str) -> None:
    ask, kind = (QUESTIONS[name], float) if name in QUESTIONS else (FLAGS[name], bool)
    assert isinstance(ask(300), kind)
    assert isinstance(ask(np.float64(300)), kind)
    many: Any = ask(np.full((2, 3), 300))
    assert many.shape == (2, 3)
    assert (many == ask(300)).all()
    assert ask(np.array([])).shape == (0,)


def test_decode_questions_broadcast() -> None:
    usages, contexts = np.array([[0.1], [0.2]]), np.array([256, 512, 1024])
    assert DECODE.itl_s(usages, contexts)[1, 2] == DECODE.itl_s(0.2, 1024)
    best = DECODE.best_throughput_per_gpu(np.array([[0.02], [0.04]]), contexts)
    one = DECODE.best_throughput_per_gpu(0.02, 1024)
    assert best.itl_s.shape == best.feasible.shape == (2, 3)
    assert best.throughput_per_gpu[0, 2] == one.throughput_per_gpu
    with pytest.raises(InterpError, match=r"kv_usage \(2,\), context_tokens \(3,\)"):
        DECODE.itl_s(np.zeros(2), np.ones(3))


@pytest.mark.parametrize("name", QUESTIONS)
def test_nan_gives_nan(name: str) -> None:
    assert np.isnan(QUESTIONS[name](float("nan")))
    assert np.isnan(QUESTIONS[name](np.array([np.nan, 300.0]))).tolist() == [True, False]


def test_a_nan_of_the_other_axis_gives_nan_and_is_not_feasible() -> None:
    assert np.isnan(DECODE.itl_s(np.nan, 1024))
    assert np.isnan(DECODE.throughput_per_gpu(np.nan, 1024))
    best = DECODE.best_throughput_per_gpu(np.array([np.nan, 0.02]), np.array([256, np.nan]))
    assert np.isnan([best.throughput_per_gpu, best.itl_s, best.kv_usage]).all()
    assert not best.feasible.any()
    assert best.extrapolated.all()


@pytest.mark.parametrize("tokens", [0, -1.0, float("inf"), np.array([300.0, 0.0]), [[300], [-2]]])
@pytest.mark.parametrize("name", [*QUESTIONS, *FLAGS])
def test_tokens_that_are_not_positive_are_refused_by_name(tokens: Any, name: str) -> None:
    with pytest.raises(InterpError, match=r"(isl|context)_tokens: must be positive and finite"):
        (QUESTIONS | FLAGS)[name](tokens)


def test_what_is_not_a_number_is_refused_by_name() -> None:
    with pytest.raises(InterpError, match="isl_tokens: expected a number"):
        PREFILL.ttft_s("many")  # type: ignore[call-overload]
