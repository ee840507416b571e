"""Replicas start, drain and crash, and a request's attempts under a router begin and end.

An order names the replica that computes the prompt and the one that decodes: the same, or two, KV travelling
between them. An earlier attempt is withdrawn first. That is possible until the request is in a decode batch:
from then on the order has no effect, and the tokens come from where the request is. What the iteration under
way computes of a withdrawn prompt it computes to its end: an abandoned copy of the request keeps the place,
and the request itself is free at once.

A replica that decodes has promised to from the order on: a draining one waits for what it promised. An
attempt is lost when a replica that it needs is gone; the router hears of it and places the request anew, or
holds it: then it is nowhere.
"""

from headway.engine.kernel import layout
from headway.engine.kernel.batch import catch_up
from headway.engine.kernel.layout import IDLE, LOST, MIXED, NONE, SHED, KernelState, Routing, push
from headway.engine.kernel.prefill import clear_cache, drop_abandoned, is_up
from headway.engine.kernel.replica import enqueue, receive, retire_if_drained, schedule
from headway.engine.kernel.state import end_attempt, log_transition, notify
from headway.engine.surfaces import duration_s
from interp.jit import compiled


@compiled
def forget(state: KernelState, request: int) -> None:
    """Nothing has been done for the request."""
    asked = state.requests[request]
    asked.reserved, asked.prefilled_tokens, asked.cached_tokens, asked.external_tokens = 0, 0, 0, 0
    asked.prefill_started_s = asked.prefill_finished_s = -1.0
    asked.decode_ready_s = asked.decode_started_s = -1.0
    asked.prefill_replica = asked.decode_replica = NONE


@compiled
def _release_promise(state: KernelState, request: int) -> None:
    """The replica that was to decode need not wait for it, if it still does."""
    asked = state.requests[request]
    replica = asked.decode_replica
    if replica == NONE or replica == asked.prefill_replica or asked.decode_ready_s >= 0.0:  # noqa: PLR1714 - compiled
        return
    if is_up(state, replica, asked.decode_serial):
        unit = state.replicas[replica]
        unit.promised -= 1
        if unit.phase == IDLE:
            retire_if_drained(state, replica)


@compiled
def _take_back(state: KernelState, request: int) -> None:
    """The request is nowhere."""
    if state.requests[request].prefill_replica != NONE:
        _release_promise(state, request)
    forget(state, request)


@compiled
def lose(state: KernelState, request: int) -> None:
    """The attempt came to nothing; say so."""
    state.requests[request].retries += 1
    _take_back(state, request)
    notify(state, LOST, request, state.requests[request].number, 0)


@compiled
def deliver(state: KernelState, request: int) -> None:
    """The KV of a prompt has arrived."""
    asked = state.requests[request]
    replica = asked.decode_replica
    if is_up(state, replica, asked.decode_serial):
        state.replicas[replica].promised -= 1
        receive(state, replica, request)
    else:
        lose(state, request)


@compiled
def _before(state: KernelState, head: int, request: int) -> int:
    """The one before `request` in the queue that starts with `head`; NONE if it is the first."""
    before = NONE
    while head != request:
        before, head = head, state.requests[head].next
    return before


@compiled
def _unlinked(state: KernelState, head: int, tail: int, request: int) -> tuple[int, int]:
    """Head and tail of a queue once the request has left it, wherever in it it stood."""
    before, following = _before(state, head, request), state.requests[request].next
    if before == NONE:
        head = following
    else:
        state.requests[before].next = following
    return head, before if following == NONE else tail


@compiled
def _leave_queue(state: KernelState, replica: int, request: int) -> None:
    """Take the request out of the replica's queue."""
    unit = state.replicas[replica]
    unit.head, unit.tail = _unlinked(state, unit.head, unit.tail, request)
    unit.waiting -= 1


@compiled
def _leave_arrived(state: KernelState, replica: int, request: int) -> None:
    """The same for the queue of prefilled requests of a mixed replica."""
    unit = state.replicas[replica]
    unit.arrived_head, unit.arrived_tail = _unlinked(state, unit.arrived_head, unit.arrived_tail, request)
    unit.waiting -= 1


@compiled
def role_for(state: KernelState, request: int) -> int:
    """The pool in which the request continues."""
    if state.settings[0].disaggregated == 0:
        return layout.MIXED
    return layout.PREFILL if state.requests[request].prefill_finished_s < 0.0 else layout.DECODE


@compiled
def park(state: KernelState, request: int, role: int) -> None:
    """No replica of the role is ready: wait for one."""
    clock = state.clock[0]
    state.requests[request].next = NONE
    if clock.parked_head[role] == NONE:
        clock.parked_head[role] = request
    else:
        state.requests[clock.parked_tail[role]].next = request
    clock.parked_tail[role] = request
    clock.parked[role] += 1


@compiled
def _leave_parked(state: KernelState, request: int) -> None:
    """The same for those that wait for a replica to become ready, if it is among them."""
    clock, role = state.clock[0], role_for(state, request)
    head = clock.parked_head[role]
    while head != NONE and head != request:  # noqa: PLR1714 - compiled
        head = state.requests[head].next
    if head == request:
        parked = _unlinked(state, clock.parked_head[role], clock.parked_tail[role], request)
        clock.parked_head[role], clock.parked_tail[role] = parked
        clock.parked[role] -= 1


@compiled
def _abandon(state: KernelState, replica: int, request: int) -> None:
    """Let a copy take the place of the request in the iteration under way."""
    clock, unit = state.clock[0], state.replicas[replica]
    ghost = clock.free_request
    clock.free_request = state.requests[ghost].next
    clock.free_requests -= 1
    version = state.requests[ghost].version
    state.requests[ghost] = state.requests[request]
    copy = state.requests[ghost]
    copy.number, copy.version, copy.abandoned = NONE, version, 1
    before = _before(state, unit.head, request)
    if before == NONE:
        unit.head = ghost
    else:
        state.requests[before].next = ghost
    if unit.tail == request:
        unit.tail = ghost


@compiled
def withdraw(state: KernelState, request: int) -> bool:
    """Take the request from wherever it is; False, and nothing happens, if it is decoding."""
    asked = state.requests[request]
    replica = asked.prefill_replica
    if asked.decode_started_s >= 0.0:
        return False
    if replica == NONE:
        _leave_parked(state, request)
        return True
    if asked.prefill_finished_s < 0.0:
        if asked.prefill_started_s >= 0.0:
            _abandon(state, replica, request)
        else:
            _leave_queue(state, replica, request)
            state.replicas[replica].prompt_tokens -= asked.input_tokens
    elif asked.decode_ready_s < 0.0:
        asked.version += 1  # what travels arrives in vain
    elif asked.decode_replica == NONE:
        _leave_parked(state, request)
    elif state.replicas[asked.decode_replica].role == MIXED:
        _leave_arrived(state, asked.decode_replica, request)
    else:
        _leave_queue(state, asked.decode_replica, request)
    _take_back(state, request)
    return True


@compiled
def obey(state: KernelState) -> None:
    """Carry out the next order; one for a request that has ended is void."""
    clock = state.clock[0]
    order = state.orders[clock.obeyed]
    clock.obeyed += 1
    if clock.obeyed == clock.orders:
        clock.obeyed = clock.orders = 0
    request = order.request
    if state.requests[request].number != order.number or not withdraw(state, request):
        return
    if order.prefill == NONE:
        end_attempt(state, request, SHED)
    elif is_up(state, order.prefill, order.prefill_serial) and is_up(
        state, order.decode, order.decode_serial
    ):
        _begin(state, request, order.prefill, order.decode)
    else:
        lose(state, request)


@compiled
def _begin(state: KernelState, request: int, prefill: int, decode: int) -> None:
    asked = state.requests[request]
    asked.prefill_replica, asked.decode_replica = prefill, decode
    asked.decode_serial = state.replicas[decode].serial
    state.replicas[prefill].prompt_tokens += asked.input_tokens
    if decode != prefill:
        state.replicas[decode].promised += 1
    enqueue(state, prefill, request)


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
        push(clock, state.events, clock.now_s, layout.PLACE, request, state.requests[request].version)
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
    asked, clock = state.requests[request], state.clock[0]
    push(clock, state.events, clock.now_s, layout.PLACE, request, asked.version)


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
            end_attempt(state, request, layout.FAILED)
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
    unit.gaps = unit.first_tokens = unit.computed_tokens = unit.prompts = unit.shown_tokens = 0
    unit.gap_s = unit.prefill_s = 0.0
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
