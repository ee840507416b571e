"""`slo-request-tracker`: pairs predictions with outcomes.

In a profile it neither filters nor scores: the router predicts the latency of each request that the profile
places, keeps features and prediction with it among its replica's running requests, and turns them into a
training sample when the request is done. Without a usable prediction nothing is tracked of that request.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class SloRequestTracker:
    """Asks the router to track what the profile places."""

    records_outcomes: ClassVar[bool] = True
