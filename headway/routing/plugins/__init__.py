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
    packs_by_capacity   it fills replicas by pattern load, which is counted for its profile then

A new one is a class in a file and a line in PLUGINS, or an entry point of the group `headway.routing_plugins`
in any installed package, whose answers are checked (`checked`). Loops over candidates may be compiled
(`interp.jit.compiled`).
"""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headway.config.routing import RoutingSettings
from headway.extensions import ExtensionPoint
from headway.routing.context import Refusal, RoutingState, SchedulingContext
from headway.routing.table import FloatArray, SlotArray
from headway.routing.types import RouteRequest

PLUGINS = ExtensionPoint(
    "headway.routing_plugins",
    "plugin",
    {
        "bin-pack": "headway.routing.plugins.scorers:BinPack",
        "capacity-filter": "headway.routing.plugins.scorers:CapacityFilter",
        "kv-cache-utilization-scorer": "headway.routing.plugins.scorers:KvCacheScorer",
        "least-load": "headway.routing.plugins.scorers:LeastLoad",
        "least-pattern-load": "headway.routing.plugins.scorers:LeastPatternLoad",
        "lora-affinity-scorer": "headway.routing.plugins.lora_affinity:LoraAffinityScorer",
        "max-score-picker": "headway.routing.plugins.pickers:MaxScorePicker",
        "first-max-picker": "headway.routing.plugins.pickers:FirstMaxPicker",
        "prefix-cache-scorer": "headway.routing.plugins.scorers:PrefixCacheScorer",
        "queue-scorer": "headway.routing.plugins.scorers:QueueScorer",
        "random": "headway.routing.plugins.pickers:RandomPicker",
        "round-robin": "headway.routing.plugins.pickers:RoundRobinPicker",
        "session-affinity-scorer": "headway.routing.plugins.scorers:SessionAffinityScorer",
        "slo-aware-profile-handler": "headway.routing.plugins.slo_scorer:SloAwareProfileHandler",
        "slo-request-tracker": "headway.routing.plugins.slo_scorer:SloRequestTracker",
        "slo-scorer": "headway.routing.plugins.slo_scorer:SloScorer",
        "weighted-random-picker": "headway.routing.plugins.pickers:WeightedRandomPicker",
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
class Foresight(Protocol):
    """A filter that tells quickly which held requests are worth asking about."""

    def promising(  # noqa: PLR0917 - plain figures
        self,
        state: RoutingState,
        now_s: float,
        heads: FloatArray,
        role: int,
        slots: SlotArray,
        open_lines: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Of the open heads that wait for the role in this place, those of which `keep` may keep one of
        `slots`, bool[lines]: at least the first of them by rank.

        Of these lines the ones that have no room are closed in `open_lines`. `heads` is the table of held
        requests (`heads.HeadRow`). A head that is marked in vain costs a decision; one whose line is
        closed waits on.
        """


@runtime_checkable
class Scorer(Protocol):
    """Prefers candidates."""

    def score(self, context: SchedulingContext) -> FloatArray:
        """f8[C] in [0, 1], the higher the better."""


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
