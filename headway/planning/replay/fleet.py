"""Replicas of a replay as arrays, and their decode batches: what the compiled loops share.

A batch is a heap of sequences by the iteration at which they finish, so moving it on touches no sequence. m
iterations of an unchanged batch are taken as m times the ITL halfway: exact where ITL is linear in the tokens
present, and a batch rarely stays unchanged for long. KV is reserved for input + output tokens on admission;
what counts for speed are the tokens present.
"""

from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.engine.surfaces import (
    EngineSurfaces,
    admits,
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
