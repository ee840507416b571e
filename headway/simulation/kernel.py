"""The kernel: takes events and arrivals in their total order until the next tick, or until Python must act.

Only the dispatch of events belongs here; Python decides how many replicas there are (`fleet`) and, for
routings written in Python, where a request goes. A router is asked at each arrival and told by notices, at
the time of the event; what it wants done are orders, obeyed first when the kernel goes on (see `attempts`).
"""

import numpy as np

from headway.simulation.attempts import deliver, obey
from headway.simulation.engine import boundary
from headway.simulation.events import drop_first, kind_of
from headway.simulation.layout import (
    BOUNDARY,
    CRASH,
    FAILED,
    NONE,
    NOTICES_OF_A_REQUEST,
    PLACE,
    READY,
    SPARE_EVENTS,
    TRANSFERRED,
    UNASSIGNED,
    Exit,
    Routing,
    World,
)
from headway.simulation.lifecycle import become_ready, crash
from headway.simulation.placement import assign, place_request
from headway.simulation.records import end_request
from interp.jit import compiled

COMPILED_FROM = ("headway.simulation", "headway.engine", "interp")
"""Packages whose sources are in the compiled kernel (`interp.jit.drop_stale_cache`)."""


@compiled
def _admit(world: World) -> bool:
    """Take the next arrival of the trace."""
    clock, columns = world.clock[0], world.arrivals
    row = clock.next_arrival
    clock.next_arrival += 1
    request = clock.free_request
    asked = world.requests[request]
    clock.free_request = asked.next
    clock.free_requests -= 1
    clock.active += 1
    asked.number = clock.numbered
    clock.numbered += 1
    asked.arrival_s = columns.arrival_s[row]
    asked.input_tokens, asked.output_tokens = columns.input_tokens[row], columns.output_tokens[row]
    asked.block_start, asked.block_count = columns.block_start[row], columns.block_count[row]
    asked.copy, asked.slo_class = columns.copy[row], columns.slo_class[row]
    asked.prefill_started_s = asked.prefill_finished_s = asked.first_token_s = asked.decode_ready_s = (
        asked.decode_started_s
    ) = -1.0
    asked.cached_tokens = asked.prefilled_tokens = asked.external_tokens = 0
    asked.prefill_replica = asked.decode_replica = NONE
    asked.retries = asked.reserved = asked.abandoned = 0
    world.window[0].arrivals += 1
    world.window[0].input_tokens += asked.input_tokens
    if asked.input_tokens + asked.output_tokens > world.settings[0].kv_capacity_tokens:
        end_request(world, request, FAILED)
        return True
    return place_request(world, request)


@compiled
def _handle(world: World) -> int:
    """Process the first event; the exit code, Exit.REACHED to go on."""
    clock = world.clock[0]
    first = world.events[0]
    kind, index, version = kind_of(first.order), first.index, first.version
    clock.now_s = first.time_s
    drop_first(clock, world.events)
    if kind == BOUNDARY:
        if world.replicas[index].version == version:
            boundary(world, index)
    elif kind == TRANSFERRED:
        if world.requests[index].version != version:
            return Exit.REACHED
        world.requests[index].decode_ready_s = clock.now_s
        if world.settings[0].routing == Routing.ROUTER:
            deliver(world, index)
            return Exit.REACHED
        return Exit.REACHED if place_request(world, index) else Exit.NEED_PLACEMENT
    elif kind == PLACE:
        return Exit.REACHED if place_request(world, index) else Exit.NEED_PLACEMENT
    elif kind == READY:
        become_ready(world, index, version)
    elif kind == CRASH and clock.ready[index] > 0:
        clock.crashes += 1
        crash(world, world.ready[index, 0])
        return Exit.FLEET_CHANGED
    return Exit.REACHED


@compiled
def _lacks_space(world: World) -> bool:
    clock = world.clock[0]
    return (
        clock.free_requests == 0
        or clock.events + clock.active + SPARE_EVENTS > len(world.events)
        or clock.finished + clock.active + SPARE_EVENTS > len(world.finished)
        or clock.transitions + SPARE_EVENTS > len(world.transitions)
        or (
            world.settings[0].routing == Routing.ROUTER
            and clock.notices + NOTICES_OF_A_REQUEST * clock.active + SPARE_EVENTS > len(world.notices)
        )
    )


@compiled
def _standstill(world: World) -> int:
    """Why Python must act before anything else happens; Exit.REACHED if it need not."""
    clock = world.clock[0]
    if _lacks_space(world):
        return Exit.NEED_SPACE
    if clock.obeyed < clock.orders:
        return Exit.REACHED
    if clock.retired > 0 or clock.notices > 0:
        return Exit.FLEET_CHANGED if clock.retired > 0 else Exit.NOTICES
    if clock.next_arrival == clock.arrivals:
        if clock.last_chunk == 0:
            return Exit.NEED_ARRIVALS
        if clock.active == 0 and clock.now_s >= clock.horizon_s:
            return Exit.DONE
    return Exit.REACHED


@compiled
def run(world: World, stop_s: float) -> int:
    """Simulate up to and including `stop_s`; why it returned, as `layout.Exit`."""
    clock = world.clock[0]
    if clock.answer != UNASSIGNED:
        assign(world, clock.asked_request, clock.answer)
        clock.answer = UNASSIGNED
    while True:
        code = _standstill(world)
        if code != Exit.REACHED:
            return code
        if clock.obeyed < clock.orders:
            obey(world)
            continue
        arrival_s = np.inf
        if clock.next_arrival < clock.arrivals:
            arrival_s = world.arrivals.arrival_s[clock.next_arrival]
        event_s = world.events[0].time_s if clock.events > 0 else np.inf
        if min(arrival_s, event_s) > stop_s:
            clock.now_s = stop_s
            return Exit.REACHED
        if event_s < arrival_s or (event_s == arrival_s and kind_of(world.events[0].order) < PLACE):
            code = _handle(world)
            if code != Exit.REACHED:
                return code
        else:
            clock.now_s = arrival_s
            if not _admit(world):
                return Exit.NEED_PLACEMENT
