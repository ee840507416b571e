"""Plugins that score candidates, and those that pick one by the scores.

Scorers go by what replicas hold: load, queues, caches and conversations. Scores are f8[C] in [0, 1], one per
candidate. Loops over all candidates that every request pays for are compiled: in numpy each is a handful of
calls.

Pickers take one candidate by the scores; `random` and `round-robin` ignore the scores. A score that is NaN
counts as the lowest and is never drawn.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from headway.config import Role
from headway.routing.decide.context import SchedulingContext
from headway.routing.fleet.table import FleetRow, FloatArray, SlotArray
from headway.routing.shared_rules import counts_prompt_tokens
from interp.jit import compiled

FEW = 4.0
"""Requests by which a replica may be ahead of the mean whatever that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLoad:
    """`least-load`: 1 / (1 + load), the load by the rule of `headway.routing.shared_rules`.

    Cached prompt tokens do not count. An engine's report adds requests that are not ours.
    """

    def score(self, context: SchedulingContext) -> FloatArray:
        """In (0, 1]."""
        by_tokens = counts_prompt_tokens(context.role)
        load = prompt_tokens_at(context) if by_tokens else requests_at(context)
        load += 1.0
        score: FloatArray = 1.0 / load
        return score


@dataclass(frozen=True, slots=True, kw_only=True)
class BinPack:
    """`bin-pack`: fills one replica before the next.

        fullness = max(requests / max_batch_size, reserved KV tokens / KV capacity, pattern load)
        score    = (1 + fullness) / 2       with room: one more request and its tokens fit
                   1 / (2 (1 + fullness))   without: after all that have room, the emptier the better

    Prefill replicas keep no KV; theirs is prompt tokens outstanding / KV capacity. An unknown capacity (no
    profile) leaves the batch limit alone.
    """

    def score(self, context: SchedulingContext) -> FloatArray:
        """In (0, 1]."""
        record, prefill = context.record, context.role is Role.PREFILL
        tokens = prompt_tokens_at(context) if prefill else context.column(FleetRow.RESERVED_TOKENS)
        limit = float(context.state.rules.max_batch_size)
        need = float(record.request.input_tokens if prefill else record.need_tokens)
        return packed(context.state.fleet.table, context.slots, tokens, need, limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueScorer:
    """`queue-scorer`: 1 − (waiting − least) / (most − least), 1 for all where all wait alike.

    Waiting are requests whose prompts are to be computed at the replica, at decode replicas those on their
    way; and those that the engine reports as queued beyond them.
    """

    def score(self, context: SchedulingContext) -> FloatArray:
        """In [0, 1]."""
        waiting = context.column(FleetRow.COMING if context.role is Role.DECODE else FleetRow.WAITING)
        waiting += context.column(FleetRow.OTHER_WAITING)
        return fewest(waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheScorer:
    """`kv-cache-utilization-scorer`: the share of the KV cache that is free.

    Taken are the tokens of those running and what the engine reports beyond. Prefill replicas keep no KV;
    theirs are prompt tokens outstanding, ours. An unknown capacity (no profile) counts as an empty cache.
    """

    def score(self, context: SchedulingContext) -> FloatArray:
        """In [0, 1]."""
        tokens = FleetRow.PREFILL_TOKENS if context.role is Role.PREFILL else FleetRow.KV_TOKENS
        return free_kv(context.state.fleet.table, int(tokens), context.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheScorer:
    """`prefix-cache-scorer`: the share of the prompt that is thought to be cached (`affinity.PrefixIndex`).

    0 without blocks in the request, without a prefix cache in the engines, and at decode replicas, which
    compute no prompt. 0, too, where more than `most_load` × the mean of requests and FEW are there: a hot
    prompt is worth computing at another replica as well (as SGLang's router does). `most_load` null: never.
    """

    most_load: Annotated[float, Field(ge=1.0)] | None = 1.5

    def score(self, context: SchedulingContext) -> FloatArray:
        """In [0, 1]."""
        if context.role is Role.DECODE:
            return np.zeros(len(context.slots))
        score: FloatArray = context.cached_tokens / context.record.request.input_tokens
        if self.most_load is not None and score.any():
            load = requests_at(context)
            score[load > self.most_load * load.mean() + FEW] = 0.0
        return score


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAffinityScorer:
    """`session-affinity-scorer`: 1 for the replica of the session's latest request in this role, else 0.

    All are 0 without a session, or if its replica is gone or takes nothing new.
    """

    def score(self, context: SchedulingContext) -> FloatArray:
        """0 or 1."""
        home = context.state.sessions.home(context.record.request.session)
        if home is None:
            return np.zeros(len(context.slots))
        prefill, decode = home
        replica = prefill if context.role is Role.PREFILL else decode
        slot = replica.slot if replica.alive else -1
        return np.where(context.slots == slot, 1.0, 0.0)


def requests_at(context: SchedulingContext) -> FloatArray:
    """Requests at each candidate or coming to it, those of others included, f8[C]."""
    return requests_in(context.state.fleet.table, context.slots)


def prompt_tokens_at(context: SchedulingContext) -> FloatArray:
    """Uncached prompt tokens queued at each candidate, those of others estimated, f8[C]."""
    return context.column(FleetRow.PREFILL_TOKENS) + context.column(FleetRow.OTHER_PROMPT_TOKENS)


@compiled
def requests_in(table: FloatArray, slots: SlotArray) -> FloatArray:
    """Requests at each of `slots` or coming to it, those of others included, f8[C]."""
    out = np.empty(len(slots))
    for place in range(len(slots)):
        slot = slots[place]
        queued = max(table[FleetRow.COMING, slot], table[FleetRow.WAITING, slot])
        out[place] = table[FleetRow.RUNNING, slot] + queued + table[FleetRow.OTHER_REQUESTS, slot]
    return out


@compiled
def packed(table: FloatArray, slots: SlotArray, tokens: FloatArray, need: float, limit: float) -> FloatArray:
    """Above 1/2, the fuller the more, for those of `slots` with room for one more request that takes `need`
    tokens beside `tokens` f8[C]; below, the emptier the more, for others; f8[C]."""
    requests = requests_in(table, slots)
    for place in range(len(slots)):
        capacity, load = table[FleetRow.CAPACITY_TOKENS, slots[place]], table[FleetRow.LOAD, slots[place]]
        room = requests[place] + 1.0 <= limit and tokens[place] + need <= capacity
        fullness = min(max(requests[place] / limit, tokens[place] / capacity, load), 1.0)
        requests[place] = 0.5 * (1.0 + fullness) if room else 0.5 / (1.0 + fullness)
    return requests


@compiled
def fewest(counts: FloatArray) -> FloatArray:
    """From 1 for the least of `counts` down to 0 for the most, f8[C]; 1 where all are alike."""
    out, least, most = np.ones(len(counts)), np.inf, -np.inf
    for count in counts:
        least, most = min(least, count), max(most, count)
    if most > least:
        for place in range(len(counts)):
            out[place] = (most - counts[place]) / (most - least)
    return out


@compiled
def free_kv(table: FloatArray, tokens: int, slots: SlotArray) -> FloatArray:
    """The part of each KV cache that is free of the row `tokens` and of what others hold, f8[C]."""
    out = np.empty(len(slots))
    for place in range(len(slots)):
        slot = slots[place]
        used = table[tokens, slot] + table[FleetRow.OTHER_TOKENS, slot]
        out[place] = 1.0 - min(used / table[FleetRow.CAPACITY_TOKENS, slot], 1.0)
    return out


EQUAL = 1e-12
"""Scores that differ by no more are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxScorePicker:
    """`max-score-picker`: the highest score; among equals one by lot."""

    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        """The position of the best."""
        best = best_places(scores)
        # No lot is drawn for a single best: the generator's next value belongs to the next that needs one.
        return int(best[0] if len(best) == 1 else best[int(generator.random() * len(best))])


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstMaxPicker:
    """`first-max-picker`: the highest score; among equals the first."""

    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        """The position of the best."""
        return int(best_places(scores)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedRandomPicker:
    """`weighted-random-picker`: a draw, P(i) ∝ score_i ^ sharpness; uniform where no score is positive.

    `sharpness` 1 is the plain draw; the higher, the closer to the best; 0 is a draw among all with a score.
    The default draws one that scores a tenth less about 30 times more seldom.
    """

    sharpness: Annotated[float, Field(ge=0.0, le=1e4)] = 32.0

    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        """The position of the one drawn."""
        return drawn(scores, self.sharpness, generator.random())


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPicker:
    """`random`: any candidate, all alike."""

    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        """The position of the one drawn."""
        return int(generator.random() * len(scores))


@dataclass(slots=True, kw_only=True)
class RoundRobinPicker:
    """`round-robin`: the candidates in turn, in the order of their ids, one turn per role.

    When replicas come or go the turn goes on by position.
    """

    _turns: Counter[Role] = field(default_factory=Counter, init=False)

    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        """The position of the next."""
        turn = self._turns[context.role]
        self._turns[context.role] = turn + 1
        return turn % len(scores)


@compiled
def best_places(scores: FloatArray) -> SlotArray:
    """Positions of the highest of `scores` and its equals, i8[at least 1]; NaN counts as −1, the lowest."""
    best = -1.0
    for score in scores:
        if score > best:  # noqa: PLR1730 - max() would keep a NaN
            best = score
    found, out = 0, np.empty(len(scores), dtype=np.int64)
    for place in range(len(scores)):
        score = -1.0 if np.isnan(scores[place]) else scores[place]
        if score >= best - EQUAL:
            out[found] = place
            found += 1
    return out[:found]


@compiled
def drawn(scores: FloatArray, sharpness: float, lot: float) -> int:
    """A position drawn by score ^ `sharpness`; `lot` in [0, 1) decides. Any, where no score is positive."""
    best = 0.0
    for score in scores:
        if score > best:  # noqa: PLR1730 - max() would keep a NaN
            best = score
    if best == 0.0:
        return int(lot * len(scores))
    total, totals = 0.0, np.empty(len(scores))
    for place in range(len(scores)):
        if scores[place] > 0.0:
            # Scores relative to the best: a high power of small ones would be 0 for all.
            total += (scores[place] / best) ** sharpness
        totals[place] = total
    return int(np.searchsorted(totals, lot * total, side="right"))
