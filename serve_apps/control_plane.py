"""The control plane of an application: its deployment, and the control API's two sides over the named actors.

The actors are detached and named: they live on when the replica of `ControlPlane`, the driver or Serve's
controller is killed, and a new replica finds them again. Only the orderly end of the application ends them.
Calls of them have a timeout, and their errors become faults of the API.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from ray import serve
from ray.serve.schema import LoggingConfig

from actors import names
from actors.connectors import connector_kind
from actors.connectors.external_scaling import keep_external_scaling
from actors.keeping import Keeper
from actors.names import CallError, NamedActor
from actors.planning.settings import dump, flatten
from actors.routing_actors import needs_router, routing_actors
from actors.store import StoreAway
from actors.virtual_connector import (
    AsyncVirtualConnectorClient,
    BadReport,
    CoordinatorUnreachable,
    TooManyWaiters,
    UnknownDecision,
)
from headway.config import ConfigError, HeadwayConfig, load_config
from headway.planning.documents import StatusDocument
from headway.planning.health import health
from headway.planning.status_text import facts, warnings
from serve_apps.faults import InvalidRequest, NeverIssued, NotFound, Shed, Unavailable

Document = Mapping[str, Any]
TIMEOUT_S = 5.0
HEALTH_TIMEOUT_S = 1.0

MOST_ONGOING = 4096
"""Calls on one replica. Engines and the gateway queue and shed by themselves."""

DRAINING_MARGIN_S, DRAINING_POLL_S = 30.0, 0.2
REPLICA_HEALTH_PERIOD_S, REPLICA_HEALTH_TIMEOUT_S = 2.0, 10.0


def deployment(kind: type, name: str, **options: Any) -> serve.Deployment:  # noqa: ANN401 - Serve's
    """A deployment of an application, with what all of ours have in common."""
    made: serve.Deployment = serve.deployment(
        name=name,
        graceful_shutdown_wait_loop_s=DRAINING_POLL_S,
        health_check_period_s=REPLICA_HEALTH_PERIOD_S,
        health_check_timeout_s=REPLICA_HEALTH_TIMEOUT_S,
        logging_config=LoggingConfig(enable_access_log=False),
        **options,
    )(kind)
    return made


class ActorControlPlane:
    """The control plane as its API asks it; `router` is the model's, `others` are asked for their health.

    Raises Unavailable, and InvalidRequest for settings.
    """

    def __init__(
        self, router: str, others: Sequence[str] = (), timeout_s: float = TIMEOUT_S, application: str = ""
    ) -> None:
        named = partial(NamedActor, application=application)
        self._planner, self._router = named(names.PLANNER), named(router)
        self._interpolator = named(names.INTERPOLATOR)
        self._others = tuple(map(named, others))
        self._timeout_s = timeout_s

    async def status(self) -> Document:
        """The status document."""
        status, *healths = await asyncio.gather(
            self._call(self._planner, "status"), *map(_health, self._others)
        )
        others = {actor.name: health for actor, health in zip(self._others, healths, strict=True)}
        return judged({**status, "components": {**status["components"], **others}}, time.time())

    async def decisions(self, after: int, limit: int) -> Sequence[Document]:
        """The first `limit` decisions with higher ids, in order."""
        found: Sequence[Document] = await self._call(self._planner, "decisions", after, limit)
        return found

    async def decision(self, decision_id: int) -> Document | None:
        """One decision, None if there is none with this id."""
        found: Document | None = await self._call(self._planner, "decision", decision_id)
        return found

    async def history(self, after: int) -> Document:
        """The decisions with higher ids as columns."""
        found: Document = await self._call(self._planner, "history", after)
        return found

    async def story(self, decision_id: int) -> Document | None:
        """One decision in words, None if there is none with this id."""
        found: Document | None = await self._call(self._planner, "story", decision_id)
        return found

    async def advice(self, since_s: float | None) -> Document:
        """What the plan of a dry run would have been worth in its last seconds, None: in all of it."""
        found: Document = await self._call(self._planner, "advice", since_s)
        return found

    async def offload_traces(self, limit: int) -> Sequence[Document]:
        """The latest `limit` offload traces of the router, in order."""
        found: Sequence[Document] = await self._call(self._router, "offload_traces", limit)
        return found

    async def profile(self) -> Document:
        """The samples of the profile that is planned by, as arrays in seconds and tokens, and its `meta`."""
        found: Document = await self._call(self._interpolator, "document")
        if not found:
            raise Unavailable("the profile is not loaded: `headway status` says why")
        return found

    async def update_settings(self, changes: Document, by: str) -> Document:
        """Change settings at run time, all of them or none; `by` names the author."""
        try:
            changed: Document = await self._call(self._planner, "update_settings", dict(changes), by)
        except StoreAway as error:
            raise Unavailable(str(error)) from error
        except ConfigError as error:
            raise InvalidRequest(str(error)) from error
        return changed

    async def _call(self, actor: NamedActor, method: str, *args: object) -> Any:  # noqa: ANN401 - of the method
        try:
            return await actor.call(method, *args, timeout_s=self._timeout_s)
        except CallError as error:
            raise Unavailable(str(error)) from error


class ActorScaling:
    """The virtual connector over HTTP. Raises Unavailable, NotFound, NeverIssued and InvalidRequest."""

    def __init__(self, timeout_s: float = TIMEOUT_S, application: str = "") -> None:
        self._client = AsyncVirtualConnectorClient(timeout_s, application)

    async def next(self, after: int | None, timeout_s: float) -> Document | None:
        """The newest decision above `after` (None: not answered yet), waited for; None when time is over."""
        async with _faults():
            try:
                return await self._client.wait(timeout_s, after)
            except UnknownDecision as error:
                raise NeverIssued(str(error), param="after") from error

    async def latest(self) -> Document | None:
        """The newest decision, None before the first."""
        async with _faults():
            return await self._client.get()

    async def complete(self, decision_id: int) -> bool:
        """The decision was carried out; whether this answer counts."""
        async with _faults():
            return await self._client.complete(decision_id)

    async def fail(self, decision_id: int, reason: str) -> bool:
        """The decision could not be carried out; whether this answer counts."""
        async with _faults():
            return await self._client.fail(decision_id, reason)

    async def report(self, pools: Mapping[str, Any]) -> Document:
        """Replicas of these pools now; the counts as understood."""
        async with _faults():
            return await self._client.report(pools)


def the_control_plane(config: HeadwayConfig, application: str, *, routes: bool = True) -> ActorControlPlane:
    """The control plane of that application; `routes` as it was started."""
    routing = routing_actors(config) if routes and needs_router(config) else ()
    return ActorControlPlane(names.router_of(config), routing, application=application)


def the_scaling(config: HeadwayConfig, application: str) -> ActorScaling | None:
    """What carries decisions out from outside; None where another connector does."""
    return ActorScaling(application=application) if connector_kind(config).decision_ids else None


def judged(status: Document, now_s: float) -> Document:
    """The status document with its health, under `verdict`, its warnings and its facts in words."""
    document = StatusDocument.model_validate(status)
    found = health(document, now_s)
    return {
        "verdict": {"state": found.state, "text": found.text, "well": found.well},
        "warnings": warnings(document, now_s),
        "facts": [{"name": fact.name, "text": fact.text, "ok": fact.ok} for fact in facts(document, now_s)],
        **status,
    }


async def _health(actor: NamedActor) -> Document:
    try:
        ok, detail = await actor.call("ready", timeout_s=HEALTH_TIMEOUT_S)
    except CallError as error:
        return {"ok": False, "detail": str(error)}
    return {"ok": ok, "detail": detail}


@asynccontextmanager
async def _faults() -> AsyncIterator[None]:
    try:
        yield
    except UnknownDecision as error:
        raise NotFound(str(error), param="decision_id") from error
    except BadReport as error:
        raise InvalidRequest(str(error), param=str(error).split(":")[0]) from error
    except TooManyWaiters as error:
        raise Shed(str(error), retry_after_s=1.0) from error
    except CoordinatorUnreachable as error:
        raise Unavailable(str(error)) from error


def with_settings(config: HeadwayConfig, over: Mapping[str, Any]) -> HeadwayConfig:
    """The settings with those of a `user_config` over them. ConfigError where they are wrong."""
    return load_config(None, {**dump(config), **flatten(over)})


class ControlPlane:
    """Serve deployment: starts the named actors, and keeps the application open to their replica counts.

    Its `user_config` holds settings over those of the application. Serve hands it over after the start, and
    again when it changes, without a restart of anything: settings that the planner can take while it runs are
    in force at once; for others the actors are replaced, while gateway and engines go on.
    """

    def __init__(self, config: HeadwayConfig) -> None:
        self._config, self._keeper = config, Keeper()
        self._application = serve.get_replica_context().app_name
        self._scaling: asyncio.Task[None] | None = None

    async def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Run by the settings with these over them. ConfigError where they are wrong."""
        await self._keeper.serve({self._application: with_settings(self._config, user_config)})
        if self._scaling is None:
            self._scaling = asyncio.create_task(keep_external_scaling(self._application))

    async def __del__(self) -> None:
        if self._scaling is not None:
            self._scaling.cancel()
        await self._keeper.close()
