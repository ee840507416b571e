"""Prompts of generated load: shared prefixes, and conversations that grow.

A prompt is one of `prefixes` prefixes of
`prefix_tokens`, then the earlier turns of its conversation (their prompts and answers), then `input_tokens`
of its own. The k-th prefix is chosen with weight k^−z, z being `prefix_zipf`: 0 makes all alike. A
conversation keeps its prefix.

Of a load with `turns` n each request begins a conversation with probability 1/n, or else takes up, of those
that have rested for `turn_gap_s`, the one that has rested longest; where none has, it also begins one. A
conversation ends with its n-th turn. Arrivals are thereby those of the shape, whatever the turns.

Prompts are told as prefix blocks of BLOCK_TOKENS as in Mooncake's traces: a block's id stands for its tokens
and all before it, so a prompt's blocks are those of its prefix, those of earlier turns as far as they were
full, and new ones. The last one counts as new until it is full; so does a prefix's rest beyond whole blocks.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.workload.spool import Records
from headway.workload.text import BLOCK_TOKENS, MAX_TOKENS

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """Keys of all shapes: by default prompts share nothing."""

    prefixes: int = 0
    prefix_tokens: int = 2048
    prefix_zipf: float = 0.0
    turns: int = 1
    turn_gap_s: float = 10.0

    @property
    def shares(self) -> bool:
        """True if a prompt may have a part in common with another."""
        return self.prefixes > 0 or self.turns > 1

    @property
    def prefix_blocks(self) -> int:
        """Whole blocks of a prefix."""
        return self.prefix_tokens // BLOCK_TOKENS if self.prefixes else 0


@dataclass(slots=True)
class Conversation:
    """Its prompt so far, the answer included: `blocks` are the full ones of the last prompt."""

    prefix: int
    tokens: int
    blocks: Ids
    turns: int = 0
    rested_s: float = 0.0


class SharedPrompts:
    """Makes the prompts of consecutive requests."""

    def __init__(self, settings: PromptSettings, generator: np.random.Generator) -> None:
        self._settings, self._generator = settings, generator
        weights = np.arange(1, max(1, settings.prefixes) + 1) ** -settings.prefix_zipf
        self._until = np.cumsum(weights / weights.sum())[:-1]
        self._next_block = settings.prefixes * settings.prefix_blocks
        self._written = 0
        self._resting: deque[Conversation] = deque()

    def complete(self, records: Records) -> tuple[Records, Ids]:
        """The records with whole prompts, and the blocks of these; nothing is drawn where none is shared."""
        if not self._settings.shares:
            return records, np.empty(0, np.int64)
        starts, drawn = self._generator.random((2, len(records)))
        prefixes = np.searchsorted(self._until, drawn, side="right")
        found: list[Ids] = []
        for row, begins, prefix in zip(records, starts, prefixes.tolist(), strict=True):
            conversation = self._taken(float(row["arrival_s"]), begins, prefix)
            blocks = self._asked(conversation, row)
            row["block_start"], row["block_count"] = self._written, len(blocks)
            self._written += len(blocks)
            found.append(blocks)
        return records, np.concatenate(found) if found else np.empty(0, np.int64)

    def _taken(self, now_s: float, drawn: float, prefix: int) -> Conversation:
        """The conversation that a request belongs to."""
        resting, settings = self._resting, self._settings
        if resting and drawn * settings.turns >= 1.0 and resting[0].rested_s <= now_s:
            return resting.popleft()
        shared, whole = (settings.prefix_tokens if settings.prefixes else 0), settings.prefix_blocks
        return Conversation(
            prefix=prefix, tokens=shared, blocks=np.arange(prefix * whole, (prefix + 1) * whole)
        )

    def _asked(self, conversation: Conversation, row: np.void) -> Ids:
        """The blocks of the next prompt, which becomes the record's."""
        tokens = min(conversation.tokens + int(row["input_tokens"]), MAX_TOKENS)
        known, full = conversation.blocks, tokens // BLOCK_TOKENS
        fresh = -(-tokens // BLOCK_TOKENS) - len(known)
        blocks = np.concatenate([known, np.arange(self._next_block, self._next_block + fresh)])
        self._next_block += fresh
        row["input_tokens"] = tokens
        conversation.turns += 1
        if conversation.turns < self._settings.turns:
            conversation.blocks = blocks[:full]
            conversation.tokens = tokens + int(row["output_tokens"])
            conversation.rested_s = float(row["arrival_s"]) + self._settings.turn_gap_s
            self._resting.append(conversation)
        return blocks
