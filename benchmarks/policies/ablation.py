"""The policy `headway` with one idea off at a time, and what each of them is worth.

    python -m benchmarks policies --data DIR --ablation [--cells PATTERNS]

An idea is switched off from outside, by settings or by names of the policy's modules that stand for
something else while it plans: the policy itself has no such switches. A name that is not there is an error.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.policies.contenders import LOSS_BUDGETS, ONE_PERCENT, Contender, Make, PolicyInputs, headway
from benchmarks.policies.loaded_base import Driver
from benchmarks.policies.scaled_reference import WrappedPolicy
from headway.planning import Decision, Observation, Role
from headway.planning.hindsight.backtest import FORECASTS, PEAK, STEADY, Backtest, forecasts
from headway.planning.hindsight.learning import RUN_UP_S, ReplaySetup, learn
from headway.planning.hindsight.needs import Option, choose
from headway.planning.hindsight.state import HindsightState
from headway.planning.types import FloatArray

HINDSIGHT = "headway.planning.hindsight"
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Idea:
    """What is off, in the report's words; how: names below HINDSIGHT and their stand-ins, settings."""

    name: str
    off: str
    stand_ins: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def contender(self) -> str:
        """The name that its runs lie under."""
        return f"headway~{self.name}"


@dataclass(frozen=True, slots=True)
class Without(WrappedPolicy):
    """A policy that plans with other values in the places of some names."""

    stand_ins: Mapping[str, Any]

    def plan(self, observation: Observation, state: Any) -> Decision:  # noqa: ANN401
        with ExitStack() as stack:
            for name, value in self.stand_ins.items():
                stack.enter_context(patch(f"{HINDSIGHT}.{name}", value))
            return self.inner.plan(observation, state)


def _one_level(work: FloatArray) -> FloatArray:
    return np.tile(forecasts(work)[STEADY], (len(FORECASTS), 1))


def _last(work: FloatArray) -> FloatArray:
    return np.tile(work, (len(FORECASTS), 1))


def _no_peak(work: FloatArray) -> FloatArray:
    said = forecasts(work)
    said[PEAK] = said[STEADY]
    return said


def _half_each(
    backtests: Mapping[Role, Backtest], gpus: Mapping[Role, int], loss_budget: float
) -> Mapping[Role, Option]:
    share = loss_budget / len(backtests)
    return {role: choose({role: each}, gpus, share)[role] for role, each in backtests.items()}


def _of_means(state: HindsightState, observation: Observation, setup: ReplaySetup) -> HindsightState:
    return learn(state, replace(observation, traffic=None), setup)


IDEAS: Sequence[Idea] = (
    Idea(name="one-level", off="one level, no choice", stand_ins={"backtest.forecasts": _one_level}),
    Idea(name="no-peak", off="levels only, no peak", stand_ins={"backtest.forecasts": _no_peak}),
    Idea(name="last-value", off="the last value, no other forecast", stand_ins={"backtest.forecasts": _last}),
    Idea(
        name="no-unseen",
        off="no growth beyond what was seen",
        stand_ins={"backtest._growth": lambda said, lead, interval_s: 0.0},
    ),
    Idea(name="no-surprise", off="first jumps are judged whole", stand_ins={"backtest.SURPRISE": inf}),
    Idea(
        name="split-budget", off="half the loss budget to each pool", stand_ins={"needs.choose": _half_each}
    ),
    Idea(
        name="fast-release",
        off="released at once",
        stand_ins={"state.CONFIRM": 1},
        overrides={"planner.headway.hold_s": 0.0},
    ),
    Idea(
        name="full-release",
        off="released to what the whole loss budget allows",
        stand_ins={"needs.STRICTER": 1.0},
    ),
    Idea(
        name="fixed-lead",
        off="the start-up delay is not learnt",
        stand_ins={"starts.ReplicaStarts.lead_s": lambda starts, now_s, guess_s: guess_s},
    ),
    Idea(
        name="no-backlog",
        off="nothing is added for a queue",
        stand_ins={"needs.replicas_for_queue": lambda pool, seconds_each, ttft_s, needed: 0},
    ),
    Idea(
        name="no-excess",
        off="what replays do not explain is not planned for",
        stand_ins={"policy.excess": lambda outcomes, may_miss, half_life_s: None},
    ),
    Idea(name="no-forgetting", off="the past counts whole", overrides={"planner.headway.half_life_s": 1e7}),
    Idea(
        name="idle-start",
        off="replays begin with nothing under way",
        stand_ins={
            "learning.may_last": lambda engine, requests, since_s: requests.arrival_s > since_s,
            "learning.RUN_UP_S": dict.fromkeys(RUN_UP_S, min(RUN_UP_S.values())),
        },
    ),
    Idea(name="means", off="no single requests: means only", stand_ins={"policy.learn": _of_means}),
)


def _make(idea: Idea) -> Make:
    def make(inputs: PolicyInputs, values: Sequence[float], turn: int) -> Driver:
        del turn
        return Without(headway(inputs, values, idea.overrides), idea.stand_ins), None

    return make


def _contenders() -> Iterator[Contender]:
    for idea in IDEAS:
        yield Contender(
            name=idea.contender,
            family=idea.contender,
            knobs=1,
            grid=LOSS_BUDGETS,
            make=_make(idea),
            everywhere=False,
            first=ONE_PERCENT,
        )


ABLATIONS: Sequence[Contender] = tuple(_contenders())
