"""Replicas of Ray Serve that sleep instead of going: a controller of Serve in front of which counts are of
those that are awake.

A pool with k sleepers of which n replicas are wanted has max(n, k) in Serve, and all but n of them are told
to rest (`serve_apps.sleeping`), the emptiest first. k is what the pool states, or less by a decision
(`headway.planning.sleeping`). Each look makes that so again, as replicas come and go. As the planner sees it

    asleep     there is no such replica
    waking     it starts
    falling    it drains

The count that is wanted is not kept in Serve. A planner that comes back takes those for wanted that are not
told to rest.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from actors.connectors.protocol import ConnectorError
from actors.connectors.served import ServedDeployment

RESTS_WITHIN_S = 2.0
AT_REST = ("falling", "asleep")
STATES = {"falling": "STOPPING", "waking": "STARTING"}
"""Of a replica that rests, as Serve would say it."""

logger = logging.getLogger(__name__)


class Controller(Protocol):
    """Serve's controller (`ray_serve.ControllerActor`), or this in front of it."""

    async def read(self, name: str) -> ServedDeployment:
        """The deployment now."""

    async def scale(self, name: str, replicas: int) -> None:
        """Ask for that many replicas."""


Said = Mapping[str, Any]
Tell = Callable[[str, str, bool | None], Awaitable[Said]]
"""Deployment, replica, whether it is to sleep (None: as it does) → what it says (`EngineReplica.rest`)."""


def told(wanted: int, target: int, said: Mapping[str, Said]) -> Mapping[str, bool]:
    """Who is to change: True to sleep, False to wake. Of the replicas that run `wanted` are to be awake."""
    resting = [name for name, each in said.items() if each.get("rest") in AT_REST]
    more = max(0, min(target, len(said)) - wanted) - len(resting)
    if more < 0:
        # One that is still falling asleep is awake at once.
        first = sorted(resting, key=lambda name: said[name]["rest"] != "falling")
        return dict.fromkeys(first[:-more], False)
    awake = sorted(said.keys() - set(resting), key=lambda name: (_worth(said[name]), name))
    return dict.fromkeys(awake[:more], True)


def _worth(said: Said) -> tuple[bool, int]:
    return said.get("rest", "awake") == "awake", int(said.get("requests", 0))


@dataclass(frozen=True, slots=True)
class _Asked:
    wanted: int
    target: int


class Sleepers:
    """See the module; `sleepers` by the name of the deployment."""

    def __init__(self, controller: Controller, sleepers: Mapping[str, int], tell: Tell) -> None:
        self._controller, self._sleepers, self._tell = controller, sleepers, tell
        self._kept = dict(sleepers)
        self._asked: dict[str, _Asked] = {}

    def keep(self, name: str, sleepers: int | None) -> None:
        """From the next `scale` on; None: as many as are stated."""
        self._kept[name] = self._sleepers.get(name, 0) if sleepers is None else sleepers

    async def read(self, name: str) -> ServedDeployment:
        """The deployment with those that are awake, or will be."""
        found = await self._controller.read(name)
        if not self._sleepers.get(name):
            return found
        said = await self._settled(name, found)
        asked = self._asked.get(name)
        if asked is not None and asked.target == found.target:
            wanted = asked.wanted
        else:
            # Somebody else has set Serve's count, or this planner has not yet.
            wanted = max(0, found.target - sum(each.get("rest") in AT_REST for each in said.values()))
        return replace(
            found,
            target=wanted,
            asleep=sum(each.get("rest") == "asleep" for each in said.values()),
            crowded=any(each.get("wanted") and not each.get("requests") for each in said.values()),
            replicas=tuple(
                replace(each, state=STATES.get(rest, each.state))
                for each in found.replicas
                if (rest := str(said.get(each.replica, {}).get("rest"))) != "asleep"
            ),
        )

    async def scale(self, name: str, replicas: int) -> None:
        """Ask for that many that are awake."""
        asked = _Asked(replicas, max(replicas, self._kept.get(name, 0)))
        await self._controller.scale(name, asked.target)
        if self._sleepers.get(name):
            self._asked[name] = asked
            await self._settled(name, await self._controller.read(name))

    async def _settled(self, name: str, found: ServedDeployment) -> Mapping[str, Said]:
        """How its replicas rest, once those that are to change have been told."""
        running = [each.replica for each in found.replicas if each.state == "RUNNING"]
        said = await self._all(name, dict.fromkeys(running))
        asked = self._asked.get(name)
        if asked is None or asked.target != found.target or len(said) < len(running):
            return said
        return {**said, **await self._all(name, told(asked.wanted, asked.target, said))}

    async def _all(self, name: str, orders: Mapping[str, bool | None]) -> Mapping[str, Said]:
        """The answers of those that answer."""
        answers = await asyncio.gather(*(self._one(name, *order) for order in orders.items()))
        return {replica: said for replica, said in zip(orders, answers, strict=True) if said is not None}

    async def _one(self, name: str, replica: str, asleep: bool | None) -> Said | None:
        try:
            async with asyncio.timeout(RESTS_WITHIN_S):
                return await self._tell(name, replica, asleep)
        except (ConnectorError, TimeoutError) as error:
            logger.debug("%s does not say whether it sleeps: %s", replica, error)
            return None


class ReplicaCalls:
    """`Tell` over handles of Serve."""

    def __init__(self, application: str) -> None:
        self._application, self._handles = application, dict[str, Any]()

    async def __call__(self, name: str, replica: str, asleep: bool | None) -> Said:
        """What the replica says. ConnectorError."""
        from ray import serve

        try:
            if name not in self._handles:
                self._handles[name] = await asyncio.to_thread(
                    serve.get_deployment_handle, name, self._application
                )
            handle = self._handles[name].options(method_name="rest", session_id=replica)
            said: Said = await handle.remote(asleep)
            return said
        except Exception as error:
            # Of Ray, of Serve, and of the application's own choice of replicas.
            raise ConnectorError(f"{type(error).__name__}: {error}") from error


def in_front(controller: Controller, sleepers: Mapping[str, int], application: str) -> Controller:
    """The controller of an application whose pools may sleep."""
    return Sleepers(controller, sleepers, ReplicaCalls(application)) if any(sleepers.values()) else controller
