"""vLLM's KV events as the gateway's prefix blocks: against a plain model, and out of order."""

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_apps.engines.vllm.cached_blocks import LEAST_BLOCKS, CachedBlocks, CannotFollow
from serve_apps.engines.vllm.kv_events import EventBook
from serve_apps.gateway.prompts import prefix_blocks

KEY = 8
"""Tokens of a key, so that few tokens have many."""


@dataclass
class Engine:
    """A prefix cache as vLLM has it, copies included, that may drop any block; and what it says of it."""

    size: int
    cache: CachedBlocks
    copies: Counter[tuple[int, ...]] = field(default_factory=Counter)
    prompts: set[tuple[int, ...]] = field(default_factory=set)

    def names(self, prompt: tuple[int, ...]) -> list[tuple[int, ...]]:
        """A block's name is all up to its end."""
        return [prompt[:end] for end in range(self.size, len(prompt) + 1, self.size)]

    def store(self, prompt: tuple[int, ...], from_block: int) -> None:
        """Blocks from there on; those before it must be there, as in vLLM."""
        names = self.names(prompt)
        while from_block and not self.copies[names[from_block - 1]]:
            from_block -= 1
        new = names[from_block:]
        if new:
            self.prompts.add(prompt)
            self.copies.update(new)
            parent = names[from_block - 1] if from_block else None
            self.cache.stored(new, parent, prompt[from_block * self.size : len(names) * self.size], self.size)

    def remove(self, name: tuple[int, ...]) -> None:
        self.copies[name] -= 1
        self.cache.removed([name])

    def held(self) -> set[int]:
        """Keys all of whose blocks are there, on the way of any prompt."""
        found = set()
        for prompt in self.prompts:
            names = self.names(prompt)
            whole = prompt[: len(names) * self.size]
            for place, key in enumerate(prefix_blocks(whole, KEY)):
                first, last = place * KEY // self.size, ((place + 1) * KEY - 1) // self.size
                if all(self.copies[name] > 0 for name in names[first : last + 1]):
                    found.add(key)
        return found


# Few prompts, which part early or late: they share blocks, and come and go often.
PROMPTS = st.builds(
    lambda parting, length: tuple([1] * parting + [2] * (length - parting)),
    st.sampled_from([0, 9, 22]),
    st.sampled_from([25, 40]),
)
STEPS = st.lists(st.tuples(st.booleans(), PROMPTS, st.integers(0, 1000)), max_size=50)


@given(size=st.sampled_from([1, 2, 3, 4, 5, 8, 12, 16, 20]), steps=STEPS, readers=st.data())
def test_keys_are_those_whose_blocks_are_all_there(size: int, steps: Any, readers: Any) -> None:
    engine = Engine(size, CachedBlocks(1000, size, KEY))
    seen: dict[int, set[int]] = {0: set()}
    for stores, prompt, number in steps:
        present = sorted(+engine.copies)
        if stores or not present:
            engine.store(prompt, number % (len(prompt) // size + 1) if len(prompt) >= size else 0)
        else:
            engine.remove(present[number % len(present)])
        engine.cache.tick()
        held = engine.held()
        assert set(engine.cache.since(None).held) == held
        seen[engine.cache.sequence] = held
    since = readers.draw(st.sampled_from(sorted(seen)))
    news = engine.cache.since(since)
    # From any state since then it leads to the same: who is told twice loses nothing.
    for state in (before for sequence, before in seen.items() if sequence >= since):
        assert (state | set(news.held)) - set(news.dropped) == engine.held()
    for name in engine.copies.elements():
        engine.cache.removed([name])
    assert (len(engine.cache), len(engine.cache._blocks)) == (0, 0)


def test_keys_are_the_gateways_of_prompt_and_output_and_of_an_adapter() -> None:
    cache, prompt = CachedBlocks(1000, 16), [*range(2000)]
    cache.stored([*range(64)], None, prompt[:1024], 16)
    assert all(key in cache for key in prefix_blocks(prompt[:1024], 512))
    for number in range(64, 125):  # an output: a block at a time
        cache.stored([number], number - 1, prompt[16 * number : 16 * number + 16], 16)
    assert [key in cache for key in prefix_blocks(prompt, 512)] == [True, True, True]
    assert not any(key in cache for key in prefix_blocks(prompt, 512, "loud"))
    cache.stored([*range(200, 264)], None, prompt[:1024], 16, adapter="loud")
    assert all(key in cache for key in prefix_blocks(prompt[:1024], 512, "loud"))


def test_what_is_asked_too_late_is_answered_in_full() -> None:
    cache = CachedBlocks(4000, KEY, KEY)
    for number in range(3000):
        cache.stored([number], None, [number] * KEY, KEY)
        cache.tick()
        if number >= 10:
            cache.removed([number - 10])
    cache.tick()
    assert cache.since(5).since is None
    assert len(cache.since(5).held) == len(cache) == 10
    assert cache.since(cache.sequence + 1).since is None
    assert cache.since(cache.sequence - 1).since == cache.sequence - 1


def event(kind: str, **fields: Any) -> object:
    defaults = {"group_idx": 0, "medium": "GPU"}
    if kind == "BlockStored":
        defaults |= {"parent_block_hash": None, "block_size": KEY, "lora_name": None, "extra_keys": None}
    return type(kind, (SimpleNamespace,), {})(**{**defaults, **fields})


def stored(name: int, token: int = 1, **fields: Any) -> object:
    return event("BlockStored", block_hashes=[name], token_ids=[token] * KEY, **fields)


CLEARED = event("AllBlocksCleared")


def book() -> EventBook:
    return EventBook(CachedBlocks(100, KEY, KEY))


def test_batches_are_taken_once_and_in_order() -> None:
    read = book()
    assert read.take(0, [stored(1)])
    assert read.take(0, [event("BlockRemoved", block_hashes=[1])])
    assert len(read.cache) == 1
    assert not read.take(2, [stored(2, 2)])
    assert read.take(1, [])
    assert read.take(2, [stored(2, 2)])
    assert (len(read.cache), read.sequence) == (2, 2)


def test_what_is_lost_for_good_leaves_the_cache_unknown_until_it_is_cleared() -> None:
    read = book()
    read.take(0, [stored(1)])
    read.skip_to(5)
    assert (read.sequence, read.since(None)) == (None, None)
    read.take(5, [stored(2, 2), event("BlockRemoved", block_hashes=[1])])
    assert read.sequence is None
    read.take(6, [CLEARED, stored(3, 3)])
    assert read.sequence is not None
    assert read.sequence > 1
    everything = read.since(None)
    assert everything is not None
    assert len(everything.held) == 1
    # Who knew the first state hears that it is gone.
    changed = read.since(1)
    assert changed is not None
    assert set(changed.held) == set(everything.held)
    assert len(changed.dropped) == 1


@pytest.mark.parametrize(
    "odd",
    [
        event("BlockStored", block_hashes=[1], token_ids=[1] * (KEY + 1)),
        event("BlockStored", block_hashes=[], token_ids=[1] * KEY),
        event("BlockStored", block_hashes=[1], token_ids=[-1] * KEY),
        event("BlockStored", block_hashes=[1], token_ids=[1 << 40] * KEY),
        event("BlockStored", block_hashes=[1], token_ids=[], block_size=0),
        event(
            "BlockStored",
            block_hashes=[*range(2 * LEAST_BLOCKS)],
            token_ids=[*range(2 * LEAST_BLOCKS * KEY)],
        ),
    ],
)
def test_what_cannot_be_understood_leaves_the_cache_unknown(odd: object) -> None:
    read = book()
    assert read.take(0, [stored(1), odd, stored(2, 2)])
    assert (read.sequence, len(read.cache), len(read.cache._blocks)) == (None, 0, 0)


def test_what_other_places_and_other_hashes_hold_is_not_ours() -> None:
    read = book()
    read.take(
        0,
        [
            stored(1, medium="CPU"),
            stored(2, group_idx=1),
            stored(3, extra_keys=[("salt",)]),
            stored(4, 4, parent_block_hash=3),
            stored(5, 5, parent_block_hash=77),
            event("BlockRemoved", block_hashes=[3, 99]),
        ],
    )
    assert (read.sequence, len(read.cache)) == (0, 0)
    read.take(1, [stored(6, lora_name="loud", extra_keys=[("loud",)])])
    assert prefix_blocks([1] * KEY, KEY, "loud")[0] in read.cache


def test_a_size_that_is_no_size_is_refused() -> None:
    with pytest.raises(CannotFollow, match="1 blocks of 0 tokens"):
        CachedBlocks(10, 16).stored([1], None, [], 0)
