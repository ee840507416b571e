"""The prefix cache of one vLLM engine by its KV events, in the gateway's prefix blocks. Pure.

vLLM names a block of `size` tokens by a hash that only it can compute, and reports of each one that it caches
which block came before it and what tokens are in it. The gateway's keys are chained over BLOCK_TOKENS = T
tokens at a time (`serve_apps.gateway.prompts`):

    key(i) = blake2b(digest(i − 1), tokens iT .. (i + 1)T)

so each block carries on where its parent ended: the last digest, and the tokens since then, which are the
parents' own. A key belongs to the block in which its last token is. It is held while all blocks are there
that have a token of it:

    open(b)  = b is there, and so is all that the unfinished T tokens at its end began in
    held     = b is there, and it begins a new T, or open(parent)

`size` need not divide T: a block that reaches over the end of a key counts for both. Several blocks may hold
one key, where prompts differ after it; vLLM keeps copies of blocks, too, which it stores and removes one by
one, so both are counted. A key whose predecessors are gone is still held: readers of a prompt's keys in order
stop at the gap. What is not there stays remembered only while blocks of the same T tokens hang below it, so
memory is bounded by the engine's number of blocks.

Blocks with salt, images or embeddings in their hash have no key of the gateway's, nor has what
hangs below them; the same goes for blocks whose parent was never seen.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from hashlib import blake2b

from headway.engine.rules import EngineRules
from headway.routing.types import KnownBlocks

BLOCK_TOKENS = EngineRules().block_tokens
ID_BYTES = array("I").itemsize

LEAST_BLOCKS = 4096
"""Blocks that may be remembered however small the engine is."""

LEAST_CHANGES = 1024
"""Changed keys that are kept for readers that ask what is new, at least; else as many as are held."""


class CannotFollow(Exception):
    """Events of a kind that is not understood: what the cache holds is not known any more."""


class _Block:
    """One block. `copies` 0: it is not there, but others hang below it. `digest` is the last at its end."""

    __slots__ = ("children", "copies", "digest", "held", "keys", "name", "open", "parent", "start", "tokens")

    def __init__(
        self, name: Hashable, parent: "_Block | None", start: int, tokens: bytes, digest: bytes
    ) -> None:
        self.name, self.parent, self.start, self.tokens, self.digest = name, parent, start, tokens, digest
        self.copies, self.open = 0, False
        self.keys: tuple[int, ...] = ()
        self.held: tuple[int, ...] = ()
        self.children: set[_Block] | None = None

    @property
    def end(self) -> int:
        """Tokens up to its end."""
        return self.start + len(self.tokens) // ID_BYTES


class CachedBlocks:
    """The keys that one engine holds, with a number that grows at every change."""

    def __init__(self, engine_blocks: int, block_size: int, key_tokens: int = BLOCK_TOKENS) -> None:
        """An empty cache of an engine with so many blocks."""
        self._key_tokens = key_tokens
        self._most = max(LEAST_BLOCKS, 2 * engine_blocks)
        self._capacity_tokens = engine_blocks * block_size
        self._blocks: dict[Hashable, _Block] = {}
        self._held: dict[int, int] = {}
        self._changes: OrderedDict[int, int] = OrderedDict()
        self._forgotten = 0
        self.sequence = 0

    def __len__(self) -> int:
        """Keys that are held."""
        return len(self._held)

    def __contains__(self, key: int) -> bool:
        return key in self._held

    def stored(
        self,
        names: Sequence[Hashable],
        parent: Hashable | None,
        tokens: Sequence[int],
        size: int,
        *,
        adapter: str = "",
        foreign: Callable[[int], bool] | None = None,
    ) -> None:
        """Blocks are there, one after the other, below `parent`; None: they begin a prompt.

        `foreign(i)`: something else than tokens and adapter is in the hash of the i-th. CannotFollow.
        """
        if size < 1 or len(tokens) != size * len(names):
            raise CannotFollow(f"{len(names)} blocks of {size} tokens have {len(tokens)} tokens")
        before = None if parent is None else self._blocks.get(parent)
        if parent is not None and before is None:
            return
        try:
            data = array("I", tokens).tobytes()
        except (OverflowError, TypeError) as error:
            raise CannotFollow(f"token ids: {error}") from error
        digest, start = (b"ids" + adapter.encode(), 0) if before is None else (before.digest, before.end)
        rest, key_bytes = self._rest(before), ID_BYTES * self._key_tokens
        for place, name in enumerate(names):
            if foreign is not None and foreign(place):
                return
            own = data[ID_BYTES * size * place : ID_BYTES * size * (place + 1)]
            rest += own
            block = self._blocks.get(name)
            if block is None:
                block = self._new(name, before, start, own, digest)
                block.digest, block.keys = _keys(rest, digest, key_bytes)
            digest = block.digest
            del rest[: len(rest) - len(rest) % key_bytes]
            block.copies += 1
            if block.copies == 1:
                self._settle(block)
            before, start = block, start + size

    def removed(self, names: Sequence[Hashable]) -> None:
        """One copy each is gone; of what was never seen, nothing."""
        for name in names:
            block = self._blocks.get(name)
            if block is None or not block.copies:
                continue
            block.copies -= 1
            if not block.copies:
                self._settle(block)
                self._prune(block)

    def cleared(self) -> None:
        """Nothing is there any more."""
        for key in self._held:
            self._touch(key)
        self._blocks.clear()
        self._held.clear()

    def tick(self) -> None:
        """What has changed so far is one step; call it after each batch of events."""
        if self._changes and next(reversed(self._changes.values())) > self.sequence:
            self.sequence += 1
        most = max(LEAST_CHANGES, len(self._held))
        while len(self._changes) > most:
            self._forgotten = self._changes.popitem(last=False)[1]

    def since(self, sequence: int | None) -> KnownBlocks:
        """What changed since then, each key as it is now; all that is held, where that is not known."""
        if sequence is None or not self._forgotten <= sequence <= self.sequence:
            return KnownBlocks(
                sequence=self.sequence, held=tuple(self._held), capacity_tokens=self._capacity_tokens
            )
        held: list[int] = []
        dropped: list[int] = []
        for key, at in reversed(self._changes.items()):
            if at <= sequence:
                break
            (held if key in self._held else dropped).append(key)
        return KnownBlocks(
            sequence=self.sequence,
            since=sequence,
            held=tuple(held),
            dropped=tuple(dropped),
            capacity_tokens=self._capacity_tokens,
        )

    def _rest(self, block: _Block | None) -> bytearray:
        """The tokens at the end of a block that are in no whole key yet."""
        parts: list[bytes] = []
        missing = 0 if block is None else ID_BYTES * (block.end % self._key_tokens)
        while missing and block is not None:
            parts.append(block.tokens[-missing:])
            missing -= len(parts[-1])
            block = block.parent
        return bytearray(b"".join(reversed(parts)))

    def _new(self, name: Hashable, before: _Block | None, start: int, own: bytes, digest: bytes) -> _Block:
        if len(self._blocks) >= self._most:
            raise CannotFollow(f"more than {self._most} blocks are said to be cached")
        # What begins a key does not depend on what came before it.
        parent = before if start % self._key_tokens else None
        block = self._blocks[name] = _Block(name, parent, start, own, digest)
        if parent is not None:
            if parent.children is None:
                parent.children = set()
            parent.children.add(block)
        return block

    def _settle(self, block: _Block) -> None:
        """A block came or went: so do keys, of itself and of those that hang below it."""
        changed = [block]
        while changed:
            each = changed.pop()
            there = each.copies > 0
            begun = there and (each.parent is None or each.parent.open)
            held = each.keys if begun else each.keys[1:] if there else ()
            if held != each.held:
                self._hold(each.held, held)
                each.held = held
            now_open = begun or (there and bool(each.keys))
            if now_open != each.open:
                each.open = now_open
                changed += each.children or ()

    def _hold(self, before: Sequence[int], now: Sequence[int]) -> None:
        for key in now:
            if key not in before:
                count = self._held[key] = self._held.get(key, 0) + 1
                if count == 1:
                    self._touch(key)
        for key in before:
            if key not in now:
                self._held[key] -= 1
                if not self._held[key]:
                    del self._held[key]
                    self._touch(key)

    def _touch(self, key: int) -> None:
        self._changes[key] = self.sequence + 1
        self._changes.move_to_end(key)

    def _prune(self, block: _Block | None) -> None:
        """Forget what is not there and has nothing below it."""
        while block is not None and not block.copies and not block.children:
            del self._blocks[block.name]
            if block.parent is not None and block.parent.children is not None:
                block.parent.children.discard(block)
            block = block.parent


def _keys(data: bytearray, digest: bytes, size: int) -> tuple[bytes, tuple[int, ...]]:
    """The last digest after `data`, and the keys of its whole parts of `size` bytes."""
    keys = []
    for start in range(0, len(data) - size + 1, size):
        digest = blake2b(digest + data[start : start + size], digest_size=8).digest()
        keys.append(int.from_bytes(digest, "little") >> 1)
    return digest, tuple(keys)
