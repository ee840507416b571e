"""MetricCollector, Interpolator and Predictor as named Ray actors: calls, retries, and how each answered
last.

An actor that died is back in a second or two: the call is repeated until it answers, or until whoever called
ends the wait. What an actor raises becomes PartError, with its name.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from actors import names
from actors.calling import ActorGone, CallError, NamedActor
from actors.collector.values import Measured
from actors.planning.parts import PartError, PartHealth
from headway.planning import LoadForecast, Observation
from interp import Profile

RETRY_S = 0.3
LONGEST_CALL_S = 60.0


class ActorParts:
    """The other actors, by their names."""

    def __init__(self) -> None:
        asked = (names.METRIC_COLLECTOR, names.INTERPOLATOR, names.PREDICTOR)
        self._actors = {name: NamedActor(name) for name in asked}
        self._health = {name: PartHealth(ok=False, detail="not asked yet") for name in asked}

    async def ready(self) -> str:
        """Empty, or who is not ready and why. Not the Predictor: without it there is no forecast, no more."""
        for name in (names.INTERPOLATOR, names.METRIC_COLLECTOR):
            ok, reason = await self._call(name, "ready")
            if not ok:
                self._health[name] = PartHealth(ok=False, detail=reason)
                return f"{name}: {reason}"
        return ""

    async def collect(self, interval_s: float) -> Measured:
        """The interval that ends now."""
        measured: Measured = await self._call(names.METRIC_COLLECTOR, "collect", interval_s)
        health = measured.health
        self._health[names.METRIC_COLLECTOR] = PartHealth(
            ok=health.status == "ok", detail=f"{health.status}: {health.detail}" if health.detail else ""
        )
        return measured

    async def surfaces(self, known: int) -> tuple[int, Profile | None]:
        """Version and, unless that is the known one, the profile."""
        answer: tuple[int, Profile | None] = await self._call(names.INTERPOLATOR, "surfaces", known)
        return answer

    async def forecast(self, observation: Observation, tick: int) -> LoadForecast:
        """Show the interval to the predictors, and ask for the next."""
        values = (observation.requests, observation.isl_tokens, observation.osl_tokens)
        await self._call(names.PREDICTOR, "observe", *values, tick)
        forecast: LoadForecast = await self._call(names.PREDICTOR, "forecast")
        return forecast

    async def calibrate(self, observation: Observation) -> Mapping[str, Any]:
        """Compare the surfaces with what was measured; single requests need not travel for that."""
        without = replace(observation, traffic=None)
        ratios: Mapping[str, Any] = await self._call(names.INTERPOLATOR, "calibrate", without)
        return ratios

    def health(self) -> Mapping[str, PartHealth]:
        """How each actor answered last."""
        return self._health

    async def _call(self, name: str, method: str, *args: object) -> Any:  # noqa: ANN401 - of the method
        while True:
            try:
                answer = await self._actors[name].call(method, *args, timeout_s=LONGEST_CALL_S)
            except ActorGone as error:
                self._health[name] = PartHealth(ok=False, detail=str(error))
                await asyncio.sleep(RETRY_S)
            except asyncio.CancelledError:
                self._health[name] = PartHealth(ok=False, detail=f"{method}: no answer in time")
                raise
            except CallError as error:
                raise self._failed(name, str(error)) from error
            except Exception as error:
                raise self._failed(name, f"{method}: {type(error).__name__}: {error}") from error
            else:
                self._health[name] = PartHealth(ok=True, detail="")
                return answer

    def _failed(self, name: str, detail: str) -> PartError:
        self._health[name] = PartHealth(ok=False, detail=detail)
        return PartError(f"{name}: {detail}")
