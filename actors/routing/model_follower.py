"""A router follows the Interpolator's performance model, and the Interpolator keeps its corrections.

Every PERIOD_S the newest model is asked for: other profiles are handed to the router at once. Corrections
come from the first model after the router began, when it has learnt nothing of its own; from then on its own
are reported whenever one has moved by more than REPORTED. An Interpolator that does not answer changes
nothing: the router goes on with what it has.
"""

import asyncio
import logging
from collections.abc import Mapping

from actors.names import CallError, NamedActor
from actors.performance_model import PerformanceModel
from headway.routing.router import Router

PERIOD_S = 1.0
TIMEOUT_S = 10.0
REPORTED = 0.01
"""Relative change of a correction that is worth a report."""

logger = logging.getLogger(__name__)


class ModelFollower:
    """The link of one router to the Interpolator. It begins with the profiles of `profiles_version`."""

    def __init__(self, router: Router, profiles_version: int, interpolator: NamedActor) -> None:
        self._router, self._interpolator = router, interpolator
        self.profiles_version = profiles_version
        self.version = 0
        """Version of the model in use, 0 before the first."""
        self._reported = dict(router.corrections)
        self._failure = ""

    async def run(self, period_s: float = PERIOD_S) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self.step()
                self._failure = ""
            except CallError as error:
                self._log(str(error))
            except Exception as error:
                # An error of the Interpolator's own, which comes again with each question: logged once.
                if str(error) != self._failure:
                    logger.exception("the performance model cannot be used")
                self._failure = str(error)
            await asyncio.sleep(period_s)

    async def step(self) -> None:
        """Take the newest model, and report what has been learnt meanwhile."""
        model = await self._interpolator.call("model", self.version, timeout_s=TIMEOUT_S)
        if model is not None:
            self._take(model)
        corrections = dict(self._router.corrections)
        if self.version and _moved(self._reported, corrections):
            await self._interpolator.call("correct", corrections, timeout_s=TIMEOUT_S)
            self._reported = corrections

    def _take(self, model: PerformanceModel) -> None:
        if model.profiles_version != self.profiles_version:
            self._router.use_profiles(model.profiles)
            self.profiles_version = model.profiles_version
        if not self.version:
            self._router.use_corrections(model.corrections)
            self._reported = dict(self._router.corrections)
        self.version = model.version

    def _log(self, failure: str) -> None:
        if failure != self._failure:
            logger.warning("the performance model stays as it is: %s", failure)
        self._failure = failure


def _moved(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    return any(abs(factor - before[name]) > REPORTED * before[name] for name, factor in after.items())
