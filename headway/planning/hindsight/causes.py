"""What changed where a decision asks for more: the causes that arrivals and engines show.

The interval, of t seconds, is held against the BEFORE_S before it, once these are known: at the start outputs
are not, and of the first that end most are short.

    rate       n came where m = before · t / BEFORE_S are expected    if n − m > Z √(m (1 + t / BEFORE_S))
    lengths    means x of now, y of before                            if x − y > Z √(s²_x / n_x + s²_y / n_y)
    engines    seconds for a standard piece of work (`history.pace_s`), and the least of before

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
    since_s, outcomes = begins_s - BEFORE_S, {role: memory.outcomes for role, memory in pools.items()}
    if not all(len(each) and each.ended_s[0] <= since_s for each in outcomes.values()):
        return
    now = recent.where(recent.arrival_s > begins_s)
    before = recent.where((recent.arrival_s > since_s) & (recent.arrival_s <= begins_s))
    changes = list(_of_requests(now, before, interval_s / BEFORE_S))
    as_before = f"as in the {duration(BEFORE_S)} before."
    if changes:
        yield f"{first_few(changes)} {as_before}"
    for role, each in outcomes.items():
        pace_s = each.pace_s[each.ended_s > since_s]
        if len(pace_s) and (times := float(pace_s[-1] / pace_s.min())) >= LEAST:
            yield f"{role.capitalize()} takes {times:.1f} times as long {as_before}"


def _of_requests(now: Requests, before: Requests, part: float) -> Iterator[str]:
    """The changes, in words; the interval is so many times as long as the time before."""
    count, expected = len(now.arrival_s), part * len(before.arrival_s)
    chance = Z * sqrt(expected * (1.0 + part))
    if count >= FEWEST and expected > 0.0 and count > max(LEAST * expected, expected + chance):
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
