"""The memory of the policy: everything that one decision leaves to the next.

Arrays in here are never written to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.planning.hindsight.history import OutcomeHistory, PoolHistory, Predicted
from headway.planning.hindsight.starts import ReplicaStarts
from headway.planning.replay import Requests
from headway.planning.sleeping import Risen
from headway.planning.types import FloatArray, Promise, Role, Slo

CONFIRM = 4
SMALLEST = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseDelay:
    """The target of one pool: raised at once, released slowly.

    A raise applies at once. A release waits until less has been enough in CONFIRM decisions in a row and
    `hold_s` have passed since the last raise; it then goes to the largest of those counts, and only if that
    frees at least SMALLEST of the pool: a removal that comes back costs a start and its lead. What is enough
    to go down to has to hold more than what is needed to stay (the policy asks hindsight with a part of the
    loss budget), so that a count at the edge of the budget is not given up and asked for in turns.

    `lower` are the latest counts that were enough and below the target, oldest first, `raised_s` the last
    raise.
    """

    target: int
    lower: tuple[int, ...] = ()
    raised_s: float = float("-inf")

    def after(self, now_s: float, replicas: int, enough: int, hold_s: float) -> "ReleaseDelay":
        """After one more decision that needs `replicas` and may release to `enough`, at least as many."""
        if replicas > self.target:
            return ReleaseDelay(target=replicas, raised_s=now_s)
        if enough >= self.target:
            return ReleaseDelay(target=self.target, raised_s=self.raised_s)
        # A clock that was set back: the raise is no later than now.
        lower, raised_s = (*self.lower, enough)[-CONFIRM:], min(self.raised_s, now_s)
        due = len(lower) == CONFIRM and now_s - raised_s >= hold_s
        if due and self.target - max(lower) >= ceil(SMALLEST * self.target):
            return ReleaseDelay(target=max(lower), raised_s=raised_s)
        return ReleaseDelay(target=self.target, lower=lower, raised_s=raised_s)


CLASSES, MOST_OUTPUTS = 21, 256
GOLDEN = 0.6180339887498949


class Drawn(NamedTuple):
    """Of each request, f8[N]: its output, the share of its input that is cached, and the mean such share."""

    output_tokens: FloatArray
    cached_share: FloatArray
    usual_share: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class OutputSample:
    """Output lengths of requests that have not ended yet: drawn from what ended lately, by input length.

    Completed requests are kept in classes of input length, one to an octave, the latest MOST_OUTPUTS of each.
    A request whose output is not known takes the length of one of its class, or of the nearest class that has
    any. Which one follows the golden ratio's sequence, which spreads evenly over them and needs no generator.
    At the start only short outputs have completed, so the first minutes look lighter than they are.

    With the output comes the share of its input that an engine had cached; none where that is not known.

    `outputs[c]`: the latest outputs of input class c, oldest first, `cached[c]` their shares; `drawn`: how
    many were drawn.
    """

    outputs: tuple[FloatArray, ...] = (np.zeros(0),) * CLASSES
    cached: tuple[FloatArray, ...] = (np.zeros(0),) * CLASSES
    drawn: int = 0

    @property
    def known(self) -> bool:
        """True once a request has completed."""
        return any(len(each) for each in self.outputs)

    def add(
        self, input_tokens: FloatArray, output_tokens: FloatArray, cached_tokens: FloatArray | None = None
    ) -> "OutputSample":
        """With completed requests, in their order."""
        if len(input_tokens) == 0:
            return self
        classes = _class_of(input_tokens)
        cached = np.zeros(len(classes)) if cached_tokens is None else np.nan_to_num(cached_tokens)
        return replace(
            self,
            outputs=_latest(self.outputs, output_tokens, classes),
            cached=_latest(self.cached, cached / np.fmax(input_tokens, 1.0), classes),
        )

    def draw(self, input_tokens: FloatArray) -> tuple[Drawn, "OutputSample"]:
        """What a request of each input length may be; `known` must hold."""
        filled = np.array([place for place, each in enumerate(self.outputs) if len(each)])
        classes = _class_of(input_tokens)
        nearest = filled[np.abs(filled[None, :] - np.arange(CLASSES)[:, None]).argmin(axis=1)]
        at = ((self.drawn + np.arange(len(input_tokens))) * GOLDEN) % 1.0
        drawn = Drawn(*np.empty((3, len(input_tokens))))
        for place in np.unique(nearest[classes]):
            known, mine = self.outputs[place], nearest[classes] == place
            which = (at[mine] * len(known)).astype(np.int64)
            drawn.output_tokens[mine] = known[which]
            drawn.cached_share[mine] = self.cached[place][which]
            drawn.usual_share[mine] = self.cached[place].mean()
        return drawn, replace(self, drawn=self.drawn + len(input_tokens))


def _latest(
    known: Sequence[FloatArray], values: FloatArray, classes: NDArray[np.int64]
) -> tuple[FloatArray, ...]:
    return tuple(
        np.concatenate([each, values[classes == place]])[-MOST_OUTPUTS:] for place, each in enumerate(known)
    )


def _class_of(input_tokens: FloatArray) -> NDArray[np.int64]:
    octave: NDArray[np.int64] = np.log2(np.fmax(input_tokens, 1.0)).astype(np.int64)
    return np.minimum(octave, CLASSES - 1)


NO_REQUESTS = Requests(np.zeros(0), np.zeros(0), np.zeros(0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoolMemory:
    """One pool: its past, its starts, its target, and the count that the last replay lost nothing with."""

    history: PoolHistory = field(default_factory=PoolHistory)
    outcomes: OutcomeHistory = field(default_factory=OutcomeHistory)
    starts: ReplicaStarts = field(default_factory=ReplicaStarts)
    release: ReleaseDelay | None = None
    guess: int = 1
    classes: tuple[PoolHistory, ...] = ()
    """The same past by class: requests of none, then each class; none where there are no classes."""
    seconds_each: float = float("nan")
    """Mean engine seconds of a prompt in the last interval that had any."""
    infeasible: float = 0.0
    """Share of that interval's requests that miss their SLO on an idle engine, too."""
    risen: Risen = ()
    kept: int = 0
    """Of a pool whose engines may sleep (`sleeping`): what came as replicas rose, and how many it keeps."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HindsightState:
    """All pools, the requests of the last minutes (outputs drawn), and output lengths of completed ones.

    `predicted` is what predictors said, `slo` and `classes` are the promises by which the past was judged,
    `recalled` the intervals of a warm-up trace that it still has.
    """

    pools: Mapping[Role, PoolMemory] = field(default_factory=dict)
    predicted: Predicted = field(default_factory=Predicted)
    recent: Requests = NO_REQUESTS
    outputs: OutputSample = field(default_factory=OutputSample)
    slo: Slo | None = None
    classes: tuple[Promise, ...] = ()
    recalled: int = 0

    def under(self, slo: Slo, classes: tuple[Promise, ...] = ()) -> "HindsightState":
        """The state for decisions under these promises. Losses by others say nothing: all begins anew."""
        if slo == self.slo and classes == self.classes:
            return self
        pools = {
            role: replace(memory, history=PoolHistory(), classes=(), outcomes=OutcomeHistory())
            for role, memory in self.pools.items()
        }
        return replace(self, pools=pools, slo=slo, classes=classes, recalled=0)

    def pool(self, role: Role) -> PoolMemory:
        """The memory of one pool, empty at first."""
        memory = self.pools.get(role) or PoolMemory()
        if self.classes and not memory.classes:
            return replace(memory, classes=(PoolHistory(),) * (len(self.classes) + 1))
        return memory
