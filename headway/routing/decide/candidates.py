"""The candidates before a profile sees them: saturated replicas leave, and of many a few are looked at.

Saturated replicas leave (`shared_rules` has the rule):

    some are saturated      the others are the candidates
    all are                 SATURATED: the request waits in the router's queue, as long as any may
    its patience is over    shed; one that is critical waits on

The degree of a replica is the greatest of its figures in parts of their bounds, and 1 more by its engine's
word: from 1 on it is saturated.

Where a role has hundreds of replicas, a decision looks at a part of them first. To forecast a request at each
of a thousand replicas takes longer than all else. Most of them are as good as others, so FEW of them decide
about as well:

    CACHED     those with most of the prompt cached, of equals the least loaded
    LIGHTEST   the least loaded, by requests there, twice those whose prompts wait; prefill replicas by prompt
               tokens
    SPREAD     one drawn of each of so many even parts, so that all are looked at in turn, whatever their load
    known      those of the request's session, and those with its adapter, in turn where they are many

Where none of these may take the request all candidates are asked: a refusal is always that of the fleet.
Fleets of up to MOST replicas of a role are looked at as a whole.
"""

from math import inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.routing.decide.context import Refusal, SchedulingContext
from headway.routing.fleet.table import FleetRow, FloatArray, SlotArray
from headway.routing.predict.forecast import queue_s
from headway.routing.shared_rules import FULL_CACHES, SaturationLimits, counts_prompt_tokens
from headway.routing.types import ShedReason
from interp.jit import compiled, compiled_in_place


class SaturationFilter:
    """Drops the saturated candidates of one router."""

    def __init__(self, limits: SaturationLimits) -> None:
        self._limits = limits

    def drop(self, context: SchedulingContext) -> Refusal | None:
        """Take them from the candidates; a refusal where all are saturated. Needs at least one candidate."""
        free, ttft_s = np.empty(len(context.slots), dtype=np.bool_), context.record.slo.ttft_s
        batch, waiting, longest_s = self._limits
        figures = context.now_s, batch, waiting, ttft_s if longest_s < ttft_s < inf else longest_s
        count = mark_free(context.state.fleet.table, context.slots, figures, free)
        if count == 0:
            return _refusal(context)
        if count < len(free):
            context.restrict(free)
        return None

    def any_free(self, now_s: float, table: FloatArray, slots: SlotArray) -> bool:
        """True if one of `slots` is not saturated for requests that any queue of prompts suits."""
        return bool(is_any_free(table, slots, (now_s, *self._limits[:2], inf)))

    def free(self, now_s: float, table: FloatArray, slots: SlotArray) -> SlotArray:
        """Those of `slots` that are not saturated for requests that any queue of prompts suits."""
        marks = np.empty(len(slots), dtype=np.bool_)
        mark_free(table, slots, (now_s, *self._limits[:2], inf), marks)
        return slots[marks]


def _refusal(context: SchedulingContext) -> Refusal:
    """It waits as long as any may; by predictions, as long as an idle replica could keep its SLO."""
    record, role, until_s = context.record, context.role, inf
    if record.judged and not record.request.critical and isfinite(context.alone_s[0]):
        until_s = context.hopeful_until_s
    return Refusal(
        reason=ShedReason.SATURATED,
        explain=lambda: f"every {role} replica is saturated",
        hopeful_until_s=until_s,
    )


@compiled_in_place
def degree(table: FloatArray, slot: int, figures: tuple[Any, ...]) -> float:
    """How saturated a replica is; `figures` are the time, and `SaturationLimits`, plain."""
    now_s, batch, most_waiting, longest_s = figures
    waiting = table[FleetRow.WAITING, slot]
    there = table[FleetRow.RUNNING, slot] + max(waiting, table[FleetRow.COMING, slot])
    greatest = max(
        there / (batch + most_waiting),
        waiting / most_waiting,
        queue_s(table, slot, now_s) / longest_s,
        table[FleetRow.RESERVED_TOKENS, slot] / (FULL_CACHES * table[FleetRow.CAPACITY_TOKENS, slot]),
    )
    return float(greatest + 1.0 if now_s < table[FleetRow.SATURATED_UNTIL_S, slot] else greatest)


@compiled_in_place
def mark_free(table: FloatArray, slots: SlotArray, figures: tuple[Any, ...], free: NDArray[np.bool_]) -> int:
    """Mark in bool[C] those that are not saturated; their number."""
    count = 0
    for place in range(len(slots)):
        free[place] = degree(table, slots[place], figures) < 1.0
        count += free[place]
    return count


@compiled_in_place
def is_any_free(table: FloatArray, slots: SlotArray, figures: tuple[Any, ...]) -> bool:
    """True if one of `slots` is not saturated; ends at the first."""
    free = False
    for slot in slots:
        free = degree(table, slot, figures) < 1.0
        if free:
            break
    return free


MOST = 256
"""Candidates that are all looked at."""

CACHED, LIGHTEST, SPREAD, LOADED = 32, 16, 128, 32
SAMPLE = 32
LOTS = 1 << 31


def few_of(context: SchedulingContext) -> SchedulingContext:
    """The same decision with few of its candidates; `context` itself where there are no more than MOST."""
    slots = context.slots
    if len(slots) <= MOST:
        return context
    lot = int(context.state.generator.random() * LOTS)
    by_tokens = counts_prompt_tokens(context.role)
    table, known = context.state.fleet.table, known_slots(context, lot)
    marks = few(table, slots, context.cached_tokens, by_tokens, lot, known)
    return context.part(marks.nonzero()[0])


def known_slots(context: SchedulingContext, lot: int) -> SlotArray:
    """The replicas of its session, and up to LOADED of those with its adapter, from where `lot` says."""
    state, request = context.state, context.record.request
    homes = tuple(state.adapters.homes(request.adapter)) if request.adapter else ()
    first = lot % len(homes) if len(homes) > LOADED else 0
    known = [*(homes[first:] + homes[:first])[:LOADED]]
    if (home := state.sessions.home(request.session)) is not None:
        known.extend(replica.slot for replica in home if replica.alive)
    return np.array(known, dtype=np.int64)


def sample_of(context: SchedulingContext) -> SchedulingContext:
    """The same with SAMPLE of many candidates, evenly spread, and the one with most of the prompt cached.

    For figures of the fleet as a whole.
    """
    slots = context.slots
    if len(slots) <= MOST:
        return context
    step = len(slots) // SAMPLE
    first = int(context.state.generator.random() * step)
    # One place more than there are, for the one with most cached.
    places = np.arange(first, len(slots) + step, step)
    places[-1] = context.cached_tokens.argmax()
    return context.part(places)


@compiled
def few(  # noqa: PLR0917 - one loop over candidates, compiled
    table: FloatArray, slots: SlotArray, cached: FloatArray, by_tokens: bool, lot: int, known: SlotArray
) -> NDArray[np.bool_]:
    """The `known`, and CACHED, LIGHTEST and SPREAD of all candidates, bool[C]; `lot` in 0 .. LOTS decides."""
    count, holders = len(slots), 0
    load, marks = np.empty(count), np.zeros(count, dtype=np.bool_)
    for place in range(count):
        slot = slots[place]
        if by_tokens:
            load[place] = table[FleetRow.PREFILL_TOKENS, slot] + table[FleetRow.OTHER_PROMPT_TOKENS, slot]
        else:
            waiting = table[FleetRow.WAITING, slot]
            load[place] = table[FleetRow.RUNNING, slot] + max(table[FleetRow.COMING, slot], waiting)
            load[place] += waiting + table[FleetRow.OTHER_REQUESTS, slot]
        holders += cached[place] > 0.0
    for slot in known:
        for place in range(count):
            marks[place] |= slots[place] == slot
    mark_least(load, LIGHTEST, lot, marks)
    if holders:
        for place in range(count):
            load[place] = load[place] - cached[place] if cached[place] > 0.0 else np.inf
        mark_least(load, min(CACHED, holders), lot, marks)
    for part in range(SPREAD):
        # A linear congruential generator: the lot is one of the router's own generator.
        lot = (lot * 1103515245 + 12345) % LOTS
        first, end = part * count // SPREAD, (part + 1) * count // SPREAD
        marks[first + (lot >> 8) % (end - first)] = True
    return marks


@compiled
def mark_least(values: FloatArray, most: int, lot: int, marks: NDArray[np.bool_]) -> None:
    """Mark `most` of the least of `values`; of equals those that follow a place that `lot` says."""
    # In ascending order: of thousands few are ever less than the last of these.
    least, places = np.full(most, np.inf), np.empty(most, dtype=np.int64)
    for place in range(len(values)):
        value, at = values[place], most - 1
        if value >= least[at]:
            continue
        while at > 0 and least[at - 1] > value:
            least[at], places[at] = least[at - 1], places[at - 1]
            at -= 1
        least[at], places[at] = value, place
    bound, left = least[most - 1], 0
    for at in range(most):
        if least[at] < bound:
            marks[places[at]] = True
        else:
            left += 1
    place = lot % len(values)
    while left > 0:
        if values[place] == bound:
            marks[place] = True
            left -= 1
        place = place + 1 if place + 1 < len(values) else 0
