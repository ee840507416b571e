"""The times and counts of one request, from its arrival to its end."""

from collections.abc import Callable

from serve_apps.engines.protocol import FinishReason
from serve_apps.gateway.backend import Outcome
from serve_apps.gateway.metrics import GatewayMetrics
from serve_apps.gateway.slo_targets import SloTargets


class RequestTimes:
    """Follows one request; `tokens` is on the path of every chunk and costs about a microsecond."""

    __slots__ = (
        "_clock",
        "_first_s",
        "_input_tokens",
        "_last_s",
        "_metrics",
        "_reason",
        "_targets",
        "arrived_s",
        "output_tokens",
    )

    def __init__(self, metrics: GatewayMetrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self.arrived_s = clock()
        self._first_s: float | None = None
        self._last_s = 0.0
        self._input_tokens: int | None = None
        self._targets = SloTargets()
        self._reason: FinishReason | None = None
        self.output_tokens = 0

    def received(self) -> None:
        """The body is here: the request's time begins."""
        self.arrived_s = self._clock()

    def judged_by(self, targets: SloTargets) -> None:
        """The request is judged by this."""
        self._targets = targets

    def accepted(self, input_tokens: int) -> None:
        """The request is valid."""
        self._input_tokens = input_tokens
        self._metrics.arrived(input_tokens)

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
            metrics.itl.observe((now - self._last_s) / count, count)
        self._last_s = now
        self.output_tokens += count
        metrics.output_tokens += count

    def finished(self, reason: FinishReason) -> None:
        """The output is complete; it counts if it also arrives."""
        self._reason = reason

    def ended(self, outcome: Outcome) -> None:
        """The request is over."""
        metrics = self._metrics
        metrics.requests[outcome] += 1
        metrics.durations.observe(outcome, self._clock() - self.arrived_s)
        ttft_s, tpot_s = self._ttft_s(), self._tpot_s()
        if outcome == "ok" and self._reason is not None:
            metrics.finished[self._reason] += 1
        if self._input_tokens is not None:
            metrics.input_tokens.observe(outcome, self._input_tokens)
            metrics.request_output_tokens.observe(outcome, self.output_tokens)
            if outcome == "ok":
                metrics.log.completed(self._input_tokens, self.output_tokens)
        if ttft_s is not None:
            metrics.request_ttft.observe(outcome, ttft_s)
        if tpot_s is not None:
            metrics.request_tpot.observe(outcome, tpot_s)
        metrics.judge(outcome, (ttft_s, tpot_s), self._targets)

    def _ttft_s(self) -> float | None:
        return None if self._first_s is None else self._first_s - self.arrived_s

    def _tpot_s(self) -> float | None:
        if self._first_s is None or self.output_tokens < 2:
            return None
        return (self._last_s - self._first_s) / (self.output_tokens - 1)
