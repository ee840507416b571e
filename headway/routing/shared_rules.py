"""Rules that the router shares with gateways that place by themselves: the least load, and saturation.

The least-load rule, one for the scorer `least-load`, the compiled simulation and gateways on their own:

    load     prompt tokens outstanding on prefill replicas, requests there or on their way on all others
    choice   the least load; of equals the first

Where replicas are known to differ in speed (`headway.engine.replica_speeds`), a load x is compared as that
with which a typical replica would be as late: for s times the latency, the request itself counting y, on top
of what an empty batch takes, worth h requests (0 for prompts)

    felt     x + (s − 1) (x + y + h)          exactly x where s is 1

A prompt's length says how long a prefill replica is busy with it; a batch is crowded by its requests, however
long they are. The simulation has the same rule compiled (`headway.simulation.kernel`).

A saturated replica gets nothing new while others are not. The bounds are generous: within them engines always
have as much to do as they can, so nothing is lost by keeping the rest where it can still go elsewhere, be
overtaken by what is more urgent, or be turned away.

By the books, which are exact (b: requests in a batch, w: `max_waiting`, q: `max_queue_s`):

    requests there or coming            >= b + w     a further batch waits, where w is b
    prompts queued                      >= w         gateways: on prefill replicas
    seconds of queued prompts           >= q         the router, by the profile; q at least the TTFT SLO
    KV tokens that they all will hold   >= 2 · those that fit                               the router

By the engine's own word, `EngineWord`:

    waiting > w;   KV usage >= `kv_usage`;   preemptions within the last `preempted_s` seconds

Reports are up to a second old, so a word that was given is taken back only when the figures are below
`RELEASE` of their bounds. It stands for `FRESH_S` without a new report: an engine that says nothing any more
is judged by the books alone, and no replica is given up for good on old news.

Nothing here needs numpy, so that a gateway can import it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Self

from headway.config import HeadwayConfig, Role


def counts_prompt_tokens(role: Role) -> bool:
    """True if replicas of `role` are compared by prompt tokens, False if by requests."""
    return role is Role.PREFILL


def felt_load(load: float, own: float, slowness: float, idle: float) -> float:
    """The load of a typical replica that is as late with the request, see the module."""
    return load + (slowness - 1.0) * (load + own + idle)


def least_loaded(loads: Iterable[float]) -> int:
    """The position of the least of `loads`, the first of equals. ValueError if there are none."""
    return min(enumerate(loads), key=lambda each: each[1])[0]


RELEASE = 0.95
FRESH_S = 10.0
LEAST_QUEUE_S = 10.0
"""Seconds of queued prompts that are always allowed: several times what a replica needs to be busy."""

USUAL_BATCH = 256
"""Requests in a batch where nothing says so."""

FULL_CACHES = 2.0


class SaturationLimits(NamedTuple):
    """The bounds in numbers; as a plain tuple they go to compiled code."""

    batch: float
    waiting: float
    queue_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationRule:
    """The bounds of one deployment."""

    limits: SaturationLimits
    kv_usage: float
    preempted_s: float

    @classmethod
    def of(cls, config: HeadwayConfig, max_batch_size: int | None = None) -> Self:
        """The rule of the settings; `max_batch_size` of the engine, by default that of the settings."""
        settings, slo = config.routing.saturation, config.slo
        batch = float(max_batch_size or config.engine.max_batch_size or USUAL_BATCH)
        ttft_ms = max([slo.ttft_ms, *(each.ttft_ms for each in slo.classes.values() if each.ttft_ms)])
        return cls(
            limits=SaturationLimits(
                batch=batch,
                waiting=float(settings.max_waiting or batch),
                queue_s=settings.max_queue_s or max(LEAST_QUEUE_S, ttft_ms / 1e3),
            ),
            kv_usage=settings.kv_usage,
            preempted_s=settings.preempted_s,
        )

    def crowded(self, requests: float, role: Role) -> bool:
        """True if one more than these would be too many for one replica; prefill replicas have no batch."""
        batch = 0.0 if role is Role.PREFILL else self.limits.batch
        return requests >= batch + self.limits.waiting


class EngineWord:
    """What one engine's reports say of its saturation."""

    __slots__ = ("_full", "_preempted_until_s", "_preemptions", "until_s")

    def __init__(self) -> None:
        self._full, self._preempted_until_s = False, -inf
        self._preemptions: int | None = None
        self.until_s = 0.0
        """It is saturated until then, by its own word."""

    def heard(
        self, now_s: float, waiting: int, kv_usage: float, preemptions: int, rule: SaturationRule
    ) -> None:
        """Take a report; `preemptions` counts since the engine began."""
        part = RELEASE if self._full else 1.0
        self._full = waiting > part * rule.limits.waiting or kv_usage >= part * rule.kv_usage
        # The first report says nothing of when; a count that falls is that of an engine which began anew.
        if self._preemptions is not None and preemptions > self._preemptions:
            self._preempted_until_s = now_s + rule.preempted_s
        self._preemptions = preemptions
        self.until_s = max(now_s + FRESH_S if self._full else 0.0, self._preempted_until_s, 0.0)
