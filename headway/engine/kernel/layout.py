"""The simulated state as arrays, which the compiled kernel reads and writes, and its event queue.

One structured array per kind of thing (replicas, requests, events, …), indexed by slot numbers, so that the
kernel touches flat memory and Python can look at any of it. Times are seconds of virtual time, -1 where
something has not happened. Only layouts, codes and allocation belong here.

The event queue is a binary heap with the total order (time, priority, sequence). The priority is the event's
kind and stands in the upper bits of `order`, the sequence number in the lower, so that two events never
compare equal and a run does not depend on anything but its inputs.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.engine.surfaces import ItlTable, WorkCurve
from interp.jit import compiled

NONE = -1
SPARE_EVENTS = 64
"""Room that one event may need in any buffer, generously."""
NOTICES_OF_A_REQUEST = 3
"""Notices that one event may write of one request, at most."""
PREFILL, DECODE, MIXED = 0, 1, 2
ROLE_COUNT = 3

# Kinds of event; the number is the priority among events of the same instant: an engine that reaches the end
# of an iteration sees what arrived up to that very moment, and a client the token that leaves in it.
READY, CRASH, TRANSFERRED, PLACE, BOUNDARY, GIVE_UP, RETURN = 0, 1, 2, 3, 4, 5, 6

# Life of a replica.
GONE, STARTING, SERVING, DRAINING = 0, 1, 2, 3
CRASHED, CANCELLED = 4, 5  # logged only: the slot is GONE

# What a replica does until its next boundary.
IDLE, DECODING, PREFILLING = 0, 1, 2

# How a request ended; SHED only where a router says so, GAVE_UP where clients have a patience.
COMPLETED, FAILED, SHED, GAVE_UP = 0, 1, 2, 3

REPEAT = 1 << 48
"""What the number of a request grows by with each repeat: attempts have numbers of their own."""

# What a router is told: its prompt is computed and travels, its first token left, it ended (value: output
# tokens, NONE if it failed), its attempt was lost before the first token; a replica changed (value: its
# state).
PREFILLED, FIRST_TOKEN, ENDED, LOST, REPLICA_CHANGED = 0, 1, 2, 3, 4

# Rows of `KernelState.histograms`: the latencies of the current window.
TTFT, ITL = 0, 1


class Routing(IntEnum):
    """Built-in routings, compiled; ROUTER hands all routing to `headway.routing`.

    Under ROUTER a request is nowhere until an order places it, and the kernel writes notices (`notices`).
    """

    RANDOM = 0
    ROUND_ROBIN = 1
    LEAST_LOAD = 2
    ROUTER = 3


class Exit(IntEnum):
    """Why the kernel returned."""

    REACHED = 0
    NEED_ARRIVALS = 1
    NEED_PLACEMENT = 2
    NEED_SPACE = 3
    FLEET_CHANGED = 4
    DONE = 5
    NOTICES = 6


def _record(*columns: str) -> np.dtype[np.void]:
    """A record type with columns "type name name …", in the order of memory."""
    split = [each.split() for each in columns]
    return np.dtype([(name, kind) for kind, *names in split for name in names], align=True)


# `busy_s` of a replica is ends less beginnings of its busy times: while it computes, now is to be added.
# What it computes takes as often as long as the surfaces say as its slowness is; `known_slowness` is what
# routing believes of it. The last two lines are what an engine counts of itself (`simulation.observing`).
REPLICA = _record(
    "i4 role state phase version",
    "i8 serial",
    "f8 created_s checkpoint_s boundary_s busy_s",
    "f8 prefill_slowness decode_slowness known_slowness",
    "i8 iteration",
    "f8 planned",
    "i8 running kv_tokens reserved_tokens",
    "i4 fresh_head",
    "i8 waiting",
    "i4 head tail arrived_head arrived_tail",
    "i8 promised prompt_tokens chunk_requests chunk_last_tokens",
    "i4 cache_head cache_tail",
    "i8 cache_blocks",
    "i8 gaps first_tokens computed_tokens prompts shown_tokens",
    "f8 gap_s prefill_s",
)

# `arrival_s` is that of the attempt under way, of which there were `repeats` more before.
REQUEST = _record(
    "i8 number",
    "f8 arrival_s first_arrival_s gives_up_s",
    "i8 input_tokens output_tokens block_start block_count copy",
    "f8 prefill_started_s prefill_finished_s first_token_s decode_ready_s",
    "f8 decode_started_s finished_s",
    "i8 cached_tokens prefilled_tokens external_tokens decode_serial version repeats",
    "i4 next prefill_replica decode_replica outcome retries reserved slo_class abandoned",
)

EVENT = _record("f8 time_s", "i8 order", "i4 index version")

ORDER = _record("i8 number", "i4 request prefill", "i8 prefill_serial", "i4 decode", "i8 decode_serial")
"""Where a request shall go, its former attempt given up; `prefill` NONE sheds it."""

NOTICE = _record("i4 kind index", "i8 number value")
"""Something a router must know, at the time at which the kernel stopped: see the kinds above. `index` is a
slot, `number` the request's number or the replica's serial."""

TRANSITION = _record("f8 time_s created_s", "i4 role state")

# First tokens are timed from the arrival of the attempt (`ttft_s`) and of the request (`waited_s`).
WINDOW = _record(
    "i8 arrivals repeats input_tokens first_tokens",
    "f8 ttft_s waited_s",
    "i8 gaps",
    "f8 gap_s",
    "i8 completed output_tokens",
    "f8 duration_s",
)

CLOCK = _record(
    "f8 now_s horizon_s",
    "i8 sequence events next_arrival arrivals last_chunk numbered active",
    "i4 free_request",
    "i8 free_requests finished transitions retired crashes",
    "u8 random",
    "i4 asked_request",
    "i8 orders obeyed notices",
    f"({ROLE_COUNT},)i8 ready turn",
    f"({ROLE_COUNT},)i4 parked_head parked_tail",
    f"({ROLE_COUNT},)i8 parked uneven",
    f"({ROLE_COUNT},)f8 idle_requests",
)

SETTINGS = _record(
    "i8 disaggregated routing max_batch kv_capacity_tokens chunk_tokens",
    "f8 transfer_latency_s transfer_s_per_token",
    "i8 block_tokens cache_capacity_blocks",
    "f8 queueing_s patience_s retry_after_s",
    "i8 retries",
)


class ArrivalColumns(NamedTuple):
    """The next requests of the trace, in order; columns of equal length.

    `cached_tokens` of prompts are known to be cached where no prefix cache is modelled, fewer than the input.
    """

    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    block_start: NDArray[np.int64]
    block_count: NDArray[np.int64]
    copy: NDArray[np.int64]
    slo_class: NDArray[np.int64]
    cached_tokens: NDArray[np.int64]


class Prefix(NamedTuple):
    """LRU prefix caches, one row a replica: block keys in list order, and an open-addressing table."""

    blocks: NDArray[np.int64]
    key: NDArray[np.int64]
    older: NDArray[np.int32]
    newer: NDArray[np.int32]
    lookup: NDArray[np.int32]


class KernelState(NamedTuple):
    """Everything the kernel works on; `clock`, `window` and `settings` have one record."""

    clock: NDArray[Any]
    settings: NDArray[Any]
    window: NDArray[Any]
    events: NDArray[Any]
    replicas: NDArray[Any]
    requests: NDArray[Any]
    finish_iteration: NDArray[np.int64]
    finish_request: NDArray[np.int32]
    ready: NDArray[np.int32]
    work: WorkCurve
    itl: ItlTable
    prefill_tokens: NDArray[np.float64]
    prefill_s: NDArray[np.float64]
    arrivals: ArrivalColumns
    prefix: Prefix
    finished: NDArray[Any]
    transitions: NDArray[Any]
    orders: NDArray[Any]
    notices: NDArray[Any]
    histograms: NDArray[np.int64]


SEQUENCE_BITS = 56


@compiled
def _before(time_s: float, order: int, other_time_s: float, other_order: int) -> bool:
    return time_s < other_time_s or (time_s == other_time_s and order < other_order)


@compiled
def push(  # noqa: PLR0917 - a value object would be made at every event
    clock: Any,  # noqa: ANN401 - a record
    events: NDArray[Any],
    time_s: float,
    kind: int,
    index: int,
    version: int,
) -> None:
    """Add an event; the caller has made sure that there is room."""
    order = (kind << SEQUENCE_BITS) | clock.sequence
    clock.sequence += 1
    place = clock.events
    clock.events += 1
    while place > 0:
        parent = (place - 1) >> 1
        if _before(events[parent].time_s, events[parent].order, time_s, order):
            break
        events[place] = events[parent]
        place = parent
    events[place].time_s = time_s
    events[place].order = order
    events[place].index = index
    events[place].version = version


@compiled
def drop_first(clock: Any, events: NDArray[Any]) -> None:  # noqa: ANN401
    """Remove the first event."""
    clock.events -= 1
    size = clock.events
    if size == 0:
        return
    time_s, order = events[size].time_s, events[size].order
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        right = child + 1
        if right < size and _before(
            events[right].time_s, events[right].order, events[child].time_s, events[child].order
        ):
            child = right
        if _before(time_s, order, events[child].time_s, events[child].order):
            break
        events[place] = events[child]
        place = child
    events[place] = events[size]


@compiled
def kind_of(order: int) -> int:
    """The kind of the event with this order."""
    return order >> SEQUENCE_BITS
