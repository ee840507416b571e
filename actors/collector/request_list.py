"""The requests that a gateway lists one by one: the list itself, and the part of it that an interval needs.

    {"now_s": 1700000000.5, "whole_since_s": 1699999000.0, "began_s": 1699990000.0, "rows": "base64 of ROWs"}

`now_s` is the gateway's clock at its answer, `whole_since_s` the time since which no row is missing, and
`began_s` the start of the process. Rows are in the order in which what they describe happened. Both clocks
are Unix seconds and usually agree; where the answer's `now_s` is not between question and answer, the
gateway's times are shifted by the least that puts it there, so that intervals tile exactly where clocks
agree, and to the time of one exchange where they do not.

By SLO class (`classes_within`):

    requests     arrivals that name the class, repeats too
    judged       those that ended in the interval, except those that clients cancelled or got wrong
    attainment   the share of these that met the SLO of their class; NaN if there are none
    ttft_s       of requests that were answered in full; `itl_s` likewise, of the mean gap of each request

A request that ended otherwise (turned away, too late, failed) is judged and has no latencies.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.collector.interval import NAN, ClassMeasured, Latency
from headway.planning import Traffic

ROW = np.dtype(
    [
        ("at_s", "<f8"),
        ("input_tokens", "<u4"),
        ("output_tokens", "<i4"),
        ("cached_tokens", "<i4"),
        ("slo_ttft_s", "<f4"),
        ("slo_itl_s", "<f4"),
        ("slo_class", "<i2"),
        ("took_s", "<f4"),
        ("ttft_s", "<f4"),
        ("itl_s", "<f4"),
    ]
)
"""A request that arrived (`output_tokens` is ARRIVAL, of another tried again REPEAT) or completed; of those
that name a class also one that missed its SLO otherwise (LOST).

SLOs of its own, NaN where it has none, and the place of its class, 0 for none. Of one that completed also
`cached_tokens`, which may be UNKNOWN, the seconds since it arrived, its TTFT and the mean ITL, NaN for none.
"""
ARRIVAL = UNKNOWN = -1
LOST = -2
REPEAT = -3


class RequestList(NamedTuple):
    """A gateway's answer; `rows` are of dtype ROW."""

    now_s: float
    whole_since_s: float
    rows: NDArray[Any]
    began_s: float = 0.0
    """When the process began whose list it is; of several the latest."""

    @property
    def whole(self) -> bool:
        """True if nothing is missing since the process began."""
        return self.whole_since_s <= self.began_s


def encode(answer: RequestList) -> bytes:
    """The answer's body."""
    rows = base64.b64encode(answer.rows.tobytes()).decode()
    return json.dumps({**answer._asdict(), "columns": ROW.names, "rows": rows}).encode()


def decode(body: str) -> RequestList:
    """The answer behind a body of `encode`; ValueError for anything else."""
    try:
        answer = json.loads(body)
        if tuple(answer["columns"]) != ROW.names:
            raise ValueError("other columns")
        rows = np.frombuffer(base64.b64decode(answer["rows"], validate=True), ROW)
        times = (float(answer[name]) for name in ("now_s", "whole_since_s", "began_s"))
        now_s, whole_since_s, began_s = times
        return RequestList(now_s, whole_since_s, rows, began_s)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no list of requests: {type(error).__name__}") from None


def merged(answers: Iterable[RequestList], now_s: float) -> RequestList:
    """The lists of several processes on one clock as one, in the order of time."""
    lists = list(answers)
    rows = np.concatenate([each.rows for each in lists])
    return RequestList(
        now_s,
        max(each.whole_since_s for each in lists),
        rows[np.argsort(rows["at_s"], kind="stable")],
        max(each.began_s for each in lists),
    )


def shifted(answer: RequestList, shift_s: float) -> RequestList:
    """The list on a clock that is ahead by `shift_s`."""
    rows = answer.rows.copy()
    rows["at_s"] += shift_s
    return RequestList(answer.now_s + shift_s, answer.whole_since_s + shift_s, rows, answer.began_s + shift_s)


def clock_shift_s(answer: RequestList, asked_s: float, answered_s: float) -> float:
    """Seconds to add to the gateway's times: 0 if it can have been `answer.now_s` when it answered."""
    return min(max(0.0, asked_s - answer.now_s), answered_s - answer.now_s)


def traffic_within(answer: RequestList, start_s: float, end_s: float) -> Traffic | None:
    """The requests of (start_s, end_s] without repeats; None where the gateway has not kept all of them."""
    if answer.whole_since_s > start_s:
        return None
    at_s = answer.rows["at_s"]
    within = (at_s > start_s) & (at_s <= end_s)
    ended = answer.rows["output_tokens"]
    arrived = ended == ARRIVAL
    arrivals, completions = np.flatnonzero(within & arrived), answer.rows[within & (ended >= 0)]
    # A clock that was set back puts a later arrival before an earlier one.
    arrivals = arrivals[np.argsort(at_s[arrivals], kind="stable")]
    rows = answer.rows[arrivals]
    return Traffic(
        arrival_s=at_s[arrivals],
        input_tokens=rows["input_tokens"],
        completed_input_tokens=completions["input_tokens"],
        completed_output_tokens=completions["output_tokens"],
        completed_cached_tokens=_known(completions["cached_tokens"], completions["cached_tokens"] != UNKNOWN),
        completed_arrival_s=completions["at_s"] - completions["took_s"],
        completed_ttft_s=completions["ttft_s"],
        completed_itl_s=completions["itl_s"],
        completed_slo_ttft_s=_known(completions["slo_ttft_s"], ~np.isnan(completions["slo_ttft_s"])),
        completed_slo_itl_s=_known(completions["slo_itl_s"], ~np.isnan(completions["slo_itl_s"])),
        slo_ttft_s=_known(rows["slo_ttft_s"], ~np.isnan(rows["slo_ttft_s"])),
        slo_itl_s=_known(rows["slo_itl_s"], ~np.isnan(rows["slo_itl_s"])),
        slo_class=rows["slo_class"] if rows["slo_class"].any() else None,
    )


def _known(column: NDArray[Any], known: NDArray[np.bool_]) -> NDArray[np.float64] | None:
    """The values, NaN where they are not known; None where none is."""
    return np.where(known, column.astype(np.float64), np.nan) if known.any() else None


def classes_within(
    answer: RequestList, span_s: tuple[float, float], classes: Sequence[str]
) -> Mapping[str, ClassMeasured]:
    """Each of the `classes`, in the order of the settings, over the interval (start, end] of `span_s`."""
    at_s = answer.rows["at_s"]
    rows = answer.rows[(at_s > span_s[0]) & (at_s <= span_s[1])]
    return {name: _of_class(rows[rows["slo_class"] == place]) for place, name in enumerate(classes, 1)}


def _of_class(rows: NDArray[Any]) -> ClassMeasured:
    arrived, lost = np.isin(rows["output_tokens"], (ARRIVAL, REPEAT)), rows["output_tokens"] == LOST
    answered = rows[~arrived & ~lost]
    late = (answered["ttft_s"] > answered["slo_ttft_s"]) | (answered["itl_s"] > answered["slo_itl_s"])
    judged = len(answered) + int(lost.sum())
    return ClassMeasured(
        requests=float(arrived.sum()),
        judged=float(judged),
        attainment=float((~late).sum()) / judged if judged else NAN,
        ttft_s=_latency(answered["ttft_s"]),
        itl_s=_latency(answered["itl_s"]),
    )


def _latency(values: NDArray[Any]) -> Latency:
    known = [float(value) for value in values if not isnan(value)]
    if not known:
        return Latency(count=0.0)
    p50, p95, p99 = (float(found) for found in np.quantile(known, (0.50, 0.95, 0.99)))
    return Latency(mean=float(np.mean(known)), p50=p50, p95=p95, p99=p99, count=float(len(known)))
