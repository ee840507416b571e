"""The arrays of a `KernelState`, made and grown, and what the kernel writes down in them for Python.

Python reads ended requests, transitions of replicas and latency histograms. Where a router drives
(`Routing.ROUTER`), there are also notices of what concerns it (`layout.NOTICE`).

Histograms have geometric buckets: bounded memory, quantiles within half a bucket. Bucket i > 0 holds values
in (LEAST_S · RATIO^(i−1), LEAST_S · RATIO^i]; bucket 0 everything up to LEAST_S. A quantile is reported as
its bucket's geometric middle, at most 0.25 % off. Exact sums are kept elsewhere.

Handing the arrays to compiled code: passing the named tuple itself would copy some three hundred words at
every call; a numba struct reference is passed as one, and compiled code that takes it can be cached on disk.
Its fields are those of `KernelState`.
"""

from math import ceil, log
from typing import Any, cast

import numpy as np
from numba import types
from numba.experimental import structref
from numpy.typing import NDArray

from headway.engine.kernel import layout
from headway.engine.kernel.layout import (
    NONE,
    ROLE_COUNT,
    SPARE_EVENTS,
    ArrivalColumns,
    KernelState,
    Prefix,
    Routing,
    push,
)
from headway.engine.surfaces import engine_surfaces
from interp import Profile
from interp.jit import compiled

LEAST_S = 1e-5
RATIO = 1.005
LOG_RATIO = log(RATIO)
BUCKETS = 4700  # up to LEAST_S * RATIO ** 4699 = 1.5e5 s
QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


@compiled
def bucket_of(value_s: float) -> int:
    """The bucket that holds `value_s`."""
    if value_s <= LEAST_S:
        return 0
    return min(int(ceil(log(value_s / LEAST_S) / LOG_RATIO)), BUCKETS - 1)  # noqa: RUF046 - a float when compiled


@compiled
def add(counts: NDArray[np.int64], value_s: float, times: int) -> None:
    """Count `value_s` as seen `times` times."""
    counts[bucket_of(value_s)] += times


@compiled
def add_range(counts: NDArray[np.int64], from_s: float, to_s: float, times: int) -> None:
    """Count `times` values that run evenly from `from_s` to `to_s`."""
    low, high = bucket_of(min(from_s, to_s)), bucket_of(max(from_s, to_s))
    if low == high:
        counts[low] += times
        return
    least, span = min(from_s, to_s), abs(to_s - from_s)
    counted = 0  # rounding the running total, not each part, keeps the sum at `times`
    edge = LEAST_S * RATIO**low
    for bucket in range(low, high):
        upto = int(times * ((edge - least) / span))
        counts[bucket] += upto - counted
        counted = upto
        edge *= RATIO
    counts[high] += times - counted


def buckets_of(values_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """`bucket_of` for an array."""
    with np.errstate(divide="ignore", invalid="ignore"):
        raw = np.ceil(np.log(np.maximum(values_s, LEAST_S) / LEAST_S) / LOG_RATIO)
    return np.clip(raw, 0, BUCKETS - 1).astype(np.int64)


def quantile(counts: NDArray[np.int64], q: float) -> float:
    """The q-quantile in seconds; NaN for an empty histogram."""
    total = int(counts.sum())
    if total == 0:
        return float("nan")
    bucket = int(np.searchsorted(np.cumsum(counts), max(1, ceil(q * total))))
    return float(LEAST_S * RATIO ** (bucket - 0.5)) if bucket else LEAST_S


@compiled
def notify(state: KernelState, kind: int, index: int, number: int, value: int) -> None:
    """Tell the router, if one drives."""
    if state.settings[0].routing == Routing.ROUTER:
        clock = state.clock[0]
        notice = state.notices[clock.notices]
        notice.kind, notice.index, notice.number, notice.value = kind, index, number, value
        clock.notices += 1


@compiled
def log_transition(state: KernelState, replica: int, change: int) -> None:
    """Tell Python that a replica changed its state."""
    clock, unit = state.clock[0], state.replicas[replica]
    entry = state.transitions[clock.transitions]
    entry.time_s, entry.created_s = clock.now_s, unit.created_s
    entry.role, entry.state = unit.role, change
    clock.transitions += 1
    if change != layout.CANCELLED:
        notify(state, layout.REPLICA_CHANGED, replica, unit.serial, change)


@compiled
def random_below(state: KernelState, bound: int) -> int:
    """SplitMix64, kept in the clock so that a run can be repeated."""
    clock = state.clock[0]
    clock.random = np.uint64(clock.random) + np.uint64(0x9E3779B97F4A7C15)
    mixed = np.uint64(clock.random)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return int((mixed >> np.uint64(33)) % np.uint64(bound))


RETURN_SPREAD = 0.25
"""By how much clients vary the time after which they come again, either way: a storm is no comb."""
_STEPS = 1 << 20


@compiled
def end_attempt(state: KernelState, request: int, outcome: int) -> None:
    """An attempt has failed: its client comes again after a while, or the request has ended.

    Until then the request keeps its slot, and is no attempt that a router knows.
    """
    clock, asked, rules = state.clock[0], state.requests[request], state.settings[0]
    if asked.repeats >= rules.retries:
        end_request(state, request, outcome)
        return
    if outcome != layout.SHED:
        notify(state, layout.ENDED, request, asked.number, NONE)
    asked.repeats += 1
    asked.number += layout.REPEAT
    asked.gives_up_s = -1.0
    factor = 1.0 + RETURN_SPREAD * (2.0 * random_below(state, _STEPS) / _STEPS - 1.0)
    push(clock, state.events, clock.now_s + rules.retry_after_s * factor, layout.RETURN, request, 0)


@compiled
def end_request(state: KernelState, request: int, outcome: int) -> None:
    """Write the request's record and free its slot."""
    clock, asked = state.clock[0], state.requests[request]
    asked.outcome, asked.finished_s = outcome, clock.now_s
    if outcome == layout.COMPLETED:
        window = state.window[0]
        window.completed += 1
        window.output_tokens += asked.output_tokens
        window.duration_s += clock.now_s - asked.arrival_s
    state.finished[clock.finished] = asked
    state.finished[clock.finished].number = asked.number % layout.REPEAT
    clock.finished += 1
    clock.active -= 1
    if outcome != layout.SHED:
        notify(
            state,
            layout.ENDED,
            request,
            asked.number,
            asked.output_tokens if outcome == layout.COMPLETED else NONE,
        )
    free_slot(state, request)


@compiled
def free_slot(state: KernelState, request: int) -> None:
    """Put a request's slot on the list of free ones."""
    clock, asked = state.clock[0], state.requests[request]
    asked.number = NONE
    asked.next = clock.free_request
    clock.free_request = request
    clock.free_requests += 1


@compiled
def count_gap(state: KernelState, gap_s: float, times: int) -> None:
    """Count `times` gaps between tokens of `gap_s` seconds."""
    window = state.window[0]
    window.gaps += times
    window.gap_s += gap_s * times
    add(state.histograms[layout.ITL], gap_s, times)


@compiled
def count_first_token(state: KernelState, request: int, at_s: float) -> None:
    """The request's first token leaves at `at_s`."""
    asked, window = state.requests[request], state.window[0]
    asked.first_token_s = at_s
    ttft_s = at_s - asked.arrival_s
    window.first_tokens += 1
    window.ttft_s += ttft_s
    waited_s = at_s - asked.first_arrival_s
    window.waited_s += waited_s
    add(state.histograms[layout.TTFT], waited_s, 1)
    notify(state, layout.FIRST_TOKEN, request, asked.number, 0)


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
