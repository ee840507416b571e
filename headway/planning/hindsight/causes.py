"""What changed where a decision asks for more: the causes that arrivals and engines show.

The requests of the interval are held against those of the run-up before it (`learning.RUN_UP_S`, at most),
engines against themselves as they were when that began:

    rate       n came where m are expected          said if n − m > Z √m
    lengths    means x of now, y of before          said if x − y > Z √(s²_x / n_x + s²_y / n_y)
    engines    seconds for a standard piece of work (`history.pace_s`)

each only from LEAST times on. Outputs are as they are drawn for replays (`OutputSample`).

A burst begins where work rises above the middle between its median and its peak (`rhythm`).
"""

from collections.abc import Iterator, Mapping
from math import sqrt

import numpy as np

from headway.planning.hindsight.state import PoolMemory
from headway.planning.replay import Requests
from headway.planning.types import FloatArray, Role
from headway.words import duration, first_few

BEFORE_S = 300.0
Z, LEAST, FEWEST = 3.0, 1.1, 10
"""Standard errors, times as much, and requests, from which on a change is one."""


def causes(
    recent: Requests, pools: Mapping[Role, PoolMemory], now_s: float, interval_s: float
) -> Iterator[str]:
    """Sentences, mostly one or none. `recent` are the interval's requests and those of its run-up."""
    begins_s = now_s - interval_s
    since_s = max(begins_s - BEFORE_S, float(recent.arrival_s[0])) if len(recent.arrival_s) else begins_s
    now = recent.where(recent.arrival_s > begins_s)
    before = recent.where((recent.arrival_s > since_s) & (recent.arrival_s <= begins_s))
    changes = list(_of_requests(now, before, interval_s / max(begins_s - since_s, 1e-9)))
    if changes:
        yield f"{first_few(changes)} as in the {duration(begins_s - since_s)} before."
    intervals = round(BEFORE_S / interval_s) + 1
    for role, memory in pools.items():
        pace_s = memory.outcomes.pace_s[-intervals:]
        if len(pace_s) and (times := float(pace_s[-1] / pace_s.min())) >= LEAST:
            yield f"{role.capitalize()} takes {times:.1f} times as long as it did in that time."


def _of_requests(now: Requests, before: Requests, part: float) -> Iterator[str]:
    """The changes, in words; the interval is so many times as long as the time before."""
    count, expected = len(now.arrival_s), part * len(before.arrival_s)
    if count >= FEWEST and expected > 0.0 and count > max(LEAST * expected, expected + Z * sqrt(expected)):
        yield f"{count / expected:.1f} times as many requests"
    for name, new, old in (
        ("prompts", now.input_tokens, before.input_tokens),
        ("answers", now.output_tokens, before.output_tokens),
    ):
        if (times := _longer(new, old)) >= LEAST:
            yield f"{name} {times:.1f} times as long"


def _longer(new: FloatArray, old: FloatArray) -> float:
    """How many times as long; 1 where that may be chance."""
    if min(len(new), len(old)) < FEWEST:
        return 1.0
    error = sqrt(np.var(new) / len(new) + np.var(old) / len(old))
    return float(new.mean() / old.mean()) if new.mean() - old.mean() > Z * error else 1.0


def rhythm(work: FloatArray, interval_s: float) -> str:
    """How far apart bursts begin, as in ` every 5 min`; empty of fewer than three. `work` f8[N]."""
    if not len(work):
        return ""
    high = work > (np.median(work) + work.max()) / 2.0
    gaps_s = interval_s * np.diff(np.flatnonzero(high[1:] & ~high[:-1]))
    if len(gaps_s) < 2:
        return ""
    least, most = (duration(float(each)) for each in (gaps_s.min(), gaps_s.max()))
    return f" every {least}" if least == most else f" every {least} to {most}"
