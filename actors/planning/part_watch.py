"""Parts that hang, for `status`: actors, gateways and the replica that keeps them, if they do not answer the
planner, and engines on whose requests gateways see no progress (`serve_apps.silences`).

Every PERIOD_S each of those that Ray says is alive is asked, once for all applications. The control plane's
replica looks after the planner itself, and ends actors that do not answer (`actors.keeping`).
"""

import asyncio
import json
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any

from actors import names
from actors.collector.exposition import SourceDownError
from actors.collector.pages import ServePages
from actors.compat_ray import SERVE_NAMESPACE
from actors.names import CallError, NamedActor
from actors.planning.host_faults import REPLICA, HostWatch, parts
from headway.planning.silence import Silence, Watch

PERIOD_S, ANSWER_WITHIN_S = 1.0, 5.0


class PartWatch:
    """Looks until cancelled. `alive` gives the parts that run (`host_faults.parts`), `gateways` asks them."""

    def __init__(self, gateways: ServePages, alive: Callable[[], Collection[str]]) -> None:
        # Here: a look would import it twice at one time, in the thread that finds a replica of Serve and on
        # the loop, and its modules import each other.
        import ray.serve  # noqa: F401

        self._gateways, self._alive, self._clock = gateways, alive, time.monotonic
        self._watch = Watch()
        self._actors: dict[str, NamedActor] = {}
        self._engines: dict[str, Mapping[str, list[Silence]]] = {}
        """By gateway and application."""
        self._asking: dict[str, asyncio.Task[None]] = {}

    def silent(self, application: str) -> list[dict[str, Any]]:
        """The parts that hang, as the status document of an application has them."""
        shift_s = time.time() - self._clock()
        found = sorted(self._silent(application), key=lambda silence: silence.since_s)
        return [
            {"part": part, "since_s": since_s + shift_s, "requests": work or None}
            for part, since_s, work in found
        ]

    async def run(self) -> None:
        """Look every PERIOD_S."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.look()

    def look(self) -> None:
        """Ask all that have answered the last question."""
        now_s, alive = self._clock(), set(self._alive()) - {names.PLANNER}
        self._watch.begin(now_s)
        self._watch.keep(alive)
        gateways = {part for part in alive if part.startswith(f"{names.GATEWAY}#")}
        self._engines = {gateway: said for gateway, said in self._engines.items() if gateway in gateways}
        for part in alive:
            self._watch.unheard(now_s, part, 1)
            if part not in gateways:
                self._ask(part, self._actor(part))
        if gateways:
            self._ask(names.GATEWAY, self._all_gateways())

    def _ask(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if name in self._asking:
            work.close()
            return
        self._asking[name] = task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._asking.pop(name))

    async def _actor(self, name: str) -> None:
        with suppress(CallError):
            actor = self._actors.setdefault(name, self._named(name))
            await actor.call(names.READY, timeout_s=ANSWER_WITHIN_S)
            self._answered(name)

    def _named(self, part: str) -> NamedActor:
        if "#" not in part:
            return NamedActor(part)
        return NamedActor(f"{REPLICA}{self._gateways.application}#{part}", SERVE_NAMESPACE)

    async def _all_gateways(self) -> None:
        with suppress(SourceDownError):
            pages, _ = await self._gateways.ask("silent")
            now_s = self._clock()
            for page in pages:
                gateway = f"{names.GATEWAY}#{page.process}"
                self._answered(gateway)
                self._engines[gateway] = {
                    application: [Silence(part, now_s - age_s, work) for part, age_s, work in said]
                    for application, said in json.loads(page.text).items()
                }

    def _answered(self, part: str) -> None:
        now_s = self._clock()
        self._watch.heard(now_s, part, 1, now_s)

    def _silent(self, application: str) -> Iterator[Silence]:
        """Without requests those that do not answer; engines with the requests of all gateways."""
        for silence in self._watch.silent(self._clock()):
            yield silence._replace(work=0)
        engines: dict[str, Silence] = {}
        for silence in (each for said in self._engines.values() for each in said.get(application, ())):
            known = engines.get(silence.part, silence._replace(work=0))
            since_s = min(known.since_s, silence.since_s)
            engines[silence.part] = Silence(silence.part, since_s, known.work + silence.work)
        yield from engines.values()


class Watches:
    """The watches of a process: of hosts, of named actors (""), and of the gateways of each application."""

    def __init__(self) -> None:
        self.hosts = HostWatch()
        self._parts: dict[str, PartWatch] = {}
        self._looking: list[asyncio.Task[None]] = []

    def join(self, front: str) -> None:
        """Watch the parts of an application, as long as there are any."""
        if not self._looking:
            self._looking.append(asyncio.create_task(self.hosts.run()))
        for each in {"", front} - self._parts.keys():
            watch = PartWatch(ServePages(each, ANSWER_WITHIN_S), partial(self._alive, each))
            self._parts[each] = watch
            self._looking.append(asyncio.create_task(watch.run()))

    def silent(self, application: str, front: str) -> list[dict[str, Any]]:
        """The parts of an application that hang, as its status document has them."""
        return [each for whose in ("", front) for each in self._parts[whose].silent(application)]

    def _alive(self, front: str) -> Collection[str]:
        return [part for part in parts(self.hosts.actors, front) if ("#" in part) == bool(front)]


@cache
def watches() -> Watches:
    """Those of this process."""
    return Watches()
