"""A plan that knows the future: what each 30 s will need, ordered a start-up delay ahead.

    need_k = the cheapest (p, d) with lost_prefill(k, p) + lost_decode(k, d) <= share · requests(k)
    target at k = the largest need over [k, k + ceil(delay / 30 s)], per pool

The loss curves are those that the policy `headway` judges its forecasts by (`headway.planning.replay`), here
of the requests that will come, with their true output lengths. What `share` gives up in one interval may
leave a queue to the next: prefill replicas that drain it within a minute are added, at most as many again.
It is a limit for policies that plan through these curves, and not a bound: a fleet that never moves can be
cheaper on traffic without trends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.policies.loaded_base import LoadedBase, gpus_of
from benchmarks.policies.recording import Recording
from benchmarks.policies.search import Fleet
from headway.planning import Decision, Observation, PolicySettings, PoolState, Role
from headway.planning.deciding import fit
from headway.planning.replay import (
    LossCurve,
    ReplayEngine,
    Requests,
    attainable,
    decode_losses,
    prefill_losses,
    prefill_seconds,
)
from headway.planning.replay.engine import may_last

INTERVAL_S = 30.0
PREFILL_WARM_UP_S, DECODE_WARM_UP_S = 300.0, 120.0
DRAIN_S = 60.0
PATIENCE_S = 5.0
"""Queueing up to this, or half the TTFT target, is left to drain by itself."""

Losses = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Future:
    """Of each interval k: attainable requests, and those lost with n replicas, i8[K] and i8[K, C]."""

    requests: Losses
    prefill: Losses
    decode: Losses
    prompt_s: float

    def needs(self, share: float, gpus: Fleet) -> NDArray[np.int64]:
        """Prefill and decode replicas per interval, i8[2, K]."""
        rows = zip(self.prefill, self.decode, self.requests, strict=True)
        found = [cheapest_pair(prefill, decode, share * total, gpus) for prefill, decode, total in rows]
        return np.array(found, np.int64).T


def cheapest_pair(prefill: Losses, decode: Losses, allowed: float, gpus: Fleet) -> Fleet:
    """The cheapest counts, at least one each, that lose at most `allowed`; else those that lose least."""
    left = allowed - prefill
    enough = np.searchsorted(-decode, -left)
    fits = (left >= 0) & (enough < len(decode))
    if not fits.any():
        return max(1, int(np.argmin(prefill))), max(1, int(np.argmin(decode)))
    cost = np.arange(len(prefill)) * gpus[0] + enough * gpus[1]
    place = int(np.argmin(np.where(fits, cost, np.inf)))
    return max(1, place), max(1, int(enough[place]))


def engine_of(loaded: LoadedBase) -> ReplayEngine:
    """The deployment's engine as replay knows it."""
    plan = loaded.plan({})
    return ReplayEngine.of(plan.profile, plan.settings.slo, plan.engine)


def foresee(engine: ReplayEngine, recording: Recording) -> Future:
    """The loss curves of a whole recording."""
    requests = Requests(
        recording.arrival_s,
        recording.input_tokens.astype(np.float64),
        recording.output_tokens.astype(np.float64),
    )
    longest_s = float(requests.output_tokens.max(initial=0.0)) * engine.slo.itl_s
    edges_s = np.arange(0.0, recording.duration_s + INTERVAL_S, INTERVAL_S)
    prefill: list[LossCurve] = []
    decode: list[LossCurve] = []
    for begin_s, end_s in pairwise(edges_s.tolist()):
        window, judged = _window(requests, begin_s, end_s, PREFILL_WARM_UP_S)
        prefill.append(prefill_losses(engine, window, judged, _guess(prefill)))
        window, judged = _window(requests, begin_s, end_s, DECODE_WARM_UP_S + longest_s)
        since_s = begin_s - DECODE_WARM_UP_S
        lasting = may_last(engine, window, since_s)
        judged = int(lasting[:judged].sum())
        decode.append(decode_losses(engine, window.where(lasting), judged, _guess(decode), since_s))
    prompts = prefill_seconds(engine, requests)
    return Future(
        requests=_per_interval(attainable(engine, requests), recording, len(edges_s) - 1),
        prefill=_padded(prefill),
        decode=_padded(decode),
        prompt_s=float(prompts.mean()) if len(prompts) else 0.0,
    )


def _window(requests: Requests, begin_s: float, end_s: float, warm_up_s: float) -> tuple[Requests, int]:
    low, judged, high = np.searchsorted(requests.arrival_s, (begin_s - warm_up_s, begin_s, end_s))
    return requests.where(slice(low, high)), int(judged - low)


def _guess(curves: Sequence[LossCurve]) -> int:
    return max(1, len(curves[-1].lost) - 1) if curves else 1


def _per_interval(within: NDArray[np.bool_], recording: Recording, count: int) -> Losses:
    places = np.minimum(recording.arrival_s // INTERVAL_S, count - 1).astype(np.int64)
    return np.bincount(places[within], minlength=count).astype(np.int64)


def _padded(curves: Sequence[LossCurve]) -> Losses:
    width = max(len(curve.lost) for curve in curves)
    rows = [np.pad(curve.lost, (0, width - len(curve.lost)), mode="edge") for curve in curves]
    return np.array(rows, np.int64)


def futures(loaded: LoadedBase, output: Path) -> list[Future]:
    """The futures of a base's rotations, from `output` where they lie there already."""
    engine = engine_of(loaded)
    return [
        _kept(output / "futures" / f"{loaded.base.name}_{turn}.npz", engine, rotation)
        for turn, rotation in enumerate(loaded.rotations)
    ]


def _kept(path: Path, engine: ReplayEngine, recording: Recording) -> Future:
    if path.is_file():
        with np.load(path) as held:
            return Future(
                requests=held["requests"],
                prefill=held["prefill"],
                decode=held["decode"],
                prompt_s=float(held["prompt_s"]),
            )
    future = foresee(engine, recording)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez_compressed(
        part,
        requests=future.requests,
        prefill=future.prefill,
        decode=future.decode,
        prompt_s=np.float64(future.prompt_s),
    )
    part.replace(path)
    return future


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClairvoyantPolicy:
    """The plan; without state. `needs` is i8[2, K], of prefill and decode."""

    settings: PolicySettings
    needs: NDArray[np.int64]
    ahead: int
    prompt_s: float

    @property
    def name(self) -> str:
        return "clairvoyant"

    @property
    def interval_s(self) -> float:
        return INTERVAL_S

    def initial_state(self) -> None:
        """There is none."""

    def plan(self, observation: Observation, state: None) -> Decision:
        begin = round(observation.now_s / INTERVAL_S)
        coming = self.needs[:, begin : begin + self.ahead]
        prefill, decode = (int(count) for count in coming.max(axis=1, initial=1))
        queue = self._queue(observation.pools[Role.PREFILL])
        wished = {Role.PREFILL: prefill + min(prefill, queue), Role.DECODE: decode}
        fitted = fit(wished, self.settings.limits, self.settings.max_gpu_budget)
        return Decision(targets=fitted.targets, next_state=state, reasons={})

    def _queue(self, pool: PoolState) -> int:
        """Replicas that would drain within a minute what waits beyond patience."""
        if not isfinite(pool.waiting):
            return 0
        patience_s = min(PATIENCE_S, self.settings.slo.ttft_s / 2.0)
        beyond_s = pool.waiting * self.prompt_s - max(1, pool.ready) * patience_s
        return max(0, ceil(beyond_s / DRAIN_S))


def clairvoyant(settings: PolicySettings, future: Future, share: float, delay_s: float) -> ClairvoyantPolicy:
    """The plan that gives up `share` of each interval's attainable requests."""
    return ClairvoyantPolicy(
        settings=settings,
        needs=future.needs(share, gpus_of(settings)),
        ahead=ceil(delay_s / INTERVAL_S) + 1,
        prompt_s=future.prompt_s,
    )
