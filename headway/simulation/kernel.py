"""The kernel: takes events and arrivals in their total order until the next tick, or until Python must act.

Here are the dispatch of events and the built-in routings, with the parking of requests while no replica of a
pool is ready. Python decides how many replicas there are (`fleet`). A router is asked at each arrival and
told by notices, at the time of the event; its answers are orders, obeyed first when the kernel goes on
(`engine.kernel.lifecycle`).
"""

from headway.engine.kernel import layout
from headway.engine.kernel.layout import NONE, Exit, KernelState, Routing, drop_first, kind_of, push
from headway.engine.kernel.lifecycle import become_ready, crash, deliver, obey, park, role_for
from headway.engine.kernel.replica import boundary
from headway.engine.kernel.serving import (
    EVENT,
    NOTHING,
    assign,
    lacks_space,
    least_loaded,
    load_of,
    next_step,
    take_arrival,
)
from headway.engine.kernel.state import end_request, random_below
from headway.routing import shared_rules
from headway.simulation.clients import come_again, expect, give_up
from interp.jit import compiled

felt_load = compiled(shared_rules.felt_load)


@compiled
def _least_felt(state: KernelState, role: int, request: int) -> int:
    """The replica of the least load, where some are known to be slower or faster than others."""
    clock = state.clock[0]
    own = float(state.requests[request].input_tokens) if role == layout.PREFILL else 1.0
    best, least = NONE, 0.0
    for place in range(clock.ready[role]):
        replica = state.ready[role, place]
        slowness = state.replicas[replica].known_slowness
        load = felt_load(float(load_of(state, replica)), own, slowness, clock.idle_requests[role])
        if best == NONE or load < least:
            best, least = replica, load
    return best


@compiled
def choose(state: KernelState, role: int, request: int) -> int:
    """A ready replica of the role for the request, by the built-in routing."""
    clock, routing = state.clock[0], state.settings[0].routing
    count = clock.ready[role]
    if routing == Routing.RANDOM:
        return state.ready[role, random_below(state, count)]
    if routing == Routing.ROUND_ROBIN:
        clock.turn[role] += 1
        return state.ready[role, clock.turn[role] % count]
    if clock.uneven[role] > 0:
        return _least_felt(state, role, request)
    return least_loaded(state, role)


@compiled
def place_request(state: KernelState, request: int) -> bool:
    """Send a request to a replica; False where a router is to say which."""
    if state.settings[0].routing == Routing.ROUTER:
        state.clock[0].asked_request = request
        return False
    role = role_for(state, request)
    if state.clock[0].ready[role] == 0:
        park(state, request, role)
    else:
        assign(state, request, choose(state, role, request))
    return True


COMPILED_FROM = (
    "headway.simulation",
    "headway.engine.kernel",
    "headway.engine",
    "headway.routing.shared_rules",
    "interp",
)
"""Packages whose sources are in the compiled kernel (`interp.jit.drop_stale_cache`)."""


@compiled
def _admit(state: KernelState) -> bool:
    """Take the next arrival of the trace; False where a router is to place it."""
    request = take_arrival(state)
    asked = state.requests[request]
    if asked.input_tokens + asked.output_tokens > state.settings[0].kv_capacity_tokens:
        end_request(state, request, layout.FAILED)
        return True
    return _arrive(state, request)


@compiled
def _arrive(state: KernelState, request: int) -> bool:
    """An attempt arrives; False where a router is to place it."""
    clock, queueing_s = state.clock[0], state.settings[0].queueing_s
    expect(state, request)
    if queueing_s > 0.0:
        version = state.requests[request].version
        push(clock, state.events, clock.now_s + queueing_s, layout.PLACE, request, version)
        return True
    return place_request(state, request)


@compiled
def _handle(state: KernelState) -> int:
    """Process the first event; the exit code, Exit.REACHED to go on."""
    clock = state.clock[0]
    first = state.events[0]
    kind, index, version = kind_of(first.order), first.index, first.version
    drop_first(clock, state.events)
    placed = True
    if kind == layout.BOUNDARY:
        if state.replicas[index].version == version:
            boundary(state, index)
    elif kind == layout.TRANSFERRED:
        if state.requests[index].version == version:
            state.requests[index].decode_ready_s = clock.now_s
            if state.settings[0].routing == Routing.ROUTER:
                deliver(state, index)
            else:
                place_request(state, index)
    elif kind == layout.PLACE:
        placed = state.requests[index].version != version or place_request(state, index)
    elif kind == layout.GIVE_UP:
        give_up(state, index)
    elif kind == layout.RETURN:
        come_again(state, index)
        placed = _arrive(state, index)
    elif kind == layout.READY:
        become_ready(state, index, version)
    elif kind == layout.CRASH and clock.ready[index] > 0:
        clock.crashes += 1
        crash(state, state.ready[index, 0])
        return Exit.FLEET_CHANGED
    return Exit.REACHED if placed else Exit.NEED_PLACEMENT


@compiled
def _standstill(state: KernelState) -> int:
    """Why Python must act before anything else happens; Exit.REACHED if it need not."""
    clock = state.clock[0]
    if lacks_space(state):
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
def run(state: KernelState, stop_s: float) -> int:
    """Simulate up to and including `stop_s`; why it returned, as `layout.Exit`."""
    clock = state.clock[0]
    while True:
        code = _standstill(state)
        if code != Exit.REACHED:
            return code
        if clock.obeyed < clock.orders:
            obey(state)
            continue
        step = next_step(state, stop_s)
        if step == NOTHING:
            return Exit.REACHED
        if step == EVENT:
            code = _handle(state)
            if code != Exit.REACHED:
                return code
        elif not _admit(state):
            return Exit.NEED_PLACEMENT
