"""The baselines: a fixed fleet, and a threshold on concurrency.

`static`: fixed replica counts per role, the fleet that people provision by hand. The simplest baseline.

Counts outside a pool's limits or above the GPU budget are an error at the start, never adjusted silently.

`threshold`: scale each pool on its concurrency, with delays, as Ray Serve's autoscaler and the HPA do.

Theory. For each role, every `interval_s` (default 10 s):

    ongoing = running + waiting                            requests on all replicas of the role
    wish    = ceil(ongoing / target_ongoing[role])         within min_replicas and max_replicas

Dividing the total by the target equals scaling the ready replicas by (ongoing per ready replica / target).
A higher wish is applied once every wish of the last `upscale_delay_s` (30 s) was above the target. A lower
one is applied as the largest wish of the last `downscale_delay_s` (600 s): the HPA's stabilisation window,
which starts with the count found at the first decision. Sources: Ray Serve's AutoscalingConfig
(`target_ongoing_requests` 2, `upscale_delay_s` 30, `downscale_delay_s` 600) and the Kubernetes Horizontal Pod
Autoscaler (`stabilizationWindowSeconds`). Decode and mixed pools batch: their default target is 32. When
all pools exceed the GPU budget, `deciding.fit` shares it.

Missing data: running or waiting not measured → the role holds its target, as if just that were wished: the
delay for more replicas starts anew, and the window remembers it. No request ongoing → the wish is the
minimum, after the usual delay.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, isfinite
from typing import Any

from headway.config import NonNegativeFloat, PositiveFloat, ReplicaCount, Settings
from headway.planning.deciding import check_budget, fit, gpus
from headway.planning.policies import (
    PolicyKind,
    PolicySettings,
    check,
    common,
    describe,
    jsonable,
    ordered,
    progress_warnings,
)
from headway.planning.types import Decision, Observation, PlanningError, PoolLimits, PoolState, Role
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


class TargetOngoing(Settings):
    """Running plus waiting requests that one replica should carry, per role.

    Prefill keeps Ray Serve's `target_ongoing_requests` of 2: one in service, one waiting. Decode and mixed
    replicas batch; 32 is a plain starting value, not derived from profile or SLO, as in today's practice.
    """

    prefill: PositiveFloat = 2.0
    """Of a prefill replica."""
    decode: PositiveFloat = 32.0
    """Of a decode replica."""
    mixed: PositiveFloat = 32.0
    """Of a mixed replica."""


class ThresholdSettings(Settings):
    """Settings of the `threshold` policy; delays are Ray Serve's defaults."""

    target_ongoing: TargetOngoing = TargetOngoing()
    upscale_delay_s: NonNegativeFloat = 30.0
    """Seconds for which more replicas must be wanted before they are asked for."""
    downscale_delay_s: NonNegativeFloat = 600.0
    """Seconds over which the largest wish is kept."""
    interval_s: PositiveFloat = 10.0
    """Seconds between two decisions of this policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Replicas that were wanted at a time."""

    at_s: float
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WishHistory:
    """The memory of one pool: its target, since when more is wanted, and the wishes of the window.

    Of `wishes` only those are kept that no later wish reaches: they fall in time, the first is the largest.
    """

    target: int
    above_since_s: float | None = None
    wishes: tuple[Wish, ...] = ()

    def observe(self, wish: Wish, window_s: float) -> "WishHistory":
        """With one more wish; the very first one joins the count that is being held."""
        since = wish.at_s - window_s
        # A clock that was set back: no wish is of later than now.
        known = [replace(past, at_s=min(past.at_s, wish.at_s)) for past in self.wishes]
        recent = [past for past in known if past.at_s > since]
        earlier = recent if self.wishes else [Wish(at_s=wish.at_s, replicas=self.target)]
        standing = [past for past in earlier if past.replicas > wish.replicas]
        above_since_s = wish.at_s if self.above_since_s is None else self.above_since_s
        return replace(
            self,
            above_since_s=above_since_s if wish.replicas > self.target else None,
            wishes=(*standing, wish),
        )

    def decide(self, wish: Wish, upscale_delay_s: float) -> "WishHistory":
        """With the target that the remembered wishes give."""
        largest = self.wishes[0].replicas
        if self.above_since_s is not None and wish.at_s - self.above_since_s >= upscale_delay_s:
            return replace(self, target=wish.replicas, above_since_s=None)
        return replace(self, target=largest) if largest < self.target else self


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdState:
    """The memory of each pool."""

    pools: Mapping[Role, WishHistory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ThresholdPolicy:
    """Concurrency thresholds per role."""

    settings: PolicySettings
    own: ThresholdSettings

    name = "threshold"

    @property
    def interval_s(self) -> float:
        """Seconds between two decisions."""
        return self.own.interval_s

    @property
    def target_ongoing(self) -> Mapping[Role, float]:
        """Requests that one replica of each role should carry."""
        return {role: getattr(self.own.target_ongoing, role) for role in Role}

    def within(self, limits: Mapping[Role, PoolLimits]) -> "ThresholdPolicy":
        """The same within these limits."""
        return replace(self, settings=replace(self.settings, limits=limits))

    def initial_state(self) -> ThresholdState:
        """Nothing remembered; the first decision starts from the desired counts."""
        return ThresholdState()

    def plan(self, observation: Observation, state: ThresholdState) -> Decision:
        """One decision; see the module for missing data. PlanningError if a pool is missing."""
        check(observation, self.settings)
        roles = ordered(self.settings.limits)
        wishes = {role: self._wish(role, observation.pools[role], observation.now_s) for role in roles}
        before = {
            role: state.pools.get(role) or WishHistory(target=observation.pools[role].desired)
            for role in roles
        }
        memories = {role: self._remember(before[role], wishes[role], observation.now_s) for role in roles}
        targets = {role: memories[role].target for role in roles}
        fitted = fit(targets, self.settings.limits, self.settings.max_gpu_budget)
        held = [role for role in roles if wishes[role] is None]
        reasons = common(self.name, observation, self.settings) | {
            "threshold": {
                role: self._arithmetic(role, observation.pools[role], wishes[role]) for role in roles
            },
            "delays": self.own.model_dump(),
            "memory": before,
            "wished": targets,
            "held": held,
            "limits": fitted.limits,
            "targets": fitted.targets,
            "warnings": [*progress_warnings(observation), *(f"{role}: load not measured" for role in held)],
            "summary": f"Concurrency {self._loads(observation)}: {describe(fitted.targets, observation)}.",
        }
        next_state = ThresholdState(pools=memories)
        return Decision(targets=fitted.targets, next_state=next_state, reasons=jsonable(reasons))

    def _wish(self, role: Role, pool: PoolState, now_s: float) -> Wish | None:
        ongoing = _ongoing(pool)
        if not (isfinite(ongoing) and ongoing >= 0):
            return None
        limits = self.settings.limits[role]
        wanted = min(limits.max_replicas, ongoing / self.target_ongoing[role])
        return Wish(at_s=now_s, replicas=max(limits.min_replicas, ceil(wanted)))

    def _remember(self, memory: WishHistory, wish: Wish | None, now_s: float) -> WishHistory:
        wish = wish or Wish(at_s=now_s, replicas=memory.target)
        return memory.observe(wish, self.own.downscale_delay_s).decide(wish, self.own.upscale_delay_s)

    def _arithmetic(self, role: Role, pool: PoolState, wish: Wish | None) -> Mapping[str, Any]:
        return {
            "ongoing": _ongoing(pool),
            "target_ongoing": self.target_ongoing[role],
            "wish": None if wish is None else wish.replicas,
        }

    def _loads(self, observation: Observation) -> str:
        pools = observation.pools
        return ", ".join(
            f"{role} {_ongoing(pools[role]):g} on {pools[role].ready} ready ({target:g} each)"
            for role, target in self.target_ongoing.items()
            if role in self.settings.limits
        )


def _ongoing(pool: PoolState) -> float:
    return pool.running + pool.waiting


def make_threshold(settings: PolicySettings, profile: Profile | None = None) -> ThresholdPolicy:
    """The policy for the pools there are. PlanningError when their minimums exceed the GPU budget."""
    del profile  # thresholds are plain numbers
    check_budget(settings.limits, settings.max_gpu_budget)
    return ThresholdPolicy(settings, settings.section("threshold", ThresholdSettings))


THRESHOLD = PolicyKind(build=make_threshold, settings=ThresholdSettings, interval_key="interval_s")
