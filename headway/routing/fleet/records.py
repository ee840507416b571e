"""The router's memory: each request from its arrival until it ends, and each replica with its requests.

A record has its two replicas, and a replica has queues of records, so both stand here.

A queue is a heap whose items can be withdrawn, by lazy deletion with bounded garbage (`LazyHeap`). Keys are
(key, sequence); sequences are unique, so equal keys come out in the order of their sequences. A withdrawn
item's key stays in the heap until it reaches the top, or until more than half of the heap is such garbage:
then the heap is rebuilt from what lives. A rebuild of m keys follows at least m / 2 withdrawals, so push and
discard cost O(log n) amortised, and the heap never holds more than 2 n + SLACK keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from math import inf, nan
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from headway.config import Role
from headway.routing.fleet.table import NO_ENTRY, PlainEntry
from headway.routing.offload import OffloadDecision
from headway.routing.types import ReplicaId, RequestSlo, RouteRequest

Item = TypeVar("Item")

SLACK = 16
"""Keys of withdrawn items that are never worth a rebuild."""


class LazyHeap(Generic[Item]):
    """Items in ascending (key, sequence); sequences are numbers, or names."""

    __slots__ = ("_heap", "_items", "_keys")

    def __init__(self) -> None:
        self._heap: list[tuple[float, Any]] = []
        self._keys: dict[int | str, float] = {}
        self._items: dict[int | str, Item] = {}
        """Apart from their keys: a pair of both would be one object more for the garbage collector."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        """The items in the order of pushing."""
        return iter(self._items.values())

    def push(self, key: float, sequence: int | str, item: Item) -> None:
        """Add `item`; no living item has this sequence."""
        heappush(self._heap, (key, sequence))
        self._keys[sequence], self._items[sequence] = key, item

    def discard(self, sequence: int | str) -> None:
        """Withdraw the item of this sequence, if there is one."""
        if self._keys.pop(sequence, None) is None:
            return
        del self._items[sequence]
        if self._heap[0][1] == sequence:
            heappop(self._heap)
        elif len(self._heap) > 2 * len(self._keys) + SLACK:
            self._heap = [(key, each) for each, key in self._keys.items()]
            heapify(self._heap)

    @property
    def least(self) -> float:
        """The least key; infinite when empty."""
        heap, keys = self._heap, self._keys
        while heap:
            # One that was pushed again leaves its former key behind.
            if keys.get(heap[0][1]) == heap[0][0]:
                return heap[0][0]
            heappop(heap)
        return inf

    def pop(self) -> Item:
        """Withdraw the item of the least key; IndexError when empty."""
        if self.least == inf and not self._keys:
            raise IndexError("an empty heap")
        sequence = self._heap[0][1]
        item = self._items[sequence]
        self.discard(sequence)
        return item


Features = tuple[float, ...]


class Sample(NamedTuple):
    """A prediction from one replica's features, or what came of it.

    Features are in the order of `predictors.latency.FIELDS`. Seconds, NaN where nothing was predicted or
    measured. TTFT counts from the placement.
    """

    features: Features
    prior_ttft_s: float
    prior_tpot_s: float
    ttft_s: float
    tpot_s: float


PlainSample = tuple[Features, float, float, float, float]
"""The same, as it is kept: the garbage collector does not look at plain tuples of figures."""


class RequestPhase(Enum):
    """The stage of a request."""

    QUEUED = auto()
    """Held by the router."""
    PREFILL = auto()
    """Placed; its prompt is not computed yet."""
    DECODE = auto()
    """Its prompt is computed; its KV may still travel."""


@dataclass(slots=True, eq=False)
class Record:
    """One request under way. Each group of fields is written by the one component that is named above it."""

    # Router, when the request comes. `number` orders records by arrival; `slo` is what replicas are held to,
    # the deployment's where the profile is SLO-aware and the request names none; `profile` is the scheduling
    # profile, and `judged` says that it goes by predictions.
    request: RouteRequest
    number: int
    expected_output: int
    """Output tokens in all, judged anew as they come (with `Placing`)."""
    slo: RequestSlo
    profile: str
    judged: bool
    prefilled_s: float = -1.0
    first_token_s: float = -1.0

    # Placing, for the present attempt: its replicas, its figures in the fleet's table, and what was predicted
    # from the placement on. Newcomers there must keep `guard_s`, the TPOT SLO, infinite if no replica could.
    # `found_idle` is how many requests its decode replica had ever had if nothing was there when it came, −1
    # else.
    phase: RequestPhase = RequestPhase.QUEUED
    attempt: int = 0
    prefill: "Replica | None" = None
    decode: "Replica | None" = None
    cached_tokens: int = 0
    entry: PlainEntry = NO_ENTRY
    ttft_s: float = nan
    tpot_s: float = nan
    guard_s: float = inf
    output_tokens: int = 0
    placed_s: float = -1.0
    tracked: tuple[PlainSample, ...] = ()
    offload: OffloadDecision | None = None
    found_idle: int = -1

    # Handovers, while the KV of an offloaded prompt is on its way: the nominal transfer and the wait at D.
    handover: tuple[float, float] | None = None

    # Dispatcher. What its tenant was charged for the attempt, so many output tokens included. `overdue`: it
    # is critical and has waited as long as it may; `blocked_by` is the replica that only the SLOs of others
    # kept closed to it.
    charged: float = 0.0
    charged_output: int = 0
    overdue: bool = False
    blocked_by: "Replica | None" = None

    # Dispatcher: the slot that had most of its prompt when it came to wait, and how many tokens of it.
    home: tuple[int, float] | None = None

    # SchedulingContext: TTFT and TPOT on an idle fleet, remembered until profiles change.
    alone_s: tuple[float, float] | None = None

    # SloScorer: it was placed although predictions said that it would miss its SLO.
    refused: bool = False
    counted: bool = False
    """It is critical, and part of the demand that was seen."""

    @property
    def need_tokens(self) -> int:
        """KV tokens that it is thought to fill in the end."""
        return self.request.input_tokens + self.expected_output


class Calibration(Protocol):
    """A factor between predicted and measured times."""

    @property
    def factor(self) -> float:
        """The factor."""

    def observe(self, predicted_s: float, measured_s: float) -> None:
        """A pair."""


@dataclass(slots=True, eq=False)
class Replica:
    """A replica, `alive` until it is GONE."""

    name: ReplicaId
    slot: int
    role: Role
    gpu_type: str
    alive: bool = True
    ready: bool = False

    running: LazyHeap[Record] = field(default_factory=LazyHeap)
    """Those that decode here or will, by TPOT SLO, under their numbers."""
    waiting: dict[int, Record] = field(default_factory=dict)
    """Those whose prompts are to be computed here, under their numbers."""

    busy_s: float = nan
    """Seconds that it has computed since it began, as its engine last said."""

    entered: int = 0
    """Requests that were ever placed here; then prompts that came to be computed here, those that no longer
    are, and requests that have nothing here any more."""
    prompts_placed: int = 0
    prompts_left: int = 0
    requests_left: int = 0

    safety: tuple[Calibration, Calibration] | None = None
    """The factors of predictions of TTFT and TPOT here, None before the first outcome."""

    guard_debt: float = 0.0
    """What guards here cost more than they saved, and the tightest TPOT SLO that they kept out (`claims`)."""
    kept_out_s: float = inf
    overdue_from: int = 0
    """It takes a request that is overdue, whatever that costs others, once it has `taken` so many."""

    @property
    def taken(self) -> int:
        """Requests and prompts that were ever placed here."""
        return self.entered + self.prompts_placed
