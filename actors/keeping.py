"""Keeps the actors of a control plane: those that are gone are started again, those that hang are ended.

Ray restarts actors that die, but neither those of which a constructor raised nor those that hang. An actor
hangs that has answered since it started, and has not for END_S. It is ended, and Ray starts it again; the
next time after twice as long, up to LONGEST_END_S. What actors own is stored or with those that ask them.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from actors import control_plane
from actors.names import READY, CallError, NamedActor, TooSlow
from headway.config import HeadwayConfig
from headway.planning.silence import Watch
from headway.words import duration

KEEP_S, LONGEST_KEEP_S = 3.0, 60.0
"""Between two looks; after each that fails twice as long, up to the second."""

ANSWER_WITHIN_S = 2.0
END_S, LONGEST_END_S = 60.0, 3600.0

logger = logging.getLogger("ray.serve")


class Keeper:
    """Has the actors serve applications, and keeps them; without `routes` others route the requests."""

    def __init__(self, *, routes: bool = True) -> None:
        self._routes = routes
        self._kept: dict[str, tuple[HeadwayConfig, str]] = {}
        """By application, its settings and the token of its last start."""
        self._keeping: asyncio.Task[None] | None = None

    async def serve(self, coming: Mapping[str, HeadwayConfig]) -> None:
        """Serve applications by these settings from now on. ControlPlaneError: one cannot be, others are."""
        for application in coming:
            self._kept.pop(application, None)
        started = await asyncio.to_thread(control_plane.start, coming, routes=self._routes)
        for name, token in started.items():
            if isinstance(token, str):
                self._kept[name] = coming[name], token
        if self._kept and self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())
        for failure in started.values():
            if not isinstance(failure, str):
                raise failure

    async def leave(self, application: str) -> None:
        """Serve it no more, unless somebody else has had it served since."""
        _, token = self._kept.pop(application, (None, ""))
        await asyncio.to_thread(control_plane.stop, token=token)

    async def close(self) -> None:
        """Leave all."""
        if self._keeping is not None:
            self._keeping.cancel()
        for application in tuple(self._kept):
            await self.leave(application)

    async def _keep(self) -> None:
        wait_s, hanging = KEEP_S, Hanging()
        while True:
            await asyncio.sleep(wait_s)
            try:
                there = await asyncio.to_thread(control_plane.running)
                for name, (config, token) in tuple(self._kept.items()):
                    await asyncio.to_thread(
                        control_plane.revive, config, name, token, there, routes=self._routes
                    )
                for name in await hanging.look(there):
                    await asyncio.to_thread(control_plane.end_again, name)
                wait_s = KEEP_S
            except Exception as error:  # noqa: BLE001 - whatever it is, the next look may go well
                wait_s = min(2.0 * wait_s, LONGEST_KEEP_S)
                logger.warning(
                    "the control plane's actors do not come back, again in %g s: %s", wait_s, error
                )


class Hanging:
    """Actors that do not answer any more, and how often each was ended for that."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._watch = clock, Watch(END_S)
        self._actors: dict[str, NamedActor] = {}
        self._answered: set[str] = set()
        self._ended: dict[str, int] = {}

    async def look(self, there: Collection[str]) -> Sequence[str]:
        """Ask all that are there; those that are to be ended now."""
        self._watch.begin(self._clock())
        self._answered.intersection_update(there)
        await asyncio.gather(*map(self._ask, there))
        now_s, found = self._clock(), []
        for name, since_s, _ in self._watch.silent(now_s):
            count = self._ended.get(name, 0)
            limit_s, later_s = (min(END_S * 2.0**times, LONGEST_END_S) for times in (count, count + 1))
            if now_s - since_s < limit_s:
                continue
            logger.warning(
                "%s has not answered for %s: it is ended, and starts again; the next time after %s",
                name,
                duration(round(now_s - since_s)),
                duration(later_s),
            )
            self._ended[name] = count + 1
            found.append(name)
        self._answered.difference_update(found)
        self._watch.keep(self._answered)
        return found

    async def _ask(self, name: str) -> None:
        actor = self._actors.setdefault(name, NamedActor(name))
        try:
            await actor.call(READY, timeout_s=ANSWER_WITHIN_S)
        except TooSlow:
            if name in self._answered:
                self._watch.unheard(self._clock(), name, 1)
        except CallError:
            # It died, or starts.
            self._answered.discard(name)
        else:
            self._answered.add(name)
            self._watch.heard(self._clock(), name, 1, self._clock())
