"""Plugins of scheduling profiles: the steps that they take part in, what they declare, and the table of all.

    candidates   the ready replicas of one role, by id
    filter       drops candidates; when none is left it says why
    score        f8 in [0, 1] per candidate; the profile's score is Σ weight · score
    pick         one candidate by the scores

A plugin is a dataclass. Its fields are the parameters of `routing.plugins`, which pydantic checks;
its methods are those of one or more protocols below. It sees all candidates at once, as arrays. Class
attributes declare what else it needs, False where they are missing:

    uses_predictions    it goes by forecasts of latency: a request without an SLO is held to the deployment's
    records_outcomes    forecasts are made for what its profile places, and paired with what comes of it

A new one is a class in a file and a line in PLUGINS, or an entry point of the group `headway.routing_plugins`
in any installed package (such as `headway_aibrix`), whose answers are checked (`checked`). Loops over
candidates may be compiled (`interp.jit.compiled`).

Plugins of installed packages, held to the protocols: what one does wrong is a PluginFault that names it.

Built-in plugins are used as they are. A plugin from elsewhere is wrapped when it is made, once for all of its
steps; a wrong answer would else go by in silence: of two scores for three candidates the third is never
chosen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headway.config.routing import RoutingSettings
from headway.extensions import ExtensionPoint
from headway.routing.decide.context import Refusal, RoutingState, SchedulingContext
from headway.routing.fleet.table import FloatArray, SlotArray
from headway.routing.queue.heads import Marks
from headway.routing.types import PluginFault, RouteRequest

PLUGINS = ExtensionPoint(
    "headway.routing_plugins",
    "plugin",
    {
        "bin-pack": "headway.routing.decide.scorers:BinPack",
        "kv-cache-utilization-scorer": "headway.routing.decide.scorers:KvCacheScorer",
        "least-load": "headway.routing.decide.scorers:LeastLoad",
        "lora-affinity-scorer": "headway.routing.decide.lora_affinity:LoraAffinityScorer",
        "max-score-picker": "headway.routing.decide.scorers:MaxScorePicker",
        "first-max-picker": "headway.routing.decide.scorers:FirstMaxPicker",
        "prefix-cache-scorer": "headway.routing.decide.scorers:PrefixCacheScorer",
        "queue-scorer": "headway.routing.decide.scorers:QueueScorer",
        "random": "headway.routing.decide.scorers:RandomPicker",
        "round-robin": "headway.routing.decide.scorers:RoundRobinPicker",
        "session-affinity-scorer": "headway.routing.decide.scorers:SessionAffinityScorer",
        "slo-aware-profile-handler": "headway.routing.decide.slo_scorer:SloAwareProfileHandler",
        "slo-request-tracker": "headway.routing.decide.slo_scorer:SloRequestTracker",
        "slo-scorer": "headway.routing.decide.slo_scorer:SloScorer",
        "weighted-random-picker": "headway.routing.decide.scorers:WeightedRandomPicker",
    },
)
"""Plugin types by the names that settings use."""


@runtime_checkable
class Filter(Protocol):
    """Drops candidates."""

    def keep(self, context: SchedulingContext) -> NDArray[np.bool_] | None:
        """The candidates that stay, bool[C]; None for all."""

    def refusal(self, context: SchedulingContext) -> Refusal:
        """The reason that none of these candidates stays; asked right after `keep` left none."""


@runtime_checkable
class JudgesHeld(Protocol):
    """A filter that judges many held requests at a few replicas in one go."""

    def fitting(  # noqa: PLR0917 - plain figures
        self,
        state: RoutingState,
        now_s: float,
        heads: FloatArray,
        role: int,
        slots: SlotArray,
        open_lines: Marks,
    ) -> FloatArray:
        """How much later than the head one of an open line has to be due so that `keep` would keep one of
        `slots`, seconds, f8[lines]: 0 for the head, infinite where it is none of the line, or one that waits
        for another role than the one in this place. Those after the first that is finite need no answer.

        `heads` is the table of held requests (`heads.HeadRow`). One that is finite in vain costs a decision.
        """


@runtime_checkable
class Scorer(Protocol):
    """Prefers candidates."""

    def score(self, context: SchedulingContext) -> FloatArray:
        """f8[C] in [0, 1], the higher the better."""


@runtime_checkable
class Packer(Protocol):
    """Fills replicas by the part of them that each request takes; FleetRow.LOAD has the sum."""

    def loads(self, context: SchedulingContext) -> FloatArray:
        """f8[C], positive; infinite where the request never fits."""


@runtime_checkable
class Picker(Protocol):
    """Chooses one candidate."""

    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        """The position of the chosen one."""


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
    """Takes parameters that are not given from other settings of routing."""

    def with_settings(self, routing: RoutingSettings) -> object:
        """The plugin to use instead."""


TRAITS = ("uses_predictions", "records_outcomes")


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


class _CheckedPacker(_Checked):
    def loads(self, context: SchedulingContext) -> FloatArray:
        answer: FloatArray = np.asarray(self._answer("loads", context), dtype=np.float64)
        if answer.shape != (len(context.slots),) or np.isnan(answer).any():
            raise self._fault(f"{_shape(answer)} loads for {len(context.slots)} candidates, or NaN")
        return answer


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
    (Packer, _CheckedPacker),
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
