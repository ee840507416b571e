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

Built-in plugins are used as they are. One from elsewhere is wrapped when it is made, once for all of its
steps: what it does wrong is a PluginFault that names it. A wrong answer would else go by in silence: of two
scores for three candidates the third is never chosen.
"""

from collections.abc import Callable, Mapping
from operator import index
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headway.extensions import ExtensionPoint
from headway.routing.decide.context import Refusal, SchedulingContext
from headway.routing.fleet.table import FloatArray
from headway.routing.types import PluginFault

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


TRAITS = ("uses_predictions", "records_outcomes")


def _marks(answer: object, context: SchedulingContext) -> NDArray[np.bool_] | None:
    if answer is None:
        return None
    marks: NDArray[Any] = np.asarray(answer)
    if marks.dtype != np.bool_:
        raise ValueError(f"keep returned {_kind(answer)}, not booleans")
    if marks.shape != (count := len(context.slots),):
        raise ValueError(f"keep: {_shape(marks)} marks for {count} candidates")
    return marks


def _refusal(answer: object, context: SchedulingContext) -> Refusal:
    if not isinstance(answer, Refusal):
        raise ValueError(f"refusal returned {_kind(answer)}, not a Refusal")
    return answer


def _scores(answer: Any, context: SchedulingContext) -> FloatArray:  # noqa: ANN401 - whatever a plugin returns
    try:
        scores: FloatArray = np.asarray(answer if answer is not None else "", dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"score returned {_kind(answer)}, not numbers") from error
    if scores.shape != (count := len(context.slots),):
        raise ValueError(f"{_shape(scores)} scores for {count} candidates")
    if len(wrong := scores[~(np.isfinite(scores) & (scores >= 0.0))]):
        raise ValueError(f"a score of {wrong[0]:g}, not a number from 0 to 1")
    return scores


def _loads(answer: Any, context: SchedulingContext) -> FloatArray:  # noqa: ANN401 - whatever a plugin returns
    loads: FloatArray = np.asarray(answer, dtype=np.float64)
    if loads.shape != (len(context.slots),) or np.isnan(loads).any():
        raise ValueError(f"{_shape(loads)} loads for {len(context.slots)} candidates, or NaN")
    return loads


def _position(answer: Any, context: SchedulingContext, *_: object) -> int:  # noqa: ANN401 - whatever a plugin returns
    try:
        position = index(answer)
    except TypeError as error:
        raise ValueError(f"pick returned {_kind(answer)}, not a position") from error
    if not 0 <= position < len(context.slots):
        raise ValueError(f"picked position {position} of {len(context.slots)} candidates, which count from 0")
    return position


STEPS: Mapping[type, Mapping[str, Callable[..., object]]] = {
    Filter: {"keep": _marks, "refusal": _refusal},
    Scorer: {"score": _scores},
    Packer: {"loads": _loads},
    Picker: {"pick": _position},
}
"""The steps of each protocol, each with what turns an answer into the right type, or says what is wrong."""


def checked(name: str, plugin: object) -> object:
    """The plugin that settings call `name` with each of its steps checked.

    PluginFault where it has none, or half a filter.
    """
    steps = {
        step: _checked(name, step, getattr(plugin, step), right)
        for protocol, rights in STEPS.items()
        if isinstance(plugin, protocol)
        for step, right in rights.items()
    }
    if hasattr(plugin, "keep") and not isinstance(plugin, Filter):
        raise PluginFault(name, "keep without refusal: a filter has both")
    traits = {trait: getattr(plugin, trait, False) for trait in TRAITS}
    if not steps and not any(traits.values()):
        raise PluginFault(name, "has none of keep, score and pick, so it does nothing")
    # A profile asks a plugin for its steps by the methods it has: the wrapper has those and no others.
    return SimpleNamespace(**steps, **traits)


def _checked(
    name: str, step: str, asked: Callable[..., object], right: Callable[..., object]
) -> Callable[..., object]:
    def answer(*arguments: object) -> object:
        try:
            found = asked(*arguments)
        except Exception as error:
            raise PluginFault(name, f"{step} raised {said(error)}") from error
        try:
            return right(found, *arguments)
        except ValueError as error:
            raise PluginFault(name, str(error)) from error

    return answer


def said(error: BaseException) -> str:
    """An exception of foreign code in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _kind(answer: object) -> str:
    return "None" if answer is None else type(answer).__name__


def _shape(values: NDArray[Any]) -> str:
    return " x ".join(map(str, values.shape)) or "no list of"
