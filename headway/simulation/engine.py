"""The engine model: what one replica does at the boundary of an iteration.

All roles share one machine. A replica has a FIFO queue, a decode batch and possibly a chunk of prefill work.
At a boundary it retires what is done, admits what fits, and starts either
- one iteration that carries prefill tokens: a whole prompt alone takes TTFT; otherwise the ITL of the running
  batch (without one, the cost of an empty iteration) plus the work of the tokens carried (see `work`), or
- a stretch of decode iterations, closed in one event (see `iteration`), until the first sequence finishes; a
  request that can be admitted earlier cuts the stretch at the end of the iteration under way.
KV is reserved for input + output tokens on admission, so usage never exceeds capacity; what counts for speed
are the tokens present. A sequence that comes from a prefill replica enters the batch with its input tokens,
and its first iteration yields its first token; one prefilled here already has that token. Each iteration adds
one token per sequence.
"""

from headway.simulation.batch import (
    account,
    dequeue,
    finish_decodes,
    fits,
    join,
    reserve,
)
from headway.simulation.events import push
from headway.simulation.iteration import duration_s, find_cell, iterations_until, itl_at
from headway.simulation.jit import compiled
from headway.simulation.layout import (
    BOUNDARY,
    DECODE,
    DECODING,
    DRAINING,
    GONE,
    IDLE,
    NONE,
    PREFILLING,
    World,
)
from headway.simulation.prefill import finish_chunk, iteration_s, plan_chunk
from headway.simulation.records import count_gap, log_transition


@compiled
def retire_if_drained(world: World, replica: int) -> None:
    """A draining replica that has nothing left is gone."""
    unit = world.replicas[replica]
    if unit.state == DRAINING and unit.running == 0 and unit.waiting == 0:
        unit.state = GONE
        unit.version += 1
        log_transition(world, replica, GONE)


@compiled
def _schedule(world: World, replica: int, time_s: float) -> None:
    unit = world.replicas[replica]
    unit.version += 1
    unit.boundary_s = time_s
    push(world.clock[0], world.events, time_s, BOUNDARY, replica, unit.version)


@compiled
def enqueue(world: World, replica: int, request: int) -> None:
    """Put a request at the end of the replica's queue, and wake or cut short what it does if that helps."""
    unit, now_s = world.replicas[replica], world.clock[0].now_s
    world.requests[request].next = NONE
    if unit.head == NONE:
        unit.head = request
    else:
        world.requests[unit.tail].next = request
    unit.tail = request
    unit.waiting += 1
    if unit.phase == IDLE:
        if unit.boundary_s != now_s:
            _schedule(world, replica, now_s)
    elif unit.phase == DECODING and unit.waiting == 1 and fits(world, replica, request, 0):
        elapsed_s = now_s - unit.checkpoint_s
        ends = iterations_until(world.surface, unit.running, unit.kv_tokens, elapsed_s, unit.planned)
        if ends[0] < unit.planned:
            unit.planned = ends[0]
            _schedule(world, replica, unit.checkpoint_s + ends[1])


@compiled
def _start(world: World, replica: int) -> None:
    """Begin the next iteration or stretch of iterations, or fall idle."""
    unit, now_s = world.replicas[replica], world.clock[0].now_s
    chunk_s, batch_s = 0.0, 0.0
    if unit.role == DECODE:
        while unit.head != NONE and fits(world, replica, unit.head, 0):
            request = dequeue(world, replica)
            reserve(world, replica, request)
            join(world, replica, request)
    else:
        chunk_s = plan_chunk(world, replica)
    unit.checkpoint_s = now_s
    if unit.role != DECODE and unit.chunk_requests > 0:
        if unit.running > 0:
            batch_s = itl_at(find_cell(world.surface, unit.running, unit.kv_tokens), unit.kv_tokens)
        unit.phase, unit.planned = PREFILLING, 1.0
        _schedule(world, replica, now_s + iteration_s(world, replica, batch_s, chunk_s))
    elif unit.running > 0:
        unit.phase = DECODING
        unit.planned = float(world.finish_iteration[replica, 0] - unit.iteration)
        _schedule(
            world, replica, now_s + duration_s(world.surface, unit.running, unit.kv_tokens, unit.planned)
        )
    else:
        unit.phase = IDLE
        retire_if_drained(world, replica)


@compiled
def boundary(world: World, replica: int) -> None:
    """The iterations under way end now: retire, admit, start the next."""
    unit = world.replicas[replica]
    unit.boundary_s = -1.0
    if unit.phase == DECODING:
        account(world, replica, unit.planned)
    elif unit.phase == PREFILLING:
        if unit.running > 0:
            count_gap(world, world.clock[0].now_s - unit.checkpoint_s, unit.running)
            unit.kv_tokens += unit.running
            unit.iteration += 1
        finish_chunk(world, replica)
    finish_decodes(world, replica)
    _start(world, replica)
