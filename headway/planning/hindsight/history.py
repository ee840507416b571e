"""What is remembered of past intervals: their work and loss curves, how requests fared, what was forecast.

Every decision adds one interval to the history of each pool, measured or not, once the pool has one at all.
So the histories of all pools end with the same interval, and pools are held against each other from the end
(`common_intervals`).

Outcomes. Requests count for the interval in which they came, whenever they end. A latency is laid to the pool
that it is about: TTFT to prefill, ITL to decode, both to mixed replicas. Requests that no engine could serve
in time do not count, as they do not in replays. Advice needs no cause, only how many were kept (`attained`).

Predictors speak of requests, hindsight judges work. With R the level of the requests of late and W that of
a pool's work, by the same smoothing (`backtest`), what was forecast after interval i of interval i + h is

    work = W_i · forecast_i(h) / R_i

so that lengths are as of late. Forecasts are kept as they were, at HORIZONS steps ahead (between two of them
a straight line, beyond the last one its value), since the lead may change. Where there was none, as before
the predictor had learnt, or where no requests came of late, the level W_i stands.

Arrays in here are never written to.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from headway.planning.replay import LossCurve, ReplayEngine, Requests, attainable
from headway.planning.replay.curve import least_within, under_load
from headway.planning.replay.engine import TOLERANCE, targets
from headway.planning.types import FloatArray, IntArray, Role, Slo, Traffic


def _ints() -> IntArray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class PoolHistory:
    """The past of one pool: the work that came, and what fleets of n replicas would have lost.

    Loss curves have different lengths; they stand one after the other, `starts[i]` to `starts[i + 1]`. An
    interval that was not measured has no requests, and the work of the one before.

    `work` f8[N] in replicas, `requests` i8[N], `starts` i8[N + 1] and `lost` i8[...], the curves. `slack` is
    how many times as many replicas the mean of the latest requests needs to keep its SLO.
    """

    work: FloatArray = field(default_factory=lambda: np.zeros(0))
    requests: IntArray = field(default_factory=_ints)
    starts: IntArray = field(default_factory=lambda: np.zeros(1, np.int64))
    lost: IntArray = field(default_factory=_ints)
    slack: float = 1.0

    def __len__(self) -> int:
        return len(self.work)

    def add(self, work: float, curve: LossCurve, most: int, slack: float = 1.0) -> "PoolHistory":
        """With one more interval; the oldest ones beyond `most` are forgotten."""
        drop = max(0, len(self) + 1 - most)
        cut = self.starts[drop]
        starts = np.append(self.starts[drop:], self.starts[-1] + len(curve.lost)) - cut
        return PoolHistory(
            work=np.append(self.work[drop:], work),
            requests=np.append(self.requests[drop:], curve.requests),
            starts=starts,
            lost=np.concatenate([self.lost[cut:], curve.lost]),
            slack=slack,
        )

    def unjudged(self) -> "PoolHistory":
        """The same work, of which no request is judged."""
        count = len(self)
        nothing = np.zeros(count, np.int64)
        return replace(self, requests=nothing, starts=np.arange(count + 1), lost=nothing)

    def restated(self, times: float) -> "PoolHistory":
        """As it would have been on engines that take so many times as long."""
        starts, lost = under_load(self.starts, self.lost, self.work, times)
        return replace(self, work=self.work * times, starts=starts, lost=np.rint(lost).astype(np.int64))

    def skip(self, most: int) -> "PoolHistory":
        """With an interval of which nothing is known."""
        if len(self) == 0:
            return self
        unknown = LossCurve(requests=0, lost=np.zeros(1, np.int64))
        return self.add(float(self.work[-1]), unknown, most, self.slack)

    def lost_with(self, replicas: IntArray, count: int) -> IntArray:
        """Requests of the last `count` intervals that so many replicas lose, i8[..., count].

        `replicas` i8[..., count] or i8[..., 1]. Beyond its end a curve keeps its last value.
        """
        starts, ends = self.starts[-count - 1 : -1], self.starts[-count:]
        lost: IntArray = self.lost[np.minimum(starts + replicas, ends - 1)]
        return lost


def common_intervals(histories: Iterable[PoolHistory]) -> int:
    """The number of latest intervals that all of these pools remember; 0 of none."""
    return min((len(each) for each in histories), default=0)


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
        self,
        now_s: float,
        ready: int,
        curve: LossCurve,
        pace_s: float,
        may_miss: float,
        *,
        repeats: float = 0.0,
    ) -> "OutcomeHistory":
        """With one more interval, of which nothing is seen yet.

        Replays know nothing of `repeats`: the fleet had as many requests more to serve.
        """
        fewest = float(min([ready, *self.ready[-BEFORE:]]))
        (least,) = least_within(np.array([0, len(curve.lost)]), curve.lost, may_miss)
        provision = fewest / least * curve.requests / (curve.requests + repeats) if curve.requests else inf
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Attained:
    """Requests that ended in the interval of which it is known whether they kept their SLO.

    With `ttft_only` only the first token is known to be in time.
    """

    ended: float = 0.0
    met: float = 0.0
    ttft_only: bool = False


UNKNOWN = Attained()


def attained(traffic: Traffic | None, slo: Slo) -> Attained:
    """Read from single requests, as far as their times are known."""
    if traffic is None or traffic.completed_ttft_s is None or traffic.completed_itl_s is None:
        return UNKNOWN
    ttft_s, itl_s = traffic.completed_ttft_s, traffic.completed_itl_s
    known = np.isfinite(ttft_s)
    gaps = known & (traffic.completed_output_tokens > 1.0)
    ttft_only = bool(gaps.any()) and not np.isfinite(itl_s[gaps]).any()
    late = ttft_s > _promised(traffic.completed_slo_ttft_s, slo.ttft_s) * TOLERANCE
    slow = itl_s > _promised(traffic.completed_slo_itl_s, slo.itl_s) * TOLERANCE
    met = known & ~late & (True if ttft_only else ~slow)
    return Attained(
        ended=float(np.count_nonzero(known)), met=float(np.count_nonzero(met)), ttft_only=ttft_only
    )


def _promised(own: FloatArray | None, common: float) -> FloatArray | float:
    return common if own is None else np.where(np.isnan(own), common, own)


PROMPT_TOKENS, CONTEXT_TOKENS, KV_USAGE = 1000.0, 2000.0, 0.5


def pace_s(engine: ReplayEngine, role: Role) -> float:
    """Seconds of a standard piece of a pool's work, to tell surfaces apart."""
    prefill_s = float(engine.profile.prefill.ttft_s(PROMPT_TOKENS))
    decode_s = float(engine.profile.decode.itl_s(KV_USAGE, CONTEXT_TOKENS))
    return {Role.PREFILL: prefill_s, Role.DECODE: decode_s, Role.MIXED: sqrt(prefill_s * decode_s)}[role]


HORIZONS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Intervals ahead."""

RISE = 2.0

SMOOTHING = 0.05
"""Of R and W."""

Said = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """The forecasts of requests after each of the last N intervals.

    `level` f8[N] is R, `said` by predictor f4[N, len(HORIZONS)], NaN where there was none; `measured` counts
    the intervals with known requests.
    """

    level: FloatArray = field(default_factory=lambda: np.zeros(0))
    said: Mapping[str, Said] = field(default_factory=dict)
    measured: int = 0

    def add(self, requests: float, ahead: Mapping[str, FloatArray], most: int) -> "Predicted":
        """With one more interval, of NaN requests if not measured; the oldest beyond `most` are dropped.

        Nothing is kept before the first forecast, nor of a predictor that was silent for `most` intervals.
        """
        if not ahead and not self.said:
            return self
        measured = self.measured + isfinite(requests)
        level = self.level[-1] if len(self.level) else 0.0
        if isfinite(requests):
            level += max(SMOOTHING, 1.0 / measured) * (requests - level)
        said = {name: self._with(name, ahead.get(name))[-most:] for name in {**self.said, **ahead}}
        spoken = {name: rows for name, rows in said.items() if np.isfinite(rows).any()}
        return Predicted(np.append(self.level, level)[-most:], spoken, measured)

    def _with(self, name: str, path: FloatArray | None) -> Said:
        """What it said so far, and now; `path` f8[A] of each of the next intervals, None: nothing."""
        before = self.said.get(name)
        if before is None:
            before = np.full((len(self.level), len(HORIZONS)), np.nan, np.float32)
        now = np.full(len(HORIZONS), np.nan)
        if path is not None and len(path):
            now = path[np.minimum(HORIZONS, len(path)) - 1]
        return np.concatenate([before, now[None].astype(np.float32)])

    def foreseen(self, requests: IntArray, lead: int, within: int) -> str:
        """The predictor that says requests come `lead` intervals ahead or in the `within` from then on, RISE
        times as many as in the next one, and was right in at least half of the intervals of which it said so;
        "" where none does. `requests` i8[M] is what came in each of the last M intervals.
        """
        place = min(int(np.searchsorted(HORIZONS, lead)), len(HORIZONS) - 1)
        until = np.concatenate([np.zeros(1), np.cumsum(requests)])
        for name, rows in self.said.items():
            soon, said = rows[-len(requests) :, 0], rows[-len(requests) :, place]
            told = np.flatnonzero((said * within >= 1.0) & (said > RISE * soon)) + len(requests) - len(said)
            first = told[told + HORIZONS[place] < len(requests)] + HORIZONS[place]
            right = until[np.minimum(first + within, len(requests))] > until[first]
            if len(told) and told[-1] == len(requests) - 1 and 2 * np.count_nonzero(right) >= len(first):
                return name
        return ""

    def of_work(self, work: FloatArray, lead: int) -> Mapping[str, FloatArray]:
        """By predictor that spoke last, the work expected `lead` intervals after each of M: f8[M].

        `work` f8[M] is the pool's W after each of the last M intervals.
        """
        return {
            name: self._of_work(rows, work, lead)
            for name, rows in self.said.items()
            if len(work) and np.isfinite(rows[-1, 0])
        }

    def _of_work(self, rows: Said, work: FloatArray, lead: int) -> FloatArray:
        count = min(len(work), len(rows))
        after = int(np.searchsorted(HORIZONS, lead))
        if after == 0 or after == len(HORIZONS):
            requests = rows[-count:, min(after, len(HORIZONS) - 1)].astype(np.float64)
        else:
            low, high = HORIZONS[after - 1 : after + 1]
            share = (lead - low) / (high - low)
            requests = (1.0 - share) * rows[-count:, after - 1] + share * rows[-count:, after]
        level, expected = self.level[-count:], work.copy()
        usable = np.isfinite(requests) & (level > 0.0)
        late = expected[len(work) - count :]
        np.divide(late * requests, level, out=late, where=usable)
        return expected
