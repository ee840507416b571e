"""Requests come and are served, each by the replica of the least load: what drivers of the kernel share.

Arrivals and events come in one total order: `next_step` is the one place that says which is next. The
simulator has a loop of its own, with other routings, routers and crashes (`headway.simulation.kernel`);
`serve_until` is the loop of a fleet without these, as the planner's advice replays it.
"""

import numpy as np

from headway.engine.kernel import layout
from headway.engine.kernel.layout import NONE, Exit, KernelState, Routing, drop_first, kind_of
from headway.engine.kernel.lifecycle import become_ready, park, role_for
from headway.engine.kernel.replica import boundary, enqueue
from interp.jit import compiled


@compiled
def load_of(state: KernelState, replica: int) -> int:
    """The load that least-load compares: outstanding prompt tokens for prefill, requests otherwise."""
    unit = state.replicas[replica]
    return unit.prompt_tokens if unit.role == layout.PREFILL else unit.running + unit.waiting


@compiled
def least_loaded(state: KernelState, role: int) -> int:
    """The ready replica of the role with the least load, the first of equals; NONE where none is ready."""
    best, least = NONE, 0
    for place in range(state.clock[0].ready[role]):
        load = load_of(state, state.ready[role, place])
        if best == NONE or load < least:
            best, least = state.ready[role, place], load
    return best


@compiled
def assign(state: KernelState, request: int, replica: int) -> None:
    """Give the request to a replica."""
    unit, asked = state.replicas[replica], state.requests[request]
    if unit.role != layout.DECODE:
        asked.prefill_replica = replica
        unit.prompt_tokens += asked.input_tokens
    if unit.role != layout.PREFILL:
        asked.decode_replica = replica
    enqueue(state, replica, request)


@compiled
def take_arrival(state: KernelState) -> int:
    """The next arrival in a slot of its own."""
    clock, columns = state.clock[0], state.arrivals
    row = clock.next_arrival
    clock.next_arrival += 1
    request = clock.free_request
    asked = state.requests[request]
    clock.free_request = asked.next
    clock.free_requests -= 1
    clock.active += 1
    asked.number = clock.numbered
    clock.numbered += 1
    asked.version += 1  # void is what was to happen to the one that had the slot before
    asked.arrival_s = asked.first_arrival_s = columns.arrival_s[row]
    asked.gives_up_s = -1.0
    asked.input_tokens, asked.output_tokens = columns.input_tokens[row], columns.output_tokens[row]
    asked.block_start, asked.block_count = columns.block_start[row], columns.block_count[row]
    asked.copy, asked.slo_class = columns.copy[row], columns.slo_class[row]
    asked.prefill_started_s = asked.prefill_finished_s = asked.first_token_s = asked.decode_ready_s = (
        asked.decode_started_s
    ) = -1.0
    asked.cached_tokens = columns.cached_tokens[row]
    asked.prefilled_tokens = asked.external_tokens = 0
    asked.prefill_replica = asked.decode_replica = NONE
    asked.retries = asked.reserved = asked.abandoned = asked.repeats = 0
    state.window[0].arrivals += 1
    state.window[0].input_tokens += asked.input_tokens
    return request


@compiled
def lacks_space(state: KernelState) -> bool:
    """True where the next event might not find room in some buffer."""
    clock = state.clock[0]
    return (
        clock.free_requests == 0
        or clock.events + clock.active + layout.SPARE_EVENTS > len(state.events)
        or clock.finished + clock.active + layout.SPARE_EVENTS > len(state.finished)
        or clock.transitions + layout.SPARE_EVENTS > len(state.transitions)
        or (
            state.settings[0].routing == Routing.ROUTER
            and clock.notices + layout.NOTICES_OF_A_REQUEST * clock.active + layout.SPARE_EVENTS
            > len(state.notices)
        )
    )


NOTHING, ARRIVAL, EVENT = 0, 1, 2
"""What happens next, see `next_step`."""


@compiled
def next_step(state: KernelState, until_s: float) -> int:
    """What happens next up to and including `until_s`: the clock goes there, or to `until_s` for NOTHING."""
    clock = state.clock[0]
    arrival_s = np.inf
    if clock.next_arrival < clock.arrivals:
        arrival_s = state.arrivals.arrival_s[clock.next_arrival]
    event_s = state.events[0].time_s if clock.events > 0 else np.inf
    if min(arrival_s, event_s) > until_s:
        clock.now_s = until_s
        return NOTHING
    # An arrival ranks as PLACE among the events of its instant, so boundaries see it.
    if event_s < arrival_s or (event_s == arrival_s and kind_of(state.events[0].order) < layout.PLACE):
        clock.now_s = event_s
        return EVENT
    clock.now_s = arrival_s
    return ARRIVAL


@compiled
def _place(state: KernelState, request: int) -> None:
    role = role_for(state, request)
    replica = least_loaded(state, role)
    if replica == NONE:
        park(state, request, role)
    else:
        assign(state, request, replica)


@compiled
def _happen(state: KernelState) -> None:
    """Process the first event."""
    clock, first = state.clock[0], state.events[0]
    kind, index, version = kind_of(first.order), first.index, first.version
    drop_first(clock, state.events)
    if kind == layout.BOUNDARY:
        if state.replicas[index].version == version:
            boundary(state, index)
    elif kind == layout.TRANSFERRED:
        state.requests[index].decode_ready_s = clock.now_s
        _place(state, index)
    elif kind == layout.PLACE:
        _place(state, index)
    elif kind == layout.READY:
        become_ready(state, index, version)


@compiled
def serve_until(state: KernelState, until_s: float) -> int:
    """Serve what arrives up to and including `until_s`, each request on the replica of the least load.

    Exit.REACHED, or NEED_SPACE where buffers are to be emptied or grown first. Requests that fit no KV cache
    are the caller's to refuse, and there is no router.
    """
    while True:
        if lacks_space(state):
            return Exit.NEED_SPACE
        step = next_step(state, until_s)
        if step == NOTHING:
            return Exit.REACHED
        if step == EVENT:
            _happen(state)
        else:
            _place(state, take_arrival(state))
