"""The actors that the planner asks: MetricCollector, Interpolator and Predictor.

An actor that died is back in a second or two: its call is repeated until it answers, or until the caller ends
the wait. Callers bound the time of every call.

    ActorFailure(Exception)      an actor did not answer in time, is gone, or failed; the text names it
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from actors import names
from actors.collector.measured import Measured
from actors.names import ActorGone, CallError, NamedActor
from actors.performance_model import PerformanceModel
from headway.planning import LoadForecast, Observation
from headway.planning.records import ComponentHealth

RETRY_S = 0.3
LONGEST_CALL_S = 60.0


class ActorFailure(Exception):
    """An actor that the planner asked has no answer."""


class ControlActors:
    """The other actors, as far as the planner asks them."""

    def __init__(self) -> None:
        asked = (names.METRIC_COLLECTOR, names.INTERPOLATOR, names.PREDICTOR)
        self._actors = {name: NamedActor(name) for name in asked}
        self._health = {name: ComponentHealth(ok=False, detail="not asked yet") for name in asked}

    async def ready(self) -> str:
        """Empty when all of them are ready, else one line: the first that is not, and why.

        The Predictor may be missing: without it there is only no forecast.
        """
        for name in (names.INTERPOLATOR, names.METRIC_COLLECTOR):
            ok, reason = await self._call(name, "ready")
            if not ok:
                self._health[name] = ComponentHealth(ok=False, detail=reason)
                return f"{name}: {reason}"
        return ""

    async def collect(self, interval_s: float) -> Measured:
        """The interval that ends now."""
        measured: Measured = await self._call(names.METRIC_COLLECTOR, "collect", interval_s)
        health = measured.health
        detail = f"{health.status}: {health.detail}" if health.detail else ""
        self._health[names.METRIC_COLLECTOR] = ComponentHealth(ok=health.status == "ok", detail=detail)
        return measured

    async def model(self, known: int) -> PerformanceModel | None:
        """The performance model; None if `known` is its version."""
        model: PerformanceModel | None = await self._call(names.INTERPOLATOR, "model", known)
        return model

    async def forecast(self, observation: Observation, tick: int) -> LoadForecast:
        """Show the predictors the interval, once per tick, and ask for the next."""
        values = (observation.requests, observation.isl_tokens, observation.osl_tokens)
        await self._call(names.PREDICTOR, "observe", *values, tick)
        forecast: LoadForecast = await self._call(names.PREDICTOR, "forecast")
        return forecast

    async def calibrate(self, observation: Observation) -> Mapping[str, Any]:
        """Compare the surfaces with what was measured; the ratios so far, by phase."""
        # Single requests do not travel: the means are enough.
        without = replace(observation, traffic=None)
        ratios: Mapping[str, Any] = await self._call(names.INTERPOLATOR, "calibrate", without)
        return ratios

    def health(self) -> Mapping[str, ComponentHealth]:
        """The outcome of each actor's last call, by its name."""
        return self._health

    async def _call(self, name: str, method: str, *args: object) -> Any:  # noqa: ANN401 - of the method
        while True:
            try:
                answer = await self._actors[name].call(method, *args, timeout_s=LONGEST_CALL_S)
            except ActorGone as error:
                self._health[name] = ComponentHealth(ok=False, detail=str(error))
                await asyncio.sleep(RETRY_S)
            except asyncio.CancelledError:
                self._health[name] = ComponentHealth(ok=False, detail=f"{method}: no answer in time")
                raise
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
