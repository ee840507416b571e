"""The values of elastic prefill offload: inputs and outcome of a decision, and its trace.

D is the replica that will decode the request and where its session lives; P is another replica that could
compute the prompt. Seconds and tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import nan
from typing import NamedTuple

from headway.routing.types import RouteClass


class OffloadReason(StrEnum):
    """The reason that a prompt is computed where it is; docs/offload.md says what each means."""

    P_IDLE_D_BUSY = "p_idle_d_busy"
    D_OVERLOADED = "d_overloaded"
    ALWAYS = "always"
    P_OVERLOADED = "p_overloaded"
    P_BUSIER = "p_busier"
    D_IDLE = "d_idle"
    BELOW_THRESHOLD = "below_threshold"
    TRANSFER_TOO_DEAR = "transfer_too_dear"
    CACHE_LOST = "cache_lost"
    NO_GAIN = "no_gain"
    NO_ESTIMATE = "no_estimate"
    NO_OTHER_REPLICA = "no_other_replica"
    NEVER = "never"
    """The mode leaves nothing to decide; placements say the profile's name instead."""
    DEADLINE_PASSED = "deadline_passed"
    P_LOST = "p_lost"


OFFLOADING = frozenset({OffloadReason.P_IDLE_D_BUSY, OffloadReason.D_OVERLOADED, OffloadReason.ALWAYS})
"""The reasons to offload; all others are reasons not to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The state of one mixed replica, as a decision about this prompt reads it.

    `uncached_tokens` of the prompt are to be computed there, which takes `prefill_s` of engine time by the
    calibrated profile (NaN: unknown), after `queue_s` of prefill work that is queued already. `running`
    sequences decode, `waiting` requests are queued ahead and will decode by then; `remaining_tokens` is the
    mean of the tokens that these are expected to decode yet. `iteration_s` is an iteration of that batch (the
    ITL at its context and size), which every chunk of the prompt also takes. `arrival_rps` is how many
    requests a second come to queue there; 0 leaves those behind out of account. `reuse` is how many cached
    tokens are hit per token computed there, h / (1 − h) with the local hit rate h; 0 leaves eviction out of
    account. `outstanding_tokens` are all tokens in flight there, `decode_tokens` those of sequences that
    decode; the document's rules read only these two.
    """

    uncached_tokens: int
    queue_s: float = 0.0
    prefill_s: float = nan
    running: int = 0
    waiting: int = 0
    remaining_tokens: float = 0.0
    iteration_s: float = 0.0
    arrival_rps: float = 0.0
    reuse: float = 0.0
    outstanding_tokens: float = 0.0
    decode_tokens: float = 0.0

    @property
    def idle(self) -> bool:
        """True if the prompt would start at once and disturb no other."""
        return self.running == 0 and self.waiting == 0 and self.queue_s == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadQuestion:
    """One request with its decode replica D, and the best prefill replica P, None if there is no other.

    `transfer_s` is what moving the prompt's KV from P to D takes (see `Handovers`). `chunk_tokens` is
    how many prompt tokens an iteration carries, 0 for whole prompts. `mean_outstanding_tokens` is the mean
    over all replicas of what `Site.outstanding_tokens` is for one.
    """

    now_s: float
    d: Site
    p: Site | None
    transfer_s: float
    chunk_tokens: int = 0
    mean_outstanding_tokens: float = 0.0


class OffloadDecision(NamedTuple):
    """Where the prompt is computed; `deadline_s` is when an offloaded prefill is given up, None if never."""

    route_class: RouteClass
    reason: OffloadReason
    deadline_s: float | None = None


AFTER_DEADLINE = OffloadDecision(RouteClass.HEAVY_COLO, OffloadReason.DEADLINE_PASSED)
AFTER_LOSS = OffloadDecision(RouteClass.HEAVY_COLO, OffloadReason.P_LOST)
"""Decisions for an offloaded request whose prefill is late, or whose P died or left before it was done."""


class OffloadTrace(NamedTuple):
    """One request's way (section 3, "per-request breakdown"): times in seconds, None for what has not
    happened.

    `t_proxy_recv` arrival at the gateway; `t_prefill_sent` handed to the replica that computes the prompt;
    `t_prefill_done` prompt computed; `t_first_token` and `t_done` as the client sees them. After an offload
    that was given up, the stamps are those of the attempt that succeeded.
    """

    request_id: str
    route_class: RouteClass
    offload_decision_reason: OffloadReason
    t_proxy_recv: float
    t_prefill_sent: float | None = None
    t_prefill_done: float | None = None
    t_first_token: float | None = None
    t_done: float | None = None

    def breakdown(self, shift_s: float = 0.0) -> Mapping[str, str | float | None]:
        """The document's fields by their names, as JSON-able data; times on a clock ahead by `shift_s`."""
        return {
            name: value + shift_s if isinstance(value, float) else value
            for name, value in self._asdict().items()
        }
