"""Filter → score → pick: how a scheduling profile decides.

    candidates   the ready replicas of one role, by id
    filter       drops candidates; when none is left it says why
    score        f8 in [0, 1] per candidate; the profile's score is Σ weight · score
    pick         one candidate by the scores

Plugins see all candidates at once, as arrays. One with several faces (the slo-scorer filters and scores) is
used in each. Without a scorer of positive weight all scores are 1; without a picker the highest wins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headway.config.routing import RoutingSettings
from headway.routing.fleet import FloatArray
from headway.routing.question import Question, Refusal
from headway.routing.types import RouteRequest


@runtime_checkable
class Filter(Protocol):
    """Drops candidates."""

    def keep(self, question: Question) -> NDArray[np.bool_] | None:
        """Which candidates stay, bool[C]; None for all."""

    def refusal(self, question: Question) -> Refusal:
        """Why none of these candidates stays; asked right after `keep` left none."""


@runtime_checkable
class Scorer(Protocol):
    """Prefers candidates."""

    def score(self, question: Question) -> FloatArray:
        """f8[C] in [0, 1], the higher the better."""


@runtime_checkable
class Picker(Protocol):
    """Chooses one candidate."""

    def pick(self, question: Question, scores: FloatArray, generator: np.random.Generator) -> int:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A scheduling profile, ready to decide."""

    name: str
    filters: tuple[Filter, ...]
    scorers: tuple[tuple[Scorer, float], ...]
    picker: Picker
    uses_predictions: bool = False
    """It looks at predictions, so that a request needs an SLO and replicas need a profile."""
    records_outcomes: bool = False
    """Predictions are paired with outcomes."""
    packs_by_capacity: bool = False
    """It fills replicas by pattern load."""

    def decide(self, question: Question, generator: np.random.Generator) -> int | Refusal:
        """The position of the chosen replica in `question.slots`, which may be fewer then; or why there is
        none. Needs at least one candidate.
        """
        for each in self.filters:
            keep = each.keep(question)
            if keep is None or (kept := np.count_nonzero(keep)) == len(keep):
                continue
            if not kept:
                return each.refusal(question)
            question.restrict(keep)
        return self.picker.pick(question, self._scores(question), generator)

    def _scores(self, question: Question) -> FloatArray:
        scorers = self.scorers
        if not scorers:
            return np.ones(len(question.slots))
        scorer, weight = scorers[0]
        scores = scorer.score(question)
        if len(scorers) == 1:
            return scores
        scores = weight * scores
        for scorer, weight in scorers[1:]:
            scores += weight * scorer.score(question)
        return scores


def make_pipeline(name: str, plugins: Sequence[tuple[object, float]], default_picker: Picker) -> Pipeline:
    """The profile of `plugins` with their weights, in order."""
    return Pipeline(
        name=name,
        filters=tuple(plugin for plugin, _ in plugins if isinstance(plugin, Filter)),
        scorers=tuple(
            (plugin, weight) for plugin, weight in plugins if weight > 0 and isinstance(plugin, Scorer)
        ),
        picker=next((plugin for plugin, _ in plugins if isinstance(plugin, Picker)), default_picker),
        uses_predictions=_declared("uses_predictions", plugins),
        records_outcomes=_declared("records_outcomes", plugins),
        packs_by_capacity=_declared("packs_by_capacity", plugins),
    )


def _declared(trait: str, plugins: Sequence[tuple[object, float]]) -> bool:
    """True if the class of one of `plugins` says so; most classes say nothing, which means False."""
    return any(getattr(plugin, trait, False) for plugin, _ in plugins)
