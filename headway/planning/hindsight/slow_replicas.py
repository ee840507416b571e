"""Slow replicas: what they do of what the others do, and how many replicas more are needed for that.

Replays know one kind of replica. One that takes s times as long as the others
(`headway.engine.replica_speeds`) is worth part of one, as requests are placed where they are served first:

    decode, mixed   requests/s of the largest batch that keeps the ITL target, over the others' (`BatchLine`)
    prefill         1 / s; 0 where a mean prompt alone takes longer than the TTFT target

    lacking = ⌈Σ (1 − worth)⌉

is added to what the pool needs and to what it may be released to, and the fleet that stood there counts as so
many replicas fewer when losses are held against it (`excess`). Fast replicas count as one each. Where lengths
are not known 1 / s stands in.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, isnan

from headway.engine.replica_speeds import Lengths, batch_line
from headway.planning.replay import ReplayEngine
from headway.planning.types import Observation, PoolState, Role

ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowReplicas:
    """The slow ones of the `ready` replicas of a pool: how many times as long each takes, and its worth.

    `lacking` replicas more are held for them.
    """

    ready: int
    slowness: tuple[float, ...]
    worth: tuple[float, ...]
    lacking: int


def slow_replicas(observation: Observation, engine: ReplayEngine) -> Mapping[Role, SlowReplicas]:
    """Of each pool that has some."""
    found: dict[Role, SlowReplicas] = {}
    for role, known in observation.slow.items():
        if role not in observation.pools:
            continue
        slowness = tuple(sorted(each for each in known if each > 1.0))
        worth = tuple(_worth(role, each, observation, engine) for each in slowness)
        if slowness:
            found[role] = SlowReplicas(
                ready=observation.pools[role].ready,
                slowness=slowness,
                worth=worth,
                lacking=ceil(sum(1.0 - each for each in worth) - ROUNDING),
            )
    return found


def _worth(role: Role, slowness: float, observation: Observation, engine: ReplayEngine) -> float:
    lengths = Lengths(observation.isl_tokens, observation.osl_tokens)
    if any(map(isnan, lengths)):
        return 1.0 / slowness
    if role is Role.PREFILL:
        prompt_s = float(engine.profile.prefill.ttft_s(max(1.0, lengths.input_tokens)))
        return 1.0 / slowness if slowness * prompt_s <= engine.slo.ttft_s else 0.0
    line = batch_line(engine.profile, role, lengths, float(engine.max_batch_size))
    return line.worth(slowness, engine.slo.itl_s)


def as_typical(pools: Mapping[Role, PoolState], slow: Mapping[Role, SlowReplicas]) -> dict[Role, PoolState]:
    """The pools with as many ready replicas as theirs are worth."""
    return {
        role: replace(pool, ready=max(1, pool.ready - slow[role].lacking)) if role in slow else pool
        for role, pool in pools.items()
    }


def slow_lines(slow: Mapping[Role, SlowReplicas]) -> Iterator[str]:
    """A sentence per pool, as operators read it."""
    for role, each in slow.items():
        count, least, most = len(each.slowness), each.slowness[0], each.slowness[-1]
        takes, serves = ("takes", "serves") if count == 1 else ("take", "serve")
        times = f"{least:.1f}" if f"{least:.1f}" == f"{most:.1f}" else f"{least:.1f} to {most:.1f}"
        worth = sum(each.worth) / count
        more = "1 more is" if each.lacking == 1 else f"{each.lacking} more are"
        yield (
            f"{role}: {count} of {each.ready} replicas {takes} {times} times as long as the others and "
            f"{serves} {100.0 * worth:.0f} % of what one of them does; {more} held for it"
        )
