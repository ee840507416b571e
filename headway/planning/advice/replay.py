"""A fleet replayed without a break: its requests as they come, its replicas as they come and go.

Where the policy's replays ask what a constant fleet would have lost of one interval, this one goes on from
interval to interval, with what is queued and under way. A request takes its prompt, the transfer of its KV
and its decoding in turn, and is judged once, when it ends: by the time of its first token and by its TPOT,
against its own SLO or the deployment's. Requests that no KV cache holds are refused: missed.

More than MOST_UNDER_WAY requests are never kept: what comes beyond is refused, too, as by a gateway whose
queue is full.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headway.planning.advice.pools import NOTHING, BatchPool, Passed, PromptPool
from headway.planning.replay.engine import TOLERANCE, ReplayEngine, fits, targets, transfer_s
from headway.planning.replay.requests import Requests
from headway.planning.types import NAN, FloatArray, PoolState, Role

MOST_UNDER_WAY = 50_000

Counts = Mapping[Role, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Requests that ended in a span: how many, how many `met` both SLOs, how many that of TTFT.

    Means over those that were served, in seconds, NaN where there were none; `drained_s` are the
    replica-seconds of draining replicas by role.
    """

    ended: float
    met: float
    met_ttft: float
    ttft_s: float
    itl_s: float
    duration_s: float
    drained_s: Mapping[Role, float]


class FleetReplay:
    """One fleet. `run` up to times that only rise; `counts` are the replicas that serve at first."""

    def __init__(self, engine: ReplayEngine, counts: Counts, now_s: float) -> None:
        self.now_s = now_s
        self._engine = engine
        self._pools = {role: _pool(role, engine, now_s) for role in counts}
        self._moving = Passed(NOTHING, np.zeros(0), np.zeros(0))
        self._under_way = 0
        self._resize(counts, now_s)

    def use(self, engine: ReplayEngine) -> None:
        """Go on with this engine, as after a correction of its surfaces."""
        if engine is not self._engine:
            self._engine = engine
            for pool in self._pools.values():
                pool.use(engine)

    def run(self, arrived: Requests, until_s: float, changes: Sequence[tuple[float, Counts]] = ()) -> Served:
        """Serve what arrived since the last call; at each of `changes` other counts serve from then on."""
        kept = fits(self._engine, arrived)
        kept &= np.cumsum(kept) <= MOST_UNDER_WAY - self._under_way
        arrived, refused = arrived.where(kept), int(np.count_nonzero(~kept))
        self._under_way += len(arrived.arrival_s)
        ended: list[Passed] = []
        for at_s, counts in [*changes, (until_s, None)]:
            if at_s > self.now_s:
                own = int(np.searchsorted(arrived.arrival_s, at_s, side="right"))
                ended.append(self._advance(arrived.where(slice(own)), at_s))
                arrived = arrived.where(slice(own, None))
            if counts is not None:
                self._resize(counts, max(at_s, self.now_s))
        return self._judged(ended, refused)

    def pools(self, desired: Counts, starting: Counts) -> Mapping[Role, PoolState]:
        """The pools as a planner sees them."""
        return {role: pool.state(desired[role], starting[role]) for role, pool in self._pools.items()}

    def _resize(self, counts: Counts, now_s: float) -> None:
        for role, pool in self._pools.items():
            pool.resize(counts[role], now_s)

    def _advance(self, arrived: Requests, until_s: float) -> Passed:
        self.now_s = until_s
        if Role.MIXED in self._pools:
            pool = self._pools[Role.MIXED]
            pool.offer(arrived, arrived.arrival_s)
            return pool.run(until_s)
        prompts, decode = self._pools[Role.PREFILL], self._pools[Role.DECODE]
        prompts.offer(arrived, arrived.arrival_s)
        done = prompts.run(until_s)
        ready_s = np.append(self._moving.first_s, done.first_s + transfer_s(self._engine, done.requests))
        moving = self._moving.requests.followed_by(done.requests)
        order = np.argsort(ready_s, kind="stable")
        there = order[: int(np.searchsorted(ready_s[order], until_s, side="right"))]
        later = order[len(there) :]
        self._moving = Passed(moving.where(later), ready_s[later], ready_s[later])
        decode.offer(moving.where(there), ready_s[there])
        return decode.run(until_s)

    def _judged(self, parts: Sequence[Passed], refused: int) -> Served:
        requests = NOTHING
        for part in parts:
            requests = requests.followed_by(part.requests)
        first_s = np.concatenate([np.zeros(0), *(part.first_s for part in parts)])
        finish_s = np.concatenate([np.zeros(0), *(part.finish_s for part in parts)])
        promised, count = targets(self._engine, requests), len(first_s)
        self._under_way -= count
        gaps = np.rint(requests.output_tokens) - 1.0
        ttft_s = first_s - requests.arrival_s
        itl_s = (finish_s - first_s) / np.maximum(gaps, 1.0)
        in_time = ttft_s <= promised.ttft_s * TOLERANCE
        smooth = (itl_s <= promised.itl_s * TOLERANCE) | (gaps < 1.0)
        return Served(
            ended=float(count + refused),
            met=float(np.count_nonzero(in_time & smooth)),
            met_ttft=float(np.count_nonzero(in_time)),
            ttft_s=_mean(ttft_s),
            itl_s=_mean(itl_s[gaps >= 1.0]),
            duration_s=_mean(finish_s - requests.arrival_s),
            drained_s={role: pool.drained_s() for role, pool in self._pools.items()},
        )


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else NAN


def _pool(role: Role, engine: ReplayEngine, now_s: float) -> PromptPool | BatchPool:
    if role is Role.PREFILL and not engine.chunk_tokens:
        return PromptPool(engine, now_s)
    return BatchPool(engine, now_s, mixed=role is Role.MIXED, prompts_only=role is Role.PREFILL)
