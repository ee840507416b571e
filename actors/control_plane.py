"""Starts, updates and ends the named actors together: for `headway up` and `down`, and the Serve application.

    start(config, application)    safe to repeat: attaches where the settings are the same, and hands those to
                                  the planner that it can take while running; where others differ, the actors
                                  are replaced and go on from what is stored
    stop(purge=False)             ends them all; the store stays (ids go on) unless purged
    revive(config, ..., token)    starts again what is not there: Ray gives up actors whose constructors raise

Each start gives a token. `stop(token=...)` does nothing when another start has come since, so that the
orderly end of an old deployment does not end the control plane of the new one.

One cluster has one control plane. `control_plane/owner` in the store says for which application it runs and
with which settings; while that application is alive, another one is refused. All calls block; they are for
drivers and for constructors, and need `ray.init`.

    ControlPlaneError(Exception)    the actors belong to another live application, one did not start, or
                                    an address in the settings cannot work on several hosts
"""

import hashlib
import json
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from actors import hosts, names
from actors.connectors import connector_kind
from actors.planning.settings import CONFIGURATION, SETTINGS, STARTED, fixed
from actors.routing_actors import needs_router, routing_actors
from actors.store import InternalKvStore, Store
from actors.stored import Kind, put, read
from headway.config import HeadwayConfig

logger = logging.getLogger(__name__)

OWNER = "control_plane/owner"
OWNED = Kind("owner", dict[str, Any])
START_S = 180.0
"""Seconds for an actor to start: on a new installation the router compiles what it decides by."""

TIMEOUT_S = 60.0
POLL_S = 0.1
LIVE = {"RUNNING", "DEPLOYING", "UNHEALTHY", "DEPLOY_FAILED"}


class ControlPlaneError(Exception):
    """The control plane cannot be started here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The application that the running actors serve, and a checksum of what they cannot change."""

    application: str
    settings: str


def start(config: HeadwayConfig, application: str, *, routes: bool = True) -> str:
    """Have all actors run for this application with these settings, and the planner plan; a token.

    Without `routes` others route the requests, and none of the actors does.
    """
    if refusal := hosts.unreachable_source(config, hosts.addresses()):
        raise ControlPlaneError(refusal)
    store = InternalKvStore()
    settings = settings_json(config)
    kept = json.dumps(fixed(config), sort_keys=True)
    owner = Owner(application=application, settings=hashlib.sha256(kept.encode()).hexdigest())
    before = _owner(store)
    if before is not None and before.application != application and is_live(before.application):
        raise ControlPlaneError(
            f"the control plane in this cluster serves {before.application!r}, which is live; "
            f"end that one first (headway down), or run {application!r} in another cluster"
        )
    if before is not None and before != owner:
        logger.info("the control plane starts anew for %s with other settings", application)
        _relieve(store, before)
        _end(running())
    if before is not None and before.application != application:
        store.delete(STARTED)
    token = uuid.uuid4().hex
    put(store, OWNED, OWNER, {**asdict(owner), "token": token})
    # Also for a planner that Ray restarts: it was made with settings that may be older.
    put(store, CONFIGURATION, SETTINGS, settings)
    _bring_up(config, application, routes=routes)
    return token


def revive(config: HeadwayConfig, application: str, token: str, *, routes: bool = True) -> tuple[str, ...]:
    """Start the actors that are not there, as `start` did that gave this token; their names.

    None once another start has come, or an end. ControlPlaneError, RayError.
    """
    owner = read(InternalKvStore(), OWNED, OWNER, lambda stored: stored["token"], own=False)
    there = running()
    gone = tuple(name for name in _names(config, routes=routes) if name not in there)
    if not gone or owner != token:
        return ()
    logger.warning("not there, and started again: %s", ", ".join(gone))
    _bring_up(config, application, routes=routes)
    return gone


def end_again(name: str) -> None:
    """End an actor that hangs; Ray starts it again."""
    if (actor := names.find_actor(name)) is not None:
        ray.kill(actor, no_restart=False)


def stop(purge: bool = False, token: str | None = None, application: str | None = None) -> None:
    """End all actors, for good. `purge` also forgets what they stored: decisions, history, calibration.

    With `application`, actors that serve another one, which is live, stay as they are.
    """
    store = InternalKvStore()
    owner = None if application is None else _owner(store)
    if owner is not None and owner.application != application and is_live(owner.application):
        return
    if token is not None and read(store, OWNED, OWNER, lambda stored: stored["token"]) != token:
        return
    # First: a planner that Ray restarts while it is being ended must not plan again.
    store.delete(STARTED)
    if (ending := _owner(store)) is not None:
        _relieve(store, ending)
    _end(running())
    store.delete(OWNER)
    store.delete(SETTINGS)
    for key in store.keys() if purge else ():
        store.delete(key)


def running() -> tuple[str, ...]:
    """The names of our actors that are there; routers last."""
    there = {
        actor["name"]
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["namespace"] == names.NAMESPACE
    }
    routers = sorted(name for name in there if name.startswith(names.ROUTER_PREFIX))
    return (*(name for name in names.ACTORS if name in there), *routers)


def settings_json(config: HeadwayConfig) -> str:
    """The settings as the actors get them: without the API keys, which they do not need."""
    return config.model_dump_json(exclude={"gateway": {"api_keys"}})


def is_live(application: str) -> bool:
    """True if Serve runs an application of that name."""
    from ray import serve
    from ray.serve.exceptions import RayServeException

    try:
        found = serve.status().applications.get(application)
    except (RayError, RayServeException):
        return False
    return found is not None and found.status in LIVE


def _owner(store: Store) -> Owner | None:
    """The owner of actors that run; None when none of them does."""

    def use(stored: Mapping[str, Any]) -> Owner:
        return Owner(application=stored["application"], settings=stored["settings"])

    return read(store, OWNED, OWNER, use) if running() else None


def _relieve(store: Store, owner: Owner) -> None:
    """Nobody's token is the owner's any more: who keeps the actors there must not revive what is ended."""
    put(store, OWNED, OWNER, {**asdict(owner), "token": ""})


def _names(config: HeadwayConfig, *, routes: bool) -> tuple[str, ...]:
    """What `_create` makes."""
    virtual = (names.VIRTUAL_CONNECTOR, names.VIRTUAL_CONNECTOR_CLIENT)
    return (
        names.METRIC_COLLECTOR,
        names.PREDICTOR,
        names.INTERPOLATOR,
        *(virtual if connector_kind(config).decision_ids else ()),
        *(routing_actors(config) if routes and needs_router(config) else ()),
        names.PLANNER,
    )


def _bring_up(config: HeadwayConfig, application: str, *, routes: bool) -> None:
    """Create what is not there, wait for all of it, and have the planner plan."""
    settings = settings_json(config)
    actors = _create(config, settings, application, routes=routes)
    for name, actor in actors.items():
        _call(actor, "__ray_ready__", name)
    _call(actors[names.PLANNER], "configure", names.PLANNER, settings)
    _call(actors[names.PLANNER], "start", names.PLANNER)


def _create(config: HeadwayConfig, settings: str, application: str, *, routes: bool) -> dict[str, Any]:
    """Handles of all actors by name, created where they do not run; the planner last, as it asks the others.

    Routing has its actors where every request needs them; else the first gateway that does makes them.
    """
    from actors.interpolator import Interpolator
    from actors.metric_collector import MetricCollector
    from actors.planner import Planner
    from actors.predictor import Predictor
    from actors.routing_actors import start_routing
    from actors.virtual_connector import start_client, start_coordinator

    start = names.start_actor
    actors = {
        names.METRIC_COLLECTOR: start(MetricCollector, names.METRIC_COLLECTOR, settings, application),
        names.PREDICTOR: start(Predictor, names.PREDICTOR, settings),
        names.INTERPOLATOR: start(Interpolator, names.INTERPOLATOR, settings, max_concurrency=4),
    }
    if connector_kind(config).decision_ids:
        actors[names.VIRTUAL_CONNECTOR] = start_coordinator(settings)
        actors[names.VIRTUAL_CONNECTOR_CLIENT] = start_client()
    if routes and needs_router(config):
        actors |= start_routing(config)
    actors[names.PLANNER] = start(Planner, names.PLANNER, settings, application)
    return actors


def _call(actor: Any, method: str, name: str, *args: object) -> None:  # noqa: ANN401
    try:
        ray.get(getattr(actor, method).remote(*args), timeout=START_S)
    except GetTimeoutError as error:
        raise ControlPlaneError(f"{name} did not start within {START_S:g} s") from error
    except RayError as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ControlPlaneError(f"{name} did not start: {lines[-1]}") from error


def _end(actors: tuple[str, ...]) -> None:
    """Kill them, the planner before what it asks, and wait until their names are free."""
    for name in reversed(actors):
        if (actor := names.find_actor(name)) is not None:
            ray.kill(actor, no_restart=True)
    until = time.monotonic() + TIMEOUT_S
    while any(names.find_actor(name) is not None for name in actors):
        if time.monotonic() > until:
            raise ControlPlaneError("the actors of the control plane do not end")
        time.sleep(POLL_S)
