"""Rules of policy headway, each switched off alone by a patch of what is bound or read at each decision.

Rules for GPU budgets, classes, guessed profiles and predictors are not here: on loads of `bursts` they do
nothing. Constants within compiled functions cannot be patched.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import inf
from typing import Any
from unittest.mock import patch

import numpy as np

from headway.planning.hindsight import backtest, choice, learning, needs, policy, state
from headway.planning.hindsight.backtest import FORECASTS, STEADY, STEEP, Backtest, _Past
from headway.planning.hindsight.starts import ReplicaStarts
from headway.planning.types import FloatArray, Role
from headway.simulation.build import Plan
from headway.simulation.observing import PerformanceLearner

_of, _seen, _lost_grown, _restated = _Past.of, backtest._seen_part, backtest._lost_grown, learning._restated
_after, _choose = state.ReleaseDelay.after, choice.choose


def _without_forecast(name: str) -> tuple[Any, str, Any]:
    def seen_part(past: _Past) -> tuple[FloatArray, FloatArray]:
        lost, cost = _seen(past)
        lost[FORECASTS.index(name)] = cost[FORECASTS.index(name)] = inf
        return lost, cost

    return backtest, "_seen_part", seen_part


def _past(change: Callable[[_Past], _Past]) -> tuple[Any, str, Any]:
    return _Past, "of", lambda *given: change(_of(*given))


def _near(first: int, last: int | None) -> tuple[Any, str, Any]:
    """The most work of intervals around the judged: from `first` after it to `last`, None: all of the lag."""

    def change(past: _Past) -> _Past:
        work = np.append(past.history.work, 0.0)
        end = 1 - max(1, past.lag) if last is None else last
        near = np.max([work[past.judged + place] for place in range(end, first + 1)], axis=0)
        return replace(past, near=near)

    return _past(change)


def _peak_as_others(past: _Past) -> tuple[FloatArray, FloatArray]:
    return past.totals(past.foreseen, past.weights[past.first :] * (1.0 - past.unseen), past.judged)


def _unseen_jumps(past: _Past, growth: FloatArray) -> FloatArray:
    weights = past.weights[past.first :] * past.unseen
    return _lost_grown(past.history, past.said[STEADY], (past.foreseen, weights, past.judged), growth)


def _apart(tested: Mapping[Role, Backtest], gpus: Mapping[Role, int], budget: float) -> dict[Role, Any]:
    return {role: _choose({role: each}, gpus, budget / len(tested))[role] for role, each in tested.items()}


RULES: Mapping[str, tuple[Any, str, Any]] = {
    # What forecasts are judged by.
    **{name.replace(" ", "-"): _without_forecast(name) for name in FORECASTS},
    "peak-others": (
        _Past,
        "foreseen",
        property(lambda past: np.where(past.sudden, past.near, past.said[:, past.heard])),
    ),
    "own-burst": (backtest, "_burst_ends", lambda work: np.zeros(len(work), np.int64)),
    "peak-held-cost": (backtest, "_seen_part", _peak_as_others),
    "half-life": (_Past, "of", lambda history, said, lead, _: _of(history, said, lead, inf)),
    "mature": (backtest, "MATURE", 0),
    "sudden": (_Past, "sudden", property(lambda past: np.zeros(len(past.judged), np.bool_))),
    "jump-begins": _near(0, None),
    "jump-drains": _near(1, 0),
    "jumps-unseen": (backtest, "_unseen_part", _unseen_jumps),
    "first-part": (backtest, "_first_part", lambda past: 0.0),
    "afterwards": (backtest, "AFTERWARDS", 1),
    "unseen": _past(lambda past: replace(past, unseen=0.0)),
    "growth": (backtest, "_growth", lambda *_: 0.0),
    "sure-growth": (backtest, "SURE_GROWTH", 0.0),
    "volatility": (backtest, "VOLATILITY", 0.0),
    # The peak grows by the quantile of its changes, as levels do.
    "peak-growth": (backtest, "_usual", STEEP),
    "level-floor": (
        backtest,
        "_lost_grown",
        lambda history, level, said, growth: _lost_grown(history, 0.0 * level, said, growth),
    ),
    # What is chosen and added.
    "correction": (choice, "CORRECTION", np.zeros(len(backtest.FACTORS))),
    "shared-budget": (needs, "choose", _apart),
    "queue": (needs, "replicas_for_queue", lambda *_: 0),
    "coming-prompts": (needs, "_coming", lambda *_: 0.0),
    "slow-replicas": (policy, "slow_replicas", lambda *_: {}),
    "excess": (policy, "excess", lambda *_: None),
    # How targets fall.
    "strict": (needs, "STRICTER", 1.0),
    "learning": (needs, "LEARNING", 0),
    "confirm": (state, "CONFIRM", 1),
    "hold": (state.ReleaseDelay, "after", lambda own, *given: _after(own, *given[:-1], 0.0)),
    "smallest": (state, "SMALLEST", 0.0),
    # What replays know, and of which engines.
    "run-up": (learning, "RUN_UP_S", dict.fromkeys(learning.RUN_UP_S, 0.0)),
    "output-classes": (state, "_class_of", lambda tokens: np.zeros(len(tokens), np.int64)),
    "slack": (
        learning,
        "STAGES",
        {role: replace(each, slack=lambda *_: 1.0) for role, each in learning.STAGES.items()},
    ),
    "restated": (learning, "_restated", lambda memory, *_: memory),
    "unjudged": (learning, "_restated", lambda memory, times, _: _restated(memory, times, False)),
    "refinement": (Plan, "learner", lambda *_: None),
    "urgent": (PerformanceLearner, "urgent", False),
    # How long starts take.
    "learnt-lead": (ReplicaStarts, "known_s", lambda own, guess_s: guess_s),
    "order-age": (ReplicaStarts, "lead_s", lambda own, now_s, guess_s: own.known_s(guess_s)),
    "missing": (ReplicaStarts, "missing", lambda *_: None),
}
"""What is patched, its name there, and what stands in for it."""


def policy_without(rule: str) -> AbstractContextManager[Any]:
    """The policy without a rule; whole with none."""
    return patch.object(*RULES[rule]) if rule else nullcontext()
