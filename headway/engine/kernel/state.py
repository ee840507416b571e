"""Making and growing the arrays of a `KernelState`, and handing them to compiled code.

Passing the named tuple itself would copy some three hundred words at every call; a numba struct reference is
passed as one, and compiled code that takes it can be cached on disk. Its fields are those of `KernelState`.
"""

from typing import Any, cast

import numpy as np
from numba import types
from numba.experimental import structref
from numpy.typing import NDArray

from headway.engine.kernel import layout
from headway.engine.kernel.layout import NONE, ROLE_COUNT, SPARE_EVENTS, ArrivalColumns, KernelState, Prefix
from headway.engine.kernel.records import BUCKETS
from headway.engine.surfaces import engine_surfaces
from interp import Profile
from interp.jit import compiled


@structref.register
class KernelStateType(types.StructRef):  # type: ignore[misc] # numba has no types
    """numba's type of a state."""

    def preprocess_fields(self, fields: Any) -> Any:  # noqa: ANN401 - numba's interface
        """Field types without literal values."""
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


class KernelStateReference(structref.StructRefProxy):  # type: ignore[misc] # numba has no types
    """A state held by compiled code."""


structref.define_proxy(KernelStateReference, KernelStateType, list(KernelState._fields))


@compiled
def _make(state: KernelState) -> Any:  # noqa: ANN401 - a numba object
    return KernelStateReference(*state)


def handle_of(state: KernelState) -> KernelState:
    """A reference to the same arrays, for compiled functions; make it anew when an array is replaced."""
    return cast(KernelState, _make(state))


REPLICAS, REQUESTS, EVENTS, FINISHED, TRANSITIONS = 16, 4096, 16384, 65536, 4096
ORDERS, NOTICES = 1024, 4096


def empty_arrivals() -> ArrivalColumns:
    """No requests."""
    whole = np.zeros(0, np.int64)
    return ArrivalColumns(np.zeros(0), *(whole,) * 7)


def make_state(profile: Profile, settings: NDArray[Any], blocks: NDArray[np.int64], seed: int) -> KernelState:
    """A state at time 0 without replicas, for `settings` (one `layout.SETTINGS` record)."""
    rules, prefill, surfaces = settings[0], profile.prefill.table, engine_surfaces(profile)
    clock = np.zeros(1, layout.CLOCK)
    clock["random"] = np.uint64(seed)
    clock["parked_head"] = clock["parked_tail"] = NONE
    batch, cached = int(rules["max_batch"]), int(rules["cache_capacity_blocks"])
    table_size = 1 << max(0, (2 * cached - 1).bit_length())
    state = KernelState(
        clock=clock,
        settings=settings,
        window=np.zeros(1, layout.WINDOW),
        events=np.zeros(EVENTS, layout.EVENT),
        replicas=np.zeros(REPLICAS, layout.REPLICA),
        requests=np.zeros(0, layout.REQUEST),
        finish_iteration=np.zeros((REPLICAS, batch), np.int64),
        finish_request=np.zeros((REPLICAS, batch), np.int32),
        ready=np.zeros((ROLE_COUNT, REPLICAS), np.int32),
        work=surfaces.work,
        itl=surfaces.itl,
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
    return grow_requests(state, REQUESTS)


def _longer(array: NDArray[Any], length: int, axis: int = 0) -> NDArray[Any]:
    shape = list(array.shape)
    shape[axis] = length - shape[axis]
    return np.concatenate([array, np.zeros(shape, array.dtype)], axis=axis)


def grow_requests(state: KernelState, length: int) -> KernelState:
    """The same state with room for `length` requests at a time."""
    used, clock = len(state.requests), state.clock[0]
    requests = _longer(state.requests, length)
    requests["number"][used:] = NONE
    requests["next"][used:] = np.arange(used + 1, length + 1)
    requests["next"][-1] = clock["free_request"] if used else NONE
    clock["free_request"] = used
    clock["free_requests"] += length - used
    return state._replace(requests=requests)


def grow_replicas(state: KernelState, length: int) -> KernelState:
    """The same state with `length` replica slots."""
    prefix = state.prefix
    lookup = _longer(prefix.lookup, length)
    lookup[len(prefix.lookup) :] = NONE
    return state._replace(
        replicas=_longer(state.replicas, length),
        finish_iteration=_longer(state.finish_iteration, length),
        finish_request=_longer(state.finish_request, length),
        ready=_longer(state.ready, length, axis=1),
        prefix=Prefix(
            prefix.blocks,
            _longer(prefix.key, length),
            _longer(prefix.older, length),
            _longer(prefix.newer, length),
            lookup,
        ),
    )


def make_room(state: KernelState, count: int) -> KernelState:
    """The same state with room for `count` more events, and for what as many replicas may report."""
    clock = state.clock[0]
    events, transitions = int(clock["events"]) + count, int(clock["transitions"]) + 2 * count
    if events + SPARE_EVENTS > len(state.events):
        state = state._replace(events=_longer(state.events, 2 * events + SPARE_EVENTS))
    if transitions + SPARE_EVENTS > len(state.transitions):
        state = state._replace(transitions=_longer(state.transitions, 2 * transitions + SPARE_EVENTS))
    notices = int(clock["notices"]) + 2 * count
    if notices + SPARE_EVENTS > len(state.notices):
        state = state._replace(notices=_longer(state.notices, 2 * notices + SPARE_EVENTS))
    return state


def grow_orders(state: KernelState) -> KernelState:
    """The same state with room for twice as many orders."""
    return state._replace(orders=_longer(state.orders, 2 * len(state.orders)))


def make_space(state: KernelState) -> KernelState:
    """Double what is nearly full; the buffers that Python empties are taken to be empty."""
    clock = state.clock[0]
    if clock["free_requests"] == 0:
        state = grow_requests(state, 2 * len(state.requests))
    need = int(clock["active"]) + 2 * len(state.requests)
    if need > len(state.finished):
        state = state._replace(finished=_longer(state.finished, 2 * need))
    if int(clock["events"]) + need > len(state.events):
        state = state._replace(events=_longer(state.events, 2 * (int(clock["events"]) + need)))
    notices = int(clock["notices"]) + layout.NOTICES_OF_A_REQUEST * need
    if state.settings[0]["routing"] == layout.Routing.ROUTER and notices > len(state.notices):
        state = state._replace(notices=_longer(state.notices, 2 * notices))
    return state
