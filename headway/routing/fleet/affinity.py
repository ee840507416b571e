"""Replicas that know a request already: by the prefix blocks of its prompt, and by its conversation.

Engines keep computed blocks in an LRU cache. Of each replica `PrefixIndex` has either of two accounts:

    estimate   the same cache without the engine: blocks are entered when a prompt is placed, because what is
               queued ahead on a replica, in order, is there by the time that a later prompt starts; the first
               block of a prompt is the most recent, so that tails go first. What an engine drops for other
               reasons stays until it ages out
    known      what the engine says that it holds (`KnownBlocks`), and the blocks of prompts that were placed
               since and are not there yet. These are coming until the engine says that it has them; once
               their request has been computed or has left, it has CONFIRM_S to say so, else they are not

A replica is estimated until its engine speaks, and again when it stops to know, or when what it says does not
get here for STALE_S; then the estimate begins with what was known last.

The index is inverted: block → replicas as bits of one integer, so that all replicas are matched at once: the
replicas that hold blocks 0..i are the AND of i + 1 integers, whatever the size of the fleet.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import inf

import numpy as np
from numpy.typing import NDArray

from headway.routing.fleet.records import Replica
from headway.routing.types import KnownBlocks

FEW = 6
"""Bits of a mask that are listed one by one; more are unpacked at once."""


CONFIRM_S = 3.0
"""Seconds for an engine's word to get here: half a second until it is asked, then some calls."""

STALE_S = 10.0
"""Seconds for which what an engine says may be known to be on its way, before it is given up."""

MOST_COMING = 8192
"""Blocks that may be on their way to one replica; the oldest go first."""

SETTLE_S = 1.0
"""Seconds between two looks for what has not come."""

PLACED, ENDED = inf, -inf
"""In place of the time until which a block may come: its request is under way, or has just ended."""


class KnownCache:
    """One replica's blocks by its own account, at `sequence`, and until when others may be `coming`.

    `behind_s`: since when there is news that has not come here; infinite where there is none.
    """

    __slots__ = ("behind_s", "blocks", "coming", "sequence")

    def __init__(self, sequence: int) -> None:
        self.sequence, self.behind_s = sequence, inf
        self.blocks: set[int] = set()
        self.coming: OrderedDict[int, float] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self.blocks or block in self.coming

    def __iter__(self) -> Iterator[int]:
        return chain(self.blocks, self.coming)


class PrefixIndex:
    """The caches of all replicas, by slot. `capacity_blocks` 0: none caches anything but what engines say."""

    def __init__(self, capacity_blocks: int, block_tokens: int = 512) -> None:
        self._capacity, self._block_tokens = capacity_blocks, block_tokens
        self._holders: dict[int, int] = {}
        self._estimated: dict[int, OrderedDict[int, None]] = {}
        self._known: dict[int, KnownCache] = {}
        self._capacities: dict[int, int] = {}
        self._settled_s = -inf
        self._latest: tuple[tuple[Sequence[int], int, int, int], NDArray[np.float64]] | None = None
        """What `runs` was asked last and its answer: one event asks the same several times."""

    def __len__(self) -> int:
        """Blocks that any replica holds."""
        return len(self._holders)

    def source(self, slot: int) -> str:
        """Where the account of this replica comes from: `events`, an `estimate`, or "" without any."""
        if slot in self._known:
            return "events"
        return "estimate" if self._capacity_of(slot) else ""

    def insert(self, slot: int, blocks: Sequence[int]) -> None:
        """The replica is to compute, or to receive, a prompt of these blocks."""
        if slot in self._known:
            self._expect(slot, self._known[slot], blocks)
            return
        capacity = self._capacity_of(slot)
        if not capacity:
            return
        cache, bit = self._estimated.setdefault(slot, OrderedDict()), 1 << slot
        # The last block first, so that the first one is the most recent and outlives its followers.
        for block in reversed(blocks):
            if block in cache:
                cache.move_to_end(block)
                continue
            cache[block] = None
            self._hold(block, bit)
            if len(cache) > capacity:
                self._drop(cache.popitem(last=False)[0], bit)

    def computed(self, slot: int, blocks: Sequence[int]) -> None:
        """The replica has computed a prompt of these blocks, or never will."""
        known = self._known.get(slot)
        if known is not None and known.coming:
            for block in blocks:
                if block in known.coming:
                    known.coming[block] = ENDED

    def forget(self, slot: int) -> None:
        """The replica is gone."""
        self._capacities.pop(slot, None)
        for block in self._known.pop(slot, None) or self._estimated.pop(slot, None) or ():
            self._drop(block, 1 << slot)

    def report(self, slot: int, said: KnownBlocks) -> bool:
        """Take what an engine says; False if it cannot be understood without what it said before.

        Of what is known already, whoever passes it on again, nothing changes.
        """
        known = self._known.get(slot)
        if known is None:
            if said.since is not None:
                return False
            known = self._known[slot] = KnownCache(said.sequence)
            # What was estimated beyond that may still be coming.
            known.coming = OrderedDict.fromkeys(self._estimated.pop(slot, ()), ENDED)
        elif said.sequence <= known.sequence:
            return True
        elif said.since is not None and said.since > known.sequence:
            return False
        # All that it holds is a change, too: from what was known.
        dropped = said.dropped if said.since is not None else known.blocks.difference(said.held)
        self._change(slot, known, said.held, dropped)
        known.sequence, known.behind_s = said.sequence, inf
        if said.capacity_tokens > 0:
            self._capacities[slot] = said.capacity_tokens // self._block_tokens
        return True

    def heard(self, now_s: float, slot: int, sequence: int | None) -> None:
        """The engine is at `sequence` now; None: it does not know its cache."""
        known = self._known.get(slot)
        if known is None:
            return
        if sequence is None:
            self._estimate(slot, known)
        elif sequence <= known.sequence:
            known.behind_s = inf
        else:
            known.behind_s = min(known.behind_s, now_s)

    def settle(self, now_s: float) -> None:
        """Give up what should have come by now: blocks, and what engines were to say."""
        if now_s < self._settled_s + SETTLE_S:
            return
        self._settled_s = now_s
        for slot, known in [*self._known.items()]:
            if now_s >= known.behind_s + STALE_S:
                self._estimate(slot, known)
                continue
            for block, due_s in [*known.coming.items()]:
                if due_s == ENDED:
                    known.coming[block] = now_s + CONFIRM_S
                elif due_s <= now_s:
                    del known.coming[block]
                    self._drop(block, 1 << slot)

    def run_at(self, slot: int, blocks: Sequence[int]) -> int:
        """Leading blocks that one replica holds."""
        cache = self._known.get(slot) or self._estimated.get(slot) or ()
        for place, block in enumerate(blocks):
            if block not in cache:
                return place
        return len(blocks)

    def runs(
        self, blocks: Sequence[int], slots: int, block_tokens: int = 1, most: int = 1 << 62
    ) -> NDArray[np.float64] | None:
        """Tokens of leading blocks that each of `slots` replicas holds, at most `most`, f8[slots].

        Blocks instead of tokens by default; None if none holds any. Not to be written to.
        """
        if not blocks:
            return None
        holders = self._holders
        mask = holders.get(blocks[0], 0)
        if not mask:
            return None
        asked = blocks, slots, block_tokens, most
        if self._latest is not None and self._latest[0][0] is blocks and self._latest[0] == asked:
            return self._latest[1]
        runs = np.zeros(slots)
        self._latest, length = (asked, runs), 1
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

    def _expect(self, slot: int, known: KnownCache, blocks: Sequence[int]) -> None:
        bit, coming = 1 << slot, known.coming
        for block in blocks:
            if block not in known.blocks:
                coming[block] = PLACED
                coming.move_to_end(block)
                self._hold(block, bit)
        while len(coming) > MOST_COMING:
            self._drop(coming.popitem(last=False)[0], bit)

    def _change(self, slot: int, known: KnownCache, held: Iterable[int], dropped: Iterable[int]) -> None:
        bit, blocks, coming = 1 << slot, known.blocks, known.coming
        for block in held:
            coming.pop(block, None)
            if block not in blocks:
                blocks.add(block)
                self._hold(block, bit)
        for block in dropped:
            if block in blocks:
                blocks.remove(block)
                self._drop(block, bit)

    def _estimate(self, slot: int, known: KnownCache) -> None:
        """The engine does not speak any more: estimate from what was known last."""
        del self._known[slot]
        cache = self._estimated[slot] = OrderedDict.fromkeys(known)
        while len(cache) > self._capacity_of(slot):
            self._drop(cache.popitem(last=False)[0], 1 << slot)

    def _capacity_of(self, slot: int) -> int:
        """Blocks that its engine caches: by its own word, or else by the settings."""
        return self._capacities.get(slot, self._capacity)

    def _hold(self, block: int, bit: int) -> None:
        self._latest = None
        self._holders[block] = self._holders.get(block, 0) | bit

    def _drop(self, block: int, bit: int) -> None:
        self._latest = None
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
