"""Plugins of scheduling: filters, scorers and pickers."""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headway.config.routing import RoutingSettings
from headway.routing.context import Refusal, SchedulingContext
from headway.routing.table import FloatArray
from headway.routing.types import RouteRequest


@runtime_checkable
class Filter(Protocol):
    """Drops candidates."""

    def keep(self, context: SchedulingContext) -> NDArray[np.bool_] | None:
        """Which candidates stay, bool[C]; None for all."""

    def refusal(self, context: SchedulingContext) -> Refusal:
        """Why none of these candidates stays; asked right after `keep` left none."""


@runtime_checkable
class Scorer(Protocol):
    """Prefers candidates."""

    def score(self, context: SchedulingContext) -> FloatArray:
        """f8[C] in [0, 1], the higher the better."""


@runtime_checkable
class Picker(Protocol):
    """Chooses one candidate."""

    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        """Position of the chosen one."""


@runtime_checkable
class ProfileHandler(Protocol):
    """Says which profile a request is scheduled by. It stands in no profile."""

    @property
    def prediction(self) -> str:
        """The profile of requests that ask for prediction-based scheduling."""

    def profile(self, request: RouteRequest, default: str) -> str:
        """The name of the request's profile; `default` is `routing.profile`."""


@runtime_checkable
class TakesSettings(Protocol):
    """Completes its parameters by other settings of routing."""

    def with_settings(self, routing: RoutingSettings) -> object:
        """The plugin to use instead."""
