"""What routing did, counted: the router's metrics."""

from collections import Counter
from collections.abc import Mapping

from headway.routing.types import Placement, Shed

Labels = tuple[str, ...]
Figures = Mapping[Labels, float]

NAMES = ("placements", "sheds", "fallbacks", "unknown_events", "ended", "prompt_tokens")


class Counters:
    """Counters by name and labels.

    placements      (profile, route class, reason)
    sheds           (reason,)
    fallbacks       (reason,)    requests that the SLO-aware profile could not judge
    unknown_events  (event,)     about requests or replicas that the router does not know
    ended           (outcome,)   completed, failed, retried
    prompt_tokens   (kind,)      all that were looked up in a cache, local and external hits (document 004)
    """

    def __init__(self) -> None:
        self._counts: dict[str, Counter[Labels]] = {name: Counter() for name in NAMES}

    def placed(self, placement: Placement) -> None:
        """Count a placement."""
        labels = (placement.profile, placement.route_class or "", placement.reason)
        self._counts["placements"][labels] += 1

    def shed(self, shed: Shed) -> None:
        """Count a request turned away."""
        self.count("sheds", shed.reason)

    def count(self, name: str, *labels: str) -> None:
        """Count one of the others."""
        self._counts[name][labels] += 1

    def add(self, name: str, label: str, amount: int) -> None:
        """Count several."""
        self._counts[name][label,] += amount

    def snapshot(self) -> Mapping[str, Figures]:
        """All counters as they are now."""
        return {name: dict(counts) for name, counts in self._counts.items()}
