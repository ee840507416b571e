"""Requests added up, in bounded memory: outcomes, attainment, latencies, the lag of the sender.

Attainment is met / requests, where failed and shed ones count as missed, as in the simulator. TTFT and ITL
count every token that came, TPOT and E2E completed requests. Requests that an interrupt cut off are
`unfinished` and count nowhere else.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, isfinite, log
from typing import Any

from headway.loadgen.records import RequestOutcome, RequestRecord
from headway.planning.types import Slo

LEAST_S = 1e-5
RATIO = 1.005
LOG_RATIO = log(RATIO)
BUCKETS = 4700
QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
ROUNDING = 1e-9


class Histogram:
    """Latencies in seconds, each with a weight, in geometric buckets: quantiles within 0.25 %.

    Bucket i > 0 holds values in (LEAST_S · RATIO^(i−1), LEAST_S · RATIO^i]; bucket 0 everything up to
    LEAST_S. Only buckets in use take memory. Values have weights, since a token of a shared chunk may stand
    for a fraction of one measurement. A quantile is its bucket's geometric middle; the mean is exact.
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self.total_s = 0.0
        self.highest_s = 0.0
        self._buckets: dict[int, float] = {}

    def add(self, value_s: float, weight: float = 1.0) -> None:
        """Count a value; negative and non-finite ones are a fault of the caller."""
        if not (isfinite(value_s) and value_s >= 0 and weight > 0):
            raise ValueError(f"a latency of {value_s} s with weight {weight}")
        bucket = min(ceil(log(value_s / LEAST_S) / LOG_RATIO), BUCKETS - 1) if value_s > LEAST_S else 0
        self._buckets[bucket] = self._buckets.get(bucket, 0.0) + weight
        self.weight += weight
        self.total_s += value_s * weight
        self.highest_s = max(self.highest_s, value_s)

    def merge(self, other: "Histogram") -> None:
        """Take in another's values."""
        self.weight += other.weight
        self.total_s += other.total_s
        self.highest_s = max(self.highest_s, other.highest_s)
        for bucket, weight in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0.0) + weight

    def quantile(self, share: float) -> float | None:
        """The value that `share` of the weight does not exceed; None when empty."""
        if not self.weight:
            return None
        wanted, seen = share * self.weight * (1 - ROUNDING), 0.0
        bucket = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                break
        return LEAST_S * RATIO ** (bucket - 0.5) if bucket else LEAST_S

    @property
    def mean_s(self) -> float | None:
        """The exact mean; None when empty."""
        return self.total_s / self.weight if self.weight else None

    def summary(self) -> dict[str, float | None]:
        """Mean and quantiles in seconds; None where nothing was measured."""
        return {"mean": self.mean_s, **{name: self.quantile(share) for name, share in QUANTILES.items()}}


MOST = 2000


@dataclass(slots=True)
class Window:
    """Sums over the requests of one window."""

    requests: int = 0
    completed: int = 0
    met: int = 0
    output_tokens: int = 0
    ttft: Histogram = field(default_factory=Histogram)
    tpot: Histogram = field(default_factory=Histogram)

    def merge(self, other: "Window") -> None:
        """Take in another window's sums."""
        self.requests += other.requests
        self.completed += other.completed
        self.met += other.met
        self.output_tokens += other.output_tokens
        self.ttft.merge(other.ttft)
        self.tpot.merge(other.tpot)


class Windows:
    """Requests per window of time, by the time at which they should have left.

    When the windows become more than MOST, neighbours are merged and the width doubles.
    """

    def __init__(self, width_s: float = 10.0) -> None:
        self.width_s = width_s
        self._windows: dict[int, Window] = {}

    def add(self, record: RequestRecord, *, met: bool) -> None:
        """Count a request that ended."""
        while int(record.intended_s // self.width_s) >= MOST:
            self._widen()
        window = self._windows.setdefault(int(record.intended_s // self.width_s), Window())
        window.requests += 1
        window.output_tokens += record.output_tokens
        if record.outcome is RequestOutcome.OK and record.ttft_s is not None:
            window.completed += 1
            window.met += met
            window.ttft.add(record.ttft_s)
            if record.tpot_s is not None:
                window.tpot.add(record.tpot_s)

    def _widen(self) -> None:
        narrow, self._windows = self._windows, {}
        self.width_s *= 2
        for place, window in narrow.items():
            self._windows.setdefault(place // 2, Window()).merge(window)

    def rows(self) -> list[dict[str, Any]]:
        """JSON-able data, in order of time; a window without requests is left out."""
        return [
            {
                "start_s": place * self.width_s,
                "end_s": (place + 1) * self.width_s,
                "requests": window.requests,
                "completed": window.completed,
                "attainment": window.met / window.requests,
                "output_tokens": window.output_tokens,
                "ttft_mean_s": window.ttft.mean_s,
                "ttft_p99_s": window.ttft.quantile(0.99),
                "tpot_p99_s": window.tpot.quantile(0.99),
            }
            for place, window in sorted(self._windows.items())
        ]


MATERIAL_SHARE = 0.1
"""A sender whose p99 lag exceeds this share of the TTFT target is part of what it measures."""

DETAILS_KEPT = 5
OFF_BY = 0.01


class LoadTally:
    """Running totals over requests that ended."""

    def __init__(self, slo: Slo, window_s: float = 10.0) -> None:
        self.slo = slo
        self.outcomes: Counter[str] = Counter()
        self.requests = self.completed = self.shed = self.met = self.unfinished = 0
        self.input_tokens = self.output_tokens = 0
        self.meant_tokens, self.served_tokens = Counter[str](), Counter[str]()
        self.duration_s = 0.0
        self.latencies = {name: Histogram() for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s")}
        self.lag = Histogram()
        self.windows = Windows(window_s)
        self.details: dict[str, int] = {}

    @property
    def failed(self) -> int:
        """Requests that neither completed nor were shed."""
        return self.requests - self.completed - self.shed

    @property
    def attainment(self) -> float | None:
        """Share of all requests that met the SLO; None without requests."""
        return self.met / self.requests if self.requests else None

    def add(self, record: RequestRecord) -> None:
        """Count a request that ended."""
        met = record.met(self.slo)
        self.requests += 1
        self.completed += record.outcome is RequestOutcome.OK
        self.shed += record.outcome is RequestOutcome.SHED
        self.met += met
        self.outcomes[outcome_name(record)] += 1
        self.duration_s = max(self.duration_s, record.ended_s)
        self._add_tokens(record)
        self._add_latencies(record)
        self.windows.add(record, met=met)
        if record.detail and (record.detail in self.details or len(self.details) < DETAILS_KEPT):
            self.details[record.detail] = self.details.get(record.detail, 0) + 1

    def _add_tokens(self, record: RequestRecord) -> None:
        self.input_tokens += record.input_tokens
        self.output_tokens += record.output_tokens
        if record.outcome is RequestOutcome.OK:
            self.meant_tokens["output"] += record.requested_tokens
            self.served_tokens["output"] += record.output_tokens
            if record.served_input_tokens is not None:
                self.meant_tokens["input"] += record.input_tokens
                self.served_tokens["input"] += record.served_input_tokens

    def _add_latencies(self, record: RequestRecord) -> None:
        if record.lag_s is not None:
            self.lag.add(max(record.lag_s, 0.0))
        if record.ttft_s is not None:
            self.latencies["ttft_s"].add(record.ttft_s)
        for gap_s, tokens in record.gaps:
            self.latencies["itl_s"].add(gap_s, tokens)
        if record.outcome is RequestOutcome.OK:
            for name, value_s in (("tpot_s", record.tpot_s), ("e2e_s", record.e2e_s)):
                if value_s is not None:
                    self.latencies[name].add(value_s)

    @property
    def sender_was_late(self) -> bool:
        """True if the sender's own lag is material to the measurement."""
        late_s = self.lag.quantile(0.99)
        return late_s is not None and late_s > MATERIAL_SHARE * self.slo.ttft_s

    def summary(self) -> dict[str, Any]:
        """JSON-able totals; keys as in a simulation's result where they mean the same."""
        return {
            "requests": self.requests,
            "completed": self.completed,
            "shed": self.shed,
            "failed": self.failed,
            "unfinished": self.unfinished,
            "attainment": self.attainment,
            "goodput_rps": self.met / self.duration_s if self.duration_s else 0.0,
            "outcomes": dict(sorted(self.outcomes.items())),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            **{name: histogram.summary() for name, histogram in self.latencies.items()},
            "send_lag_s": self._lag(),
            "duration_s": self.duration_s,
            "notes": self.notes(),
            "intervals": self.windows.rows(),
        }

    def _lag(self) -> dict[str, float | None]:
        """Quantiles are right to a bucket, the highest value is exact: none is said to be above it."""
        if not self.lag.weight:
            return {**self.lag.summary(), "max": None}
        highest_s = self.lag.highest_s
        known = {name: value for name, value in self.lag.summary().items() if value is not None}
        return {**{name: min(value, highest_s) for name, value in known.items()}, "max": highest_s}

    def notes(self) -> list[str]:
        """Remarks for a reader, beside the figures."""
        return [*self._late(), *self._endings(), *self._lengths()]

    def _late(self) -> Iterator[str]:
        if self.sender_was_late:
            late_ms, target_ms = (self.lag.quantile(0.99) or 0.0) * 1e3, self.slo.ttft_s * 1e3
            yield (
                f"the load generator itself was late: 99 % of the requests left within {late_ms:.3g} ms of "
                f"their time, against a TTFT target of {target_ms:g} ms; the latencies contain that"
            )

    def _endings(self) -> Iterator[str]:
        for detail, count in self.details.items():
            yield f"{count} of {self.requests} requests ended with: {detail}"
        if self.unfinished:
            yield f"{self.unfinished} requests were cut off by the interrupt and are not counted"

    def _lengths(self) -> Iterator[str]:
        meant, served = self.meant_tokens, self.served_tokens
        if meant["input"] and abs(served["input"] / meant["input"] - 1) > OFF_BY:
            yield f"the server counted {served['input']:,} input tokens where {meant['input']:,} were meant"
        if meant["output"] and served["output"] < meant["output"] * (1 - OFF_BY):
            yield (
                f"the server sent {served['output']:,} output tokens where {meant['output']:,} were asked "
                "for; --ignore-eos makes servers that know it go on to the end"
            )


def outcome_name(record: RequestRecord) -> str:
    """`ok`, `shed`, `http 503`, …: what outcomes are counted under."""
    return (
        f"{record.outcome} {record.status}" if record.outcome is RequestOutcome.HTTP else str(record.outcome)
    )
