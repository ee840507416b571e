"""The compiled replays: a prefill pool that computes whole prompts, a decode pool, and mixed replicas.

prefill   FIFO to the replica that is free first. Waits follow Kiefer and Wolfowitz: the workload vector
          of a G/G/n queue, here as a heap of the times at which the replicas become free, so a request
          costs log n steps.
decode    Each request goes to the replica with the fewest, and joins its batch if it fits. A replica
          waits only for what ends next, so a request costs a few look-ups in the ITL table, however long
          its output; an arrival that fits cuts the batch's stretch at the end of the iteration under way.
mixed     Mixed replicas, or prefill replicas that chunk. While prompts wait, an iteration carries up to
          `chunk_tokens` of their tokens, in order, and one token of each sequence in the batch; it lasts
          ITL(batch) plus the work that the tokens add, without a batch the cost of an empty iteration
          plus that work. The iteration that completes a prompt brings its first token. Without prompts
          the batch runs in stretches, as in a decode pool.
"""

import numpy as np

from headway.engine.surfaces import chunk_work_s, itl_of
from headway.planning.replay.fleet import (
    NONE,
    ReplayState,
    advance,
    end,
    enqueue,
    has_room,
    iterations_to,
    join,
    reserve,
    retire,
    stretch_s,
)
from interp.arrays import FloatArray
from interp.jit import compiled, compiled_in_place


@compiled
def prefill_waits(arrival_s: FloatArray, prompt_s: FloatArray, replicas: int) -> FloatArray:
    """Seconds that each prompt waits for one of `replicas`, f8[N], which are idle at first."""
    free_s = np.full(replicas, -np.inf)
    wait_s = np.empty(len(arrival_s))
    for request in range(len(arrival_s)):
        start_s = max(arrival_s[request], free_s[0])
        wait_s[request] = start_s - arrival_s[request]
        _replace_least(free_s, start_s + prompt_s[request])
    return wait_s


@compiled
def _replace_least(heap: FloatArray, value: float) -> None:
    place, size = 0, len(heap)
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if value <= heap[child]:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = value


LAST_S = np.finfo(np.float64).max
"""Later than anything happens."""


@compiled_in_place
def replay_decode(state: ReplayState) -> None:
    """Fill in `first_s` and `finish_s`, until all judged requests have ended."""
    for request in range(len(state.ready_s)):
        now_s = state.ready_s[request]
        _decode_until(state, now_s)
        if state.pending[0] == 0:
            return
        replica = _least_loaded(state.load)
        enqueue(state, replica, request)
        _wake(state, replica, request, now_s)
    _decode_until(state, LAST_S)


@compiled_in_place
def _decode_until(state: ReplayState, now_s: float) -> None:
    """Let everything happen that does by `now_s`."""
    for replica in range(len(state.next_s)):
        while state.next_s[replica] <= now_s:
            advance(state, replica, state.replicas[replica].planned, state.next_s[replica])
            retire(state, replica)
            _admit(state, replica)


@compiled_in_place
def _least_loaded(load: FloatArray) -> int:
    """The first replica of the least load."""
    best, least = 0, load[0]
    for replica in range(1, len(load)):
        if load[replica] < least:
            best, least = replica, load[replica]
    return best


@compiled_in_place
def _wake(state: ReplayState, replica: int, request: int, now_s: float) -> None:
    """Begin the batch, or end its stretch early, for a request that can be admitted."""
    unit = state.replicas[replica]
    if unit.running == 0:
        unit.time_s = now_s
    elif unit.head == request and has_room(state, replica, request, 0):
        iterations = iterations_to(state, replica, now_s)
        if iterations > 0.0:
            advance(state, replica, iterations, unit.time_s + stretch_s(state, replica, iterations))
            retire(state, replica)
    else:
        return
    _admit(state, replica)


@compiled_in_place
def _admit(state: ReplayState, replica: int) -> None:
    """Let those into the batch that fit, and run it until the first one finishes."""
    unit = state.replicas[replica]
    newcomer = unit.head
    while unit.head != NONE and has_room(state, replica, unit.head, 0):
        reserve(state, replica, unit.head)
        join(state, replica, unit.head, 0.0)
        unit.head = state.following[unit.head]
    if unit.running == 0:
        state.next_s[replica], unit.planned = np.inf, 0.0
        return
    first_s = unit.time_s + itl_of(state.surfaces.itl, unit.running, unit.kv_tokens)
    while newcomer != unit.head:
        state.first_s[newcomer] = first_s
        newcomer = state.following[newcomer]
    unit.planned = state.finish_iteration[replica, 0] - unit.iteration
    state.next_s[replica] = unit.time_s + stretch_s(state, replica, unit.planned)


@compiled_in_place
def replay_mixed(state: ReplayState) -> None:
    """Fill in `first_s` and `finish_s`, until all judged requests have ended."""
    for request in range(len(state.ready_s)):
        now_s = state.ready_s[request]
        _run_until(state, now_s)
        if state.pending[0] == 0:
            return
        replica = _least_loaded(state.load)
        enqueue(state, replica, request)
        _wake_mixed(state, replica, request, now_s)
    _run_until(state, LAST_S)


@compiled_in_place
def _run_until(state: ReplayState, now_s: float) -> None:
    """Let everything happen that does by `now_s`."""
    for replica in range(len(state.next_s)):
        while state.next_s[replica] <= now_s:
            _boundary(state, replica)


@compiled_in_place
def _wake_mixed(state: ReplayState, replica: int, request: int, now_s: float) -> None:
    """Start an idle replica; end a stretch without prompts early for a prompt that can be begun."""
    unit = state.replicas[replica]
    if state.next_s[replica] == np.inf:
        unit.time_s = now_s
        _start(state, replica)
    elif unit.chunk_requests == 0 and unit.head == request and has_room(state, replica, request, 0):
        iterations = max(1.0, iterations_to(state, replica, now_s))
        unit.planned = iterations
        state.next_s[replica] = unit.time_s + stretch_s(state, replica, iterations)


@compiled_in_place
def _boundary(state: ReplayState, replica: int) -> None:
    """The iterations under way end: prompts complete, sequences end, the next iterations begin."""
    advance(state, replica, state.replicas[replica].planned, state.next_s[replica])
    _finish_chunk(state, replica)
    retire(state, replica)
    _start(state, replica)


@compiled_in_place
def _finish_chunk(state: ReplayState, replica: int) -> None:
    """Prompts that are complete have their first token and decode."""
    unit = state.replicas[replica]
    for left in range(unit.chunk_requests, 0, -1):
        request = unit.head
        if left == 1 and unit.chunk_end < state.input_tokens[request]:
            unit.head_done = unit.chunk_end
            return
        unit.head, unit.head_done = state.following[request], 0.0
        state.first_s[request] = unit.time_s
        if state.output_tokens[request] <= 1.0:
            end(state, replica, request)
        else:
            join(state, replica, request, 1.0)


@compiled_in_place
def _start(state: ReplayState, replica: int) -> None:
    """Begin an iteration with a chunk, a stretch of iterations without, or fall idle."""
    unit = state.replicas[replica]
    chunk_s = _plan_chunk(state, replica)
    unit.planned, state.next_s[replica] = 0.0, np.inf
    if unit.chunk_requests > 0:
        unit.planned = 1.0
        batch_s = state.surfaces.work.seconds[0]
        if unit.running > 0:
            batch_s = itl_of(state.surfaces.itl, unit.running, unit.kv_tokens)
        state.next_s[replica] = unit.time_s + batch_s + chunk_s
    elif unit.running > 0:
        unit.planned = state.finish_iteration[replica, 0] - unit.iteration
        state.next_s[replica] = unit.time_s + stretch_s(state, replica, unit.planned)


@compiled_in_place
def _plan_chunk(state: ReplayState, replica: int) -> float:
    """Choose the prompt tokens of the next iteration; seconds of work that they add."""
    unit = state.replicas[replica]
    budget, added_s = state.chunk_tokens, 0.0
    request, done = unit.head, unit.head_done
    unit.chunk_requests = 0
    while request != NONE and budget > 0.0:
        if done == 0.0:
            if not has_room(state, replica, request, unit.chunk_requests):
                break
            reserve(state, replica, request)
            done = state.computed_tokens[request]
        tokens = min(state.input_tokens[request] - done, budget)
        added_s += chunk_work_s(state.surfaces.work, done - state.computed_tokens[request], tokens)
        unit.chunk_requests += 1
        unit.chunk_end = done + tokens
        budget -= tokens
        request, done = state.following[request], 0.0
    return added_s
