"""`slo-aware-profile-handler`: which profile a request is scheduled by.

    prediction_based requests        `prediction`, the SLO-aware profile
    all others                       routing.profile

It stands in no profile; one in `routing.plugins` replaces the built-in one.
"""

from dataclasses import dataclass

from headway.routing.types import RouteRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SloAwareProfileHandler:
    """Chooses by the request's flag."""

    prediction: str = "slo"

    def profile(self, request: RouteRequest, default: str) -> str:
        """The profile's name."""
        return self.prediction if request.prediction_based else default
