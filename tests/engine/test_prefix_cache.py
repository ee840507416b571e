"""The live replica's prefix cache by itself; test_live_engine.py holds its hits against the kernel's."""

import pytest

from headway.engine.live_batch import PrefixCache


def cache_of(capacity: int, *prompts: list[int]) -> PrefixCache:
    cache = PrefixCache(capacity, block_tokens=10)
    for prompt in prompts:
        cache.insert(prompt)
    return cache


@pytest.mark.parametrize(
    ("blocks", "tokens", "cached"),
    [
        ([1, 2, 3], 35, 30),
        ([1, 2, 9], 35, 20),
        ([9, 2, 3], 35, 0),
        ([1, 2, 3], 30, 29),
        ([1], 1, 0),
        ([], 35, 0),
    ],
)
def test_the_leading_run_counts_and_one_token_is_computed(blocks, tokens, cached):
    assert cache_of(5, [1, 2, 3]).cached_tokens(blocks, tokens) == cached


def test_use_keeps_a_prompt_and_a_look_up_does_not():
    cache = cache_of(4, [1, 2], [7, 8])
    cache.cached_tokens([1, 2], 99)
    cache.insert([5, 6])
    assert [cache.cached_tokens(prompt, 99) for prompt in ([1, 2], [7, 8], [5, 6])] == [0, 20, 20]
    cache.insert([7, 8])
    cache.insert([9])
    assert [cache.cached_tokens(prompt, 99) for prompt in ([7, 8], [5, 6], [9])] == [20, 10, 10]
