"""The policies of the benchmark: their safety settings from frugal to safe, and how a setting makes one.

A contender has one knob, or one per pool; a grid's positions rise in safety. `family` names what is reported:
of a family's contenders the cheapest counts, so that `reference` stands at its better interval and
`threshold` at its better tuning. Those with `apart` knobs serve the comparison at one setting everywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from benchmarks.policies.loaded_base import Driver, LoadedBase, best_batch
from benchmarks.policies.scaled_reference import ScaledReference
from benchmarks.policies.search import Knobs, geometric
from headway.planning import Role
from headway.planning.baselines import TargetOngoing
from headway.planning.forecasting import make_forecaster

FACTORS = geometric(0.35, 12.0, 1.15 ** (1 / 3))
LOSS_BUDGETS = geometric(0.2, 0.0002, 1.4)
ONE_PERCENT = min(range(len(LOSS_BUDGETS)), key=lambda place: abs(log(LOSS_BUDGETS[place] / 0.01)))
"""Position of the loss budget that an attainment of 99 % asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInputs:
    """Inputs of making a policy."""

    loaded: LoadedBase
    delay_s: float
    budget: int | None


Make = Callable[[PolicyInputs, Sequence[float]], Driver]
"""Inputs and the knobs' values → what plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to run a policy. `each` cell at its best, `everywhere` one setting: where it is compared.

    `first` is the position that every search begins with, so that it is run in all cells.
    """

    name: str
    family: str
    knobs: int
    grid: Sequence[float]
    make: Make
    each: bool = True
    everywhere: bool = True
    first: int | None = None

    def values(self, positions: Sequence[int]) -> list[float]:
        return [self.grid[position] for position in positions]

    def alone(self, knob: int, position: int) -> Knobs:
        """One knob there, all others widest."""
        top = len(self.grid) - 1
        return (*[top] * knob, position, *[top] * (self.knobs - knob - 1))


def _reference(interval_s: int) -> Make:
    def make(inputs: PolicyInputs, values: Sequence[float]) -> Driver:
        overrides = {"planner.policy": "reference", "planner.adjustment_interval_s": interval_s}
        plan = inputs.loaded.plan(overrides, inputs.budget)
        factors = {Role.PREFILL: values[0], Role.DECODE: values[-1]}
        forecaster = make_forecaster("constant", None, float(interval_s))
        return ScaledReference(plan.policy, plan.settings, factors), forecaster

    return make


def _threshold(delays_s: tuple[float, float], targets: Callable[[LoadedBase], Mapping[str, float]]) -> Make:
    def make(inputs: PolicyInputs, values: Sequence[float]) -> Driver:
        overrides: dict[str, Any] = {
            "planner.policy": "threshold",
            "planner.threshold.upscale_delay_s": delays_s[0],
            "planner.threshold.downscale_delay_s": delays_s[1],
        }
        for role, target in targets(inputs.loaded).items():
            overrides[f"planner.threshold.target_ongoing.{role}"] = target / values[0]
        return inputs.loaded.plan(overrides, inputs.budget).policy, None

    return make


def _default_targets(loaded: LoadedBase) -> Mapping[str, float]:
    del loaded
    return TargetOngoing().model_dump()


def _profiled_targets(loaded: LoadedBase) -> Mapping[str, float]:
    """Targets as a load test finds them: the decode batch that the ITL target allows."""
    plan, rotation = loaded.plan({}), loaded.rotations[0]
    context = float((rotation.input_tokens + rotation.output_tokens / 2).mean())
    batch = best_batch(plan.profile, plan.settings.slo, context, plan.engine.max_batch_size)
    return {"prefill": TargetOngoing().prefill, "decode": batch}


def _headway(inputs: PolicyInputs, values: Sequence[float]) -> Driver:
    """The policy at a loss budget.

    It begins with the start-up delay that it will see: the first fleet's own starts have shown it.
    """
    own = {
        "planner.policy": "headway",
        "planner.headway.loss_budget": values[0],
        "planner.headway.lead_s": inputs.delay_s,
    }
    return inputs.loaded.plan(own, inputs.budget).policy, None


CONTENDERS: Sequence[Contender] = (
    Contender(name="headway", family="headway", knobs=1, grid=LOSS_BUDGETS, make=_headway, first=ONE_PERCENT),
    *(
        Contender(
            name=f"reference-{interval_s}s{'-apart' if apart else ''}",
            family="reference",
            knobs=2 if apart else 1,
            grid=FACTORS,
            make=_reference(interval_s),
            each=not apart,
            everywhere=apart,
        )
        for apart in (False, True)
        for interval_s in (60, 180)
    ),
    Contender(
        name="threshold-default",
        family="threshold",
        knobs=1,
        grid=FACTORS,
        make=_threshold((30.0, 600.0), _default_targets),
    ),
    Contender(
        name="threshold-tuned",
        family="threshold",
        knobs=1,
        grid=FACTORS,
        make=_threshold((0.0, 300.0), _profiled_targets),
    ),
)
