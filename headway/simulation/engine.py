"""The engine model: what one replica does at the boundary of an iteration.

All roles share one machine. A replica has a FIFO queue, a decode batch and possibly a chunk of prefill work; at a
boundary it retires what is done, admits what fits, and starts either
- one iteration that carries prefill tokens: ITL of the running batch (or the cost of an empty prefill when none
  runs) plus Σ TTFT(done + chunk) − TTFT(done) over the prompts touched; a batch of one thus takes exactly TTFT, or
- a stretch of decode iterations, closed in one event (see `iteration`), until the first sequence finishes; a
  request that can be admitted earlier cuts the stretch at the end of the iteration under way.
KV is reserved for input + output tokens on admission, so usage never exceeds capacity; what counts for speed are the
tokens present. A sequence enters the batch with input + 1 tokens and gains one per iteration.
"""

import numpy as np

from headway.simulation import prefix
from headway.simulation.events import push
from headway.simulation.histogram import add, add_range
from headway.simulation.iteration import (
    duration_s,
    find_cell,
    iterations_in_cell,
    iterations_until,
    itl_at,
    last_at_or_below,
    stretch_s,
)
from headway.simulation.jit import compiled
from headway.simulation.layout import (
    BOUNDARY,
    COMPLETED,
    DECODE,
    DECODING,
    DRAINING,
    GONE,
    IDLE,
    ITL,
    NONE,
    PREFILL,
    PREFILLING,
    TRANSFERRED,
    TTFT,
    World,
)


@compiled
def prefill_time_s(world: World, tokens: float) -> float:
    """TTFT of a prompt of `tokens` uncached tokens on an idle engine, as the profile has it."""
    isl, ttft = world.prefill_tokens, world.prefill_s
    place = last_at_or_below(isl, tokens)
    if place < 0:
        return ttft[0]
    if place == len(isl) - 1:
        rules, last = world.settings[0], isl[place]
        growth = rules.linear_s_per_token + rules.quadratic_s_per_token2 * (tokens + last)
        return ttft[place] + growth * (tokens - last)
    share = (tokens - isl[place]) / (isl[place + 1] - isl[place])
    return ttft[place] + (ttft[place + 1] - ttft[place]) * share


@compiled
def log_transition(world: World, replica: int, state: int) -> None:
    """Tell Python that a replica changed its state."""
    clock, unit = world.clock[0], world.replicas[replica]
    entry = world.transitions[clock.transitions]
    entry.time_s, entry.created_s = clock.now_s, unit.created_s
    entry.role, entry.state = unit.role, state
    clock.transitions += 1


@compiled
def retire_if_drained(world: World, replica: int) -> None:
    """A draining replica that has nothing left is gone."""
    unit = world.replicas[replica]
    if unit.state == DRAINING and unit.running == 0 and unit.waiting == 0:
        unit.state = GONE
        unit.version += 1
        log_transition(world, replica, GONE)


@compiled
def end_request(world: World, request: int, outcome: int) -> None:
    """Write the request's record and free its slot."""
    clock, asked = world.clock[0], world.requests[request]
    asked.outcome, asked.finished_s = outcome, clock.now_s
    if outcome == COMPLETED:
        window = world.window[0]
        window.completed += 1
        window.output_tokens += asked.output_tokens
        window.duration_s += clock.now_s - asked.arrival_s
    world.finished[clock.finished] = asked
    clock.finished += 1
    clock.active -= 1
    asked.next = clock.free_request
    clock.free_request = request
    clock.free_requests += 1


@compiled
def _gap(world: World, gap_s: float, times: int) -> None:
    window = world.window[0]
    window.gaps += times
    window.gap_s += gap_s * times
    add(world.histograms[ITL], gap_s, times)


@compiled
def _account(world: World, replica: int, iterations: float) -> None:
    """Move the batch on by `iterations` whole iterations and count their token gaps."""
    unit, window = world.replicas[replica], world.window[0]
    batch = unit.running
    left = iterations
    while left > 0.0:
        tokens = float(unit.kv_tokens)
        cell = find_cell(world.surface, batch, tokens)
        step = min(left, iterations_in_cell(cell, batch, tokens))
        first, last = itl_at(cell, tokens), itl_at(cell, tokens + (step - 1.0) * batch)
        gaps = batch * int(step) - unit.fresh
        window.gaps += gaps
        window.gap_s += batch * stretch_s(cell, batch, tokens, step) - unit.fresh * first
        add_range(world.histograms[ITL], first, last, gaps)
        unit.fresh = 0
        unit.kv_tokens += int(step) * batch
        left -= step
    unit.iteration += int(iterations)


@compiled
def catch_up(world: World, replica: int) -> None:
    """Account the iterations that ended by now, so that a reader in mid-stretch sees the true state."""
    unit, now_s = world.replicas[replica], world.clock[0].now_s
    if unit.phase != DECODING:
        return
    elapsed_s = now_s - unit.checkpoint_s
    done, ends_s = iterations_until(world.surface, unit.running, unit.kv_tokens, elapsed_s, unit.planned)
    if ends_s > elapsed_s or done == unit.planned:
        done -= 1.0
    if done > 0.0:
        unit.checkpoint_s += duration_s(world.surface, unit.running, unit.kv_tokens, done)
        _account(world, replica, done)
        unit.planned -= done


@compiled
def _schedule(world: World, replica: int, time_s: float) -> None:
    unit = world.replicas[replica]
    unit.version += 1
    unit.boundary_s = time_s
    push(world.clock[0], world.events, time_s, BOUNDARY, replica, unit.version)


@compiled
def _fits(world: World, replica: int, request: int, joining: int) -> bool:
    unit, asked, rules = world.replicas[replica], world.requests[request], world.settings[0]
    need = asked.input_tokens + asked.output_tokens
    return (
        unit.running + joining < rules.max_batch and unit.reserved_tokens + need <= rules.kv_capacity_tokens
    )


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
    elif unit.phase == DECODING and unit.waiting == 1 and _fits(world, replica, request, 0):
        elapsed_s = now_s - unit.checkpoint_s
        ends = iterations_until(world.surface, unit.running, unit.kv_tokens, elapsed_s, unit.planned)
        if ends[0] < unit.planned:
            unit.planned = ends[0]
            _schedule(world, replica, unit.checkpoint_s + ends[1])


@compiled
def _dequeue(world: World, replica: int) -> int:
    unit = world.replicas[replica]
    request = unit.head
    unit.head = world.requests[request].next
    if unit.head == NONE:
        unit.tail = NONE
    unit.waiting -= 1
    return request


@compiled
def _reserve(world: World, replica: int, request: int) -> None:
    asked = world.requests[request]
    if asked.reserved == 0:
        asked.reserved = 1
        world.replicas[replica].reserved_tokens += asked.input_tokens + asked.output_tokens


@compiled
def _join(world: World, replica: int, request: int) -> None:
    """Add a prefilled request to the decode batch, keyed by the iteration at which it finishes."""
    unit, asked = world.replicas[replica], world.requests[request]
    asked.decode_started_s = world.clock[0].now_s
    asked.next = unit.fresh_head
    unit.fresh_head = request
    keys, slots = world.finish_iteration[replica], world.finish_request[replica]
    key = unit.iteration + asked.output_tokens - 1
    place = unit.running
    unit.running += 1
    unit.kv_tokens += asked.input_tokens + 1
    while place > 0 and keys[(place - 1) >> 1] > key:
        keys[place], slots[place] = keys[(place - 1) >> 1], slots[(place - 1) >> 1]
        place = (place - 1) >> 1
    keys[place], slots[place] = key, request


@compiled
def _leave(world: World, replica: int) -> int:
    """Take the first to finish out of the batch's heap."""
    unit = world.replicas[replica]
    keys, slots = world.finish_iteration[replica], world.finish_request[replica]
    first = slots[0]
    unit.running -= 1
    size = unit.running
    key, slot = keys[size], slots[size]
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if key <= keys[child]:
            break
        keys[place], slots[place] = keys[child], slots[child]
        place = child
    keys[place], slots[place] = key, slot
    return first


@compiled
def _finish_decodes(world: World, replica: int) -> None:
    unit = world.replicas[replica]
    while unit.running > 0 and world.finish_iteration[replica, 0] <= unit.iteration:
        request = _leave(world, replica)
        asked = world.requests[request]
        unit.kv_tokens -= asked.input_tokens + asked.output_tokens
        unit.reserved_tokens -= asked.input_tokens + asked.output_tokens
        end_request(world, request, COMPLETED)


@compiled
def _finish_prefill(world: World, replica: int) -> None:
    """The prompt at the head of the queue is computed: its first token leaves now."""
    request = _dequeue(world, replica)
    unit, asked, clock, rules = (
        world.replicas[replica],
        world.requests[request],
        world.clock[0],
        world.settings[0],
    )
    asked.first_token_s = clock.now_s
    ttft_s = clock.now_s - asked.arrival_s
    world.window[0].first_tokens += 1
    world.window[0].ttft_s += ttft_s
    add(world.histograms[TTFT], ttft_s, 1)
    unit.prompt_tokens -= asked.input_tokens
    prefix.insert(world, replica, request)
    if asked.output_tokens == 1:
        if asked.reserved == 1:
            unit.reserved_tokens -= asked.input_tokens + asked.output_tokens
        end_request(world, request, COMPLETED)
    elif unit.role == PREFILL:
        delay_s = rules.transfer_latency_s + rules.transfer_s_per_token * asked.input_tokens
        push(clock, world.events, clock.now_s + delay_s, TRANSFERRED, request, 0)
    else:
        asked.decode_ready_s = clock.now_s
        _join(world, replica, request)


@compiled
def _finish_chunk(world: World, replica: int) -> None:
    unit = world.replicas[replica]
    for _ in range(unit.chunk_requests - 1):
        _finish_prefill(world, replica)
    asked = world.requests[unit.head]
    asked.prefilled_tokens += unit.chunk_last_tokens
    if asked.prefilled_tokens >= asked.input_tokens - asked.cached_tokens:
        _finish_prefill(world, replica)


@compiled
def _plan_chunk(world: World, replica: int) -> float:
    """Choose the prompt tokens of the next iteration; seconds that they add to it, over an empty prefill."""
    unit, rules = world.replicas[replica], world.settings[0]
    budget = rules.chunk_tokens if rules.chunk_tokens > 0 else np.iinfo(np.int64).max
    unit.chunk_requests = 0
    added_s = 0.0
    request = unit.head
    while request != NONE and budget > 0:
        asked = world.requests[request]
        if unit.role != PREFILL and asked.reserved == 0:
            if not _fits(world, replica, request, unit.chunk_requests):
                break
            _reserve(world, replica, request)
        if asked.prefill_started_s < 0.0:
            asked.prefill_started_s = world.clock[0].now_s
            asked.cached_tokens = prefix.cached_tokens(world, replica, request)
        left = asked.input_tokens - asked.cached_tokens - asked.prefilled_tokens
        tokens = min(left, budget)
        done = asked.prefilled_tokens
        added_s += prefill_time_s(world, done + tokens) - prefill_time_s(world, done)
        unit.chunk_requests += 1
        unit.chunk_last_tokens = tokens
        budget -= tokens
        if tokens < left or rules.chunk_tokens == 0:
            break
        request = asked.next
    return added_s


@compiled
def _count_first_gaps(world: World, replica: int, iteration_s: float) -> None:
    """The gap between a request's first two tokens ends with its first iteration in the batch."""
    unit, now_s = world.replicas[replica], world.clock[0].now_s
    unit.fresh = 0
    request = unit.fresh_head
    while request != NONE:
        asked = world.requests[request]
        _gap(world, now_s + iteration_s - asked.first_token_s, 1)
        unit.fresh += 1
        request = asked.next
    unit.fresh_head = NONE


@compiled
def _start(world: World, replica: int) -> None:
    """Begin the next iteration or stretch of iterations, or fall idle."""
    unit, now_s = world.replicas[replica], world.clock[0].now_s
    chunk_s = 0.0
    if unit.role == DECODE:
        while unit.head != NONE and _fits(world, replica, unit.head, 0):
            request = _dequeue(world, replica)
            _reserve(world, replica, request)
            _join(world, replica, request)
    else:
        chunk_s = _plan_chunk(world, replica)
    unit.checkpoint_s = now_s
    base_s = world.prefill_s[0]
    if unit.running > 0:
        base_s = itl_at(find_cell(world.surface, unit.running, unit.kv_tokens), unit.kv_tokens)
    if unit.role != DECODE and unit.chunk_requests > 0:
        unit.phase, unit.planned = PREFILLING, 1.0
        _count_first_gaps(world, replica, base_s + chunk_s)
        _schedule(world, replica, now_s + base_s + chunk_s)
    elif unit.running > 0:
        unit.phase = DECODING
        unit.planned = float(world.finish_iteration[replica, 0] - unit.iteration)
        _count_first_gaps(world, replica, base_s)
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
        _account(world, replica, unit.planned)
    elif unit.phase == PREFILLING:
        if unit.running > 0:
            _gap(world, world.clock[0].now_s - unit.checkpoint_s, unit.running - unit.fresh)
            unit.fresh = 0
            unit.kv_tokens += unit.running
            unit.iteration += 1
        _finish_chunk(world, replica)
    _finish_decodes(world, replica)
    _start(world, replica)
