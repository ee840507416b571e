"""The simulated state as arrays: what the compiled kernel reads and writes.

One structured array per kind of thing (replicas, requests, events, …), indexed by slot numbers, so that the
kernel touches flat memory and Python can look at any of it. Times are seconds of virtual time, -1 where
something has not happened. Only layouts, codes and allocation belong here.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.engine.surfaces import EngineSurfaces

NONE = -1
SPARE_EVENTS = 64
"""Room that one event may need in any buffer, generously."""
NOTICES_OF_A_REQUEST = 3
"""Notices that one event may write of one request, at most."""
PREFILL, DECODE, MIXED = 0, 1, 2
ROLE_COUNT = 3

# Kinds of event; the number is the priority among events of the same instant: an engine that reaches the end
# of an iteration sees what arrived up to that very moment.
READY, CRASH, TRANSFERRED, PLACE, BOUNDARY = 0, 1, 2, 3, 4

# Life of a replica.
GONE, STARTING, SERVING, DRAINING = 0, 1, 2, 3
CRASHED, CANCELLED = 4, 5  # logged only: the slot is GONE

# What a replica does until its next boundary.
IDLE, DECODING, PREFILLING = 0, 1, 2

# How a request ended; SHED only where a router says so.
COMPLETED, FAILED, SHED = 0, 1, 2

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


# `busy_s` of a replica is ends less beginnings of its busy times: while it computes, now is to be added.
REPLICA = np.dtype(
    [
        ("role", "i4"),
        ("state", "i4"),
        ("phase", "i4"),
        ("version", "i4"),
        ("serial", "i8"),
        ("created_s", "f8"),
        ("checkpoint_s", "f8"),
        ("boundary_s", "f8"),
        ("busy_s", "f8"),
        ("iteration", "i8"),
        ("planned", "f8"),
        ("running", "i8"),
        ("kv_tokens", "i8"),
        ("reserved_tokens", "i8"),
        ("fresh_head", "i4"),
        ("waiting", "i8"),
        ("head", "i4"),
        ("tail", "i4"),
        ("arrived_head", "i4"),
        ("arrived_tail", "i4"),
        ("promised", "i8"),
        ("prompt_tokens", "i8"),
        ("chunk_requests", "i8"),
        ("chunk_last_tokens", "i8"),
        ("cache_head", "i4"),
        ("cache_tail", "i4"),
        ("cache_blocks", "i8"),
    ],
    align=True,
)

REQUEST = np.dtype(
    [
        ("number", "i8"),
        ("arrival_s", "f8"),
        ("input_tokens", "i8"),
        ("output_tokens", "i8"),
        ("block_start", "i8"),
        ("block_count", "i8"),
        ("copy", "i8"),
        ("prefill_started_s", "f8"),
        ("prefill_finished_s", "f8"),
        ("first_token_s", "f8"),
        ("decode_ready_s", "f8"),
        ("decode_started_s", "f8"),
        ("finished_s", "f8"),
        ("cached_tokens", "i8"),
        ("prefilled_tokens", "i8"),
        ("external_tokens", "i8"),
        ("decode_serial", "i8"),
        ("version", "i8"),
        ("next", "i4"),
        ("prefill_replica", "i4"),
        ("decode_replica", "i4"),
        ("outcome", "i4"),
        ("retries", "i4"),
        ("reserved", "i4"),
        ("slo_class", "i4"),
        ("abandoned", "i4"),
    ],
    align=True,
)

EVENT = np.dtype([("time_s", "f8"), ("order", "i8"), ("index", "i4"), ("version", "i4")], align=True)

ORDER = np.dtype(
    [
        ("number", "i8"),
        ("request", "i4"),
        ("prefill", "i4"),
        ("prefill_serial", "i8"),
        ("decode", "i4"),
        ("decode_serial", "i8"),
    ],
    align=True,
)
"""Where a request shall go, its former attempt given up; `prefill` NONE sheds it."""

NOTICE = np.dtype([("kind", "i4"), ("index", "i4"), ("number", "i8"), ("value", "i8")], align=True)
"""Something a router must know, at the time at which the kernel stopped: see the kinds above. `index` is a
slot, `number` the request's number or the replica's serial."""

TRANSITION = np.dtype([("time_s", "f8"), ("created_s", "f8"), ("role", "i4"), ("state", "i4")], align=True)

WINDOW = np.dtype(
    [
        ("arrivals", "i8"),
        ("input_tokens", "i8"),
        ("first_tokens", "i8"),
        ("ttft_s", "f8"),
        ("gaps", "i8"),
        ("gap_s", "f8"),
        ("completed", "i8"),
        ("output_tokens", "i8"),
        ("duration_s", "f8"),
    ],
    align=True,
)

CLOCK = np.dtype(
    [
        ("now_s", "f8"),
        ("horizon_s", "f8"),
        ("sequence", "i8"),
        ("events", "i8"),
        ("next_arrival", "i8"),
        ("arrivals", "i8"),
        ("last_chunk", "i8"),
        ("numbered", "i8"),
        ("active", "i8"),
        ("free_request", "i4"),
        ("free_requests", "i8"),
        ("finished", "i8"),
        ("transitions", "i8"),
        ("retired", "i8"),
        ("crashes", "i8"),
        ("random", "u8"),
        ("asked_request", "i4"),
        ("orders", "i8"),
        ("obeyed", "i8"),
        ("notices", "i8"),
        ("ready", "i8", (ROLE_COUNT,)),
        ("turn", "i8", (ROLE_COUNT,)),
        ("parked_head", "i4", (ROLE_COUNT,)),
        ("parked_tail", "i4", (ROLE_COUNT,)),
        ("parked", "i8", (ROLE_COUNT,)),
    ],
    align=True,
)

SETTINGS = np.dtype(
    [
        ("disaggregated", "i8"),
        ("routing", "i8"),
        ("max_batch", "i8"),
        ("kv_capacity_tokens", "i8"),
        ("chunk_tokens", "i8"),
        ("transfer_latency_s", "f8"),
        ("transfer_s_per_token", "f8"),
        ("block_tokens", "i8"),
        ("cache_capacity_blocks", "i8"),
    ],
    align=True,
)


class ArrivalColumns(NamedTuple):
    """The next requests of the trace, in order; columns of equal length."""

    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    block_start: NDArray[np.int64]
    block_count: NDArray[np.int64]
    copy: NDArray[np.int64]
    slo_class: NDArray[np.int64]


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
    surfaces: EngineSurfaces
    prefill_tokens: NDArray[np.float64]
    prefill_s: NDArray[np.float64]
    arrivals: ArrivalColumns
    prefix: Prefix
    finished: NDArray[Any]
    transitions: NDArray[Any]
    orders: NDArray[Any]
    notices: NDArray[Any]
    histograms: NDArray[np.int64]
