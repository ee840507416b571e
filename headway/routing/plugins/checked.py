"""Plugins of installed packages, held to the protocols: what one does wrong is a PluginFault that names it.

Built-in plugins are used as they are. A plugin from elsewhere is wrapped when it is made, once for all of its
steps; a wrong answer would else go by in silence: of two scores for three candidates the third is never
chosen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.routing.context import Refusal, SchedulingContext
from headway.routing.plugins import Filter, Picker, ProfileHandler, Scorer
from headway.routing.table import FloatArray
from headway.routing.types import PluginFault, RouteRequest

TRAITS = ("uses_predictions", "records_outcomes", "packs_by_capacity")


@dataclass(frozen=True)
class _Checked:
    """The plugin that settings call `name`, and what its class declares."""

    name: str
    plugin: Any

    def __getattr__(self, attribute: str) -> Any:  # noqa: ANN401 - whatever the plugin declares
        if attribute in TRAITS:
            return getattr(self.plugin, attribute, False)
        raise AttributeError(attribute)

    def _answer(self, step: str, *arguments: object) -> Any:  # noqa: ANN401 - what the plugin returns is open
        try:
            return getattr(self.plugin, step)(*arguments)
        except Exception as error:
            raise self._fault(f"{step} raised {said(error)}") from error

    def _fault(self, fault: str) -> PluginFault:
        return PluginFault(self.name, fault)


class _CheckedFilter(_Checked):
    def keep(self, context: SchedulingContext) -> NDArray[np.bool_] | None:
        count = len(context.slots)
        if (answer := self._answer("keep", context)) is None:
            return None
        marks: NDArray[Any] = np.asarray(answer)
        if marks.dtype != np.bool_:
            raise self._fault(f"keep returned {_kind(answer)}, not booleans")
        if marks.shape != (count,):
            raise self._fault(f"keep: {_shape(marks)} marks for {count} candidates")
        return marks

    def refusal(self, context: SchedulingContext) -> Refusal:
        answer = self._answer("refusal", context)
        if not isinstance(answer, Refusal):
            raise self._fault(f"refusal returned {_kind(answer)}, not a Refusal")
        return answer


class _CheckedScorer(_Checked):
    def score(self, context: SchedulingContext) -> FloatArray:
        count = len(context.slots)
        answer = self._answer("score", context)
        try:
            scores: FloatArray = np.asarray(answer if answer is not None else "", dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise self._fault(f"score returned {_kind(answer)}, not numbers") from error
        if scores.shape != (count,):
            raise self._fault(f"{_shape(scores)} scores for {count} candidates")
        if not np.isfinite(scores).all() or scores.min(initial=0.0) < 0.0:
            wrong = scores[~(np.isfinite(scores) & (scores >= 0.0))][0]
            raise self._fault(f"a score of {wrong:g}, not a number from 0 to 1")
        return scores


class _CheckedPicker(_Checked):
    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        count = len(context.slots)
        answer = self._answer("pick", context, scores, generator)
        try:
            position = index(answer)
        except TypeError as error:
            raise self._fault(f"pick returned {_kind(answer)}, not a position") from error
        if not 0 <= position < count:
            raise self._fault(f"picked position {position} of {count} candidates, which count from 0")
        return position


class _CheckedHandler(_Checked):
    @property
    def prediction(self) -> str:
        name: str = self.plugin.prediction
        return name

    def profile(self, request: RouteRequest, default: str) -> str:
        answer = self._answer("profile", request, default)
        if not isinstance(answer, str):
            raise self._fault(f"profile returned {_kind(answer)}, not the name of a profile")
        return answer


STEPS: tuple[tuple[type, type[_Checked]], ...] = (
    (Filter, _CheckedFilter),
    (Scorer, _CheckedScorer),
    (Picker, _CheckedPicker),
    (ProfileHandler, _CheckedHandler),
)


def checked(name: str, plugin: object) -> object:
    """The plugin with each of its steps checked. PluginFault where it has none, or half a filter."""
    steps = tuple(step for protocol, step in STEPS if isinstance(plugin, protocol))
    if hasattr(plugin, "keep") and not isinstance(plugin, Filter):
        raise PluginFault(name, "keep without refusal: a filter has both")
    if not steps and not any(getattr(plugin, trait, False) for trait in TRAITS):
        raise PluginFault(name, "has none of keep, score, pick and profile, so it does nothing")
    # A profile asks a plugin for its steps by the methods it has: the wrapper has those and no others.
    make: Callable[..., object] = type("CheckedPlugin", steps or (_Checked,), {})
    return make(name, plugin)


def said(error: BaseException) -> str:
    """An exception of foreign code in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _kind(answer: object) -> str:
    return "None" if answer is None else type(answer).__name__


def _shape(values: NDArray[Any]) -> str:
    return " x ".join(map(str, values.shape)) or "no list of"
