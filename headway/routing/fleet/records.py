"""The router's memory: each request from its arrival until it ends, and each replica with its requests.

A record has its two replicas, and a replica has queues of records, so both stand here.

A queue is a heap whose items can be withdrawn, by lazy deletion with bounded garbage (`LazyHeap`). Keys are
(key, sequence); sequences are unique, so equal keys come out in the order of their sequences. A withdrawn
item's key stays in the heap until it reaches the top, or until more than half of the heap is such garbage:
then the heap is rebuilt from what lives. A rebuild of m keys follows at least m / 2 withdrawals, so push and
discard cost O(log n) amortised, and the heap never holds more than 2 n + SLACK keys.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from math import inf, nan
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from headway.config import Role
from headway.routing.fleet.table import Entry
from headway.routing.offload import OffloadDecision
from headway.routing.types import Placement, ReplicaId, RequestSlo, RouteRequest

Item = TypeVar("Item")

SLACK = 16
"""Keys of withdrawn items that are never worth a rebuild."""


class LazyHeap(Generic[Item]):
    """Items in ascending (key, sequence)."""

    __slots__ = ("_heap", "_items")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._items: dict[int, tuple[tuple[float, int], Item]] = {}
        """Each with its own key of the heap: one that is pushed again leaves its former key behind."""

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._items

    def __iter__(self) -> Iterator[Item]:
        """The items in the order of pushing."""
        return (item for _, item in self._items.values())

    def rekey(self, key: Callable[[Item], float]) -> None:
        """Put all items in the order of other keys."""
        self._items = {sequence: ((key(item), sequence), item) for sequence, (_, item) in self._items.items()}
        self._rebuild()

    def push(self, key: float, sequence: int, item: Item) -> None:
        """Add `item`; no living item has this sequence."""
        keyed = key, sequence
        heappush(self._heap, keyed)
        self._items[sequence] = keyed, item

    def discard(self, sequence: int) -> None:
        """Withdraw the item of this sequence, if there is one."""
        if self._items.pop(sequence, None) is None:
            return
        if self._heap[0][1] == sequence:
            heappop(self._heap)
        elif len(self._heap) > 2 * len(self._items) + SLACK:
            self._rebuild()

    def first(self) -> tuple[float, int] | None:
        """The least key and its sequence; None when empty."""
        heap, items = self._heap, self._items
        while heap:
            found = items.get(heap[0][1])
            if found is not None and found[0] is heap[0]:
                return heap[0]
            heappop(heap)
        return None

    @property
    def youngest(self) -> int:
        """The sequence of the item that was pushed last; there is one."""
        return next(reversed(self._items))

    def item(self, sequence: int) -> Item:
        """The living item of a sequence; KeyError without one."""
        return self._items[sequence][1]

    def _rebuild(self) -> None:
        self._heap = [keyed for keyed, _ in self._items.values()]
        heapify(self._heap)


Features = tuple[float, ...]


class TrackedPrediction(NamedTuple):
    """A prediction from one replica's features; NaN where nothing was predicted."""

    features: Features
    prior_ttft_s: float
    prior_tpot_s: float
    ttft_s: float
    tpot_s: float


class RequestPhase(Enum):
    """The stage of a request."""

    QUEUED = auto()
    """Held by the router."""
    PREFILL = auto()
    """Placed; its prompt is not computed yet."""
    DECODE = auto()
    """Its prompt is computed; its KV may still travel."""


class Charge(NamedTuple):
    """What a tenant was charged for an attempt: `cost` for the prompt and `output_tokens`, `times` over for a
    tight SLO."""

    cost: float = 0.0
    output_tokens: int = 0
    times: float = 1.0


NO_CHARGE, NO_ENTRY = Charge(), Entry()


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
    # from the placement on. Newcomers there must keep `guard_s`, the TPOT SLO, infinite if no replica could,
    # and `ttft_slack_s`. `found_idle` is how many requests its decode replica had ever had if nothing was
    # there when it came, −1 else.
    phase: RequestPhase = RequestPhase.QUEUED
    attempt: int = 0
    placement: Placement | None = None
    prefill: "Replica | None" = None
    decode: "Replica | None" = None
    cached_tokens: int = 0
    entry: Entry = NO_ENTRY
    ttft_s: float = nan
    tpot_s: float = nan
    ttft_slack_s: float = inf
    guard_s: float = inf
    output_tokens: int = 0
    placed_s: float = -1.0
    tracked: tuple[TrackedPrediction, ...] = ()
    offload: OffloadDecision | None = None
    found_idle: int = -1

    # Handovers, while the KV of an offloaded prompt is on its way: the nominal transfer and the wait at D.
    handover: tuple[float, float] | None = None

    # Dispatcher. `forced`: it has waited as long as it may, and `yields` to others that wait and can be
    # saved; `blocked_by` is the replica that only the SLOs of others kept closed to it.
    charge: Charge = NO_CHARGE
    forced: bool = False
    yields: bool = False
    blocked_by: "Replica | None" = None

    # HeldQueue: the slot that had most of its prompt when it came to wait, and how many tokens of it.
    home: tuple[int, float] | None = None

    # SchedulingContext: TTFT and TPOT on an idle fleet, remembered until profiles change.
    alone_s: tuple[float, float] | None = None

    # SloScorer. `counted`: it is part of the demand that was seen; `refused`: it was placed although
    # predictions said that it would miss its SLO.
    counted: bool = False
    refused: bool = False

    @property
    def need_tokens(self) -> int:
        """KV tokens that it is thought to fill in the end."""
        return self.request.input_tokens + self.expected_output

    @property
    def mean_tokens(self) -> float:
        """KV tokens that it holds on average while it decodes."""
        return self.request.input_tokens + 0.5 * self.expected_output

    @property
    def split(self) -> bool:
        """True if prompt and output are computed by different replicas."""
        return self.prefill is not self.decode


SAMPLE_S = 5.0
"""Seconds between two samples of a replica."""


class UtilisationSample(NamedTuple):
    """A replica at one time: the share of the time since the last sample that it computed, and KV usage."""

    at_s: float
    busy: float
    kv_usage: float


@dataclass(slots=True)
class UtilisationSamples:
    """One replica's samples, `interval_s` apart at least (the document's 5 s); the latest `most` are kept.

    From `start_s` on, when the replica began to serve or was first heard of; `busy_s` is what it had computed
    by then. Means and maximum are of all samples, kept or not, and NaN without any.
    """

    start_s: float = 0.0
    busy_s: float = 0.0
    interval_s: float = SAMPLE_S
    most: int = 720
    mean_busy: float = nan
    mean_kv_usage: float = nan
    max_kv_usage: float = nan
    _samples: deque[UtilisationSample] = field(default_factory=deque)
    _taken: int = 0
    _at_s: float = field(init=False)
    _busy_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._at_s, self._busy_s = self.start_s, self.busy_s

    def offer(self, at_s: float, busy_s: float, kv_usage: float) -> bool:
        """Take a sample if one is due; True if it was.

        `busy_s` is the total of seconds in which the replica has computed so far.
        """
        elapsed_s = at_s - self._at_s
        if elapsed_s < self.interval_s:
            return False
        share = _share(busy_s - self._busy_s, elapsed_s)
        self._samples.append(UtilisationSample(at_s, share, kv_usage))
        self._at_s, self._busy_s = at_s, busy_s
        if len(self._samples) > self.most:
            self._samples.popleft()
        self.mean_busy = _share(self._busy_s - self.busy_s, self._at_s - self.start_s)
        before, self._taken = self._taken, self._taken + 1
        self.mean_kv_usage = (before * self.mean_kv_usage + kv_usage) / self._taken if before else kv_usage
        self.max_kv_usage = max(self.max_kv_usage, kv_usage) if before else kv_usage
        return True

    def __iter__(self) -> Iterator[UtilisationSample]:
        return iter(self._samples)

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def latest(self) -> UtilisationSample | None:
        """The last sample, None before the first."""
        return self._samples[-1] if self._samples else None

    def summary(self) -> dict[str, Any]:
        """As JSON-able data, NaN included: the means, the maximum, and the samples [at_s, busy, kv_usage]."""
        return {
            "mean_busy": self.mean_busy,
            "mean_kv_usage": self.mean_kv_usage,
            "max_kv_usage": self.max_kv_usage,
            "samples": [list(sample) for sample in self],
        }


def _share(busy_s: float, elapsed_s: float) -> float:
    """The part of the time that was busy; clocks that disagree a little do not leave [0, 1]."""
    return min(max(busy_s / elapsed_s, 0.0), 1.0)


class Calibration(Protocol):
    """A factor between predicted and measured times."""

    @property
    def factor(self) -> float:
        """The factor."""

    def observe(self, predicted_s: float, measured_s: float) -> None:
        """A pair."""


class Replica:
    """`alive` until it is GONE. The queues hold records by urgency, each under its record's number.

    `running`   those that decode here or will, by TPOT SLO
    `waiting`   those whose prompts are to be computed here, by slack of TTFT

    `utilisation` are samples of what its engine reports, None before it says how long it has computed.
    `prompts_placed`, `prompts_left` and `requests_left` count since it came: prompts that came to be computed
    here, those that no longer are, and requests that have nothing here any more. `safety` are the factors of
    predictions of TTFT and TPOT here, None before the first outcome; `entered` counts the requests that were
    ever placed here.
    """

    __slots__ = (
        "alive",
        "entered",
        "gpu_type",
        "name",
        "prompts_left",
        "prompts_placed",
        "ready",
        "requests_left",
        "role",
        "running",
        "safety",
        "slot",
        "utilisation",
        "waiting",
    )

    def __init__(self, name: ReplicaId, slot: int, role: Role, gpu_type: str) -> None:
        self.name, self.slot, self.role, self.gpu_type = name, slot, role, gpu_type
        self.alive, self.ready = True, False
        self.prompts_placed = self.prompts_left = self.requests_left = 0
        self.running: LazyHeap[Record] = LazyHeap()
        self.waiting: LazyHeap[Record] = LazyHeap()
        self.utilisation: UtilisationSamples | None = None
        self.safety: tuple[Calibration, Calibration] | None = None
        self.entered = 0
