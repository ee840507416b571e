"""Simpler fleets than the plan's, on the same traffic: values, and what a policy that knows them can do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from headway.planning.types import Policy, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A fleet that might have stood there: GPUs in the mean, the share of requests lost, and by pool its
    replicas (fixed) or its utilisation (threshold).
    """

    gpus: float
    lost: float
    pools: Mapping[Role, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternatives:
    """The cheapest fleets of both kinds for the past of `intervals` intervals, with `requests` in them."""

    intervals: int
    requests: int
    fixed: Alternative
    threshold: Alternative


@runtime_checkable
class KnowsAlternatives(Policy, Protocol):
    """A policy whose state says what other fleets would have lost."""

    def alternatives(self, state: Any) -> Alternatives | None:  # noqa: ANN401 - each policy's state is its own
        """The fleets for the past that `state` has; None while that is little."""
