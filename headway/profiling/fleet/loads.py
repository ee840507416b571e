"""What a replica says of its load, and the latencies that follow from readings a few seconds apart.

Between two readings, Δ seconds apart, with P prompts begun and finished of u tokens each on average (the
surfaces so far give the work TTFT(u) - W(0) of each), G gaps between tokens that took g seconds on average,
and B requests running that hold K tokens:

    ITL   = g · (1 - P · work(u) / Δ)        each computed prompt stretches one gap of every running request
    TTFT  = first-token latency - ITL/2 - (ITL - W(0))·[B > 0]
                                             a prompt waits for half an iteration, and shares its own with
                                             the batch; only where nothing waited and nothing was cached

Readings during which nothing waited and prompts took less than BUSY of the time count. Reports are those of
`headway.engine.observed_latency`, as replicas of Headway make them of themselves, without these assumptions.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headway.engine.observed_latency import LatencyReport, Phase
from interp import Profile

BUSY = 0.4
LEAST_GAPS = 20.0


class ReplicaLoad(NamedTuple):
    """One reading: the load now, and totals since the replica began (seconds, tokens, requests)."""

    at_s: float
    running: float = 0.0
    waiting: float = 0.0
    kv_usage: float = 0.0
    prompts: float = 0.0
    """First tokens so far, and the sum of their latencies, and how many came within the SLO."""
    first_token_s: float = 0.0
    first_in_time: float = 0.0
    prompt_tokens: float = 0.0
    computed_tokens: float = 0.0
    """Of the prompts' tokens, those that were not found in a cache or fetched."""
    gaps: float = 0.0
    gap_s: float = 0.0


def prompt_work_s(profile: Profile, tokens: float) -> float:
    """Seconds that computing a prompt adds to iterations."""
    return max(0.0, float(profile.prefill.ttft_s(tokens)) - empty_s(profile))


def empty_s(profile: Profile) -> float:
    """W(0): an iteration without work."""
    return float(profile.prefill.table.work_nodes()[1][0])


def shown(profile: Profile, readings: Sequence[ReplicaLoad]) -> list[LatencyReport]:
    """The reports of one replica from its readings of a few seconds, in order; `profile` is what is known."""
    if len(readings) < 2:
        return []
    first, last = readings[0], readings[-1]
    seconds, prompts, gaps = last.at_s - first.at_s, last.prompts - first.prompts, last.gaps - first.gaps
    computed = last.computed_tokens - first.computed_tokens
    tokens = computed / prompts if prompts > 0 else 0.0
    share = prompts * prompt_work_s(profile, tokens) / seconds if tokens > 0 and seconds > 0 else 0.0
    if seconds <= 0 or min(prompts, gaps, computed) < 0 or share > BUSY:
        return []
    found, itl_s = list[LatencyReport](), None
    if gaps >= LEAST_GAPS and (place := batch_of(profile, readings)):
        batch, context = place
        itl_s = (last.gap_s - first.gap_s) / gaps * (1.0 - share)
        found.append(LatencyReport(Phase.DECODE, context, itl_s, batch))
    untouched = computed == last.prompt_tokens - first.prompt_tokens
    if tokens > 0 and untouched and not any(each.waiting for each in readings):
        seen_s = (last.first_token_s - first.first_token_s) / prompts
        beside_s = beside(profile, itl_s)
        if seen_s > beside_s:
            found.append(LatencyReport(Phase.PREFILL, tokens, seen_s - beside_s))
    return found


def beside(profile: Profile, itl_s: float | None) -> float:
    """What a batch with that ITL adds to the first token of a prompt that comes to it; None: no batch."""
    return 0.0 if itl_s is None else 0.5 * itl_s + max(0.0, itl_s - empty_s(profile))


def batch_of(profile: Profile, readings: Sequence[ReplicaLoad]) -> tuple[float, float] | None:
    """Mean batch and mean context of the readings in which anything ran; None where they show none."""
    busy = [each for each in readings if each.running >= 1 and each.kv_usage > 0]
    if 2 * len(busy) < len(readings) or not busy:
        return None
    batch = sum(each.running for each in busy) / len(busy)
    kv_tokens = sum(each.kv_usage for each in busy) / len(busy) * float(profile.decode.table.max_kv_tokens)
    return batch, max(1.0, kv_tokens / batch)
