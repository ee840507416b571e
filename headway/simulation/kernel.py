"""The kernel: takes events and arrivals in their total order until the planner's next tick, or until Python must act.

Only the dispatch of events, the built-in routings and the life of replicas inside a run belong here; Python decides how
many replicas there are (`fleet`) and, for routings written in Python, where a request goes.
"""

import numpy as np

from headway.simulation import prefix
from headway.simulation.engine import (
    boundary,
    catch_up,
    end_request,
    enqueue,
    log_transition,
    retire_if_drained,
)
from headway.simulation.events import drop_first, kind_of, push
from headway.simulation.jit import compiled
from headway.simulation.layout import (
    BOUNDARY,
    CANCELLED,
    CRASH,
    CRASHED,
    DECODE,
    DRAINING,
    FAILED,
    GONE,
    IDLE,
    MIXED,
    NONE,
    PLACE,
    PREFILL,
    READY,
    SERVING,
    STARTING,
    TRANSFERRED,
    UNASSIGNED,
    World,
)

RANDOM, ROUND_ROBIN, LEAST_LOAD, PYTHON = 0, 1, 2, 3
REACHED, NEED_ARRIVALS, NEED_PLACEMENT, NEED_SPACE, FLEET_CHANGED, DONE = 0, 1, 2, 3, 4, 5
SPARE_EVENTS = 64


@compiled
def _random_below(world: World, bound: int) -> int:
    """SplitMix64, kept in the clock so that a run can be repeated."""
    clock = world.clock[0]
    clock.random = np.uint64(clock.random) + np.uint64(0x9E3779B97F4A7C15)
    mixed = np.uint64(clock.random)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return int((mixed >> np.uint64(33)) % np.uint64(bound))


@compiled
def load_of(world: World, replica: int) -> int:
    """What least-load compares: outstanding prompt tokens for prefill, requests otherwise."""
    unit = world.replicas[replica]
    return unit.prompt_tokens if unit.role == PREFILL else unit.running + unit.waiting


@compiled
def _choose(world: World, role: int) -> int:
    """A ready replica of the role by the built-in routing."""
    clock, routing = world.clock[0], world.settings[0].routing
    count = clock.ready[role]
    if routing == RANDOM:
        return world.ready[role, _random_below(world, count)]
    if routing == ROUND_ROBIN:
        clock.turn[role] += 1
        return world.ready[role, clock.turn[role] % count]
    best, least = NONE, np.int64(0)
    for place in range(count):
        load = load_of(world, world.ready[role, place])
        if best == NONE or load < least:
            best, least = world.ready[role, place], load
    return best


@compiled
def _role_for(world: World, request: int) -> int:
    """The pool in which the request continues."""
    if world.settings[0].disaggregated == 0:
        return MIXED
    return PREFILL if world.requests[request].first_token_s < 0.0 else DECODE


@compiled
def _park(world: World, request: int, role: int) -> None:
    """No replica of the role is ready: wait for one."""
    clock = world.clock[0]
    world.requests[request].next = NONE
    if clock.parked_head[role] == NONE:
        clock.parked_head[role] = request
    else:
        world.requests[clock.parked_tail[role]].next = request
    clock.parked_tail[role] = request
    clock.parked[role] += 1


@compiled
def _assign(world: World, request: int, replica: int) -> None:
    unit, asked = world.replicas[replica], world.requests[request]
    if unit.role != DECODE:
        asked.prefill_replica = replica
        unit.prompt_tokens += asked.input_tokens
    if unit.role != PREFILL:
        asked.decode_replica = replica
    enqueue(world, replica, request)


@compiled
def _place(world: World, request: int) -> bool:
    """Send a request to a replica; False when Python has to say which."""
    role = _role_for(world, request)
    if world.clock[0].ready[role] == 0:
        _park(world, request, role)
    elif world.settings[0].routing == PYTHON:
        world.clock[0].asked_request, world.clock[0].asked_role = request, role
        return False
    else:
        _assign(world, request, _choose(world, role))
    return True


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
    asked.copy = columns.copy[row]
    asked.prefill_started_s = asked.first_token_s = asked.decode_ready_s = asked.decode_started_s = -1.0
    asked.cached_tokens = asked.prefilled_tokens = 0
    asked.prefill_replica = asked.decode_replica = NONE
    asked.retries = asked.reserved = 0
    world.window[0].arrivals += 1
    world.window[0].input_tokens += asked.input_tokens
    if asked.input_tokens + asked.output_tokens > world.settings[0].kv_capacity_tokens:
        end_request(world, request, FAILED)
        return True
    return _place(world, request)


@compiled
def _become_ready(world: World, replica: int, version: int) -> None:
    unit, clock = world.replicas[replica], world.clock[0]
    if unit.state != STARTING or unit.version != version:
        return
    unit.state = SERVING
    role = unit.role
    world.ready[role, clock.ready[role]] = replica
    clock.ready[role] += 1
    log_transition(world, replica, SERVING)
    request = clock.parked_head[role]
    while request != NONE:
        push(clock, world.events, clock.now_s, PLACE, request, 0)
        request = world.requests[request].next
    clock.parked_head[role] = clock.parked_tail[role] = NONE
    clock.parked[role] = 0


@compiled
def _leave_service(world: World, replica: int) -> None:
    """Take a replica off the list that routing chooses from."""
    clock, role = world.clock[0], world.replicas[replica].role
    place = 0
    for i in range(clock.ready[role]):
        if world.ready[role, i] != replica:
            world.ready[role, place] = world.ready[role, i]
            place += 1
    clock.ready[role] = place


@compiled
def _crash(world: World, replica: int) -> None:
    """The replica dies: streams on it fail, prompts without a first token are placed anew."""
    unit, clock = world.replicas[replica], world.clock[0]
    catch_up(world, replica)
    _leave_service(world, replica)
    for i in range(unit.running):
        end_request(world, world.finish_request[replica, i], FAILED)
    request = unit.head
    while request != NONE:
        asked = world.requests[request]
        following = asked.next
        if asked.first_token_s >= 0.0:
            end_request(world, request, FAILED)
        else:
            asked.retries += 1
            asked.reserved, asked.prefilled_tokens, asked.cached_tokens = 0, 0, 0
            asked.prefill_started_s = -1.0
            push(clock, world.events, clock.now_s, PLACE, request, 0)
        request = following
    unit.running = unit.waiting = unit.kv_tokens = unit.reserved_tokens = unit.prompt_tokens = 0
    unit.head = unit.tail = unit.fresh_head = NONE
    unit.state, unit.phase = GONE, IDLE
    unit.version += 1
    log_transition(world, replica, CRASHED)


@compiled
def catch_up_all(world: World) -> None:
    """Bring every replica's counters to the present, for an observation."""
    for replica in range(len(world.replicas)):
        if world.replicas[replica].state != GONE:
            catch_up(world, replica)


@compiled
def start_replica(world: World, replica: int, ready_s: float) -> None:
    """Let a new replica start in a free slot; the slot's version goes on, so that old events stay void."""
    unit = world.replicas[replica]
    unit.version += 1
    unit.state, unit.phase = STARTING, IDLE
    unit.created_s = world.clock[0].now_s
    unit.boundary_s = unit.checkpoint_s = -1.0
    unit.iteration = 0
    unit.running = unit.kv_tokens = unit.reserved_tokens = unit.fresh = unit.waiting = 0
    unit.prompt_tokens = unit.chunk_requests = unit.chunk_last_tokens = 0
    unit.head = unit.tail = unit.fresh_head = NONE
    prefix.clear(world, replica)
    push(world.clock[0], world.events, ready_s, READY, replica, unit.version)


@compiled
def stop_replica(world: World, replica: int) -> None:
    """Cancel a starting replica, or let a serving one finish what it has."""
    unit = world.replicas[replica]
    if unit.state == STARTING:
        unit.state = GONE
        unit.version += 1
        log_transition(world, replica, CANCELLED)
    else:
        _leave_service(world, replica)
        unit.state = DRAINING
        log_transition(world, replica, DRAINING)
        if unit.phase == IDLE:
            retire_if_drained(world, replica)


@compiled
def schedule_crash(world: World, role: int, time_s: float) -> None:
    """Let the longest-ready replica of the role die at `time_s`."""
    push(world.clock[0], world.events, time_s, CRASH, role, 0)


@compiled
def _handle(world: World) -> int:
    """Process the first event; the exit code, REACHED to go on."""
    clock = world.clock[0]
    first = world.events[0]
    kind, index, version = kind_of(first.order), first.index, first.version
    clock.now_s = first.time_s
    drop_first(clock, world.events)
    if kind == BOUNDARY:
        if world.replicas[index].version == version:
            boundary(world, index)
    elif kind == TRANSFERRED:
        world.requests[index].decode_ready_s = clock.now_s
        return REACHED if _place(world, index) else NEED_PLACEMENT
    elif kind == PLACE:
        return REACHED if _place(world, index) else NEED_PLACEMENT
    elif kind == READY:
        _become_ready(world, index, version)
    elif kind == CRASH and clock.ready[index] > 0:
        _crash(world, world.ready[index, 0])
        return FLEET_CHANGED
    return REACHED


@compiled
def _lacks_space(world: World) -> bool:
    clock = world.clock[0]
    return (
        clock.free_requests == 0
        or clock.events + clock.active + SPARE_EVENTS > len(world.events)
        or clock.finished + clock.active + SPARE_EVENTS > len(world.finished)
        or clock.transitions + SPARE_EVENTS > len(world.transitions)
    )


@compiled
def run(world: World, stop_s: float) -> int:
    """Simulate up to and including `stop_s`; why it returned, as `layout.Exit`."""
    clock = world.clock[0]
    if clock.answer != UNASSIGNED:
        _assign(world, clock.asked_request, clock.answer)
        clock.answer = UNASSIGNED
    while True:
        if _lacks_space(world):
            return NEED_SPACE
        if clock.next_arrival == clock.arrivals:
            if clock.last_chunk == 0:
                return NEED_ARRIVALS
            if clock.active == 0 and clock.now_s >= clock.horizon_s:
                return DONE
        arrival_s = np.inf
        if clock.next_arrival < clock.arrivals:
            arrival_s = world.arrivals.arrival_s[clock.next_arrival]
        event_s = world.events[0].time_s if clock.events > 0 else np.inf
        if min(arrival_s, event_s) > stop_s:
            clock.now_s = stop_s
            return REACHED
        if event_s < arrival_s or (event_s == arrival_s and kind_of(world.events[0].order) < PLACE):
            code = _handle(world)
            if code != REACHED:
                return code
        else:
            clock.now_s = arrival_s
            if not _admit(world):
                return NEED_PLACEMENT
