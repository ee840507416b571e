"""`static`: fixed replica counts per role, the fleet that people provision by hand. The simplest baseline.

Counts outside a pool's limits or above the GPU budget are an error at the start, never adjusted silently.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headway.config import ReplicaCount, Settings
from headway.planning.budget import fit, gpus
from headway.planning.policies import PolicyKind, PolicySettings
from headway.planning.reasons import check, common, describe, jsonable, ordered, progress_warnings
from headway.planning.types import Decision, Observation, PlanningError, Role
from interp import Profile


class StaticFleet(Settings):
    """Fixed replica counts of the `static` policy; only the roles that have a pool are used."""

    prefill: ReplicaCount = 1
    """Prefill replicas."""
    decode: ReplicaCount = 1
    """Decode replicas."""
    mixed: ReplicaCount = 1
    """Mixed replicas."""


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """Fixed targets, whatever is observed; missing metrics change nothing. The state is None."""

    settings: PolicySettings
    targets: Mapping[Role, int]

    name = "static"

    @property
    def interval_s(self) -> float:
        """Seconds between two decisions."""
        return self.settings.interval_s

    def initial_state(self) -> None:
        """There is none."""

    def plan(self, observation: Observation, state: None) -> Decision:
        """The fixed targets."""
        check(observation, self.settings)
        reasons = common(self.name, observation, self.settings) | {
            "targets": self.targets,
            "limits": (),
            "warnings": progress_warnings(observation),
            "summary": f"Fixed fleet: {describe(self.targets, observation)}.",
        }
        return Decision(targets=self.targets, next_state=state, reasons=jsonable(reasons))


def make_static(settings: PolicySettings, profile: Profile | None = None) -> StaticPolicy:
    """The policy for the pools there are. PlanningError when a count does not fit."""
    del profile  # a fixed fleet needs none
    targets = fixed_fleet(settings)
    for role, count in targets.items():
        pool = settings.limits[role]
        if not pool.min_replicas <= count <= pool.max_replicas:
            allowed = f"{pool.min_replicas} to {pool.max_replicas}"
            raise PlanningError(
                f"planner.static.{role}: {count} is outside what pools.{role} allows, {allowed}"
            )
    if fit(targets, settings.limits, settings.max_gpu_budget).targets != targets:
        needed, budget = gpus(targets, settings.limits), settings.max_gpu_budget
        raise PlanningError(f"planner.static: needs {needed} GPUs, planner.max_gpu_budget is {budget}")
    return StaticPolicy(settings, targets)


def fixed_fleet(settings: PolicySettings) -> Mapping[Role, int]:
    """The counts that are set, of the pools there are."""
    fleet = settings.section("static", StaticFleet)
    return {role: getattr(fleet, role) for role in ordered(settings.limits)}


STATIC = PolicyKind(build=make_static, settings=StaticFleet, fixed_fleet=fixed_fleet)
