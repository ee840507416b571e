"""The settings of the policy `headway`, its section `planner.headway`."""

from pydantic import Field

from headway.config import NonNegativeFloat, PositiveFloat, Settings
from headway.planning.policies import PolicySettings


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


def headway_settings(settings: PolicySettings) -> HeadwaySettings:
    """The policy's own among the settings of all."""
    return settings.section("headway", HeadwaySettings)


def loss_budget(settings: PolicySettings) -> float:
    """Share of the requests that may miss the SLO."""
    chosen = headway_settings(settings).loss_budget
    return 1.0 - settings.attainment if chosen is None else chosen


def class_budgets(settings: PolicySettings) -> tuple[float, ...]:
    """The same of requests without a class, and of each class; empty where there are no classes."""
    if not settings.classes:
        return ()
    otherwise = loss_budget(settings)
    own = (each.attainment for each in settings.classes)
    return (otherwise, *(otherwise if attainment is None else 1.0 - attainment for attainment in own))
