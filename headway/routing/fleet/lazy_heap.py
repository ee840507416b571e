"""A heap whose items can be withdrawn: by lazy deletion with bounded garbage.

Keys are (key, sequence); sequences are unique, so equal keys come out in the order of their sequences. A
withdrawn item's key stays in the heap until it reaches the top, or until more than half of the heap is such
garbage: then the heap is rebuilt from what lives. A rebuild of m keys follows at least m / 2 withdrawals, so
push and discard cost O(log n) amortised, and the heap never holds more than 2 n + SLACK keys.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item")

SLACK = 16
"""Keys of withdrawn items that are never worth a rebuild."""


class LazyHeap(Generic[Item]):
    """Items in ascending (key, sequence)."""

    __slots__ = ("_heap", "_items")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._items: dict[int, tuple[tuple[float, int], Item]] = {}
        """Each with its own key of the heap: one that is pushed again leaves its former key behind."""

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._items

    def __iter__(self) -> Iterator[Item]:
        """The items in the order of pushing."""
        return (item for _, item in self._items.values())

    def rekey(self, key: Callable[[Item], float]) -> None:
        """Put all items in the order of other keys."""
        self._items = {sequence: ((key(item), sequence), item) for sequence, (_, item) in self._items.items()}
        self._rebuild()

    def push(self, key: float, sequence: int, item: Item) -> None:
        """Add `item`; no living item has this sequence."""
        keyed = key, sequence
        heappush(self._heap, keyed)
        self._items[sequence] = keyed, item

    def discard(self, sequence: int) -> None:
        """Withdraw the item of this sequence, if there is one."""
        if self._items.pop(sequence, None) is None:
            return
        if self._heap[0][1] == sequence:
            heappop(self._heap)
        elif len(self._heap) > 2 * len(self._items) + SLACK:
            self._rebuild()

    def first(self) -> tuple[float, int] | None:
        """The least key and its sequence; None when empty."""
        heap, items = self._heap, self._items
        while heap:
            found = items.get(heap[0][1])
            if found is not None and found[0] is heap[0]:
                return heap[0]
            heappop(heap)
        return None

    @property
    def youngest(self) -> int:
        """The sequence of the item that was pushed last; there is one."""
        return next(reversed(self._items))

    def item(self, sequence: int) -> Item:
        """The living item of a sequence; KeyError without one."""
        return self._items[sequence][1]

    def _rebuild(self) -> None:
        self._heap = [keyed for keyed, _ in self._items.values()]
        heapify(self._heap)
