"""The policy `headway`: planning by hindsight. See `policy` for the theory."""

from headway.planning.hindsight.settings import HeadwaySettings
from headway.planning.policies import PolicyKind, PolicySettings
from headway.planning.types import Policy
from interp import Profile

__all__ = ["COMPILED_FROM", "HEADWAY", "HeadwaySettings"]

COMPILED_FROM = ("headway.planning.hindsight", "headway.planning.replay", "headway.engine", "interp")
"""Packages with compiled code that it uses, each built on those after it (`interp.jit.drop_stale_cache`)."""


def _build(settings: PolicySettings, profile: Profile) -> Policy:
    # Imported late: it brings a compiler, which a reader of this policy's interval does without.
    from headway.planning.hindsight.policy import make_headway

    return make_headway(settings, profile)


HEADWAY = PolicyKind(
    build=_build,
    settings=HeadwaySettings,
    interval_s=30.0,
    ahead=lambda own: own.predictors,
    needs_surfaces=True,
    classes=True,
)
