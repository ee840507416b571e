"""What simulated engines say: words that mean nothing, and that it is simulated.

The first token is " [simulated]", every other one a word with a space before it. Token i is a hash of prompt,
seed and i, so the same request says the same on every replica, from any token on.
"""

from collections.abc import Sequence
from hashlib import blake2b

FIRST = " [simulated]"

WORDS = (
    *("amber", "anchor", "apple", "arrow", "autumn", "basket", "beacon", "birch", "blue", "bread", "bridge"),
    *("candle", "canyon", "cedar", "circle", "clay", "cloud", "copper", "coral", "cotton", "delta", "dune"),
    *("ember", "fern", "field", "flint", "forest", "garden", "ginger", "glass", "granite", "green", "harbor"),
    *("hazel", "island", "ivory", "jasper", "juniper", "kettle", "ladder", "lantern", "lemon", "linen"),
    *("maple", "marble", "meadow", "mirror", "north", "oak", "ocean", "olive", "orchard", "paper", "pebble"),
    *("pepper", "pine", "planet", "quartz", "river", "saddle", "silver", "stone", "violet", "willow"),
)

_MASK = 2**64 - 1
_STEP, _MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9


class SimulatedText:
    """The output of one request, as long as anyone likes."""

    __slots__ = ("_start",)

    def __init__(self, prompt: str | Sequence[int], seed: object = None) -> None:
        kind, body = ("text", prompt) if isinstance(prompt, str) else ("ids", " ".join(map(str, prompt)))
        said = f"{kind}\0{seed}\0{body}".encode("utf-8", "surrogatepass")
        self._start = int.from_bytes(blake2b(said, digest_size=8).digest(), "little")

    def tokens(self, start: int, stop: int) -> str:
        """The text of tokens `start` to `stop`, the latter left out."""
        return "".join(map(self._token, range(start, stop)))

    def _token(self, index: int) -> str:
        if index == 0:
            return FIRST
        mixed = (self._start + index * _STEP) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * _MIX) & _MASK
        return " " + WORDS[(mixed >> 32) % len(WORDS)]
