"""What became of each request: a record that is found by its id, and a line in the log.

    RequestRecord    one request, from its arrival on: who asked, what for, where it was placed and why, each
                     step, how it ended, and whether in time
    RecentRequests   those under way, and the latest that have ended
    log line         `request {...}` as JSON, of logger `ray.serve.requests`

A record holds no prompt and no output. Its id is that of the response's header `x-request-id`; a client may
have sent it, and more than once. Seconds throughout: steps count from the arrival, what a replica says of
itself from the call's beginning.
"""

import json
import logging
import pickle
import time
from collections import deque
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Literal

from headway.routing.types import Placement
from serve_apps.faults import Fault, Outcome
from serve_apps.gateway.request_times import RequestTimes
from serve_apps.gateway.timeline import LONGEST_ERROR, Step, Timeline

Document = Mapping[str, Any]
Logged = Literal["none", "problems", "all"]

UNDER_WAY = "under way"
DIGITS = 6
"""Of seconds: microseconds."""

logger = logging.getLogger("ray.serve.requests")


class RequestRecord:
    """One request, followed from its arrival on."""

    __slots__ = ("adapter", "arrived_at", "error", "key", "outcome", "path", "request_id", "status",
                 "timeline", "times")  # fmt: skip

    def __init__(self, request_id: str, path: str, key: str, times: RequestTimes, timeline: Timeline) -> None:
        """`key` is the name of the API key that asked."""
        self.request_id, self.path, self.key = request_id, path, key
        self.times, self.timeline = times, timeline
        self.adapter = ""
        """The LoRA adapter that it asks for."""
        self.arrived_at = time.time()
        self.outcome: Outcome | None = None
        self.error: tuple[str | None, str] | None = None
        """Code and message. No exception, which would keep the request's body alive."""
        self.status: int | None = None
        """HTTP's, as it was sent; None where nothing was."""

    def failed(self, fault: Fault) -> None:
        """It gets this instead of an answer, or of the rest of it."""
        self.error = fault.code, str(fault)[:LONGEST_ERROR]

    def ended(self, outcome: Outcome, status: int | None) -> None:
        """It is over, and nothing of it goes on."""
        self.outcome, self.status = outcome, status
        self.timeline.over()

    @property
    def a_problem(self) -> bool:
        """Whether it failed, or missed its SLO."""
        return self.times.met is False or self.outcome in ("failed", "timeout", "not_ready", "shed")

    def summary(self) -> dict[str, Any]:
        """The request in one line."""
        times, timeline = self.times, self.timeline
        placement, trace, error = timeline.placement, timeline.trace, self.error
        return {
            "id": self.request_id,
            "trace": None if trace is None else trace.trace_id,
            "path": self.path,
            "key": self.key,
            "tenant": times.targets.tenant,
            "adapter": self.adapter or None,
            "arrived_at": round(self.arrived_at, DIGITS),
            "outcome": self.outcome or UNDER_WAY,
            "status": self.status,
            "error": None if error is None else {"code": error[0], "message": error[1]},
            "input_tokens": times.input_tokens,
            "cached_tokens": times.cached_tokens,
            "output_tokens": times.output_tokens,
            "ttft_s": _rounded(times.ttft_s),
            "tpot_s": _rounded(times.tpot_s),
            "e2e_s": _rounded(times.ended_s - times.arrived_s) if times.ended_s else None,
            "slo": {**times.promised(), "critical": times.targets.critical, "met": times.met},
            "placement": None if placement is None else _placement(placement),
        }

    def document(self) -> Document:
        """All of it."""
        return {**self.summary(), "steps": [self._step(step) for step in self.timeline.steps]}

    def _step(self, step: Step) -> Document:
        return {
            "name": step.name,
            "replica": step.replica or None,
            "began_s": _rounded(step.began_s - self.times.arrived_s),
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


class RecentRequests:
    """Those under way, and as many that have ended as are kept."""

    def __init__(
        self, kept: int, logged: Logged, per_s: float, clock: Callable[[], float] = time.monotonic
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
