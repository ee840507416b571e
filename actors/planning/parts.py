"""What the planner needs of the other actors, and how their absence shows.

    PartError(Exception)     an actor did not answer in time, is gone, or failed; the text names it and says
    how

Calls are coroutines; whoever calls bounds their time.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypedDict

from actors.collector.values import Measured
from headway.planning import LoadForecast, Observation
from interp import Profile


class PartError(Exception):
    """An actor that the planner asked has no answer."""


class PartHealth(TypedDict):
    """Whether a component answered last, and one line about it."""

    ok: bool
    detail: str


class Parts(Protocol):
    """MetricCollector, Interpolator and Predictor, as the planner asks them."""

    async def ready(self) -> str:
        """Empty when all of them are ready, else one line: who is not, and why."""

    async def collect(self, interval_s: float) -> Measured:
        """The interval that ends now."""

    async def surfaces(self, known: int) -> tuple[int, Profile | None]:
        """Version and profile; no profile when the version is the `known` one."""

    async def forecast(self, observation: Observation, tick: int) -> LoadForecast:
        """Let the predictors see the interval (once per tick), and ask for the next."""

    async def calibrate(self, observation: Observation) -> Mapping[str, Any]:
        """Let the surfaces be compared with what was measured; how they compare so far, by phase."""

    def health(self) -> Mapping[str, PartHealth]:
        """How each actor answered last, by its name."""
