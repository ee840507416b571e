"""One interval's requests → a loss curve and the work of each pool, added to its history.

The interval is replayed after a run-up of the requests before it (RUN_UP_S), so that fleets are as busy when
it begins as they would be. What arrived is known; the lengths of outputs and what was cached of prompts are
drawn (`OutputSample`), and until something has completed nothing is learnt of decoding. Work beyond what a
pool may have is not replayed: it asks for all. Requests that fit no KV cache are refused on arrival and are
no work.

Intervals may overlap, as when a tick came late: what both have seen is taken from the later one.

A source that only counts (a Prometheus) gives requests that are made of what it counted (`synthetic`). Where
there are means alone, the least that can be assumed is a Poisson process, which given its count is so many
independent uniform times, of requests of the mean length.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from headway.planning.hindsight.history import PoolHistory, missed, pace_s
from headway.planning.hindsight.state import HindsightState, OutputSample, PoolMemory
from headway.planning.replay import (
    LossCurve,
    ReplayEngine,
    Requests,
    decode_losses,
    decode_seconds,
    mixed_losses,
    mixed_seconds,
    mixed_slack,
    prefill_losses,
    prefill_seconds,
)
from headway.planning.replay.curve import MOST_REPLICAS
from headway.planning.replay.engine import fits, largest_fleets, may_last
from headway.planning.types import FloatArray, Observation, Promise, Role, Traffic

RUN_UP_S = {Role.PREFILL: 300.0, Role.DECODE: 120.0, Role.MIXED: 60.0}
MOST_INTERVALS = 960
MOST_JUDGED, MOST_RUN_UP = 10_000, 20_000
"""Requests of one interval that are replayed, and of its run-up: about half a second of work."""

MOVED = 0.005
"""Change of an engine's pace by which its surfaces are others."""

ROOT = 0.4142135623730951
"""√2 less 1: its multiples are even over [0, 1) and independent of those by which outputs are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The replay of a pool's requests, their work (replica-seconds of each), and the slack over it."""

    losses: Callable[[ReplayEngine, Requests, int, int, float], LossCurve]
    seconds: Callable[[ReplayEngine, Requests], FloatArray]
    slack: Callable[[ReplayEngine, Requests], float] = lambda engine, requests: 1.0


STAGES = {
    Role.PREFILL: Stage(losses=prefill_losses, seconds=prefill_seconds),
    Role.DECODE: Stage(losses=decode_losses, seconds=decode_seconds),
    Role.MIXED: Stage(losses=mixed_losses, seconds=mixed_seconds, slack=mixed_slack),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySetup:
    """What a replay needs to know: the engine, the most replicas of each pool, and the promises.

    `may_miss` is the loss budget of all requests, `classes` are the promises to single classes. Forecasts are
    of intervals of `interval_s`; None: as long as those observed.
    """

    engine: ReplayEngine
    most: Mapping[Role, int]
    may_miss: float
    classes: tuple[Promise, ...] = ()
    interval_s: float | None = None


def learn(state: HindsightState, observation: Observation, setup: ReplaySetup) -> HindsightState:
    """The state with one more interval. Nothing is learnt where the requests were not measured."""
    state = state.under(setup.engine.slo, setup.classes)
    length = observation.interval_s / (setup.interval_s or observation.interval_s)
    said = state.predicted.add(observation.requests / length, observation.ahead, MOST_INTERVALS)
    full = any(len(memory.history) >= MOST_INTERVALS for memory in state.pools.values())
    state = replace(state, predicted=said, recalled=max(0, state.recalled - full))
    traffic = observation.traffic or synthetic_traffic(observation)
    roles = tuple(observation.pools)
    if traffic is None:
        return replace(state, pools={role: _skipped(state.pool(role)) for role in roles})
    outputs = state.outputs.add(
        traffic.completed_input_tokens, traffic.completed_output_tokens, traffic.completed_cached_tokens
    )
    arrived, outputs = imputed(traffic, outputs, computing(observation))
    begins_s = observation.now_s - observation.interval_s
    recent = _joined(setup.engine, state.recent, arrived, begins_s)
    pools = {
        role: _learnt(state.pool(role), role, recent, observation, setup)
        if role is Role.PREFILL or outputs.known or len(arrived.arrival_s) == 0
        else _skipped(state.pool(role))
        for role in roles
    }
    pools = {role: _with_ended(memory, role, traffic, setup) for role, memory in pools.items()}
    return replace(state, pools=pools, recent=recent, outputs=outputs)


def _with_ended(memory: PoolMemory, role: Role, traffic: Traffic, setup: ReplaySetup) -> PoolMemory:
    return replace(memory, outcomes=memory.outcomes.with_ended(*missed(setup.engine, traffic, role)))


def _skipped(memory: PoolMemory) -> PoolMemory:
    return replace(
        memory,
        history=memory.history.skip(MOST_INTERVALS),
        classes=tuple(each.skip(MOST_INTERVALS) for each in memory.classes),
    )


def computing(observation: Observation) -> int:
    """Ready replicas of those that compute prompts, at least 1."""
    pools = observation.serving
    return max(1, *(pools[role].ready for role in (Role.PREFILL, Role.MIXED) if role in pools))


def imputed(traffic: Traffic, outputs: OutputSample, replicas: int) -> tuple[Requests, OutputSample]:
    """What came, with outputs and cached tokens as of requests that such `replicas` have served of late."""
    # Replays need a token at least; fmax takes a NaN for one, too.
    inputs = np.fmax(1.0, traffic.input_tokens)
    arrived = Requests(
        traffic.arrival_s,
        inputs,
        np.ones(len(inputs)),
        ttft_s=traffic.slo_ttft_s,
        itl_s=traffic.slo_itl_s,
        slo_class=traffic.slo_class,
    )
    if not outputs.known:
        return arrived, outputs
    places = np.arange(len(inputs), dtype=np.float64) + outputs.drawn
    drawn, outputs = outputs.draw(inputs)
    arrived = arrived._replace(output_tokens=np.fmax(1.0, drawn.output_tokens))
    if not drawn.cached_share.any():
        return arrived, outputs
    return arrived._replace(
        cached_tokens=np.minimum(np.floor(drawn.cached_share * inputs), inputs - 1.0),
        cached_within=largest_fleets(drawn.usual_share, replicas, np.mod(places * ROOT, 1.0)),
    ), outputs


def _joined(engine: ReplayEngine, before: Requests, arrived: Requests, begins_s: float) -> Requests:
    """Those before the interval that its run-up needs or that may be under way, and its own."""
    recent = before.arrival_s > begins_s - max(RUN_UP_S.values())
    needed = recent | may_last(engine, before, begins_s - RUN_UP_S[Role.DECODE])
    run_up = before.where(needed & (before.arrival_s <= begins_s))
    return run_up.followed_by(arrived)


def _learnt(
    memory: PoolMemory, role: Role, recent: Requests, observation: Observation, setup: ReplaySetup
) -> PoolMemory:
    begins_s = observation.now_s - observation.interval_s
    first = _first(recent, begins_s)
    own = recent.where(slice(first, None))
    served = own.where(fits(setup.engine, own))
    seconds = STAGES[role].seconds(setup.engine, served)
    work = float(seconds.sum()) / observation.interval_s
    if work <= _most(role, setup):
        curve = _curve(memory.guess, role, recent, begins_s, setup)
    else:
        # Only the largest fleet is right for so much work.
        curve = _all_lost(served, _most(role, setup))
    slack = STAGES[role].slack(setup.engine, recent)
    ready, pace = observation.serving[role].ready, pace_s(setup.engine, role)
    before = memory.outcomes.pace_s
    moved = pace / float(before[-1]) if len(before) else 1.0
    infeasible = 1.0 - curve.requests / len(own.arrival_s) if len(own.arrival_s) else memory.infeasible
    if abs(moved - 1.0) > MOVED:
        memory = _restated(memory, moved, infeasible > memory.infeasible + setup.may_miss)
    return replace(
        memory,
        history=memory.history.add(work, curve, MOST_INTERVALS, slack),
        classes=tuple(
            history.add(work, each, MOST_INTERVALS, slack)
            for history, each in zip(memory.classes, _of_classes(curve, len(memory.classes)), strict=True)
        ),
        outcomes=memory.outcomes.add(
            observation.now_s, ready, curve, pace, setup.may_miss, repeats=observation.repeats
        ),
        guess=max(1, len(curve.lost) - 1) if curve.requests else memory.guess,
        seconds_each=float(seconds.mean()) if len(seconds) else memory.seconds_each,
        infeasible=infeasible,
    )


def _restated(memory: PoolMemory, times: float, out_of_reach: bool) -> PoolMemory:
    """With its past as on today's engines, whose surfaces say that they take so many times as long.

    Where more requests than may be lost are now out of any fleet's reach, large fleets could have saved such
    requests by the surfaces of before: what the past lost says nothing then.
    """

    def of(past: PoolHistory) -> PoolHistory:
        return past.restated(times).unjudged() if out_of_reach else past.restated(times)

    return replace(memory, history=of(memory.history), classes=tuple(map(of, memory.classes)))


def _curve(guess: int, role: Role, recent: Requests, begins_s: float, setup: ReplaySetup) -> LossCurve:
    """The interval's loss curve; of more than MOST_JUDGED requests the latest stand for all."""
    own = len(recent.arrival_s) - _first(recent, begins_s)
    judged = min(own, MOST_JUDGED)
    first = len(recent.arrival_s) - judged
    run_up = max(_first(recent, begins_s - RUN_UP_S[role]), first - MOST_RUN_UP)
    since_s = float(recent.arrival_s[run_up - 1]) if run_up else -np.inf
    guess = min(guess, _most(role, setup))
    curve = STAGES[role].losses(setup.engine, recent, first, guess, since_s)
    return curve if judged == own else curve.times(own / judged)


def _all_lost(requests: Requests, most: int) -> LossCurve:
    """All are lost by any fleet but the largest."""
    counts = [len(requests.arrival_s)]
    if requests.slo_class is not None:
        counts += np.bincount(requests.slo_class.astype(np.int64)).tolist()
    whole, *classes = (LossCurve(count, np.append(np.full(most, count), 0)) for count in counts)
    return replace(whole, classes=tuple(classes))


def _of_classes(curve: LossCurve, count: int) -> tuple[LossCurve, ...]:
    """The curves of so many classes; of requests that name none where nobody has a class."""
    known = curve.classes or (replace(curve, classes=()),)
    nothing = LossCurve(0, np.zeros(1, np.int64))
    return (*known[:count], *(nothing,) * (count - len(known)))


def _most(role: Role, setup: ReplaySetup) -> int:
    return min(setup.most[role], MOST_REPLICAS)


def _first(requests: Requests, since_s: float) -> int:
    return int(np.searchsorted(requests.arrival_s, since_s, side="right"))


def synthetic_traffic(observation: Observation) -> Traffic | None:
    """As many arrivals and completions as there were requests, a function of the observation alone.

    The generator is seeded by the interval's start in ms. None where `requests` is NaN, or there were some
    and `isl_tokens` is NaN; no completions where `osl_tokens` is; zero traffic is no requests.
    """
    requests, isl, osl = observation.requests, observation.isl_tokens, observation.osl_tokens
    if not isfinite(requests) or (requests > 0 and not isfinite(isl)):
        return None
    arrivals = max(0, round(requests))
    completions = arrivals if isfinite(osl) else 0
    start_s = observation.now_s - observation.interval_s
    generator = np.random.default_rng(abs(round(start_s * 1e3)))
    before_end_s = np.sort(generator.random(arrivals))[::-1] * observation.interval_s
    return Traffic(
        arrival_s=observation.now_s - before_end_s,
        input_tokens=np.full(arrivals, isl),
        completed_input_tokens=np.full(completions, isl),
        completed_output_tokens=np.full(completions, osl),
    )
