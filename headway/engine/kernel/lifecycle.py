"""Replicas come and go: start, readiness, draining, crash."""

from headway.engine.decode_batch import duration_s
from headway.engine.kernel import layout
from headway.engine.kernel.attempts import forget, lose
from headway.engine.kernel.batch import catch_up
from headway.engine.kernel.events import push
from headway.engine.kernel.layout import NONE, KernelState, Routing
from headway.engine.kernel.prefill import clear_cache, drop_abandoned
from headway.engine.kernel.records import end_request, log_transition
from headway.engine.kernel.replica import retire_if_drained, schedule
from interp.jit import compiled


@compiled
def become_ready(state: KernelState, replica: int, version: int) -> None:
    """The start-up is over: serve, beginning with what waited for a replica of this role."""
    unit, clock = state.replicas[replica], state.clock[0]
    if unit.state != layout.STARTING or unit.version != version:
        return
    unit.state = layout.SERVING
    role = unit.role
    state.ready[role, clock.ready[role]] = replica
    clock.ready[role] += 1
    log_transition(state, replica, layout.SERVING)
    request = clock.parked_head[role]
    while request != NONE:
        push(clock, state.events, clock.now_s, layout.PLACE, request, 0)
        request = state.requests[request].next
    clock.parked_head[role] = clock.parked_tail[role] = NONE
    clock.parked[role] = 0


@compiled
def _leave_service(state: KernelState, replica: int) -> None:
    """Take a replica off the list that routing chooses from."""
    clock, role = state.clock[0], state.replicas[replica].role
    place = 0
    for i in range(clock.ready[role]):
        if state.ready[role, i] != replica:
            state.ready[role, place] = state.ready[role, i]
            place += 1
    clock.ready[role] = place


@compiled
def _begin_anew(state: KernelState, request: int) -> None:
    """Forget what a dead replica did for the request, and place it again."""
    if state.settings[0].routing == Routing.ROUTER:
        lose(state, request)
        return
    state.requests[request].retries += 1
    forget(state, request)
    push(state.clock[0], state.events, state.clock[0].now_s, layout.PLACE, request, 0)


@compiled
def _begin_all_anew(state: KernelState, replica: int, request: int) -> None:
    """The same for a queue that starts with `request`."""
    while request != NONE:
        following = state.requests[request].next
        if state.requests[request].abandoned == 1:
            drop_abandoned(state, replica, request)
        else:
            _begin_anew(state, request)
        request = following


@compiled
def crash(state: KernelState, replica: int) -> None:
    """The replica dies: streams on it fail; what has no first token yet begins anew at its prefill."""
    unit = state.replicas[replica]
    catch_up(state, replica)
    _leave_service(state, replica)
    log_transition(state, replica, layout.CRASHED)
    for i in range(unit.running):
        request = state.finish_request[replica, i]
        if state.requests[request].first_token_s < 0.0:
            _begin_anew(state, request)
        else:
            end_request(state, request, layout.FAILED)
    _begin_all_anew(state, replica, unit.head)
    _begin_all_anew(state, replica, unit.arrived_head)
    unit.running = unit.waiting = unit.kv_tokens = unit.reserved_tokens = unit.prompt_tokens = 0
    unit.head = unit.tail = unit.arrived_head = unit.arrived_tail = unit.fresh_head = NONE
    unit.state, unit.phase = layout.GONE, layout.IDLE
    unit.version += 1


@compiled
def catch_up_all(state: KernelState) -> None:
    """Bring every replica's counters to the present, for an observation."""
    for replica in range(len(state.replicas)):
        if state.replicas[replica].state != layout.GONE:
            catch_up(state, replica)


@compiled
def start_replica(state: KernelState, replica: int, ready_s: float) -> None:
    """Let a new replica start in a free slot, as fast as profiled.

    The slot's version goes on, so that old events stay void.
    """
    unit = state.replicas[replica]
    unit.version += 1
    unit.state, unit.phase = layout.STARTING, layout.IDLE
    unit.created_s = state.clock[0].now_s
    unit.boundary_s = unit.checkpoint_s = -1.0
    unit.busy_s = 0.0
    unit.prefill_slowness = unit.decode_slowness = unit.known_slowness = 1.0
    unit.iteration = 0
    unit.running = unit.kv_tokens = unit.reserved_tokens = unit.waiting = 0
    unit.prompt_tokens = unit.chunk_requests = unit.chunk_last_tokens = unit.promised = 0
    unit.head = unit.tail = unit.arrived_head = unit.arrived_tail = unit.fresh_head = NONE
    clear_cache(state, replica)
    push(state.clock[0], state.events, ready_s, layout.READY, replica, unit.version)


@compiled
def set_slowness(state: KernelState, replica: int, prefill: float, decode: float) -> None:
    """Let the replica compute at another speed from now on; what carries prompts right now ends as begun."""
    unit, now_s = state.replicas[replica], state.clock[0].now_s
    catch_up(state, replica)
    unit.prefill_slowness, unit.decode_slowness = prefill, decode
    if unit.phase == layout.DECODING:
        length_s = duration_s(state.itl, unit.running, unit.kv_tokens, unit.planned) * decode
        schedule(state, replica, max(now_s, unit.checkpoint_s + length_s))


@compiled
def stop_replica(state: KernelState, replica: int) -> None:
    """Cancel a starting replica, or let a serving one finish what it has."""
    unit = state.replicas[replica]
    if unit.state == layout.STARTING:
        unit.state = layout.GONE
        unit.version += 1
        log_transition(state, replica, layout.CANCELLED)
    else:
        _leave_service(state, replica)
        unit.state = layout.DRAINING
        log_transition(state, replica, layout.DRAINING)
        if unit.phase == layout.IDLE:
            retire_if_drained(state, replica)


@compiled
def schedule_crash(state: KernelState, role: int, time_s: float) -> None:
    """Let the longest-ready replica of the role die at `time_s`."""
    push(state.clock[0], state.events, time_s, layout.CRASH, role, 0)
