"""Items come out by key whatever was withdrawn, and pushed again, before."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from headway.routing.fleet.records import LazyHeap
from tests.memory import grown_bytes

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 9).map(float)), max_size=60)


@given(STEPS)
def test_the_first_is_the_least_of_those_that_live(steps: list[tuple[bool, int, float]]) -> None:
    """A sequence that was withdrawn may come again with another key: its former key counts no more."""
    heap, plain = LazyHeap[str](), dict[int, float]()
    for comes, sequence, key in steps:
        heap.discard(sequence)
        plain.pop(sequence, None)
        if comes:
            heap.push(key, sequence, f"{sequence} at {key}")
            plain[sequence] = key
        assert heap.least == min(plain.values(), default=inf)
        assert list(heap) == [f"{one} at {key}" for one, key in plain.items()]
    in_order = sorted((key, one) for one, key in plain.items())
    assert [heap.pop() for _ in plain] == [f"{one} at {key}" for key, one in in_order]
    assert heap.least == inf


def test_what_was_withdrawn_takes_no_memory() -> None:
    heap = LazyHeap[None]()
    heap.push(0.0, 0, None)

    def come_and_go() -> None:
        for number in range(1, 5000):
            heap.push(float(number), number, None)
            heap.discard(number)

    assert grown_bytes(come_and_go) < 10_000
