"""Starts, updates and ends the named actors together, for `headway up` and `down` and Serve applications.

    start(config, application)    safe to repeat: attaches where the settings are the same, and hands those to
                                  the planner that it can take while running; where others differ, what the
                                  actors have of the application is replaced, and goes on from what is stored
    stop(purge=False)             ends them all; the store stays (ids go on) unless purged
    revive(config, ..., token)    starts again what is not there: Ray gives up actors whose constructors raise

Each start gives a token. `stop(token=...)` does nothing when another start has come since, so that the
orderly end of an old deployment does not end the control plane of the new one.

One cluster has one control plane, which serves any number of applications, each with a model of its own: the
actors have a part for each (`actors.hosting`), routers are one a model. `actors.applications` knows which.
Those that are not alive any more are let go of when another starts or stops. All calls block; they are for
drivers and for constructors, and need `ray.init`.

    ControlPlaneError(Exception)    a model has its application already, an actor did not start, or an address
                                    in the settings cannot work on several hosts
"""

import hashlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from actors import hosts, names
from actors.applications import Served, applications, forget, host_of, place_of, register, served
from actors.connectors import connector_kind
from actors.hosting import Make, hosting
from actors.planning.settings import CONFIGURATION, SETTINGS, STARTED, fixed
from actors.routing_actors import needs_router, routing_actors
from actors.store import InternalKvStore, Store
from actors.stored import put
from headway.config import HeadwayConfig

logger = logging.getLogger(__name__)

START_S = 180.0
"""Seconds for an actor to start: on a new installation the router compiles what it decides by."""

TIMEOUT_S = 60.0
POLL_S = 0.1
LIVE = {"RUNNING", "DEPLOYING", "UNHEALTHY", "DEPLOY_FAILED"}


class ControlPlaneError(Exception):
    """The control plane cannot be started here."""


def start(config: HeadwayConfig, application: str, *, routes: bool = True) -> str:
    """Have all actors serve this application with these settings, and its planner plan; a token.

    Without `routes` others route the requests, and none of the actors does.
    """
    if refusal := hosts.unreachable_source(config, hosts.addresses()):
        raise ControlPlaneError(refusal)
    store = InternalKvStore()
    known = applications(store)
    others = _others(known, application)
    if taken := next((name for name, each in others.items() if each.model == config.model), None):
        raise ControlPlaneError(
            f"the application {taken!r} of this cluster serves {config.model!r} already; "
            f"end that one first, or run {application!r} in another cluster"
        )
    settings, before = settings_json(config), known.get(application)
    kept = hashlib.sha256(json.dumps(fixed(config), sort_keys=True).encode()).hexdigest()
    same = before is not None and before.checksum == kept
    rest = {name: each for name, each in known.items() if name in others or (name == application and same)}
    if known.keys() != rest.keys():
        logger.info("the control plane goes on without %s", ", ".join(known.keys() - rest.keys()))
        _leave(store, known, rest, coming=application)
    if known and before is None and not others:
        store.delete(STARTED)
    mine = Served(
        settings=settings,
        checksum=kept,
        token=uuid.uuid4().hex,
        prefix=place_of(store, application),
        model=config.model,
    )
    register(store, application, mine)
    # Also for a planner that Ray restarts: it was made with settings that may be older.
    put(InternalKvStore(mine.prefix), CONFIGURATION, SETTINGS, settings)
    _bring_up(config, application, routes=routes)
    return mine.token


def revive(
    config: HeadwayConfig, application: str, token: str, there: Collection[str], *, routes: bool = True
) -> tuple[str, ...]:
    """Start the actors that are not `there`, as `start` did that gave this token; their names.

    None once another start has come, or an end. ControlPlaneError, RayError.
    """
    gone = tuple(name for name in _names(config, routes=routes) if name not in there)
    if not gone or (mine := served(InternalKvStore(), application)) is None or mine.token != token:
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

    With `application`, or the `token` of its last start, nothing ends that serves another one, which is live.
    """
    store = InternalKvStore()
    known = applications(store)
    if token is not None:
        application = next((name for name, each in known.items() if each.token == token), None)
        if application is None:
            return
    rest = {} if application is None else _others(known, application)
    for name, each in known.items():
        if name not in rest:
            own = InternalKvStore(each.prefix)
            # First: a planner that Ray restarts while it is being ended must not plan again.
            own.delete(STARTED)
            own.delete(SETTINGS)
    _leave(store, known, rest)
    if not rest:
        store.delete(STARTED)
        store.delete(SETTINGS)
    for key in store.keys() if purge and not rest else ():
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


def live() -> frozenset[str] | None:
    """The applications that Serve runs; None where it does not answer."""
    from ray import serve
    from ray.serve.exceptions import RayServeException

    try:
        found = serve.status().applications
    except (RayError, RayServeException):
        return None
    return frozenset(name for name, each in found.items() if each.status in LIVE)


def _others(known: Mapping[str, Served], application: str) -> Mapping[str, Served]:
    """Those of the other applications that are alive, as far as is known."""
    there = live()
    return {
        name: each
        for name, each in known.items()
        if name != application and (there is None or name in there or host_of(name, each) in there)
    }


def _leave(store: Store, known: Mapping[str, Served], rest: Mapping[str, Served], coming: str = "") -> None:
    """Serve nobody but the rest any more: without any, all actors end. `coming` keeps its place in the store.

    The others are forgotten first: neither who keeps the actors nor a restarted one must make what is ended.
    """
    for name in known.keys() - rest.keys():
        forget(store, name, comes_again=name == coming)
    if not rest:
        _end(running())
        return
    kept = {_router(each) for each in rest.values()}
    for name in known.keys() - rest.keys():
        router, there = _router(known[name]), set(running())
        for host in (names.HOSTS | ({router} & kept)) & there:
            if (actor := names.find_actor(host)) is not None:
                _call(actor, "remove", host, name)
        if router not in kept:
            _end(tuple({router} & there))


def _router(served: Served) -> str:
    return names.router_of(HeadwayConfig.model_validate_json(served.settings))


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
        _call(actor, names.READY, name)
        if names.hosts(name):
            _call(actor, "add", name, application, settings)
    _call(actors[names.PLANNER], "configure", names.PLANNER, settings, application=application)
    _call(actors[names.PLANNER], "start", names.PLANNER, application=application)


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

    def start(name: str, kind: type, make: Make, **options: object) -> Any:  # noqa: ANN401 - a handle
        return names.start_actor(hosting(kind, make), name, {application: settings}, **options)

    actors = {
        names.METRIC_COLLECTOR: start(names.METRIC_COLLECTOR, MetricCollector, MetricCollector),
        names.PREDICTOR: start(names.PREDICTOR, Predictor, _without_application(Predictor)),
        names.INTERPOLATOR: start(
            names.INTERPOLATOR, Interpolator, _without_application(Interpolator), max_concurrency=4
        ),
    }
    if connector_kind(config).decision_ids:
        actors[names.VIRTUAL_CONNECTOR] = start_coordinator(settings, application)
        actors[names.VIRTUAL_CONNECTOR_CLIENT] = start_client()
    if routes and needs_router(config):
        actors |= start_routing(config, application)
    actors[names.PLANNER] = start(names.PLANNER, Planner, Planner)
    return actors


def _without_application(kind: Callable[[str, Store], Any]) -> Make:
    return lambda settings, _, store: kind(settings, store)


def _call(actor: Any, method: str, name: str, *args: object, **more: object) -> None:  # noqa: ANN401
    try:
        ray.get(getattr(actor, method).remote(*args, **more), timeout=START_S)
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
