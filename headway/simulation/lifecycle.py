"""Replicas come and go: start, readiness, draining, crash."""

from headway.simulation import prefix
from headway.simulation.attempts import forget, lose
from headway.simulation.batch import catch_up
from headway.simulation.engine import retire_if_drained
from headway.simulation.events import push
from headway.simulation.layout import (
    CANCELLED,
    CRASH,
    CRASHED,
    DRAINING,
    FAILED,
    GONE,
    IDLE,
    NONE,
    PLACE,
    READY,
    SERVING,
    STARTING,
    Routing,
    World,
)
from headway.simulation.prefill import drop_abandoned
from headway.simulation.records import end_request, log_transition
from interp.jit import compiled


@compiled
def become_ready(world: World, replica: int, version: int) -> None:
    """The start-up is over: serve, beginning with what waited for a replica of this role."""
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
def _begin_anew(world: World, request: int) -> None:
    """Forget what a dead replica did for the request, and place it again."""
    if world.settings[0].routing == Routing.ROUTER:
        lose(world, request)
        return
    world.requests[request].retries += 1
    forget(world, request)
    push(world.clock[0], world.events, world.clock[0].now_s, PLACE, request, 0)


@compiled
def _begin_all_anew(world: World, replica: int, request: int) -> None:
    """The same for a queue that starts with `request`."""
    while request != NONE:
        following = world.requests[request].next
        if world.requests[request].abandoned == 1:
            drop_abandoned(world, replica, request)
        else:
            _begin_anew(world, request)
        request = following


@compiled
def crash(world: World, replica: int) -> None:
    """The replica dies: streams on it fail; what has no first token yet begins anew at its prefill."""
    unit = world.replicas[replica]
    catch_up(world, replica)
    _leave_service(world, replica)
    log_transition(world, replica, CRASHED)
    for i in range(unit.running):
        request = world.finish_request[replica, i]
        if world.requests[request].first_token_s < 0.0:
            _begin_anew(world, request)
        else:
            end_request(world, request, FAILED)
    _begin_all_anew(world, replica, unit.head)
    _begin_all_anew(world, replica, unit.arrived_head)
    unit.running = unit.waiting = unit.kv_tokens = unit.reserved_tokens = unit.prompt_tokens = 0
    unit.head = unit.tail = unit.arrived_head = unit.arrived_tail = unit.fresh_head = NONE
    unit.state, unit.phase = GONE, IDLE
    unit.version += 1


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
    unit.busy_s = 0.0
    unit.iteration = 0
    unit.running = unit.kv_tokens = unit.reserved_tokens = unit.waiting = 0
    unit.prompt_tokens = unit.chunk_requests = unit.chunk_last_tokens = unit.promised = 0
    unit.head = unit.tail = unit.arrived_head = unit.arrived_tail = unit.fresh_head = NONE
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
