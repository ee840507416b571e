"""The times and tokens of one request, which it counts into the gateway's measurements (`metrics`)."""

from collections.abc import Callable
from math import inf, nan

from serve_apps.engines.protocol import FinishReason
from serve_apps.faults import Outcome
from serve_apps.gateway.metrics import GatewayMetrics
from serve_apps.gateway.request_log import PLAIN
from serve_apps.gateway.slo_targets import SloTargets


class RequestTimes:
    """Follows one request; `tokens` is on the path of every chunk and costs about a microsecond."""

    __slots__ = (
        "_clock",
        "_first_s",
        "_last_s",
        "_metrics",
        "_outputs",
        "arrived_s",
        "cached_tokens",
        "ended_s",
        "input_tokens",
        "met",
        "output_tokens",
        "reason",
        "targets",
    )

    def __init__(self, metrics: GatewayMetrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self.arrived_s = clock()
        self._first_s: float | None = None
        self._last_s = 0.0
        self.input_tokens: int | None = None
        self.targets = PLAIN
        self.reason: FinishReason | None = None
        self.cached_tokens: int | None = None
        self._outputs = 1
        self.output_tokens = 0
        self.ended_s = 0.0
        self.met: bool | None = None
        """Whether it met its SLO; None where it is not judged, or not yet."""

    def received(self) -> None:
        """The body is here: the request's time begins."""
        self.arrived_s = self._clock()

    def judged_by(self, targets: SloTargets) -> None:
        """The request is judged by this."""
        self.targets = targets

    def accepted(self, input_tokens: int, outputs: int = 1) -> None:
        """The request is valid. Tokens of several `outputs` come side by side: times are those of one."""
        self.input_tokens, self._outputs = input_tokens, outputs
        self._metrics.arrived(input_tokens, self.targets)

    def tokens(self, count: int) -> None:
        """Some tokens leave now."""
        if count < 1:
            return
        now, metrics = self._clock(), self._metrics
        if self._first_s is None:
            self._first_s = now
            metrics.ttft.observe(now - self.arrived_s)
            if count > 1:
                metrics.itl.observe(0.0, count - 1)
        else:
            metrics.itl.observe((now - self._last_s) * self._outputs / count, count)
        self._last_s = now
        self.output_tokens += count
        metrics.output_tokens += count

    def finished(self, reason: FinishReason, cached_tokens: int | None = None) -> None:
        """The output is complete; it counts if it also arrives."""
        self.reason, self.cached_tokens = reason, cached_tokens

    def ended(self, outcome: Outcome) -> None:
        """The request is over."""
        metrics = self._metrics
        metrics.requests[outcome] += 1
        metrics.of_tenants.ended(self.targets.tenant, outcome)
        self.ended_s = self._clock()
        took_s = self.ended_s - self.arrived_s
        metrics.durations.observe(outcome, took_s)
        ttft_s, tpot_s = self.ttft_s, self.tpot_s
        if outcome == "ok" and self.reason is not None:
            metrics.finished[self.reason] += 1
        if self.input_tokens is not None:
            metrics.input_tokens.observe(outcome, self.input_tokens)
            metrics.request_output_tokens.observe(outcome, self.output_tokens)
            if outcome == "ok":
                took = (took_s, nan if ttft_s is None else ttft_s, nan if tpot_s is None else tpot_s)
                metrics.log.completed(
                    self.input_tokens,
                    self.output_tokens,
                    self.cached_tokens,
                    took=took,
                    targets=self.targets,
                )
        if ttft_s is not None:
            metrics.request_ttft.observe(outcome, ttft_s)
        if tpot_s is not None:
            metrics.request_tpot.observe(outcome, tpot_s)
        self.met = metrics.judge(outcome, (ttft_s, tpot_s), self.targets)

    def promised(self) -> dict[str, float | str | None]:
        """Its SLO in seconds, None without one, and the class that it named."""
        slo = self._metrics.promised(self.targets)
        wanted = {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s}
        return {
            "class": self.targets.slo_class or None,
            **{name: None if value == inf else value for name, value in wanted.items()},
        }

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token; None without one."""
        return None if self._first_s is None else self._first_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Between tokens; None with fewer than two of an output."""
        gaps = self.output_tokens - self._outputs
        if self._first_s is None or gaps < 1:
            return None
        return (self._last_s - self._first_s) * self._outputs / gaps
