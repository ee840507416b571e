"""The router's memory: each request from its arrival until it ends, and each replica with its requests.

A record has its two replicas, and a replica has queues of records, so both stand here.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf, nan
from typing import Any, NamedTuple, Protocol

from headway.config import Role
from headway.routing.fleet.lazy_heap import LazyHeap
from headway.routing.fleet.table import Entry
from headway.routing.offload import OffloadDecision
from headway.routing.types import Placement, ReplicaId, RequestSlo, RouteRequest

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
