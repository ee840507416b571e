"""The engine model: what one replica does at the boundary of an iteration.

All roles share one machine. A replica has a FIFO queue, a decode batch and possibly a chunk of prefill work.
At a boundary it retires what is done, admits what fits, and starts either
- one iteration that carries prefill tokens: a whole prompt alone takes TTFT; otherwise the ITL of the running
  batch (without one, the cost of an empty iteration) plus the work of the tokens carried (`engine.surfaces`),
  or
- a stretch of decode iterations, closed in one event (`engine.surfaces`), until the first sequence
  finishes; a request that can be admitted earlier cuts the stretch at the end of the iteration under way.
KV is reserved for input + output tokens on admission, so usage never exceeds capacity; what counts for speed
are the tokens present. A sequence that comes from a prefill replica enters the batch with its input tokens,
and its first iteration yields its first token; one prefilled here already has that token. Each iteration adds
one token per sequence.

A mixed replica may also compute a prompt that decodes elsewhere, and decode what was prefilled elsewhere.
Prefilled requests have a queue of their own and need only a place in the batch and KV: they are admitted at
each boundary, in their order, before new prompts. While one of them waits for room no further prompt is
begun, so that prompts do not take the room it waits for; a prompt already begun goes on beside it.
"""

from headway.engine.kernel import layout
from headway.engine.kernel.batch import account, dequeue, finish_decodes, first_tokens, fits, join, reserve
from headway.engine.kernel.layout import NONE, KernelState, Routing, push
from headway.engine.kernel.prefill import finish_chunk, iteration_s, plan_chunk, remember_prompt
from headway.engine.kernel.state import count_gap, log_transition
from headway.engine.surfaces import duration_s, find_cell, iterations_until, itl_at
from interp.jit import compiled


@compiled
def retire_if_drained(state: KernelState, replica: int) -> None:
    """A draining replica that has nothing left is gone; Python may want its GPUs for another role."""
    unit = state.replicas[replica]
    if unit.state == layout.DRAINING and unit.running == 0 and unit.waiting == 0 and unit.promised == 0:
        unit.state = layout.GONE
        unit.version += 1
        log_transition(state, replica, layout.GONE)
        state.clock[0].retired += 1


@compiled
def schedule(state: KernelState, replica: int, time_s: float) -> None:
    """Let the next boundary of the replica be at `time_s`; an earlier one is void."""
    unit = state.replicas[replica]
    unit.version += 1
    unit.boundary_s = time_s
    push(state.clock[0], state.events, time_s, layout.BOUNDARY, replica, unit.version)


@compiled
def enqueue(state: KernelState, replica: int, request: int) -> None:
    """Put a request at the end of the replica's queue, and wake or cut short what it does if that helps."""
    unit = state.replicas[replica]
    state.requests[request].next = NONE
    if unit.head == NONE:
        unit.head = request
    else:
        state.requests[unit.tail].next = request
    unit.tail = request
    unit.waiting += 1
    _wake(state, replica, request, unit.head == request and unit.arrived_head == NONE)


@compiled
def receive(state: KernelState, replica: int, request: int) -> None:
    """A request comes whose prompt was computed elsewhere, with its KV."""
    unit = state.replicas[replica]
    if unit.role == layout.DECODE:
        enqueue(state, replica, request)
        return
    state.requests[request].next = NONE
    if unit.arrived_head == NONE:
        unit.arrived_head = request
    else:
        state.requests[unit.arrived_tail].next = request
    unit.arrived_tail = request
    unit.waiting += 1
    _wake(state, replica, request, unit.arrived_head == request)


@compiled
def _wake(state: KernelState, replica: int, request: int, is_next: bool) -> None:
    """Start an idle replica; end a stretch early for a request that can then be admitted."""
    unit, now_s = state.replicas[replica], state.clock[0].now_s
    if unit.phase == layout.IDLE:
        if unit.boundary_s != now_s:
            schedule(state, replica, now_s)
    elif unit.phase == layout.DECODING and is_next and fits(state, replica, request, 0):
        elapsed_s = (now_s - unit.checkpoint_s) / unit.decode_slowness
        ends = iterations_until(state.itl, unit.running, unit.kv_tokens, elapsed_s, unit.planned)
        if ends[0] < unit.planned:
            unit.planned = ends[0]
            schedule(state, replica, unit.checkpoint_s + ends[1] * unit.decode_slowness)


@compiled
def _admit_prefilled(state: KernelState, replica: int) -> None:
    """Let those with their KV here into the batch, beside a prompt that is half computed."""
    unit = state.replicas[replica]
    joining = 0  # a prompt under way will need its place in the batch
    if unit.head != NONE and state.requests[unit.head].reserved == 1:
        joining = 1
    while unit.arrived_head != NONE and fits(state, replica, unit.arrived_head, joining):
        request = unit.arrived_head
        unit.arrived_head = state.requests[request].next
        unit.waiting -= 1
        reserve(state, replica, request)
        remember_prompt(state, replica, request)
        join(state, replica, request)


@compiled
def _start(state: KernelState, replica: int) -> None:
    """Begin the next iteration or stretch of iterations, or fall idle."""
    unit, now_s = state.replicas[replica], state.clock[0].now_s
    chunk_s, batch_s, was_idle = 0.0, 0.0, unit.phase == layout.IDLE
    if unit.role == layout.DECODE:
        while unit.head != NONE and fits(state, replica, unit.head, 0):
            request = dequeue(state, replica)
            reserve(state, replica, request)
            join(state, replica, request)
    else:
        if unit.arrived_head != NONE:
            _admit_prefilled(state, replica)
        chunk_s = plan_chunk(state, replica)
    unit.checkpoint_s = now_s
    if unit.role != layout.DECODE and unit.chunk_requests > 0:
        if unit.running > 0:
            batch_s = itl_at(find_cell(state.itl, unit.running, unit.kv_tokens), unit.kv_tokens)
            batch_s *= unit.decode_slowness
        unit.phase, unit.planned = layout.PREFILLING, 1.0
        schedule(state, replica, now_s + iteration_s(state, replica, batch_s, chunk_s))
    elif unit.running > 0:
        unit.phase = layout.DECODING
        unit.planned = float(state.finish_iteration[replica, 0] - unit.iteration)
        if unit.fresh_head != NONE and state.settings[0].routing == Routing.ROUTER:
            unit.planned = 1.0  # so that a router hears of first tokens when they leave
        stretch = duration_s(state.itl, unit.running, unit.kv_tokens, unit.planned)
        schedule(state, replica, now_s + stretch * unit.decode_slowness)
    else:
        unit.phase = layout.IDLE
        retire_if_drained(state, replica)
    # Ends less beginnings of busy times: no second field has to remember when one began.
    if was_idle != (unit.phase == layout.IDLE):
        unit.busy_s += -now_s if was_idle else now_s


@compiled
def boundary(state: KernelState, replica: int) -> None:
    """The iterations under way end now: retire, admit, start the next."""
    unit = state.replicas[replica]
    unit.boundary_s = -1.0
    if unit.phase == layout.DECODING:
        account(state, replica, unit.planned)
    elif unit.phase == layout.PREFILLING:
        if unit.running > 0:
            fresh = first_tokens(state, replica, state.clock[0].now_s)
            gap_s, gaps = state.clock[0].now_s - unit.checkpoint_s, unit.running - fresh
            count_gap(state, gap_s, gaps)
            unit.gaps += gaps
            unit.gap_s += gap_s * gaps
            unit.kv_tokens += unit.running
            unit.iteration += 1
        finish_chunk(state, replica)
    finish_decodes(state, replica)
    _start(state, replica)
