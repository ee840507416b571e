"""Prefix caches against an ordered dictionary, and what hits save."""

from collections import OrderedDict

import numpy as np
import pytest

from headway.engine import EngineRules
from headway.planning.types import Role
from tests.simulation.worlds import ArrayTrace, growing_prompts, roofline_profile, run, scenario

BLOCK = 512
PROFILE = roofline_profile(capacity=10**6)
ONE = {Role.PREFILL: 1, Role.DECODE: 1}


def sessions(seed: int, count: int) -> ArrayTrace:
    """Prompts that share prefixes: each extends the prompt of a random earlier one."""
    generator = np.random.default_rng(seed)
    prompts = growing_prompts(generator, count)
    tokens = np.array([len(prompt) * BLOCK - int(generator.integers(0, BLOCK)) for prompt in prompts])
    return ArrayTrace(np.arange(count) * 10.0, tokens, np.full(count, 2), prompts)


def hits_by_dictionary(trace: ArrayTrace, capacity: int) -> list[int]:
    cache: OrderedDict[int, None] = OrderedDict()
    cached = []
    for prompt, tokens in zip(trace.prompts, trace.input_tokens, strict=True):
        leading = next((i for i, block in enumerate(prompt) if block not in cache), len(prompt))
        cached.append(min(leading * BLOCK, int(tokens) - 1))
        for block in reversed(prompt):
            cache[block] = None
            cache.move_to_end(block)
            if len(cache) > capacity:
                cache.popitem(last=False)
    return cached


@pytest.mark.parametrize("capacity", [1, 7, 40, 5000])
def test_hits_equal_an_lru_dictionary(capacity):
    trace = sessions(seed=capacity, count=600)
    engine = EngineRules(prefix_cache_tokens=capacity * BLOCK)
    result, records = run(scenario(PROFILE, ONE, engine=engine), trace)
    expected = hits_by_dictionary(trace, capacity)
    assert records["cached_tokens"].tolist() == expected
    assert result.report().document()["prefix_hit_rate"] == pytest.approx(
        sum(expected) / trace.input_tokens.sum()
    )


def test_cached_tokens_are_not_computed_again():
    trace = ArrayTrace(np.array([0.0, 50.0]), np.array([5120, 5120]), np.array([2, 2]), [list(range(10))] * 2)
    _, records = run(scenario(PROFILE, ONE, engine=EngineRules(prefix_cache_tokens=10**6)), trace)
    service_s = records["prefill_finished_s"] - records["prefill_started_s"]
    assert service_s[0] == pytest.approx(PROFILE.prefill.ttft_s(5120))
    assert records["cached_tokens"].tolist() == [0, 5119]
    assert service_s[1] == pytest.approx(PROFILE.prefill.ttft_s(1))


def test_without_a_cache_nothing_hits():
    _, records = run(scenario(PROFILE, ONE), sessions(seed=1, count=50))
    assert records["cached_tokens"].sum() == 0
