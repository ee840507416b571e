"""What became of each request: counted while it runs, then found by its id, and logged in a line.

    RequestRecord    one request, from its arrival on: tokens and times, which it counts into `metrics`, its
                     key, where it was placed and why, each step, and how it ended
    RecentRequests   those under way, and the latest that have ended
    log line         `request {...}` as JSON, of logger `ray.serve.requests`

A record is of one output: a call with several has as many, with one id, and `output` is the place in its
answer.

A record holds no prompt and no output. Its id is that of the response's header `x-request-id`; a client may
have sent it, and more than once. Seconds throughout: steps count from the arrival, what a replica reports of
its work from the call's beginning.
"""

import json
import logging
import pickle
import time
from collections import deque
from collections.abc import Callable, Mapping
from math import inf, nan
from operator import itemgetter
from typing import Any, Literal

from headway.routing.types import Placement
from serve_apps.engines.protocol import EngineTimes, FinishReason
from serve_apps.faults import Fault, Outcome
from serve_apps.gateway.backend import LONGEST_ERROR, Step, Timeline
from serve_apps.gateway.metrics import GatewayMetrics
from serve_apps.gateway.repeats import Attempt
from serve_apps.gateway.request_log import PLAIN
from serve_apps.gateway.slo_targets import SloTargets

Document = Mapping[str, Any]
Logged = Literal["none", "problems", "all"]

UNDER_WAY = "under way"
PROBLEMS: frozenset[Outcome] = frozenset({"failed", "timeout", "not_ready", "shed"})
DIGITS = 6
"""Of seconds: microseconds."""

logger = logging.getLogger("ray.serve.requests")


class RequestRecord:
    """One request; `tokens` is on the path of every chunk and costs about a microsecond."""

    __slots__ = ("_first_s", "_last_s", "_metrics", "_number", "adapter", "arrived_at", "arrived_s",
                 "attempt", "cached_tokens", "ended_s", "error", "input_tokens", "key", "met", "outcome",
                 "output", "output_tokens", "path", "reason", "repeat", "request_id", "status", "targets",
                 "timeline")  # fmt: skip

    def __init__(
        self, request_id: str, path: str, key: str, metrics: GatewayMetrics, timeline: Timeline
    ) -> None:
        """`key` is the name of the API key that asked."""
        self.request_id, self.path, self.key = request_id, path, key
        self._metrics, self.timeline = metrics, timeline
        self.arrived_at, self.arrived_s = time.time(), timeline.clock()
        self.targets = PLAIN
        self.adapter = ""
        """The LoRA adapter that it asks for."""
        self.input_tokens: int | None = None
        self.attempt: Attempt | None = None
        """The call, once it is counted; of the first output's record only."""
        self.repeat, self._number = False, 0
        """Whether it is a request that failed before, tried again; its number in the log of arrivals."""
        self.cached_tokens: int | None = None
        self.output = self.output_tokens = 0
        self._first_s: float | None = None
        self._last_s = self.ended_s = 0.0
        self.reason: FinishReason | None = None
        self.outcome: Outcome | None = None
        self.error: tuple[str | None, str] | None = None
        """Code and message. No exception, which would keep the request's body alive."""
        self.status: int | None = None
        """HTTP's, as it was sent; None where nothing was."""
        self.met: bool | None = None
        """Whether it met its SLO; None where it is not judged, or not yet."""

    def another(self, output: int) -> "RequestRecord":
        """That of a further output of the same call; its spans are below this one's."""
        clock, trace = self.timeline.clock, self.timeline.trace
        timeline = Timeline(clock, None if trace is None else trace.child())
        made = RequestRecord(self.request_id, self.path, self.key, self._metrics, timeline)
        made.output, made.targets, made.adapter = output, self.targets, self.adapter
        made.arrived_at, made.arrived_s = self.arrived_at, self.arrived_s
        return made

    def received(self, at_s: float | None = None) -> None:
        """The body is here: the request's time begins, if it has not begun `at_s` elsewhere."""
        if at_s is not None:
            self.arrived_at += at_s - self.arrived_s
        self.arrived_s = self.timeline.clock() if at_s is None else at_s

    def judged_by(self, targets: SloTargets) -> None:
        """The request is judged by these targets."""
        self.targets = targets

    def accepted(self, input_tokens: int) -> None:
        """The request is valid."""
        self.input_tokens = input_tokens
        self._number = self._metrics.arrived(input_tokens, self.targets)

    def repeats(self) -> None:
        """Accepted before, it is now known as a request tried again."""
        self.repeat = True
        self._metrics.repeated(self._number, self.input_tokens or 0)

    def tokens(self, count: int) -> None:
        """Some tokens have come from the engine now."""
        if count < 1:
            return
        now, metrics = self.timeline.clock(), self._metrics
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

    def finished(
        self, reason: FinishReason, cached_tokens: int | None = None, times: EngineTimes | None = None
    ) -> None:
        """The output is complete; it counts if it also arrives. `times` are the replica's."""
        self.reason, self.cached_tokens = reason, cached_tokens
        self.timeline.close(times)

    def failed(self, fault: Fault) -> None:
        """The client gets this instead of an answer, or of the rest of it."""
        self.error = fault.code, str(fault)[:LONGEST_ERROR]

    def ended(self, outcome: Outcome, status: int | None = None) -> None:
        """The request is over, and nothing of it goes on."""
        self.outcome, self.status = outcome, status
        self.timeline.close()
        self.ended_s = self.timeline.clock()
        # To the last token, as the engine made it: how long its client reads is no load.
        over_s = self.ended_s if outcome != "ok" or self._first_s is None else self._last_s
        took_s, ttft_s, tpot_s = over_s - self.arrived_s, self.ttft_s, self.tpot_s
        metrics = self._metrics
        metrics.ended(outcome, took_s, self.targets)
        if outcome == "ok" and self.reason is not None:
            metrics.finished[self.reason] += 1
        if self.input_tokens is not None:
            metrics.input_tokens.observe(outcome, self.input_tokens)
            metrics.request_output_tokens.observe(outcome, self.output_tokens)
            if outcome == "ok":
                took = took_s, nan if ttft_s is None else ttft_s, nan if tpot_s is None else tpot_s
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

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token; None without one."""
        return None if self._first_s is None else self._first_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Between tokens; None with fewer than two."""
        if self._first_s is None or self.output_tokens < 2:
            return None
        return (self._last_s - self._first_s) / (self.output_tokens - 1)

    @property
    def a_problem(self) -> bool:
        """Whether it failed, or missed its SLO."""
        return self.met is False or self.outcome in PROBLEMS

    def summary(self) -> dict[str, Any]:
        """The request in one line."""
        placement, trace, error = self.timeline.placement, self.timeline.trace, self.error
        return {
            "id": self.request_id,
            "trace": None if trace is None else trace.trace_id,
            "path": self.path,
            "output": self.output,
            "key": self.key,
            "tenant": self.targets.tenant,
            "adapter": self.adapter or None,
            "arrived_at": round(self.arrived_at, DIGITS),
            "repeat": self.repeat,
            "outcome": self.outcome or UNDER_WAY,
            "status": self.status,
            "error": None if error is None else {"code": error[0], "message": error[1]},
            "input_tokens": self.input_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "ttft_s": _rounded(self.ttft_s),
            "tpot_s": _rounded(self.tpot_s),
            "e2e_s": _rounded(self.ended_s - self.arrived_s) if self.ended_s else None,
            "slo": self._slo(),
            "placement": None if placement is None else _placement(placement),
        }

    def _slo(self) -> Document:
        slo = self._metrics.promised(self.targets)
        return {
            "class": self.targets.slo_class or None,
            "ttft_s": None if slo.ttft_s == inf else slo.ttft_s,
            "tpot_s": None if slo.tpot_s == inf else slo.tpot_s,
            "critical": self.targets.critical,
            "met": self.met,
        }

    def document(self) -> Document:
        """All of it."""
        return {**self.summary(), "steps": [self._step(step) for step in self.timeline.steps]}

    def _step(self, step: Step) -> Document:
        return {
            "name": step.name,
            "replica": step.replica or None,
            "began_s": _rounded(step.began_s - self.arrived_s),
            "took_s": _rounded(step.ended_s - step.began_s) if step.ended_s else None,
            "error": step.error or None,
            "engine": None
            if step.times is None
            else {name: _rounded(value) for name, value in step.times._asdict().items()},
        }


def _placement(placement: Placement) -> Document:
    return {
        "profile": placement.profile,
        "reason": placement.reason,
        "route_class": placement.route_class,
        "prefill_replica": placement.prefill_replica,
        "decode_replica": placement.decode_replica,
        "predicted_ttft_s": _rounded(placement.predicted_ttft_s),
        "predicted_tpot_s": _rounded(placement.predicted_tpot_s),
        "queued_s": _rounded(placement.queued_s),
        "attempt": placement.attempt,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, DIGITS)


LINES_PER_S = 50.0
"""Lines of requests in the log at most; the next one counts those left out."""


class RecentRequests:
    """Those under way, and as many that have ended as are kept."""

    def __init__(
        self,
        kept: int,
        logged: Logged,
        per_s: float = LINES_PER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`logged`: of which a line is written, `per_s` at most."""
        # As bytes: ten thousand objects of Python would be what each full garbage collection looks through.
        self._ended: deque[tuple[str, bytes]] = deque(maxlen=kept)
        self._flying: set[RequestRecord] = set()
        self._logged, self._per_s, self._clock = logged, per_s, clock
        self._lines, self._since_s, self._left_out = per_s, clock(), 0

    def begin(self, record: RequestRecord) -> None:
        """A request is here."""
        self._flying.add(record)

    def end(self, record: RequestRecord) -> None:
        """It has ended."""
        self._flying.discard(record)
        self._ended.append((record.request_id, pickle.dumps(record.document())))
        if self._logged == "all" or (self._logged == "problems" and record.a_problem):
            self._log(record)

    def find(self, request_id: str) -> list[Document]:
        """Requests with this id, in order of arrival."""
        found: list[Document] = [pickle.loads(kept) for name, kept in self._ended if name == request_id]
        found += [each.document() for each in self._flying if each.request_id == request_id]
        return sorted(found, key=itemgetter("arrived_at"))

    def _log(self, record: RequestRecord) -> None:
        """A line, unless there were too many of late: what is left out is counted in the next."""
        now_s = self._clock()
        self._lines = min(self._per_s, self._lines + (now_s - self._since_s) * self._per_s)
        self._since_s = now_s
        if self._lines < 1.0:
            self._left_out += 1
            return
        self._lines -= 1.0
        said = record.summary()
        if self._left_out:
            said["lines_left_out"], self._left_out = self._left_out, 0
        logger.info("request %s", json.dumps(said))
