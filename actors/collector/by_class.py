"""The requests of one interval by SLO class, from the list that a gateway keeps.

    requests     arrivals that name the class
    judged       those that ended in the interval, but for what clients broke off or asked wrongly
    attainment   of these, the share that met the SLO of their class; NaN for none
    ttft_s       of those answered whole; `itl_s` is the mean gap of each, so that both are as promised

A request that ended otherwise (turned away, too late, failed) is judged, and has no latencies.
"""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.collector.exposition import ARRIVAL, LOST, RequestList
from actors.collector.measured import NAN, ClassMeasured, Latency


def classes_within(
    answer: RequestList, shift_s: float, span_s: tuple[float, float], classes: Sequence[str]
) -> Mapping[str, ClassMeasured]:
    """Each of the `classes`, in the order of the settings, over the interval (start, end] of `span_s`."""
    at_s = answer.rows["at_s"] + shift_s
    rows = answer.rows[(at_s > span_s[0]) & (at_s <= span_s[1])]
    return {name: _of_class(rows[rows["slo_class"] == place]) for place, name in enumerate(classes, 1)}


def _of_class(rows: NDArray[Any]) -> ClassMeasured:
    arrived, lost = rows["output_tokens"] == ARRIVAL, rows["output_tokens"] == LOST
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
