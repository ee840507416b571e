"""Replicas that know a request already: by the prefix blocks of its prompt, and by its conversation.

Engines keep computed blocks in an LRU cache. `PrefixIndex` is the same cache without the engine: blocks are
entered when a prompt is placed, because what is queued ahead on a replica, in order, is there by the time
that a later prompt starts; the first block of a prompt is the most recent, so that tails go first. What an
engine drops for other reasons stays until it ages out.

The index is inverted: block → replicas as bits of one integer, so that all replicas are matched at once: the
replicas that hold blocks 0..i are the AND of i + 1 integers, whatever the size of the fleet.
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headway.routing.records import Replica

MOST_TOKENS = 1 << 62
"""No bound."""

FEW = 6
"""Bits of a mask that are listed one by one; more are unpacked at once."""


class PrefixIndex:
    """Estimated caches of all replicas, by slot. `capacity_blocks` 0: none caches anything."""

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity = capacity_blocks
        self._holders: dict[int, int] = {}
        self._caches: dict[int, OrderedDict[int, None]] = {}

    def __len__(self) -> int:
        """Blocks that any replica holds."""
        return len(self._holders)

    def insert(self, slot: int, blocks: Sequence[int]) -> None:
        """The replica computes or received a prompt of these blocks."""
        if not self._capacity:
            return
        cache, holders, bit = self._caches.setdefault(slot, OrderedDict()), self._holders, 1 << slot
        # The last block first, so that the first one is the most recent and outlives its followers.
        for block in reversed(blocks):
            if block in cache:
                cache.move_to_end(block)
                continue
            cache[block] = None
            holders[block] = holders.get(block, 0) | bit
            if len(cache) > self._capacity:
                self._drop(cache.popitem(last=False)[0], bit)

    def forget(self, slot: int) -> None:
        """The replica is gone."""
        for block in self._caches.pop(slot, ()):
            self._drop(block, 1 << slot)

    def run_at(self, slot: int, blocks: Sequence[int]) -> int:
        """Leading blocks that one replica holds."""
        cache = self._caches.get(slot)
        if cache is None:
            return 0
        for place, block in enumerate(blocks):
            if block not in cache:
                return place
        return len(blocks)

    def runs(
        self, blocks: Sequence[int], slots: int, block_tokens: int = 1, most: int = MOST_TOKENS
    ) -> NDArray[np.float64] | None:
        """Tokens of leading blocks that each of `slots` replicas holds, at most `most`, f8[slots].

        Blocks instead of tokens by default; None if none holds any.
        """
        if not blocks:
            return None
        holders = self._holders
        mask = holders.get(blocks[0], 0)
        if not mask:
            return None
        runs = np.zeros(slots)
        length = 1
        for block in blocks[1:]:
            still = mask & holders.get(block, 0)
            if still != mask:
                _assign(runs, mask & ~still, min(length * block_tokens, most))
                mask = still
                if not mask:
                    return runs
            length += 1
        _assign(runs, mask, min(length * block_tokens, most))
        return runs

    def _drop(self, block: int, bit: int) -> None:
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]


def _assign(runs: NDArray[np.float64], mask: int, tokens: int) -> None:
    """Set the run of all replicas in `mask`."""
    if mask.bit_count() <= FEW:
        while mask:
            lowest = mask & -mask
            runs[lowest.bit_length() - 1] = tokens
            mask ^= lowest
        return
    packed = np.frombuffer(mask.to_bytes((len(runs) + 7) // 8, "little"), dtype=np.uint8)
    runs[np.unpackbits(packed, count=len(runs), bitorder="little").view(np.bool_)] = tokens


MOST_SESSIONS = 100_000


class Sessions:
    """The latest (prefill, decode) replicas of each session."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._homes: OrderedDict[str, tuple[Replica, Replica]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def home(self, session: str | None) -> tuple[Replica, Replica] | None:
        """The replicas of a session's latest request, GONE ones included; None for a new one."""
        return None if session is None else self._homes.get(session)

    def placed(self, session: str | None, prefill: Replica, decode: Replica) -> None:
        """A request of the session goes there."""
        if session is None:
            return
        self._homes[session] = (prefill, decode)
        self._homes.move_to_end(session)
        if len(self._homes) > self._most:
            self._homes.popitem(last=False)
