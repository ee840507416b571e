"""The settings of the policy `headway`, its section `planner.headway`."""

from pydantic import Field

from headway.config import NonNegativeFloat, PositiveFloat, Settings


class HeadwaySettings(Settings):
    """Settings of the `headway` policy; `loss_budget` is its one safety setting."""

    loss_budget: NonNegativeFloat | None = Field(default=None, lt=1.0)
    """Share of the requests that can keep their SLO and yet may miss it, also of classes without an
    attainment of their own; null: 1 - `slo.attainment`."""
    lead_s: NonNegativeFloat = Field(default=60.0, le=1e5)
    """Seconds that a replica takes to start, until the first start has been seen."""
    hold_s: NonNegativeFloat = Field(default=300.0, le=1e6)
    """Seconds after a raise in which nothing is released."""
    half_life_s: PositiveFloat = Field(default=7200.0, le=1e7)
    """Age in seconds at which past traffic counts half."""
    predictors: tuple[str, ...] = ()
    """Predictors whose forecasts are judged beside the levels of past work, such as `[kalman, daily]`
    (docs/planning.md#predictors)."""
