"""One request's attempts under a router: orders are obeyed, attempts are withdrawn, lost or shed.

An order names the replica that computes the prompt and the one that decodes: the same, or two, KV travelling
between them. An earlier attempt is withdrawn first. That is possible until the request is in a decode batch:
from then on the order has no effect, and the tokens come from where the request is. What the iteration under
way computes of a withdrawn prompt it computes to its end: an abandoned copy of the request keeps the place,
and the request itself is free at once.

A replica that decodes has promised to from the order on: a draining one waits for what it promised. An
attempt is lost when a replica that it needs is gone; the router hears of it and places the request anew, or
holds it: then it is nowhere.
"""

from headway.simulation.engine import enqueue, receive, retire_if_drained
from headway.simulation.layout import IDLE, LOST, MIXED, NONE, SHED, World
from headway.simulation.prefill import is_up
from headway.simulation.records import end_request, notify
from interp.jit import compiled


@compiled
def forget(world: World, request: int) -> None:
    """Nothing has been done for the request."""
    asked = world.requests[request]
    asked.reserved, asked.prefilled_tokens, asked.cached_tokens, asked.external_tokens = 0, 0, 0, 0
    asked.prefill_started_s = asked.prefill_finished_s = -1.0
    asked.decode_ready_s = asked.decode_started_s = -1.0


@compiled
def _release_promise(world: World, request: int) -> None:
    """The replica that was to decode need not wait for it, if it still does."""
    asked = world.requests[request]
    replica = asked.decode_replica
    if replica == asked.prefill_replica or asked.decode_ready_s >= 0.0:
        return
    if is_up(world, replica, asked.decode_serial):
        unit = world.replicas[replica]
        unit.promised -= 1
        if unit.phase == IDLE:
            retire_if_drained(world, replica)


@compiled
def _take_back(world: World, request: int) -> None:
    """The request is nowhere."""
    if world.requests[request].prefill_replica != NONE:
        _release_promise(world, request)
    forget(world, request)
    world.requests[request].prefill_replica = world.requests[request].decode_replica = NONE


@compiled
def lose(world: World, request: int) -> None:
    """The attempt came to nothing; say so."""
    world.requests[request].retries += 1
    _take_back(world, request)
    notify(world, LOST, request, world.requests[request].number, 0)


@compiled
def deliver(world: World, request: int) -> None:
    """The KV of a prompt has arrived."""
    asked = world.requests[request]
    replica = asked.decode_replica
    if is_up(world, replica, asked.decode_serial):
        world.replicas[replica].promised -= 1
        receive(world, replica, request)
    else:
        lose(world, request)


@compiled
def _before(world: World, head: int, request: int) -> int:
    """The one before `request` in the queue that starts with `head`; NONE if it is the first."""
    before = NONE
    while head != request:
        before, head = head, world.requests[head].next
    return before


@compiled
def _leave_queue(world: World, replica: int, request: int) -> None:
    """Take the request out of the queue, wherever in it it stands."""
    unit, following = world.replicas[replica], world.requests[request].next
    before = _before(world, unit.head, request)
    if before == NONE:
        unit.head = following
    else:
        world.requests[before].next = following
    if following == NONE:
        unit.tail = before
    unit.waiting -= 1


@compiled
def _leave_arrived(world: World, replica: int, request: int) -> None:
    """The same for the queue of prefilled requests of a mixed replica."""
    unit, following = world.replicas[replica], world.requests[request].next
    before = _before(world, unit.arrived_head, request)
    if before == NONE:
        unit.arrived_head = following
    else:
        world.requests[before].next = following
    if following == NONE:
        unit.arrived_tail = before
    unit.waiting -= 1


@compiled
def _abandon(world: World, replica: int, request: int) -> None:
    """Let a copy take the place of the request in the iteration under way."""
    clock, unit = world.clock[0], world.replicas[replica]
    ghost = clock.free_request
    clock.free_request = world.requests[ghost].next
    clock.free_requests -= 1
    version = world.requests[ghost].version
    world.requests[ghost] = world.requests[request]
    copy = world.requests[ghost]
    copy.number, copy.version, copy.abandoned = NONE, version, 1
    before = _before(world, unit.head, request)
    if before == NONE:
        unit.head = ghost
    else:
        world.requests[before].next = ghost
    if unit.tail == request:
        unit.tail = ghost


@compiled
def withdraw(world: World, request: int) -> bool:
    """Take the request from wherever it is; False, and nothing happens, if it is decoding."""
    asked = world.requests[request]
    replica = asked.prefill_replica
    if asked.decode_started_s >= 0.0:
        return False
    if replica == NONE:
        return True
    if asked.prefill_finished_s < 0.0:
        if asked.prefill_started_s >= 0.0:
            _abandon(world, replica, request)
        else:
            _leave_queue(world, replica, request)
            world.replicas[replica].prompt_tokens -= asked.input_tokens
    elif asked.decode_ready_s < 0.0:
        asked.version += 1  # what travels arrives in vain
    elif world.replicas[asked.decode_replica].role == MIXED:
        _leave_arrived(world, asked.decode_replica, request)
    else:
        _leave_queue(world, asked.decode_replica, request)
    _take_back(world, request)
    return True


@compiled
def obey(world: World) -> None:
    """Carry out the next order; one for a request that has ended is void."""
    clock = world.clock[0]
    order = world.orders[clock.obeyed]
    clock.obeyed += 1
    if clock.obeyed == clock.orders:
        clock.obeyed = clock.orders = 0
    request = order.request
    if world.requests[request].number != order.number or not withdraw(world, request):
        return
    if order.prefill == NONE:
        end_request(world, request, SHED)
    elif is_up(world, order.prefill, order.prefill_serial) and is_up(
        world, order.decode, order.decode_serial
    ):
        _begin(world, request, order.prefill, order.decode)
    else:
        lose(world, request)


@compiled
def _begin(world: World, request: int, prefill: int, decode: int) -> None:
    asked = world.requests[request]
    asked.prefill_replica, asked.decode_replica = prefill, decode
    asked.decode_serial = world.replicas[decode].serial
    world.replicas[prefill].prompt_tokens += asked.input_tokens
    if decode != prefill:
        world.replicas[decode].promised += 1
    enqueue(world, prefill, request)
