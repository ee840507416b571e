"""Making and growing the arrays of a `World`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.engine.surfaces import engine_surfaces
from headway.simulation import layout
from headway.simulation.histogram import BUCKETS
from headway.simulation.layout import (
    NONE,
    NOTICES_OF_A_REQUEST,
    ROLE_COUNT,
    SPARE_EVENTS,
    Arrivals,
    Prefix,
    Routing,
    World,
)
from interp import Profile

REPLICAS, REQUESTS, EVENTS, FINISHED, TRANSITIONS = 16, 4096, 16384, 65536, 4096
ORDERS, NOTICES = 1024, 4096


def empty_arrivals() -> Arrivals:
    """No requests."""
    whole = np.zeros(0, np.int64)
    return Arrivals(np.zeros(0), whole, whole, whole, whole, whole, whole)


def make_world(profile: Profile, settings: NDArray[Any], blocks: NDArray[np.int64], seed: int) -> World:
    """A world at time 0 without replicas, for `settings` (one `layout.SETTINGS` record)."""
    rules, prefill = settings[0], profile.prefill.table
    clock = np.zeros(1, layout.CLOCK)
    clock["random"] = np.uint64(seed)
    clock["answer"] = clock["asked_request"] = layout.UNASSIGNED
    clock["parked_head"] = clock["parked_tail"] = NONE
    batch, cached = int(rules["max_batch"]), int(rules["cache_capacity_blocks"])
    table_size = 1 << max(0, (2 * cached - 1).bit_length())
    world = World(
        clock=clock,
        settings=settings,
        window=np.zeros(1, layout.WINDOW),
        events=np.zeros(EVENTS, layout.EVENT),
        replicas=np.zeros(REPLICAS, layout.REPLICA),
        requests=np.zeros(0, layout.REQUEST),
        finish_iteration=np.zeros((REPLICAS, batch), np.int64),
        finish_request=np.zeros((REPLICAS, batch), np.int32),
        ready=np.zeros((ROLE_COUNT, REPLICAS), np.int32),
        surfaces=engine_surfaces(profile),
        prefill_tokens=np.array(prefill.isl_tokens, np.float64),
        prefill_s=np.array(prefill.ttft_s, np.float64),
        arrivals=empty_arrivals(),
        prefix=Prefix(
            np.asarray(blocks),
            np.zeros((REPLICAS, max(cached, 1)), np.int64),
            np.zeros((REPLICAS, max(cached, 1)), np.int32),
            np.zeros((REPLICAS, max(cached, 1)), np.int32),
            np.full((REPLICAS, table_size), NONE, np.int32),
        ),
        finished=np.zeros(FINISHED, layout.REQUEST),
        transitions=np.zeros(TRANSITIONS, layout.TRANSITION),
        orders=np.zeros(ORDERS, layout.ORDER),
        notices=np.zeros(NOTICES, layout.NOTICE),
        histograms=np.zeros((2, BUCKETS), np.int64),
    )
    return grow_requests(world, REQUESTS)


def _longer(array: NDArray[Any], length: int, axis: int = 0) -> NDArray[Any]:
    shape = list(array.shape)
    shape[axis] = length - shape[axis]
    return np.concatenate([array, np.zeros(shape, array.dtype)], axis=axis)


def grow_requests(world: World, length: int) -> World:
    """The same world with room for `length` requests at a time."""
    used, clock = len(world.requests), world.clock[0]
    requests = _longer(world.requests, length)
    requests["number"][used:] = NONE
    requests["next"][used:] = np.arange(used + 1, length + 1)
    requests["next"][-1] = clock["free_request"] if used else NONE
    clock["free_request"] = used
    clock["free_requests"] += length - used
    return world._replace(requests=requests)


def grow_replicas(world: World, length: int) -> World:
    """The same world with `length` replica slots."""
    prefix = world.prefix
    lookup = _longer(prefix.lookup, length)
    lookup[len(prefix.lookup) :] = NONE
    return world._replace(
        replicas=_longer(world.replicas, length),
        finish_iteration=_longer(world.finish_iteration, length),
        finish_request=_longer(world.finish_request, length),
        ready=_longer(world.ready, length, axis=1),
        prefix=Prefix(
            prefix.blocks,
            _longer(prefix.key, length),
            _longer(prefix.older, length),
            _longer(prefix.newer, length),
            lookup,
        ),
    )


def make_room(world: World, count: int) -> World:
    """The same world with room for `count` more events, and for what as many replicas may report."""
    clock = world.clock[0]
    events, transitions = int(clock["events"]) + count, int(clock["transitions"]) + 2 * count
    if events + SPARE_EVENTS > len(world.events):
        world = world._replace(events=_longer(world.events, 2 * events + SPARE_EVENTS))
    if transitions + SPARE_EVENTS > len(world.transitions):
        world = world._replace(transitions=_longer(world.transitions, 2 * transitions + SPARE_EVENTS))
    notices = int(clock["notices"]) + 2 * count
    if notices + SPARE_EVENTS > len(world.notices):
        world = world._replace(notices=_longer(world.notices, 2 * notices + SPARE_EVENTS))
    return world


def grow_orders(world: World) -> World:
    """The same world with room for twice as many orders."""
    return world._replace(orders=_longer(world.orders, 2 * len(world.orders)))


def make_space(world: World) -> World:
    """Double what is nearly full; the buffers that Python empties are taken to be empty."""
    clock = world.clock[0]
    if clock["free_requests"] == 0:
        world = grow_requests(world, 2 * len(world.requests))
    need = int(clock["active"]) + 2 * len(world.requests)
    if need > len(world.finished):
        world = world._replace(finished=_longer(world.finished, 2 * need))
    if int(clock["events"]) + need > len(world.events):
        world = world._replace(events=_longer(world.events, 2 * (int(clock["events"]) + need)))
    notices = int(clock["notices"]) + NOTICES_OF_A_REQUEST * need
    if world.settings[0]["routing"] == Routing.ROUTER and notices > len(world.notices):
        world = world._replace(notices=_longer(world.notices, 2 * notices))
    return world
