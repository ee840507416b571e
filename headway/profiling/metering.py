"""What one replica sees of its own latencies while it serves, in a profile's terms.

A profile's TTFT is that of a prompt on an idle engine, its ITL that of a batch that only decodes. Of the
traffic's requests only what was like that counts:

    prefill   a prompt that came to an idle replica, and was computed before anything else came; not one that
              was partly in a prefix cache
    decode    gaps between tokens during which no prompt was computed here. With B requests decoding and c
              tokens of context, each token of a gap says: (gap / its tokens) at B and c

`take` condenses what came since the last call into some reports, so that a busy replica's are as small and
count as much as an idle one's: of prefills the middle one, by time per token, in each half octave; of decode
the means over all tokens. ITL is close to linear in batch and context over what a replica sees in seconds, so
the mean ITL is that of the mean place.

Pure: times are arguments, in seconds of one clock. Memory is bounded by MOST_PROMPTS between two reports.
"""

from collections import deque
from itertools import groupby
from math import inf

from headway.profiling.refinement import Seen, octave
from headway.profiling.sweep.points import Phase

MOST_PROMPTS = 256
LEAST_GAPS = 8
"""Tokens that the mean of a decode report is made of, at least."""


class Part:
    """What a replica does of one request."""

    __slots__ = ("alone", "begun_s", "computing", "last_s", "number", "tokens")

    def __init__(self, number: int, begun_s: float, tokens: int, *, computing: bool, alone: bool) -> None:
        self.number, self.begun_s = number, begun_s
        self.tokens = tokens
        """Of the context: input, and output so far."""
        self.computing = computing
        """Whether its prompt is still to be computed here."""
        self.alone = alone
        """Whether it came to an idle replica."""
        self.last_s: float | None = None
        """When its last token came."""


class LatencyMeter:
    """Follows the requests of one replica."""

    def __init__(self) -> None:
        self._number = self._here = self._computing = self._decoding = 0
        self._disturbed_s = -inf
        self._prompts: deque[tuple[int, float]] = deque(maxlen=MOST_PROMPTS)
        self._clear_decode()

    def begin(self, at_s: float, input_tokens: int, *, computes: bool) -> Part:
        """A request is here; `computes`: its prompt is to be computed here."""
        self._number += 1
        self._here += 1
        self._computing += computes
        return Part(self._number, at_s, input_tokens, computing=computes, alone=self._here == 1)

    def computed(self, part: Part, at_s: float, *, reused: bool) -> None:
        """Its prompt is; `reused`: some of it was in a prefix cache."""
        if part.alone and part.number == self._number and not reused:
            self._prompts.append((part.tokens, at_s - part.begun_s))
        self._stop_computing(part, at_s)

    def produced(self, part: Part, at_s: float, tokens: int) -> None:
        """Tokens of output have come, the first one as soon as it was there."""
        if part.last_s is None:
            self._decoding += 1
        elif not self._computing and self._disturbed_s <= part.last_s:
            self._gaps += tokens
            self._gap_s += at_s - part.last_s
            self._batch += tokens * self._decoding
            self._context += tokens * part.tokens
        part.last_s = at_s
        part.tokens += tokens

    def end(self, part: Part, at_s: float) -> None:
        """It has left, however it did."""
        self._here -= 1
        self._decoding -= part.last_s is not None
        self._stop_computing(part, at_s)

    def take(self) -> tuple[Seen, ...]:
        """What was seen since the last call."""
        seen = [*self._prefills(), *self._decodes()]
        self._prompts.clear()
        self._clear_decode()
        return tuple(seen)

    def _stop_computing(self, part: Part, at_s: float) -> None:
        if part.computing:
            part.computing = False
            self._computing -= 1
            self._disturbed_s = at_s

    def _prefills(self) -> list[Seen]:
        by_cell = groupby(sorted(self._prompts), key=lambda prompt: octave(prompt[0]))
        ranked = [sorted(group, key=lambda prompt: prompt[1] / prompt[0]) for _, group in by_cell]
        return [Seen(Phase.PREFILL, *prompts[len(prompts) // 2]) for prompts in ranked]

    def _decodes(self) -> list[Seen]:
        gaps = self._gaps
        if gaps < LEAST_GAPS:
            return []
        return [Seen(Phase.DECODE, self._context / gaps, self._gap_s / gaps, self._batch / gaps)]

    def _clear_decode(self) -> None:
        self._gaps = self._batch = self._context = 0
        self._gap_s = 0.0
