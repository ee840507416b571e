"""Policies around a policy; `reference` with a safety factor per pool on its replicas before rounding."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from headway.planning import Decision, Observation, Policy, PolicySettings, Role
from headway.planning.deciding import fit


@dataclass(frozen=True, slots=True)
class WrappedPolicy:
    """A policy that works on another one; with its name, interval and state."""

    inner: Policy

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def interval_s(self) -> float:
        return self.inner.interval_s

    def initial_state(self) -> Any:  # noqa: ANN401 - the inner policy's own
        return self.inner.initial_state()


@dataclass(frozen=True, slots=True)
class ScaledReference(WrappedPolicy):
    """The real policy decides, corrects and remembers; only its last step, the rounding, is done anew.

    Where it sized nothing (a hold, no traffic, or no number would do) its own targets stand.
    """

    settings: PolicySettings
    factors: Mapping[Role, float]

    def plan(self, observation: Observation, state: Any) -> Decision:  # noqa: ANN401
        decision = self.inner.plan(observation, state)
        sized = decision.reasons["requirement"]
        replicas = {role: sized.get(role.value, {}).get("replicas") for role in decision.targets}
        wished = {
            role: target if replicas[role] is None else ceil(replicas[role] * self.factors[role])
            for role, target in decision.targets.items()
        }
        fitted = fit(wished, self.settings.limits, self.settings.max_gpu_budget)
        return Decision(targets=fitted.targets, next_state=decision.next_state, reasons={})
