"""Requests added up: outcomes, attainment, latencies, the sender's lag. Memory does not grow with their
number.

Attainment is met / requests, where failed and shed ones count as missed, as in the simulator. TTFT and ITL
count every token that came, TPOT and E2E completed requests. Requests that an interrupt cut off are
`unfinished` and count nowhere else.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from headway.loadgen.histogram import Histogram
from headway.loadgen.records import Outcome, RequestRecord
from headway.loadgen.windows import Windows
from headway.planning.types import Slo

MATERIAL_SHARE = 0.1
"""A sender whose p99 lag exceeds this share of the TTFT target is part of what it measures."""

DETAILS_KEPT = 5
OFF_BY = 0.01


class Tally:
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
        self.completed += record.outcome is Outcome.OK
        self.shed += record.outcome is Outcome.SHED
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
        if record.outcome is Outcome.OK:
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
        if record.outcome is Outcome.OK:
            for name, value_s in (("tpot_s", record.tpot_s), ("e2e_s", record.e2e_s)):
                if value_s is not None:
                    self.latencies[name].add(value_s)

    @property
    def sender_was_late(self) -> bool:
        """Whether the sender's own lag is material to what was measured."""
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
            "send_lag_s": {**self.lag.summary(), "max": self.lag.highest_s if self.lag.weight else None},
            "duration_s": self.duration_s,
            "notes": self.notes(),
            "intervals": self.windows.rows(),
        }

    def notes(self) -> list[str]:
        """What a reader should know besides the figures."""
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
    return f"{record.outcome} {record.status}" if record.outcome is Outcome.HTTP else str(record.outcome)
