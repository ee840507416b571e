"""Which replicas find room on nodes, against every way to place them."""

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.planning import PoolLimits, Role
from headway.planning.deciding import fit
from headway.planning.placement import (
    EVERY,
    GPU,
    Layout,
    Node,
    OnNode,
    Placement,
    free_words,
    placed,
    take,
)

MIXED, PREFILL, DECODE = Role.MIXED, Role.PREFILL, Role.DECODE
SIZES = (1, 2, 4)


def gpus(count: float) -> dict[str, float]:
    return {GPU: float(count)}


def nodes(*free: float) -> Sequence[Node]:
    return [Node(name=f"n{at}", has=gpus(8), free=gpus(count)) for at, count in enumerate(free)]


def on(node: str, count: float = 1, *, draining: bool = False) -> OnNode:
    return OnNode(role=MIXED, node=node, needs=gpus(count), draining=draining)


def can_be_placed(sizes: Sequence[int], free: Sequence[int]) -> bool:
    """By trying every node for each."""
    for places in product(range(len(free)), repeat=len(sizes)):
        left = list(free)
        for size, place in zip(sizes, places, strict=True):
            left[place] -= size
        if min(left, default=0) >= 0:
            return True
    return not sizes


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=3),
    st.lists(st.sampled_from(SIZES), max_size=5),
    st.sampled_from(SIZES),
)
def test_of_sizes_that_divide_each_other_as_many_find_room_as_can(
    free: list[int], before: list[int], size: int
) -> None:
    rooms = [gpus(count) for count in free]
    fitted = [take(gpus(each), rooms) for each in sorted(before, reverse=True)]
    assert all(fitted) == can_be_placed(before, free)
    left = [int(room[GPU]) for room in rooms]
    assert all(count >= 0 for count in left)
    found = placed({MIXED: 50}, {MIXED: 2}, {MIXED: gpus(size)}, rooms)
    assert found.most == {MIXED: 2 + sum(count // size for count in left)}


@given(st.lists(st.integers(0, 8), min_size=1, max_size=3), st.integers(0, 3), st.integers(0, 3))
def test_pools_of_one_deployment_find_room_together(free: list[int], prefill: int, decode: int) -> None:
    wanted, needs = {PREFILL: prefill, DECODE: decode}, {PREFILL: gpus(1), DECODE: gpus(4)}
    found = placed(wanted, {}, needs, [gpus(count) for count in free])
    assert (not found.most) == can_be_placed([4] * decode + [1] * prefill, free)
    counts = {**wanted, **found.most}
    assert can_be_placed([4] * counts[DECODE] + [1] * counts[PREFILL], free)


def test_what_finds_none_is_said() -> None:
    found = placed({MIXED: 3}, {MIXED: 2}, {MIXED: gpus(4)}, [gpus(count) for count in (3, 2, 1, 1)])
    assert found == Placement(
        most={MIXED: 2},
        words="1 of 3 replicas wanted fits no node: 4 GPUs on one node needed, most free is 3; "
        "7 are free in all",
    )
    assert placed({MIXED: 3}, {MIXED: 2}, {MIXED: gpus(4)}, [gpus(3), gpus(4)]) == EVERY
    needs = {PREFILL: gpus(1), DECODE: {GPU: 1.0, "accelerator_type:L20": 0.001}}
    found = placed({PREFILL: 1, DECODE: 2}, {}, needs, [gpus(8)])
    assert found.words.startswith("2 of 2 decode replicas wanted fit no node: 1 GPU on one node needed")
    needs = {MIXED: {GPU: 1.0, "CPU": 4.0}}
    found = placed({MIXED: 1}, {}, needs, [{GPU: 8.0, "CPU": 2.0}])
    assert found.words.endswith("most free is 0; 0 are free in all")


def test_of_a_pool_without_needs_nothing_is_said() -> None:
    assert placed({MIXED: 9}, {}, {}, [gpus(0)]) == EVERY


@pytest.mark.parametrize(
    ("free", "words"),
    [
        ((), ""),
        ((0,), "0 GPUs free, at most 0 on a node"),
        ((3, 2, 1, 1), "7 GPUs free, at most 3 on a node"),
    ],
)
def test_what_is_free_in_words(free: Sequence[float], words: str) -> None:
    assert free_words(gpus(count) for count in free) == words


def test_what_drains_is_room_and_what_has_no_node_yet_takes_it() -> None:
    layout = Layout(
        nodes=nodes(3, 0),
        replicas={"a": [on("n0", draining=True), on("n1")], "b": [on("", 2), on("gone", 1)]},
    )
    assert layout.rooms() == [gpus(2), gpus(0)]


def test_others_give_up_what_serve_would_stop() -> None:
    """The node with the fewest replicas of all goes first, the head last, whatever is on it."""
    head = Node(name="n0", has=gpus(8), free=gpus(3), head=True)
    layout = Layout(
        nodes=[head, *nodes(9, 2, 1)[1:]],
        replicas={"a": [on("n0"), on("n1"), on("n1"), on("n2")], "b": [on("n2"), on("n2")]},
    )
    assert [room[GPU] for room in layout.rooms({"a": 2})] == [3, 4, 1]
    assert [room[GPU] for room in layout.rooms({"a": 1})] == [3, 4, 2]
    assert [room[GPU] for room in layout.rooms({"a": 0})] == [4, 4, 2]
    assert [room[GPU] for room in layout.rooms({"a": 4, "c": 0})] == [3, 2, 1]


def test_what_waits_for_room_is_given_up_first() -> None:
    layout = Layout(nodes=nodes(2), replicas={"a": [on("n0"), on("")], "b": [on("")]})
    assert [layout.rooms(keep) for keep in ({}, {"a": 1}, {"a": 0})] == [[gpus(0)], [gpus(1)], [gpus(2)]]


def test_limits_bound_a_pool_but_not_below_its_minimum() -> None:
    limits = {MIXED: PoolLimits(min_replicas=2, max_replicas=8, gpus_per_replica=4)}
    found = Placement(most={MIXED: 3}).within(limits)
    assert fit({MIXED: 5}, found, None).limits == ("mixed: room on a node",)
    assert fit({MIXED: 5}, found, None).targets == {MIXED: 3}
    assert Placement(most={MIXED: 0}).within(limits)[MIXED].max_replicas == 2
    assert EVERY.within(limits) == limits


def test_nodes_that_lack_anything_else_have_no_gpus_for_it() -> None:
    typed = Node(name="n9", has={GPU: 4.0, "accelerator_type:L20": 1.0}, free={})
    layout = Layout(nodes=[*nodes(0, 0), typed], replicas={})
    assert layout.gpus(gpus(4)) == 20
    assert layout.gpus({GPU: 1.0, "accelerator_type:L20": 0.001}) == 4
