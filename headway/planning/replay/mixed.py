"""Replay of mixed replicas, or prefill replicas that chunk: prompts ride on iterations of a decode batch.

While prompts wait, an iteration carries up to `chunk_tokens` of their tokens, in order, and one token of each
sequence in the batch; it lasts ITL(batch) plus the work that the tokens add, without a batch the cost of an
empty iteration plus that work. The iteration that completes a prompt brings its first token. Without prompts
the batch runs in stretches, as in a decode pool.
"""

import numpy as np

from headway.engine.surfaces import itl_of, work_until_s
from headway.planning.replay.fleet import (
    NONE,
    World,
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
from interp.jit import compiled_in_place

LAST_S = np.finfo(np.float64).max
"""Later than anything happens."""


@compiled_in_place
def replay_mixed(world: World) -> None:
    """Fill in `first_s` and `finish_s`, until all judged requests have ended."""
    for request in range(len(world.ready_s)):
        now_s = world.ready_s[request]
        replica = _least_loaded(world, now_s)
        if world.pending[0] == 0:
            return
        enqueue(world, replica, request)
        _wake(world, replica, request, now_s)
    _least_loaded(world, LAST_S)


@compiled_in_place
def _least_loaded(world: World, now_s: float) -> int:
    """Let everything happen that does by `now_s`; the replica with the least load then."""
    best, least = 0, np.inf
    for replica in range(len(world.replicas)):
        unit = world.replicas[replica]
        while unit.next_s <= now_s:
            _boundary(world, replica)
        if unit.load < least:
            best, least = replica, unit.load
    return best


@compiled_in_place
def _wake(world: World, replica: int, request: int, now_s: float) -> None:
    """Start an idle replica; end a stretch without prompts early for a prompt that can be begun."""
    unit = world.replicas[replica]
    if unit.next_s == np.inf:
        unit.time_s = now_s
        _start(world, replica)
    elif unit.chunk_requests == 0 and unit.head == request and has_room(world, replica, request, 0):
        iterations = max(1.0, iterations_to(world, replica, now_s))
        unit.planned, unit.next_s = iterations, unit.time_s + stretch_s(world, replica, iterations)


@compiled_in_place
def _boundary(world: World, replica: int) -> None:
    """The iterations under way end: prompts complete, sequences end, the next iterations begin."""
    unit = world.replicas[replica]
    advance(world, replica, unit.planned, unit.next_s)
    _finish_chunk(world, replica)
    retire(world, replica)
    _start(world, replica)


@compiled_in_place
def _finish_chunk(world: World, replica: int) -> None:
    """Prompts that are complete have their first token and decode."""
    unit = world.replicas[replica]
    for left in range(unit.chunk_requests, 0, -1):
        request = unit.head
        if left == 1 and unit.chunk_end < world.input_tokens[request]:
            unit.head_done = unit.chunk_end
            return
        unit.head, unit.head_done = world.following[request], 0.0
        world.first_s[request] = unit.time_s
        if world.output_tokens[request] <= 1.0:
            end(world, replica, request)
        else:
            join(world, replica, request, 1.0)


@compiled_in_place
def _start(world: World, replica: int) -> None:
    """Begin an iteration with a chunk, a stretch of iterations without, or fall idle."""
    unit = world.replicas[replica]
    chunk_s = _plan_chunk(world, replica)
    unit.planned, unit.next_s = 0.0, np.inf
    if unit.chunk_requests > 0:
        unit.planned = 1.0
        batch_s = world.surfaces.work_s[0]
        if unit.running > 0:
            batch_s = itl_of(world.surfaces, unit.running, unit.kv_tokens)
        unit.next_s = unit.time_s + batch_s + chunk_s
    elif unit.running > 0:
        unit.planned = world.finish_iteration[replica, 0] - unit.iteration
        unit.next_s = unit.time_s + stretch_s(world, replica, unit.planned)


@compiled_in_place
def _plan_chunk(world: World, replica: int) -> float:
    """Choose the prompt tokens of the next iteration; seconds of work that they add."""
    unit = world.replicas[replica]
    budget, added_s = world.chunk_tokens, 0.0
    request, done = unit.head, unit.head_done
    unit.chunk_requests = 0
    while request != NONE and budget > 0.0:
        if done == 0.0:
            if not has_room(world, replica, request, unit.chunk_requests):
                break
            reserve(world, replica, request)
            done = world.computed_tokens[request]
        tokens = min(world.input_tokens[request] - done, budget)
        added_s += work_until_s(world.surfaces, done + tokens) - work_until_s(world.surfaces, done)
        unit.chunk_requests += 1
        unit.chunk_end = done + tokens
        budget -= tokens
        request, done = world.following[request], 0.0
    return added_s
