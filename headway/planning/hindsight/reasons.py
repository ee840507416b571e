"""What a decision says of itself: its reasons, and what simpler fleets would have cost.

A decision as data from which it can be followed, and in one line for operators.

The line says what each pool needs and why it has another number: `Needs 1; keeping 2 while learning.` The
forecast and the figures behind it are in the data, and in words in `headway.planning.decision_text`.

What simpler fleets would have cost on the past that is known: one of fixed size, and a threshold.

    fixed        n_r replicas of pool r at all times
    threshold    max(1, ⌈w_i-h / u_r⌉) in interval i: replicas follow the work seen a lead h before, so that
                 they are busy for the share u_r of their time (the law of an autoscaler on utilisation)

Of both the cheapest that would have lost no more requests than the budget allows, all pools together:

    lost_r = Σ_i L_ri(n_ri)        gpus = Σ_r gpus_r · mean_i(n_ri)        L: the loss curves of `learning`

The best n_r and u_r are known only afterwards, so nobody can have run these fleets: they are what a perfect
guess of a fixed size, or of a threshold, would have cost.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from headway.engine.nearest import guess_text
from headway.engine.refinement import difference
from headway.planning.deciding import Fit
from headway.planning.hindsight.backtest import SURPRISE
from headway.planning.hindsight.choice import class_budgets, front, loss_budget, within_budget
from headway.planning.hindsight.excess import Excess, excess_lines
from headway.planning.hindsight.history import PoolHistory, common_intervals
from headway.planning.hindsight.needs import Need, SlowReplicas, slow_lines
from headway.planning.hindsight.settings import HeadwaySettings
from headway.planning.hindsight.starts import MissingCapacity, missing_lines
from headway.planning.hindsight.state import HindsightState, ReleaseDelay
from headway.planning.policies import PolicySettings, common, jsonable, ordered, progress_warnings
from headway.planning.types import Alternative, Alternatives, FloatArray, Observation, Role
from headway.words import percent

NOTHING_MISSING: Mapping[Role, MissingCapacity] = MappingProxyType({})
NO_EXCESS: Mapping[Role, Excess] = MappingProxyType({})
NONE_SLOW: Mapping[Role, SlowReplicas] = MappingProxyType({})
NO_PEAKS: Mapping[Role, str] = MappingProxyType({})

NEAR = 2.0
"""Lengths of prompts that are known of each other: an octave (`refinement.NEAR_OCTAVES`)."""
PEAKY = 1.5
"""Times the typical need from which a pool counts as held for peaks."""
LEAST_REPEATS = 0.01
"""Share of the arrivals from which on repeats are worth a word."""
SETTINGS = {"gpu_budget": "planner.max_gpu_budget"}
"""Settings by the names of limits, where these differ."""


def explain(
    observation: Observation,
    settings: PolicySettings,
    needs: Mapping[Role, Need],
    delays: Mapping[Role, ReleaseDelay],
    fitted: Fit,
    *,
    profile: Mapping[str, Any] = MappingProxyType({}),
    missing: Mapping[Role, MissingCapacity] = NOTHING_MISSING,
    unexplained: Mapping[Role, Excess] = NO_EXCESS,
    slow: Mapping[Role, SlowReplicas] = NONE_SLOW,
    peaks: Mapping[Role, str] = NO_PEAKS,
    changes: Sequence[str] = (),
) -> Mapping[str, Any]:
    """The reasons of one decision.

    `profile` is the profile's `meta`, whose part `refined` says how traffic corrected it; `changes` are what
    made more replicas necessary.
    """
    own, reasons = settings.section("headway", HeadwaySettings), common("headway", observation, settings)
    may_miss = loss_budget(settings)
    reasons["settings"] |= {
        "loss_budget": may_miss,
        "headway": own.model_dump(),
    }
    names = [each.name for each in settings.classes]
    if names:
        reasons["settings"]["class_budgets"] = dict(zip(("", *names), class_budgets(settings), strict=True))
    corrected, guess = profile.get("refined", {}), guess_text(profile)
    differs = any(difference(*each) for each in corrected.get("factors", {}).items())
    if guess:
        reasons["engines"] = {**corrected, "guess": f"{guess}{_unseen(observation, corrected)}"}
    elif differs or "limits" in corrected:
        reasons["engines"] = corrected
    lines = [
        *(
            _need_line(role, needs, delays[role], fitted, (slow.get(role), peaks.get(role, "")))
            for role in ordered(needs)
        ),
        # The plan of a dry run is for a fleet of its own, and that is where requests wait.
        *(
            ["The queue is that of the planned fleet."]
            if observation.stood is not None and _queue(needs)
            else []
        ),
        *(f"{line}." for line in _beyond_reach(needs, may_miss)),
        *changes,
        *_repeats(observation),
    ]
    reasons |= {
        "needs": needs,
        "holds": delays,
        "limits": fitted.limits,
        "targets": fitted.targets,
        "warnings": [
            *progress_warnings(observation),
            *missing_lines(missing, observation.now_s),
            *slow_lines(slow),
            *excess_lines(unexplained, settings.interval_s),
            *_warnings(needs, may_miss),
        ],
        "summary": " ".join(lines),
    }
    if missing:
        reasons["missing"] = missing
    if unexplained:
        reasons["excess"] = unexplained
    if slow:
        reasons["slow"] = slow
    plain: dict[str, Any] = jsonable(reasons)
    return plain


def _repeats(observation: Observation) -> Iterator[str]:
    arrived = observation.requests + observation.repeats
    if observation.repeats and (share := observation.repeats / arrived) >= LEAST_REPEATS:
        yield f"{percent(round(share, 2))} of the arrivals are repeats of failed requests: not counted."


def _unseen(observation: Observation, corrected: Mapping[str, Any]) -> str:
    """The prompts of the interval that are not near those by which prefill was learnt; "" without any."""
    seen, traffic = corrected.get("seen", {}).get("prefill"), observation.traffic
    if seen is None or traffic is None or not len(traffic.input_tokens):
        return ""
    least, most = seen["tokens"]
    tokens = traffic.input_tokens
    share = float(np.mean((tokens < least / NEAR) | (tokens > most * NEAR)))
    return f"; not seen yet: {percent(round(share, 2))} of the last prompts" if share >= 0.005 else ""


def _need_line(
    role: Role,
    needs: Mapping[Role, Need],
    delay: ReleaseDelay,
    fitted: Fit,
    why: tuple[SlowReplicas | None, str],
) -> str:
    """A sentence on one pool; a single pool is not named."""
    need, target, alone, (slow, peak) = needs[role], fitted.targets[role], len(needs) == 1, why
    if need.option is None:
        text = f"{'' if alone else f'{role}: '}no load measured yet; keeping {delay.target}"
    else:
        text = f"{'' if alone else f'{role} '}needs {need.replicas}"
        parts = {
            "to make up for slow replicas": 0 if slow is None else slow.lacking,
            "for the queue": need.extra,
        }
        if extra := ", ".join(f"{count} {purpose}" for purpose, count in parts.items() if count):
            text += f" ({extra})"
        text += peak
        if need.foreseen:
            text += f" for requests that {need.foreseen} foresees"
        if delay.target > need.replicas:
            text += f"; keeping {delay.target} {'while learning' if need.learning else 'for now'}"
    if target != delay.target:
        limits = [limit.removeprefix(f"{role}: ") for limit in fitted.limits]
        by = " and ".join(SETTINGS.get(limit, limit) for limit in limits if ": " not in limit)
        text += f"; {'raised' if target > delay.target else 'limited'} to {target}{by and f' by {by}'}"
    return f"{text[0].upper()}{text[1:]}."


def _queue(needs: Mapping[Role, Need]) -> bool:
    return any(need.extra for need in needs.values())


def _warnings(needs: Mapping[Role, Need], may_miss: float) -> Iterator[str]:
    for role, need in needs.items():
        if need.option is not None and not need.learning and _holds_peaks(need):
            yield (
                f"{role}: {need.typical:.0f} would do half of the time, but load peaks{need.rhythm} faster "
                f"than a replica starts (within {need.lead_s:.0f} s); keeping {need.replicas}"
            )
    surprising = max(need.surprising for need in needs.values())
    if surprising > may_miss:
        yield (
            f"{percent(round(surprising, 3))} of requests so far came in jumps to more than {SURPRISE:g} "
            "times any load seen before, which no history could predict"
        )
    for words in _beyond_reach(needs, may_miss):
        yield f"{words}: no replicas are planned for it"


def _beyond_reach(needs: Mapping[Role, Need], may_miss: float) -> Iterator[str]:
    """The share of requests that no fleet can serve in time, where it exceeds the loss budget."""
    infeasible = max(need.infeasible for need in needs.values())
    if infeasible > may_miss:
        yield f"The SLO of {percent(round(infeasible, 3))} of requests is unreachable, even when idle"


def _holds_peaks(need: Need) -> bool:
    return need.replicas >= max(PEAKY * need.typical, need.typical + 2)


LEAST_INTERVALS = 10
"""Intervals from which on a fleet is worth a comparison."""

UTILISATIONS = np.linspace(0.1, 1.0, 37)
"""u of the thresholds that are tried."""

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """The fleets of one kind in one pool: f8[K] each; `value` is what tells them apart."""

    value: FloatArray
    replicas: FloatArray
    lost: FloatArray


def alternatives(
    state: HindsightState, gpus: Mapping[Role, int], leads: Mapping[Role, int], loss_budget: float
) -> Alternatives | None:
    """The fleets for what `state` remembers; None while that is little.

    `gpus` of one replica and `leads`, intervals ≥ 1, by pool; `loss_budget` is a share of the requests.
    """
    histories = {role: memory.history for role, memory in state.pools.items() if role in gpus}
    requests = max((int(each.requests.sum()) for each in histories.values()), default=0)
    intervals = common_intervals(histories.values())
    if intervals < LEAST_INTERVALS or requests == 0:
        return None
    may_lose = loss_budget * requests
    fixed = {role: _fixed(history) for role, history in histories.items()}
    law = {role: _threshold(history, leads[role]) for role, history in histories.items()}
    return Alternatives(
        intervals=intervals,
        requests=requests,
        fixed=_best(fixed, gpus, may_lose, requests),
        threshold=_best(law, gpus, may_lose, requests),
    )


def _best(
    kinds: Mapping[Role, _Kind], gpus: Mapping[Role, int], may_lose: float, requests: int
) -> Alternative:
    fronts = {role: front(kind.replicas * gpus[role], kind.lost) for role, kind in kinds.items()}
    chosen = within_budget(list(fronts.values()), may_lose)
    found = list(zip(fronts, chosen, strict=True))
    return Alternative(
        gpus=float(sum(fronts[role].cost[at] for role, at in found)),
        lost=float(sum(fronts[role].lost[at] for role, at in found)) / requests,
        pools={role: float(kinds[role].value[fronts[role].position[at]]) for role, at in found},
    )


def _fixed(history: PoolHistory) -> _Kind:
    """All sizes up to the longest curve. Beyond its end a curve keeps its last value."""
    lengths = np.diff(history.starts)
    steps = np.diff(history.lost, prepend=0)
    steps[history.starts[:-1]] = history.lost[history.starts[:-1]]
    places = np.arange(len(history.lost)) - np.repeat(history.starts[:-1], lengths)
    lost: FloatArray = np.cumsum(np.bincount(places, weights=steps))
    sizes = np.arange(1.0, max(2, len(lost)))
    return _Kind(sizes, sizes, lost[1:] if len(lost) > 1 else lost)


def _threshold(history: PoolHistory, lead: int) -> _Kind:
    seen = history.work[np.maximum(np.arange(len(history)) - lead, 0)]
    replicas = np.maximum(1.0, np.ceil(seen / UTILISATIONS[:, None] - ROUNDING))
    lost = history.lost_with(replicas.astype(np.int64), len(history)).sum(axis=1)
    return _Kind(UTILISATIONS, replicas.mean(axis=1), lost.astype(np.float64))
