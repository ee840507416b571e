"""The prefix cache of one live replica: an LRU of block keys, as the compiled kernel's (`prefix`).

A prompt is a list of block keys, each standing for `block_tokens` tokens and for all before it; what is
cached of it is its longest run of leading blocks that are present. A look-up changes nothing. Remembering a
prompt touches its last block first, so that it loses its tail before its head. Plain Python: a replica's
process should start without a compiler.
"""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """At most `capacity_blocks` blocks; none with a capacity of 0."""

    __slots__ = ("_block_tokens", "_blocks", "_capacity")

    def __init__(self, capacity_blocks: int, block_tokens: int) -> None:
        self._capacity, self._block_tokens = capacity_blocks, block_tokens
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def cached_tokens(self, blocks: Sequence[int], input_tokens: int) -> int:
        """Leading tokens of a prompt that need not be computed; at least one token is."""
        hits = 0
        for key in blocks:
            if key not in self._blocks:
                break
            hits += 1
        return min(hits * self._block_tokens, input_tokens - 1)

    def insert(self, blocks: Sequence[int]) -> None:
        """Remember a prompt; the blocks that were not used for longest make room."""
        if self._capacity == 0:
            return
        for key in reversed(blocks):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
            if len(self._blocks) > self._capacity:
                self._blocks.popitem(last=False)
