"""The policy `headway`: planning by hindsight. See `policy` for the theory."""

from pydantic import Field

from headway.config import NonNegativeFloat, PositiveFloat, Settings
from headway.planning.policies import PolicyKind, PolicySettings
from headway.planning.surfaces import Surfaces
from headway.planning.types import Policy


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


def headway_settings(settings: PolicySettings) -> HeadwaySettings:
    """The policy's own among the settings of all."""
    return settings.section("headway", HeadwaySettings)


def loss_budget(settings: PolicySettings) -> float:
    """Share of the requests that may miss the SLO."""
    chosen = headway_settings(settings).loss_budget
    return 1.0 - settings.attainment if chosen is None else chosen


def _build(settings: PolicySettings, profile: Surfaces) -> Policy:
    # Imported late: it brings a compiler, which a reader of this policy's interval does without.
    from headway.planning.hindsight.policy import make_headway

    return make_headway(settings, profile)


def _refuse_live(own: HeadwaySettings) -> str | None:
    if own.role_change_s is None:
        return None
    return "planner.headway.role_change_s: live engines cannot change their role yet; leave it null"


HEADWAY = PolicyKind(
    build=_build,
    settings=HeadwaySettings,
    interval_s=30.0,
    needs_surfaces=True,
    role_change_s=lambda own: own.role_change_s,
    refuse_live=_refuse_live,
)
