"""The gateway's requests one by one: the wire format, and the traffic of an interval. Pure.

    {"now_s": 1700000000.5, "whole_since_s": 1699999000.0, "rows": "base64 of ROW after ROW"}

`now_s` is the gateway's clock at its answer, `whole_since_s` the time since when no row is missing. Rows are
in the order of what they say happened. Both clocks are Unix seconds and usually agree; where the answer's
`now_s` is not between question and answer, the gateway's times are shifted by the least that puts it there,
so that intervals tile exactly where clocks agree, and to the time of one exchange where they do not.
"""

import base64
import json
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.planning import Traffic

ROW = np.dtype([("at_s", "<f8"), ("input_tokens", "<u4"), ("output_tokens", "<i4")])
"""A request that arrived (`output_tokens` is ARRIVAL) or completed."""
ARRIVAL = -1


class RequestList(NamedTuple):
    """A gateway's answer; `rows` are of dtype ROW."""

    now_s: float
    whole_since_s: float
    rows: NDArray[Any]


def encode(answer: RequestList) -> bytes:
    """The answer's body."""
    rows = base64.b64encode(answer.rows.tobytes()).decode()
    return json.dumps({**answer._asdict(), "rows": rows}).encode()


def decode(body: str) -> RequestList:
    """The answer behind a body of `encode`; ValueError for anything else."""
    try:
        answer = json.loads(body)
        rows = np.frombuffer(base64.b64decode(answer["rows"], validate=True), ROW)
        return RequestList(float(answer["now_s"]), float(answer["whole_since_s"]), rows)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no list of requests: {type(error).__name__}") from None


def clock_shift_s(answer: RequestList, asked_s: float, answered_s: float) -> float:
    """Seconds to add to the gateway's times: 0 if it can have been `answer.now_s` when it answered."""
    return min(max(0.0, asked_s - answer.now_s), answered_s - answer.now_s)


def traffic_within(answer: RequestList, shift_s: float, start_s: float, end_s: float) -> Traffic | None:
    """The requests of (start_s, end_s]; None where the gateway has not kept all of them."""
    if answer.whole_since_s + shift_s > start_s:
        return None
    at_s = answer.rows["at_s"] + shift_s
    within = (at_s > start_s) & (at_s <= end_s)
    arrived = answer.rows["output_tokens"] == ARRIVAL
    arrivals, completions = np.flatnonzero(within & arrived), answer.rows[within & ~arrived]
    # A clock that was set back puts a later arrival before an earlier one.
    arrivals = arrivals[np.argsort(at_s[arrivals], kind="stable")]
    return Traffic(
        arrival_s=at_s[arrivals],
        input_tokens=answer.rows["input_tokens"][arrivals],
        completed_input_tokens=completions["input_tokens"],
        completed_output_tokens=completions["output_tokens"],
    )
