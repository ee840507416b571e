"""The live replica's prefix cache by itself; test_live_engine.py holds its hits against the kernel's."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_a_prompt_loses_its_tail_first():
    cache = cache_of(4, [1, 2, 3], [7, 8])
    assert cache.cached_tokens([1, 2, 3], 99) == 20
    assert cache.cached_tokens([7, 8], 99) == 20


def test_use_keeps_a_prompt_and_a_look_up_does_not():
    cache = cache_of(4, [1, 2], [7, 8])
    cache.cached_tokens([1, 2], 99)
    cache.insert([5, 6])
    assert [cache.cached_tokens(prompt, 99) for prompt in ([1, 2], [7, 8], [5, 6])] == [0, 20, 20]
    cache.insert([7, 8])
    cache.insert([9])
    assert [cache.cached_tokens(prompt, 99) for prompt in ([7, 8], [5, 6], [9])] == [20, 10, 10]


def test_of_a_prompt_beyond_the_capacity_the_head_stays():
    cache = cache_of(2, [1, 2, 3, 4])
    assert (len(cache), cache.cached_tokens([1, 2, 3, 4], 99)) == (2, 20)


def test_without_capacity_nothing_is_kept():
    cache = cache_of(0, [1, 2])
    assert (len(cache), cache.cached_tokens([1, 2], 99)) == (0, 0)


@given(
    capacity=st.integers(1, 6),
    prompts=st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=5), max_size=12),
)
def test_the_most_recently_used_blocks_are_there(capacity, prompts):
    cache, used = cache_of(capacity, *prompts), OrderedDict[int, None]()
    for key in (key for prompt in prompts for key in reversed(prompt)):
        used[key] = None
        used.move_to_end(key)
    there = {key for key in range(9) if cache.cached_tokens([key], 99)}
    assert there == set(list(used)[-capacity:])
