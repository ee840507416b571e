"""What the router remembers of one request, from its arrival until it ends."""

from dataclasses import dataclass
from enum import Enum, auto
from math import inf, nan
from typing import TYPE_CHECKING

from headway.routing.offload.types import OffloadDecision
from headway.routing.types import Placement, RequestSlo, RouteRequest

if TYPE_CHECKING:
    from headway.routing.books import Entry
    from headway.routing.learning import Tracked
    from headway.routing.replica import Replica


class Phase(Enum):
    """Where a request is."""

    QUEUED = auto()
    """Held by the router."""
    PREFILL = auto()
    """Placed; its prompt is not computed yet."""
    DECODE = auto()
    """Its prompt is computed; its KV may still travel."""


@dataclass(slots=True, eq=False)
class Record:
    """One request under way. Changed by the router alone.

    `number` orders records by arrival. `slo` is what replicas are held to: the deployment's where the
    SLO-aware profile places a request without one. `profile` names the scheduling profile, and `judged` says
    that it goes by predictions. `expected_output` tokens are what it is thought to produce, for life. The
    other fields are of the present attempt: `entry` is what the books hold of it;
    `ttft_s` and `tpot_s` are predicted from the placement on; `guard_s` is the TPOT SLO that newcomers there
    must keep, infinite if nobody could; `ttft_slack_s` the same for TTFT; `handover` is, while the KV of an
    offloaded prompt is on its way, the nominal transfer and the wait at D (see the module of that name).
    `alone_s` and `joined_s` are what `Latency` says of an idle fleet, and of a busy one if it was held.
    """

    request: RouteRequest
    number: int
    expected_output: int
    slo: RequestSlo
    profile: str
    judged: bool
    phase: Phase = Phase.QUEUED
    attempt: int = 0
    placement: Placement | None = None
    prefill: "Replica | None" = None
    decode: "Replica | None" = None
    cached_tokens: int = 0
    entry: "Entry" = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    ttft_s: float = nan
    tpot_s: float = nan
    ttft_slack_s: float = inf
    guard_s: float = inf
    output_tokens: int = 0
    placed_s: float = -1.0
    prefilled_s: float = -1.0
    first_token_s: float = -1.0
    joined_s: float = nan
    tracked: "tuple[Tracked, ...]" = ()
    offload: OffloadDecision | None = None
    handover: tuple[float, float] | None = None
    alone_s: tuple[float, float] | None = None

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
        """Whether prompt and output are computed by different replicas."""
        return self.prefill is not self.decode
