"""Replay of a decode pool: each request goes to the replica with the fewest, and joins its batch if it fits.

A replica waits only for what ends next, so a request costs a few look-ups in the ITL table, however long its
output; an arrival that fits cuts the batch's stretch at the end of the iteration under way.
"""

import numpy as np

from headway.engine.surfaces import itl_of
from headway.planning.replay.fleet import (
    NONE,
    World,
    advance,
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
def replay_decode(world: World) -> None:
    """Fill in `first_s` and `finish_s`, until all judged requests have ended."""
    for request in range(len(world.ready_s)):
        now_s = world.ready_s[request]
        replica = least_loaded(world, now_s)
        if world.pending[0] == 0:
            return
        enqueue(world, replica, request)
        wake(world, replica, request, now_s)
    least_loaded(world, LAST_S)


@compiled_in_place
def least_loaded(world: World, now_s: float) -> int:
    """Let everything happen that does by `now_s`; the replica with the least load then."""
    best, least = 0, np.inf
    for replica in range(len(world.replicas)):
        unit = world.replicas[replica]
        while unit.next_s <= now_s:
            advance(world, replica, unit.planned, unit.next_s)
            retire(world, replica)
            _admit(world, replica)
        if unit.load < least:
            best, least = replica, unit.load
    return best


@compiled_in_place
def wake(world: World, replica: int, request: int, now_s: float) -> None:
    """Begin the batch, or end its stretch early, for a request that can be admitted."""
    unit = world.replicas[replica]
    if unit.running == 0:
        unit.time_s = now_s
    elif unit.head == request and has_room(world, replica, request, 0):
        iterations = iterations_to(world, replica, now_s)
        if iterations > 0.0:
            advance(world, replica, iterations, unit.time_s + stretch_s(world, replica, iterations))
            retire(world, replica)
    else:
        return
    _admit(world, replica)


@compiled_in_place
def _admit(world: World, replica: int) -> None:
    """Let those into the batch that fit, and run it until the first one finishes."""
    unit = world.replicas[replica]
    newcomer = unit.head
    while unit.head != NONE and has_room(world, replica, unit.head, 0):
        reserve(world, replica, unit.head)
        join(world, replica, unit.head, 0.0)
        unit.head = world.following[unit.head]
    if unit.running == 0:
        unit.next_s, unit.planned = np.inf, 0.0
        return
    first_s = unit.time_s + itl_of(world.surfaces, unit.running, unit.kv_tokens)
    while newcomer != unit.head:
        world.first_s[newcomer] = first_s
        newcomer = world.following[newcomer]
    unit.planned = world.finish_iteration[replica, 0] - unit.iteration
    unit.next_s = unit.time_s + stretch_s(world, replica, unit.planned)
