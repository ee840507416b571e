"""What this gateway has seen of routing, and what the router last said of itself."""

from collections import Counter
from dataclasses import dataclass, field

from actors.routing.messages import Figures
from headway.routing.types import Placement


@dataclass(slots=True)
class Counts:
    """`placements` by profile, route class and reason; `sheds` and `fallbacks` by reason.

    `lives` counts the sessions with a router: above 1 it, or the way to it, was lost meanwhile.
    """

    placements: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    sheds: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    queued: int = 0
    figures: Figures = field(default_factory=dict)

    def placed(self, placement: Placement) -> None:
        """Count a placement."""
        self.placements[placement.profile, str(placement.route_class or ""), placement.reason] += 1
