"""What routing must know of engines: how they batch, and what moving KV costs.

The simulator's `EngineRules` are such rules; routing does not import the simulator.
"""

from typing import Protocol


class EngineRulesLike(Protocol):
    """How an engine batches. `chunk_tokens` 0: prompts one at a time, whole."""

    @property
    def max_batch_size(self) -> int:
        """Sequences that decode together at most."""

    @property
    def chunk_tokens(self) -> int:
        """Prompt tokens of one iteration."""

    @property
    def prefix_cache_tokens(self) -> int:
        """Tokens of the prefix cache of one replica, 0 for none."""

    @property
    def block_tokens(self) -> int:
        """Tokens that one prefix block stands for."""

    def transfer_s(self, tokens: int) -> float:
        """Seconds that moving the KV of a prompt of `tokens` takes."""
