"""Settings of the planner: which policy, which predictor, and what the simple policies need.

Names of policies and predictors are checked by their registries (`headway.planning.make_policy`,
`predictors.make`), which list the known ones; the defaults of `threshold` follow Ray Serve's autoscaler.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from headway.config.base import NonNegativeFloat, PositiveFloat, PositiveInt, ReplicaCount, Settings


class StaticFleet(Settings):
    """Fixed replica counts of the `static` policy; only the roles that have a pool are used."""

    prefill: ReplicaCount = 1
    decode: ReplicaCount = 1
    mixed: ReplicaCount = 1


class TargetOngoing(Settings):
    """Running plus waiting requests that one replica should carry, per role.

    Prefill keeps Ray Serve's `target_ongoing_requests` of 2: one in service, one waiting. Decode and mixed
    replicas batch; 32 is a plain starting value, not derived from profile or SLO, as in today's practice.
    """

    prefill: PositiveFloat = 2.0
    decode: PositiveFloat = 32.0
    mixed: PositiveFloat = 32.0


class ThresholdSettings(Settings):
    """Settings of the `threshold` policy; delays are Ray Serve's defaults."""

    target_ongoing: TargetOngoing = TargetOngoing()
    upscale_delay_s: NonNegativeFloat = 30.0
    """Seconds for which more replicas must be wanted before they are asked for."""
    downscale_delay_s: NonNegativeFloat = 600.0
    """Seconds over which the largest wish is kept."""
    interval_s: PositiveFloat = 10.0
    """Seconds between two decisions of this policy."""


class HeadwaySettings(Settings):
    """Settings of the `headway` policy; `loss_budget` is its one safety setting."""

    loss_budget: NonNegativeFloat | None = Field(default=None, lt=1.0)
    """Share of the requests that can keep their SLO and yet may miss it; null: 1 - `slo.attainment`."""
    lead_s: NonNegativeFloat = Field(default=60.0, le=1e5)
    """Seconds that a replica takes to start, until the first start has been seen."""
    hold_s: NonNegativeFloat = Field(default=300.0, le=1e6)
    """Seconds after a raise in which nothing is released."""
    half_life_s: PositiveFloat = Field(default=7200.0, le=1e7)
    """Age in seconds at which past traffic counts half."""
    role_change_s: NonNegativeFloat | None = Field(default=None, le=1e5)
    """Simulation: seconds in which a drained replica takes the other role; null: it cannot."""


PACES_S: Mapping[str, float] = {"headway": 30.0}
"""Seconds between two decisions of a policy, where nothing is set."""

SLOW_PACE_S = 180.0
"""That of the others, as published for `reference`."""


class PlannerSettings(Settings):
    """The planner: policy, forecasts, interval and budget."""

    policy: str = "headway"
    predictor: str = "kalman"
    predictor_options: Mapping[str, Any] = Field(default_factory=dict)
    adjustment_interval_s: PositiveFloat | None = None
    """Seconds between two decisions; null: the policy's own pace. `threshold` has a key of its own."""
    max_gpu_budget: PositiveInt | None = None
    """GPUs that all pools together may occupy; null: only `max_replicas` bounds them."""
    no_correction: bool = False
    """Keep both correction factors of the `reference` policy at 1."""
    dry_run: bool = False
    """Live: decide and log, but set nothing."""
    tick_deadline_s: PositiveFloat | None = None
    """Live: seconds that one tick may take; null: half an interval, at most 30."""
    load_predictor_warmup_trace: str | None = None
    """A trace whose intervals the predictors see before the first decision."""
    static: StaticFleet = StaticFleet()
    threshold: ThresholdSettings = ThresholdSettings()
    headway: HeadwaySettings = HeadwaySettings()

    @property
    def interval_s(self) -> float:
        """Seconds between two decisions of the policy."""
        if self.policy == "threshold":
            return self.threshold.interval_s
        return self.adjustment_interval_s or PACES_S.get(self.policy, SLOW_PACE_S)
