"""A few of many candidates: where a role has hundreds of replicas, a decision looks at a part of them first.

To forecast a request at each of a thousand replicas takes longer than all else. Most of them are as good as
others, so FEW of them decide about as well:

    CACHED     those with most of the prompt cached, of equals the least loaded
    LIGHTEST   the least loaded, by requests there, twice those whose prompts wait; prefill replicas by prompt
               tokens
    SPREAD     one drawn of each of so many even parts, so that all are looked at in turn, whatever their load
    known      those of the request's session, and those with its adapter, in turn where they are many

Where none of these may take the request all candidates are asked: a refusal is always that of the fleet.
Fleets of up to MOST replicas of a role are looked at as a whole.
"""

import numpy as np
from numpy.typing import NDArray

from headway.routing.decide.context import SchedulingContext
from headway.routing.fleet.table import FleetRow, FloatArray, SlotArray
from headway.routing.least_load import counts_prompt_tokens
from interp.jit import compiled

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
    state, record = context.state, context.record
    marks, lot = np.zeros(len(slots), dtype=np.bool_), int(state.generator.random() * LOTS)
    by_tokens = counts_prompt_tokens(context.role)
    mark_few(state.fleet.table, slots, context.cached_tokens, by_tokens, lot, marks)
    homes = tuple(state.adapters.homes(record.request.adapter)) if record.request.adapter else ()
    first = lot % len(homes) if len(homes) > LOADED else 0
    known = [*(homes[first:] + homes[:first])[:LOADED]]
    if (home := state.sessions.home(record.request.session)) is not None:
        known.extend(replica.slot for replica in home if replica.alive)
    for slot in known:
        marks |= slots == slot
    return context.part(marks.nonzero()[0])


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
def mark_few(  # noqa: PLR0917 - one loop over candidates, compiled
    table: FloatArray,
    slots: SlotArray,
    cached: FloatArray,
    by_tokens: bool,
    lot: int,
    marks: NDArray[np.bool_],
) -> None:
    """Mark CACHED, LIGHTEST and SPREAD of the candidates, in bool[C]; `lot` in 0 .. LOTS decides."""
    count, holders = len(slots), 0
    load, work = np.empty(count), np.empty(count)
    for place in range(count):
        slot = slots[place]
        if by_tokens:
            load[place] = table[FleetRow.PREFILL_TOKENS, slot] + table[FleetRow.OTHER_PROMPT_TOKENS, slot]
        else:
            waiting = table[FleetRow.WAITING, slot]
            load[place] = table[FleetRow.RUNNING, slot] + max(table[FleetRow.COMING, slot], waiting)
            load[place] += waiting + table[FleetRow.OTHER_REQUESTS, slot]
        work[place] = load[place] - cached[place] if cached[place] > 0.0 else np.inf
        holders += cached[place] > 0.0
    mark_least(load, LIGHTEST, lot, marks)
    mark_least(work, min(CACHED, holders), lot, marks)
    for part in range(SPREAD):
        # A linear congruential generator: the lot is one of the router's own generator.
        lot = (lot * 1103515245 + 12345) % LOTS
        first, end = part * count // SPREAD, (part + 1) * count // SPREAD
        marks[first + (lot >> 8) % (end - first)] = True


@compiled
def mark_least(values: FloatArray, most: int, lot: int, marks: NDArray[np.bool_]) -> None:
    """Mark `most` of the least of `values`; of equals those that follow a place that `lot` says."""
    if most == 0:
        return
    count, left = len(values), most
    bound = np.partition(values, most - 1)[most - 1]
    for place in range(count):
        if values[place] < bound:
            marks[place] = True
            left -= 1
    place = lot % count
    while left > 0:
        if values[place] == bound:
            marks[place] = True
            left -= 1
        place = place + 1 if place + 1 < count else 0
