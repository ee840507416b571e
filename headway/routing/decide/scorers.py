"""Plugins that go by what replicas hold: load, queues, caches, conversations, and the capacity for patterns.

Scores are f8[C] in [0, 1], one per candidate. Loops over all candidates that every request pays for are
compiled: in numpy each is a handful of calls.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from headway.config import Role
from headway.routing.decide.context import Refusal, RoutingState, SchedulingContext
from headway.routing.fleet.table import FleetRow, FloatArray, SlotArray
from headway.routing.least_load import counts_prompt_tokens
from headway.routing.queue.heads import load_row, waits_for
from headway.routing.types import NO_SLO, ShedReason
from interp.jit import compiled

FEW = 4.0
"""Requests by which a replica may be ahead of the mean whatever that is."""

KIND, LOAD = int(FleetRow.KIND), int(FleetRow.LOAD)

ROUNDING = 1e-9
"""Loads are sums of fractions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLoad:
    """`least-load`: 1 / (1 + load), the load by the rule of `headway.routing.least_load`.

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
class LeastPatternLoad:
    """`least-pattern-load`: 1 / (1 + load there + new), the load of `capacity-filter`.

    The newcomer's own part counts, as in the queue simulator: it is less on a faster GPU type, and where a
    part of its prompt is cached.
    """

    packs_by_capacity: ClassVar[bool] = True

    def score(self, context: SchedulingContext) -> FloatArray:
        """In (0, 1]; 0 where it never fits."""
        score: FloatArray = 1.0 / (1.0 + context.column(FleetRow.LOAD) + context.loads)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFilter:
    """`capacity-filter`: AIBrix's pull; only replicas with room for the request's pattern.

        keep ⟺ load + new <= 1,   new = 1 / Capacity(own lengths, cached tokens, GPU type, role, SLO left)

    The load is the sum over the requests there that this rule placed. A replica without anything there has
    room for any request of finite load: one that an idle replica would serve within its SLO. Where nothing is
    known (no profile), new = 1 / max_batch_size. A request without an SLO is held to the deployment's. None
    with room: the request waits, as long as an idle replica could still keep its SLO. None that ever had
    capacity: NO_CAPACITY, at once; none any more, since it has waited: NO_HEADROOM. Critical requests always
    fit an idle replica.
    """

    packs_by_capacity: ClassVar[bool] = True

    def keep(self, context: SchedulingContext) -> NDArray[np.bool_]:
        """bool[C]"""
        return room_for(context.state.fleet.table, context.slots, context.loads)

    def promising(  # noqa: PLR0917 - as its protocol
        self,
        state: RoutingState,
        now_s: float,
        heads: FloatArray,
        role: int,
        slots: SlotArray,
        open_lines: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Held requests that one of `slots` may have room for, bool[lines], by what they took when they last
        found none: it only grows as time goes by."""
        least: dict[int | None, float] = {}
        for slot in slots.tolist():
            row, load = load_row(int(state.fleet.table[KIND, slot])), float(state.fleet.table[LOAD, slot])
            least[row] = min(load, least.get(row, inf))
        marks = np.zeros_like(open_lines)
        rows = np.array([-1 if row is None else row for row in least], dtype=np.int64)
        mark_fitting(heads, role, rows, np.array([*least.values()]), open_lines, marks)
        return marks

    def refusal(self, context: SchedulingContext) -> Refusal:
        """Waiting helps while an idle replica could keep the SLO."""
        role, slo, whole = context.role, context.record.slo, best_of_kinds(context)
        if not np.isinf(whole.loads).all():
            return Refusal(
                reason=ShedReason.NO_HEADROOM,
                explain=lambda: f"no {role} replica has room",
                hopeful_until_s=_hopeful_until_s(context),
                loads=_least_loads(context),
            )
        late = slo.given and not np.isinf(whole.loads_within(slo)).all()
        return Refusal(
            reason=ShedReason.NO_HEADROOM if late else ShedReason.NO_CAPACITY,
            explain=lambda: f"no {role} replica {'can keep' if late else 'keeps'} its SLO, were it idle",
            hopeful_until_s=-inf,
        )


def best_of_kinds(context: SchedulingContext) -> SchedulingContext:
    """Of each kind of replica of the role one with most of the prompt cached: no other has a lower load."""
    whole = context.about(context.role)
    return whole.part(most_cached(context.state.fleet.table, whole.slots, whole.cached_tokens))


def _least_loads(context: SchedulingContext) -> Mapping[int, float]:
    """The least load among the candidates of each kind.

    A critical request that has lost its SLO takes less than before.
    """
    loads = context.loads
    if context.record.request.critical:
        loads = np.minimum(loads, context.loads_within(NO_SLO))
    kinds = context.column(FleetRow.KIND)
    if len(kinds) == 1:
        return {int(kinds[0]): float(loads[0])}
    least: dict[int, float] = {}
    for kind, load in zip(kinds.tolist(), loads.tolist(), strict=True):
        least[int(kind)] = min(load, least.get(int(kind), inf))
    return least


def requests_at(context: SchedulingContext) -> FloatArray:
    """Requests at each candidate or coming to it, those of others included, f8[C]."""
    return requests_in(context.state.fleet.table, context.slots)


def prompt_tokens_at(context: SchedulingContext) -> FloatArray:
    """Uncached prompt tokens queued at each candidate, those of others estimated, f8[C]."""
    return context.column(FleetRow.PREFILL_TOKENS) + context.column(FleetRow.OTHER_PROMPT_TOKENS)


def _hopeful_until_s(context: SchedulingContext) -> float:
    """The time until which an idle replica could keep a request's SLO; infinite for critical ones, and where
    a replica without surfaces may, of which that is not known."""
    kinds = {kind for role in context.state.roles for kind in context.state.fleet.ready_kinds(role)}
    if context.record.request.critical or min(kinds, default=-1) < 0:
        return inf
    return context.hopeful_until_s


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
def mark_fitting(  # noqa: PLR0917 - plain figures, compiled
    heads: FloatArray,
    role: int,
    rows: SlotArray,
    least: FloatArray,
    open_lines: NDArray[np.bool_],
    marks: NDArray[np.bool_],
) -> None:
    """Mark the open lines of the role in this place whose heads fit beside the `least` load of a kind.

    The others of the role are closed. `rows`: where each kind's loads stand in `heads`, −1 if nowhere.
    """
    for head in range(heads.shape[1]):
        if not open_lines[head] or not waits_for(heads, head, role):
            continue
        for kind in range(len(rows)):
            new = heads[rows[kind], head] if rows[kind] >= 0 else 0.0
            marks[head] |= least[kind] + new <= 1.0 + ROUNDING or (least[kind] == 0.0 and new < np.inf)
        open_lines[head] = marks[head]


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


@compiled
def room_for(table: FloatArray, slots: SlotArray, new: FloatArray) -> NDArray[np.bool_]:
    """Where loads of `new` fit beside those there, bool[C]; any finite one where nothing is."""
    out = np.empty(len(slots), dtype=np.bool_)
    for place in range(len(slots)):
        load = table[FleetRow.LOAD, slots[place]]
        out[place] = load + new[place] <= 1.0 + ROUNDING or (load == 0.0 and new[place] < np.inf)
    return out


@compiled
def most_cached(table: FloatArray, slots: SlotArray, cached: FloatArray) -> SlotArray:
    """For each kind of replica the place of the one with most in `cached`, of equals the first."""
    found, places = 0, np.empty(len(slots), dtype=np.int64)
    for place in range(len(slots)):
        known, kind = found, table[FleetRow.KIND, slots[place]]
        for other in range(found):
            if table[FleetRow.KIND, slots[places[other]]] == kind:
                known = other
                break
        if known == found or cached[place] > cached[places[known]]:
            places[known] = place
            found += known == found
    return places[:found]
