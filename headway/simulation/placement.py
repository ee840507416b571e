"""Where a request goes: the built-in routings, and parking while no replica of a pool is ready."""

import numpy as np

from headway.simulation.engine import enqueue
from headway.simulation.layout import DECODE, MIXED, NONE, PREFILL, Routing, World
from interp.jit import compiled


@compiled
def _random_below(world: World, bound: int) -> int:
    """SplitMix64, kept in the clock so that a run can be repeated."""
    clock = world.clock[0]
    clock.random = np.uint64(clock.random) + np.uint64(0x9E3779B97F4A7C15)
    mixed = np.uint64(clock.random)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return int((mixed >> np.uint64(33)) % np.uint64(bound))


@compiled
def load_of(world: World, replica: int) -> int:
    """What least-load compares: outstanding prompt tokens for prefill, requests otherwise."""
    unit = world.replicas[replica]
    return unit.prompt_tokens if unit.role == PREFILL else unit.running + unit.waiting


@compiled
def choose(world: World, role: int) -> int:
    """A ready replica of the role by the built-in routing."""
    clock, routing = world.clock[0], world.settings[0].routing
    count = clock.ready[role]
    if routing == Routing.RANDOM:
        return world.ready[role, _random_below(world, count)]
    if routing == Routing.ROUND_ROBIN:
        clock.turn[role] += 1
        return world.ready[role, clock.turn[role] % count]
    best, least = NONE, 0
    for place in range(count):
        load = load_of(world, world.ready[role, place])
        if best == NONE or load < least:
            best, least = world.ready[role, place], load
    return best


@compiled
def role_for(world: World, request: int) -> int:
    """The pool in which the request continues."""
    if world.settings[0].disaggregated == 0:
        return MIXED
    return PREFILL if world.requests[request].prefill_finished_s < 0.0 else DECODE


@compiled
def park(world: World, request: int, role: int) -> None:
    """No replica of the role is ready: wait for one."""
    clock = world.clock[0]
    world.requests[request].next = NONE
    if clock.parked_head[role] == NONE:
        clock.parked_head[role] = request
    else:
        world.requests[clock.parked_tail[role]].next = request
    clock.parked_tail[role] = request
    clock.parked[role] += 1


@compiled
def assign(world: World, request: int, replica: int) -> None:
    """Give the request to a replica."""
    unit, asked = world.replicas[replica], world.requests[request]
    if unit.role != DECODE:
        asked.prefill_replica = replica
        unit.prompt_tokens += asked.input_tokens
    if unit.role != PREFILL:
        asked.decode_replica = replica
    enqueue(world, replica, request)


@compiled
def place_request(world: World, request: int) -> bool:
    """Send a request to a replica; False when Python has to say which."""
    role = role_for(world, request)
    if world.settings[0].routing == Routing.ROUTER:
        world.clock[0].asked_request = request
        return False
    if world.clock[0].ready[role] == 0:
        park(world, request, role)
    elif world.settings[0].routing == Routing.PYTHON:
        world.clock[0].asked_request, world.clock[0].asked_role = request, role
        return False
    else:
        assign(world, request, choose(world, role))
    return True
