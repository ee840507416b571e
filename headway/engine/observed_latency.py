"""Latencies that a replica observes of itself while it serves, in a profile's terms.

    alone     a prompt that came to an idle replica, and was computed before anything else came
    in turn   prompts of a replica that is not idle: the seconds from the end of the one before (or from when
              the queue began) to its own end, less an ITL for each iteration of a batch that decodes beside
    decode    gaps between tokens during which no prompt was computed here; each token of a gap says
              (gap / its tokens) at B requests decoding and c tokens of context

Prompts that were partly in a prefix cache say nothing of either kind. An engine that computes several prompts
at once ends them at once, so of those in turn the mean counts: their seconds and tokens over their number.

`take` condenses the observations since the last call: of prompts alone the middle one, by time per token, in
each half octave; the mean of those in turn; of decode the means over all tokens, as ITL is close to linear
over what a replica sees in seconds. Times are arguments, in seconds of one clock. Memory is bounded by
MOST_PROMPTS.
"""

from collections import deque
from enum import StrEnum
from itertools import groupby
from math import floor, inf, log2
from typing import NamedTuple

MOST_PROMPTS = 256
CELLS_PER_OCTAVE = 2
LEAST_GAPS = 8
"""Tokens that the mean of a decode report is made of, at least."""


class Phase(StrEnum):
    """The two phases that a profile describes."""

    PREFILL = "prefill"
    DECODE = "decode"


class LatencyReport(NamedTuple):
    """One report: what a prompt of `tokens` took, or the ITL of `batch` requests with that mean context.

    `replica` is added by who sends it, "" where replicas are not told apart.
    """

    phase: Phase
    tokens: float
    latency_s: float
    batch: float = 1.0
    replica: str = ""


class ObservedRequest:
    """One request at a replica."""

    __slots__ = ("alone", "begun_s", "computing", "last_s", "number", "tokens")

    def __init__(self, number: int, begun_s: float, tokens: int, *, computing: bool, alone: bool) -> None:
        self.number, self.begun_s = number, begun_s
        self.tokens = tokens
        """Of the context: input, and output so far."""
        self.computing = computing
        """True while its prompt is still to be computed here."""
        self.alone = alone
        """True if it came to an idle replica."""
        self.last_s: float | None = None
        """Time of its last token."""


class LatencyObserver:
    """Observes the requests of one replica."""

    def __init__(self) -> None:
        self._number = self._here = self._computing = self._decoding = 0
        self._disturbed_s = -inf
        self._prompts: deque[tuple[int, float]] = deque(maxlen=MOST_PROMPTS)
        self._turn_began_s, self._turn_iterations, self._turn_counts = -inf, 0.0, True
        self._itl_s: float | None = None
        self._clear_turns()
        self._clear_decode()

    def begin(self, at_s: float, input_tokens: int, *, computes: bool) -> ObservedRequest:
        """A request is here; `computes`: its prompt is to be computed here."""
        if computes and not self._computing:
            self._begin_turn(at_s)
        self._number += 1
        self._here += 1
        self._computing += computes
        return ObservedRequest(self._number, at_s, input_tokens, computing=computes, alone=self._here == 1)

    def computed(self, request: ObservedRequest, at_s: float, *, reused: bool) -> None:
        """Its prompt is; `reused`: some of it was in a prefix cache."""
        if request.alone and request.number == self._number:
            if not reused:
                self._prompts.append((request.tokens, at_s - request.begun_s))
        elif request.computing and self._turn_counts and not reused:
            self._add_turn(request.tokens, at_s)
        self._begin_turn(at_s)
        self._stop_computing(request, at_s)

    def produced(self, request: ObservedRequest, at_s: float, tokens: int) -> None:
        """Tokens of output have come, the first one as soon as it was there."""
        if request.last_s is None:
            self._decoding += 1
        else:
            self._turn_iterations += tokens / self._decoding
        if request.last_s is not None and not self._computing and self._disturbed_s <= request.last_s:
            # A prompt computed since the last token would have stretched this gap.
            self._gaps += tokens
            self._gap_s += at_s - request.last_s
            self._batch += tokens * self._decoding
            self._context += tokens * request.tokens
        request.last_s = at_s
        request.tokens += tokens

    def end(self, request: ObservedRequest, at_s: float) -> None:
        """It has left, however it did."""
        self._here -= 1
        self._decoding -= request.last_s is not None
        # What an abandoned prompt took is in the turn of the next one.
        self._turn_counts = self._turn_counts and not request.computing
        self._stop_computing(request, at_s)

    def take(self) -> tuple[LatencyReport, ...]:
        """The reports since the last call."""
        seen = [*self._prefills(), *self._turns(), *self._decodes()]
        self._prompts.clear()
        self._clear_turns()
        self._clear_decode()
        return tuple(seen)

    def _begin_turn(self, at_s: float) -> None:
        self._turn_began_s, self._turn_iterations, self._turn_counts = at_s, 0.0, True

    def _add_turn(self, tokens: int, at_s: float) -> None:
        """Count a prompt that was computed in its turn, where the time of the batch beside it is known."""
        beside_s = 0.0
        if self._turn_iterations:
            itl_s = self._gap_s / self._gaps if self._gaps >= LEAST_GAPS else self._itl_s
            if itl_s is None:
                return
            # The last of these iterations would have been the prompt's own anyway.
            beside_s = max(0.0, self._turn_iterations - 1.0) * itl_s
        self._turn_count += 1
        self._turn_tokens += tokens
        self._turn_s += at_s - self._turn_began_s - beside_s

    def _stop_computing(self, request: ObservedRequest, at_s: float) -> None:
        if request.computing:
            request.computing = False
            self._computing -= 1
            self._disturbed_s = at_s

    def _prefills(self) -> list[LatencyReport]:
        by_cell = groupby(sorted(self._prompts), key=lambda prompt: octave(prompt[0]))
        ranked = [sorted(group, key=lambda prompt: prompt[1] / prompt[0]) for _, group in by_cell]
        return [LatencyReport(Phase.PREFILL, *prompts[len(prompts) // 2]) for prompts in ranked]

    def _turns(self) -> list[LatencyReport]:
        if not self._turn_count or self._turn_s <= 0.0:
            return []
        tokens, mean_s = self._turn_tokens / self._turn_count, self._turn_s / self._turn_count
        return [LatencyReport(Phase.PREFILL, tokens, mean_s)]

    def _decodes(self) -> list[LatencyReport]:
        gaps = self._gaps
        if gaps < LEAST_GAPS:
            return []
        self._itl_s = self._gap_s / gaps
        return [LatencyReport(Phase.DECODE, self._context / gaps, self._gap_s / gaps, self._batch / gaps)]

    def _clear_turns(self) -> None:
        self._turn_count = self._turn_tokens = 0
        self._turn_s = 0.0

    def _clear_decode(self) -> None:
        self._gaps = self._batch = self._context = 0
        self._gap_s = 0.0


def octave(tokens: float) -> int:
    """The half octave of tokens that a length lies in."""
    return floor(CELLS_PER_OCTAVE * log2(tokens))
