"""The planner's collaborators, and the state that outlives a tick: policy in force, memory, last answers.

The policy is made from settings and surfaces, and made anew as soon as either changes. The call of an actor
that died is repeated until it is back, or until the caller ends the wait: callers bound every call.

    ActorFailure(Exception)      an actor did not answer in time, is gone, or failed; the text names it
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import Any, TypeVar

from actors import names
from actors.collector.interval import Measured
from actors.connectors.protocol import Connector, PoolCounts
from actors.names import ActorGone, CallError, NamedActor
from actors.performance_model import PerformanceModel, largest_change
from actors.planning.advice import LiveAdvice
from actors.planning.common_budget import BudgetPart
from actors.planning.log import DecisionLog, PlannerMemory
from actors.planning.settings import RuntimeSettings
from actors.store import InOrder
from headway.config import HeadwayConfig
from headway.engine.nearest import Told
from headway.engine.observed_metrics import EngineReading
from headway.engine.refinement import URGENT
from headway.planning import (
    LoadForecast,
    Observation,
    Policy,
    PolicySettings,
    Role,
    decision_interval_s,
    make_policy,
    policy_settings,
)
from headway.planning.deciding import check_budget
from headway.planning.documents import ComponentHealth
from headway.planning.forecasting import Ahead
from headway.planning.hindsight import COMPILED_FROM
from headway.planning.policies import predictors_asked, refuse_simulated_only
from headway.planning.synthetic import length_spread
from headway.planning.types import Alternatives
from interp import Profile
from interp.jit import drop_stale_cache

T = TypeVar("T")

SURFACES_UNTIL = 0.5
"""Share of the deadline for which the surfaces are waited for."""

RETRY_S = 0.3
TELL = 3
"""Times that engines are asked what they serve, where they did not say: one may not have answered in time."""
LONGEST_CALL_S = 60.0

Compute = Callable[[Callable[[], Any]], Awaitable[Any]]


class ActorFailure(Exception):
    """An actor that the planner asked has no answer."""


class ControlActors:
    """The other actors, as far as the planner asks them."""

    def __init__(self, application: str = "") -> None:
        needed = (names.METRIC_COLLECTOR, names.INTERPOLATOR)
        self._actors = {
            name: NamedActor(name, application=application) for name in (*needed, names.PREDICTOR)
        }
        self._health = {name: ComponentHealth(ok=False, detail="not asked yet") for name in needed}
        self._to_tell = TELL

    async def ready(self, *, asleep: bool = False) -> str:
        """Empty when all of them are ready, else one line: the first that is not, and why.

        The Predictor may be missing: without it there is only no forecast. Of engines that are `asleep`
        nothing shows but what waits for them.
        """
        for name in (names.INTERPOLATOR, names.METRIC_COLLECTOR):
            if asleep and name == names.METRIC_COLLECTOR:
                await self.waiting()
                return ""
            ok, reason = await self._call(name, "ready")
            if not ok:
                self._health[name] = ComponentHealth(ok=False, detail=reason)
                return f"{name}: {reason}"
        await self._tell()
        return ""

    async def waiting(self) -> float:
        """The requests that wait in front of engines that others run (`metrics.wake`); 0 where none show."""
        found: float | None = await self._call(names.METRIC_COLLECTOR, "waiting")
        return found or 0.0

    async def _tell(self) -> None:
        """Have the Interpolator know what engines say of themselves."""
        told: Told = await self._call(names.METRIC_COLLECTOR, "told")
        self._to_tell = 0 if told.models else self._to_tell - 1
        if any(told):
            await self._call(names.INTERPOLATOR, "tell", told)

    async def collect(
        self, interval_s: float, since_s: float | None, counts: Mapping[Role, PoolCounts]
    ) -> Measured:
        """The interval that ends now: since the one before ended, or so many seconds where there is none."""
        asked = interval_s, since_s, {role: pool.desired for role, pool in counts.items()}
        measured: Measured = await self._call(names.METRIC_COLLECTOR, "collect", *asked)
        health = measured.health
        detail = f"{health.status}: {health.detail}" if health.detail else ""
        self._health[names.METRIC_COLLECTOR] = ComponentHealth(ok=health.status == "ok", detail=detail)
        return measured

    async def model(self, known: int) -> PerformanceModel | None:
        """The performance model; None if `known` is its version."""
        model: PerformanceModel | None = await self._call(names.INTERPOLATOR, "model", known)
        return model

    async def forecast(self, observation: Observation, tick: int, interval_s: float) -> LoadForecast | Ahead:
        """Show the predictors what was measured, once per tick, and ask for what comes in an interval."""
        values = (observation.requests, observation.isl_tokens, observation.osl_tokens)
        length = observation.interval_s / interval_s
        await self._call(names.PREDICTOR, "observe", *values, tick, length, observation.least_requests)
        forecast: LoadForecast | Ahead = await self._call(names.PREDICTOR, "forecast")
        return forecast

    async def calibrate(self, observation: Observation, engines: Sequence[EngineReading] = ()) -> None:
        """Have the surfaces compared with what was measured; the ratios come with the next `model`.

        `engines` are what engines that others run show of themselves: it corrects the surfaces.
        """
        if self._to_tell > 0:
            await self._tell()
        # Single requests do not travel: the means are enough.
        known = replace(observation, traffic=None)
        await self._call(names.INTERPOLATOR, "calibrate", known, engines, length_spread(observation))

    def health(self) -> Mapping[str, ComponentHealth]:
        """The outcome of each actor's last call, by its name, without a Predictor that is not asked.

        A call that its caller gave up has none: who does not answer for long is silent (`part_watch`).
        """
        return self._health

    async def _call(self, name: str, method: str, *args: object) -> Any:  # noqa: ANN401 - of the method
        while True:
            try:
                answer = await self._actors[name].call(method, *args, timeout_s=LONGEST_CALL_S)
            except ActorGone as error:
                self._health[name] = ComponentHealth(ok=False, detail=str(error))
                await asyncio.sleep(RETRY_S)
            except CallError as error:
                raise self._failure(name, str(error)) from error
            except Exception as error:
                raise self._failure(name, f"{method}: {type(error).__name__}: {error}") from error
            else:
                self._health[name] = ComponentHealth(ok=True)
                return answer

    def _failure(self, name: str, detail: str) -> ActorFailure:
        self._health[name] = ComponentHealth(ok=False, detail=detail)
        return ActorFailure(f"{name}: {detail}")


class Deadline:
    """Time left of one tick, on the event loop's clock."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin, self._seconds = self._loop.time(), seconds

    async def within(self, share: float, work: Awaitable[T]) -> T:
        """The answer, or TimeoutError once that share of the whole time is over."""
        async with asyncio.timeout_at(self._begin + share * self._seconds):
            return await work


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInForce:
    """A policy, the settings that it was made from, and the version of settings and surfaces."""

    policy: Policy
    settings: PolicySettings
    version: tuple[int, int]
    forecasts: bool
    """True for a policy that asks predictors."""


class CurrentPolicy:
    """The policy for the present settings and the newest surfaces."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self.model: PerformanceModel | None = None
        self.in_force: PolicyInForce | None = None
        self._planned: Profile | None = None

    @property
    def urgent(self) -> bool:
        """True if the newest surfaces are so far from those planned by that the next tick should not wait."""
        if self.profile is None or self._planned is None or self.profile is self._planned:
            return False
        return largest_change(self._planned, self.profile) > log(1.0 + URGENT)

    @property
    def profile(self) -> Profile | None:
        """The newest surfaces."""
        return None if self.model is None else self.model.profile

    @property
    def interval_s(self) -> float:
        """Seconds between two ticks: the policy's own interval, before there is one the configured one."""
        if self.in_force is not None:
            return self.in_force.policy.interval_s
        return decision_interval_s(self._settings.config.planner)

    def slow(self, counts: Mapping[Role, PoolCounts]) -> Mapping[Role, tuple[float, ...]]:
        """By role the slowness of replicas that differ from their peers, not of more than are ready.

        None of engines that others run: a plan that knows them takes it that they get fewer requests.
        """
        others = self._settings.config.engine.kind == "external"
        differing = {} if self.model is None or others else self.model.differing
        known = {role: tuple(one.slowness for one in each) for role, each in differing.items()}
        return {role: known[role][: pool.ready] for role, pool in counts.items() if role in known}

    async def refresh(self, actors: ControlActors, deadline: Deadline) -> PolicyInForce:
        """The policy, after a look for newer surfaces. ActorFailure if there have never been any."""
        try:
            await deadline.within(SURFACES_UNTIL, self.follow(actors))
        except (ActorFailure, TimeoutError) as error:
            if self.model is None:
                raise ActorFailure(str(error) or "Interpolator: no answer in time") from error
        return self.current()

    async def follow(self, actors: ControlActors) -> None:
        """Have the newest model. ActorFailure if the Interpolator fails; waits for one that is gone."""
        newer = await actors.model(0 if self.model is None else self.model.version)
        self.model = newer or self.model

    def current(self) -> PolicyInForce:
        """The policy for the present settings. ActorFailure without surfaces, PlanningError as `check`."""
        if self.model is None:
            raise ActorFailure("Interpolator: no profile")
        # Of the model only the surfaces make another policy: its ratios change with every tick.
        version = (self._settings.version, self.model.profiles_version)
        if self.in_force is None or self.in_force.version != version:
            self.in_force = _put_in_force(self._settings.config, self.model.profile, version)
            self._planned = self.model.profile
        return self.in_force

    def check(self, config: HeadwayConfig) -> None:
        """Refuse settings that no policy can be made from; see `check_settings`."""
        check_settings(config, self.profile)


def check_settings(config: HeadwayConfig, profile: Profile | None) -> None:
    """PlanningError for settings that no policy can be made from; as far as that shows without a profile."""
    refuse_simulated_only(config)
    if profile is not None:
        _put_in_force(config, profile, (0, 0))
    else:
        check_budget(policy_settings(config).limits, config.planner.max_gpu_budget)


def _put_in_force(config: HeadwayConfig, profile: Profile, version: tuple[int, int]) -> PolicyInForce:
    refuse_simulated_only(config)
    drop_stale_cache(*COMPILED_FROM)
    settings, name = policy_settings(config, profile), config.planner.policy
    return PolicyInForce(
        policy=make_policy(name, settings, profile),
        settings=settings,
        version=version,
        forecasts=bool(predictors_asked(config.planner)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerContext:
    """The collaborators of one planner. `clock` gives Unix seconds, `phase` is its share of an interval by
    which its ticks come later than those of the first planner that began with it.
    """

    actors: ControlActors
    connector: Connector
    log: DecisionLog
    settings: RuntimeSettings
    clock: Callable[[], float]
    part: BudgetPart
    phase: float = 0.0
    advice: LiveAdvice = field(default_factory=LiveAdvice)
    compute: Compute = asyncio.to_thread
    """Beside the event loop: the first look into a profile compiles, which takes seconds."""
    stored: Compute = field(default_factory=lambda: InOrder().run)
    """Beside the event loop, in order: work with the store. StoreAway where that does not answer in time."""


HELD_S = 3.0
"""Seconds for which a gateway's word counts: it comes every second."""


@dataclass(slots=True, kw_only=True)
class PlannerState:
    """The state that a tick leaves to the next one and to the status document.

    `connector_fault` says why the connector did not give its counts when it was asked last; `counts` are then
    those from before. `held` has by gateway the requests that wait there for the first replica of a pool, and
    when it said so.
    """

    policy: CurrentPolicy
    held: dict[str, tuple[int, float]] = field(default_factory=dict)
    memory: PlannerMemory
    counts: Mapping[Role, PoolCounts] = field(default_factory=dict)
    asleep: Mapping[Role, int] = field(default_factory=dict)
    connector_fault: str = ""
    measured: Measured | None = None
    seen_at: dict[str, float] = field(default_factory=dict)
    """Unix seconds as of which each input was last known: metrics, replicas, profile, forecast."""
    connector_failures: int = 0
    alternatives: tuple[Any, Alternatives | None] = (None, None)
    """Those of the policy's state that stands with them: they take milliseconds and change with it alone."""

    def held_now(self, now_s: float) -> int:
        """Requests that wait for the first replica of a pool."""
        self.held = {name: each for name, each in self.held.items() if abs(now_s - each[1]) < HELD_S}
        return sum(requests for requests, _ in self.held.values())
