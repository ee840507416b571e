"""The compiled replays of a decode pool and of mixed replicas: replicas as arrays, their batches, the loops.

A batch is a heap of sequences by the iteration at which they finish, so moving it on touches no sequence. m
iterations of an unchanged batch are taken as m times the ITL halfway: exact where ITL is linear in the tokens
present, and a batch rarely stays unchanged for long. KV is reserved for input + output tokens on admission;
what counts for speed are the tokens present.

decode    Each request goes to the replica with the fewest, and joins its batch if it fits. A replica
          waits only for what ends next, so a request costs a few look-ups in the ITL table, however long
          its output; an arrival that fits cuts the batch's stretch at the end of the iteration under way.
mixed     Mixed replicas, or prefill replicas that chunk. While prompts wait, an iteration carries up to
          `chunk_tokens` of their tokens, in order, and one token of each sequence in the batch; it lasts
          ITL(batch) plus the work that the tokens add, without a batch the cost of an empty iteration
          plus that work. The iteration that completes a prompt brings its first token. Without prompts
          the batch runs in stretches, as in a decode pool.
"""

from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.engine.surfaces import (
    EngineSurfaces,
    admits,
    chunk_work_s,
    engine_surfaces,
    itl_of,
    pop_sequence,
    push_sequence,
)
from headway.planning.replay.engine import ReplayEngine
from interp.arrays import BoolArray, FloatArray
from interp.jit import compiled_in_place

IntArray = NDArray[np.int64]

NONE = -1

REPLICA = np.dtype(
    [
        ("time_s", "f8"),  # the boundary of iterations up to which the replica is accounted
        ("planned", "f8"),  # iterations of the batch from time_s to its next_s
        ("iteration", "f8"),
        ("running", "i8"),
        ("kv_tokens", "f8"),
        ("reserved_tokens", "f8"),
        ("head", "i8"),
        ("tail", "i8"),
        ("head_done", "f8"),  # prompt tokens of the head that are computed
        ("chunk_requests", "i8"),
        ("chunk_end", "f8"),  # what head_done of the chunk's last prompt will be
    ],
    align=True,
)


class ReplayState(NamedTuple):
    """A fleet and its requests. `replicas` REPLICA[n]; heaps of the batches f8[n, B] and i8[n, B].

    `next_s` f8[n] is when something ends in each replica, infinity when idle, `load` f8[n] the weight of what
    is there; both are looked through at each arrival.

    `ready_s`, `input_tokens`, `computed_tokens`, `output_tokens`, `weight` (what it adds to a replica's
    load), `judged`, `following` (in the queue), `first_s` and `finish_s` have one entry a request, in the
    order in which they come. `pending` i8[1] counts the judged ones that have not ended.
    """

    surfaces: EngineSurfaces
    max_batch: int
    chunk_tokens: float
    replicas: NDArray[np.void]
    next_s: FloatArray
    load: FloatArray
    finish_iteration: FloatArray
    finish_request: IntArray
    ready_s: FloatArray
    input_tokens: FloatArray
    computed_tokens: FloatArray
    output_tokens: FloatArray
    weight: FloatArray
    judged: BoolArray
    following: IntArray
    first_s: FloatArray
    finish_s: FloatArray
    pending: IntArray


class PoolArrivals(NamedTuple):
    """Requests that come to a pool, by `ready_s`: f8[N] each, and which of them are judged.

    A mixed replica has only what is left of `input_tokens` to compute.
    """

    ready_s: FloatArray
    input_tokens: FloatArray
    computed_tokens: FloatArray
    output_tokens: FloatArray
    judged: BoolArray


def make_state(engine: ReplayEngine, arrivals: PoolArrivals, replicas: int) -> ReplayState:
    """`replicas` idle replicas, and all requests to come."""
    units, count = np.zeros(replicas, REPLICA), len(arrivals.ready_s)
    units["head"], units["tail"] = NONE, NONE
    room = min(engine.max_batch_size, count)
    return ReplayState(
        surfaces=engine_surfaces(engine.profile),
        max_batch=engine.max_batch_size,
        chunk_tokens=float(engine.chunk_tokens or np.inf),
        replicas=units,
        next_s=np.full(replicas, np.inf),
        load=np.zeros(replicas),
        finish_iteration=np.empty((replicas, room)),
        finish_request=np.empty((replicas, room), np.int64),
        ready_s=arrivals.ready_s,
        input_tokens=arrivals.input_tokens,
        computed_tokens=arrivals.computed_tokens,
        output_tokens=arrivals.output_tokens,
        weight=np.ones(count),
        judged=arrivals.judged,
        following=np.full(count, NONE),
        first_s=np.full(count, np.inf),
        finish_s=np.full(count, np.inf),
        pending=np.array([np.count_nonzero(arrivals.judged)]),
    )


@compiled_in_place
def stretch_s(state: ReplayState, replica: int, iterations: float) -> float:
    """Seconds that `iterations` iterations of the batch as it is take."""
    unit = state.replicas[replica]
    halfway = unit.kv_tokens + 0.5 * (iterations - 1.0) * unit.running
    return iterations * itl_of(state.surfaces.itl, unit.running, halfway)


@compiled_in_place
def advance(state: ReplayState, replica: int, iterations: float, until_s: float) -> None:
    """The batch has run `iterations` iterations, until `until_s`."""
    unit = state.replicas[replica]
    unit.iteration += iterations
    unit.kv_tokens += iterations * unit.running
    unit.time_s = until_s


@compiled_in_place
def iterations_to(state: ReplayState, replica: int, now_s: float) -> float:
    """The least number of iterations from `time_s` on that end at or after `now_s`: 0 to those planned."""
    unit = state.replicas[replica]
    elapsed_s = now_s - unit.time_s
    if elapsed_s <= 0.0:
        return 0.0
    guess = ceil(elapsed_s / itl_of(state.surfaces.itl, unit.running, unit.kv_tokens))
    if guess > 1.0:
        guess = ceil(elapsed_s * guess / stretch_s(state, replica, guess))
    return min(float(guess), unit.planned)


@compiled_in_place
def enqueue(state: ReplayState, replica: int, request: int) -> None:
    """Put a request at the end of the replica's queue."""
    unit = state.replicas[replica]
    if unit.head == NONE:
        unit.head = request
    else:
        state.following[unit.tail] = request
    unit.tail = request
    state.load[replica] += state.weight[request]


@compiled_in_place
def has_room(state: ReplayState, replica: int, request: int, joining: int) -> bool:
    """True if batch limit and KV admit the request, while `joining` others are about to join."""
    unit = state.replicas[replica]
    reserved_tokens = unit.reserved_tokens + state.input_tokens[request] + state.output_tokens[request]
    capacity_tokens = state.surfaces.itl.capacity_tokens
    return admits(unit.running + joining, state.max_batch, reserved_tokens, capacity_tokens)


@compiled_in_place
def reserve(state: ReplayState, replica: int, request: int) -> None:
    """Set KV aside for all tokens of the request."""
    state.replicas[replica].reserved_tokens += state.input_tokens[request] + state.output_tokens[request]


@compiled_in_place
def join(state: ReplayState, replica: int, request: int, produced: float) -> None:
    """Add the request to the batch, with `produced` of its output tokens."""
    unit = state.replicas[replica]
    key = unit.iteration + state.output_tokens[request] - produced
    push_sequence(state.finish_iteration[replica], state.finish_request[replica], unit.running, key, request)
    unit.running += 1
    unit.kv_tokens += state.input_tokens[request] + produced


@compiled_in_place
def end(state: ReplayState, replica: int, request: int) -> None:
    """The request has all its tokens; its KV is free."""
    unit = state.replicas[replica]
    state.load[replica] -= state.weight[request]
    unit.reserved_tokens -= state.input_tokens[request] + state.output_tokens[request]
    state.finish_s[request] = unit.time_s
    if state.judged[request]:
        state.pending[0] -= 1


@compiled_in_place
def retire(state: ReplayState, replica: int) -> None:
    """End the sequences of the batch that have all their tokens."""
    unit = state.replicas[replica]
    while unit.running > 0 and state.finish_iteration[replica, 0] <= unit.iteration:
        request = pop_sequence(state.finish_iteration[replica], state.finish_request[replica], unit.running)
        unit.running -= 1
        unit.kv_tokens -= state.input_tokens[request] + state.output_tokens[request]
        end(state, replica, request)


LAST_S = np.finfo(np.float64).max
"""Later than anything happens."""


@compiled_in_place
def replay(state: ReplayState, mixed: bool) -> None:
    """Fill in `first_s` and `finish_s` of a decode pool or of mixed replicas, until no judged one is left."""
    for request in range(len(state.ready_s)):
        now_s = state.ready_s[request]
        _run_until(state, mixed, now_s)
        if state.pending[0] == 0:
            return
        replica = _least_loaded(state.load)
        enqueue(state, replica, request)
        if mixed:
            _wake_mixed(state, replica, request, now_s)
        else:
            _wake(state, replica, request, now_s)
    _run_until(state, mixed, LAST_S)


@compiled_in_place
def _run_until(state: ReplayState, mixed: bool, now_s: float) -> None:
    """Let everything happen that does by `now_s`."""
    for replica in range(len(state.next_s)):
        while state.next_s[replica] <= now_s:
            if mixed:
                _boundary(state, replica)
            else:
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
