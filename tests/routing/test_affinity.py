"""The prefix index against a plain model of it."""

from collections import OrderedDict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headway.routing.fleet.affinity import PrefixIndex

prompts = st.lists(st.integers(0, 12), max_size=6, unique=True).map(tuple)
actions = st.lists(st.tuples(st.integers(0, 20), prompts), max_size=40)


def leading(cache, blocks):
    run = 0
    for block in blocks:
        if block not in cache:
            break
        run += 1
    return run


@given(actions=actions, asked=prompts, forgotten=st.integers(0, 20))
def test_runs_are_those_of_lru_caches(actions, asked, forgotten) -> None:
    index, caches = PrefixIndex(8), {slot: OrderedDict() for slot in range(21)}
    for slot, blocks in actions:
        index.insert(slot, blocks)
        for block in reversed(blocks):
            caches[slot][block] = None
            caches[slot].move_to_end(block)
            if len(caches[slot]) > 8:
                caches[slot].popitem(last=False)
    index.forget(forgotten)
    caches[forgotten].clear()
    runs = index.runs(asked, 64)
    expected = np.zeros(64)
    expected[:21] = [leading(caches[slot], asked) for slot in range(21)]
    assert (np.zeros(64) if runs is None else runs).tolist() == expected.tolist()
    assert [index.run_at(slot, asked) for slot in range(21)] == expected[:21].tolist()
    assert len(index) == len({block for cache in caches.values() for block in cache})


def test_many_replicas_share_a_prefix() -> None:
    index = PrefixIndex(100)
    for slot in range(0, 1000, 2):
        index.insert(slot, (1, 2, 3) if slot % 4 else (1, 2))
    runs = index.runs((1, 2, 3, 4), 1024)
    assert runs is not None
    assert runs[:4].tolist() == [2.0, 0.0, 3.0, 0.0]
    assert runs.sum() == 250 * 2 + 250 * 3
