"""Outcomes of the requests of past intervals, beside what the replay of the fleet that stood there expected.

Requests count for the interval in which they came, whenever they end. A latency is laid to the pool that it
is about: TTFT to prefill, ITL to decode, both to mixed replicas. Requests that no engine could serve in time
do not count, as they do not in replays.
"""

from dataclasses import dataclass, field, replace
from math import inf, sqrt

import numpy as np

from headway.planning.replay import LossCurve, ReplayEngine, Requests, attainable
from headway.planning.replay.curve import least_within
from headway.planning.replay.engine import TOLERANCE, targets
from headway.planning.types import FloatArray, Role, Traffic

KEPT = 240
"""Intervals that are remembered."""

BEFORE = 4
"""Intervals whose replicas count: requests of those before may still queue."""


def _empty() -> FloatArray:
    return np.zeros(0)


@dataclass(frozen=True, slots=True, eq=False)
class OutcomeHistory:
    """The latest intervals of one pool, oldest first, f8[N] each.

    `ended_s`; `ready` replicas at the end; `provision`, u; `expected`, the share that replays lose; `pace_s`,
    what the engine took for a standard piece of work; of its requests `seen` have ended, `missed` too late.
    """

    ended_s: FloatArray = field(default_factory=_empty)
    ready: FloatArray = field(default_factory=_empty)
    provision: FloatArray = field(default_factory=_empty)
    expected: FloatArray = field(default_factory=_empty)
    pace_s: FloatArray = field(default_factory=_empty)
    seen: FloatArray = field(default_factory=_empty)
    missed: FloatArray = field(default_factory=_empty)

    def __len__(self) -> int:
        return len(self.ended_s)

    def add(
        self, now_s: float, ready: int, curve: LossCurve, pace_s: float, may_miss: float
    ) -> "OutcomeHistory":
        """With one more interval, of which nothing is seen yet."""
        fewest = float(min([ready, *self.ready[-BEFORE:]]))
        (least,) = least_within(np.array([0, len(curve.lost)]), curve.lost, may_miss)
        provision = fewest / least if curve.requests else inf
        expected = curve.at(int(fewest)) / curve.requests if curve.requests else 0.0
        row = (now_s, float(ready), provision, expected, pace_s, 0.0, 0.0)
        names = ("ended_s", "ready", "provision", "expected", "pace_s", "seen", "missed")
        columns = (getattr(self, name) for name in names)
        return OutcomeHistory(
            *(np.append(column[-KEPT + 1 :], value) for column, value in zip(columns, row, strict=True))
        )

    def with_ended(self, arrival_s: FloatArray, missed: FloatArray) -> "OutcomeHistory":
        """With requests that have ended, f8[M] and 0 or 1 each, in the intervals in which they came."""
        place = np.searchsorted(self.ended_s, arrival_s)
        known = place < len(self)
        if not known.any():
            return self
        count = len(self)
        seen = np.bincount(place[known], minlength=count)
        late = np.bincount(place[known], weights=missed[known], minlength=count)
        return replace(self, seen=self.seen + seen, missed=self.missed + late)


def missed(engine: ReplayEngine, traffic: Traffic, role: Role) -> tuple[FloatArray, FloatArray]:
    """Arrival and 0 or 1 for a miss by this pool's fault, f8[M] each, of completed requests that count.

    There are none where their times are not recorded.
    """
    arrival_s, ttft_s, itl_s = (
        traffic.completed_arrival_s,
        traffic.completed_ttft_s,
        traffic.completed_itl_s,
    )
    if arrival_s is None or ttft_s is None or itl_s is None:
        return np.zeros(0), np.zeros(0)
    cached = traffic.completed_cached_tokens
    completed = Requests(
        arrival_s,
        np.fmax(1.0, traffic.completed_input_tokens),
        np.fmax(1.0, traffic.completed_output_tokens),
        cached_tokens=None if cached is None else np.nan_to_num(cached),
        ttft_s=traffic.completed_slo_ttft_s,
        itl_s=traffic.completed_slo_itl_s,
    )
    promised = targets(engine, completed)
    late, slow = ttft_s > promised.ttft_s * TOLERANCE, itl_s > promised.itl_s * TOLERANCE
    fault = {Role.PREFILL: late, Role.DECODE: slow & ~late, Role.MIXED: late | slow}[role]
    timed = np.isfinite(arrival_s) & np.isfinite(ttft_s)
    if role is Role.DECODE:
        timed &= np.isfinite(itl_s) | (completed.output_tokens <= 1.0)
    counts = timed & attainable(engine, completed, mixed=role is Role.MIXED)
    return arrival_s[counts], fault[counts].astype(np.float64)


PROMPT_TOKENS, CONTEXT_TOKENS, KV_USAGE = 1000.0, 2000.0, 0.5


def pace_s(engine: ReplayEngine, role: Role) -> float:
    """Seconds of a standard piece of a pool's work, to tell surfaces apart."""
    prefill_s = float(engine.profile.prefill.ttft_s(PROMPT_TOKENS))
    decode_s = float(engine.profile.decode.itl_s(KV_USAGE, CONTEXT_TOKENS))
    return {Role.PREFILL: prefill_s, Role.DECODE: decode_s, Role.MIXED: sqrt(prefill_s * decode_s)}[role]
