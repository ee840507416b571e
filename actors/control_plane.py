"""Starts, updates and ends the named actors together, for `headway up` and `down` and Serve applications.

    start({application: config})  safe to repeat: attaches where the settings are the same, and hands those to
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
from dataclasses import replace
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


def start(
    coming: Mapping[str, HeadwayConfig], *, routes: bool = True
) -> Mapping[str, "str | ControlPlaneError"]:
    """Have all actors serve these applications with these settings, and their planners plan; by application a
    token, or why it cannot be. Without `routes` others route the requests, and none of the actors does.
    """
    store = InternalKvStore()
    known, addresses = applications(store), hosts.addresses()
    others = _others(known, coming)
    found, fresh = dict[str, str | ControlPlaneError](), dict[str, Served]()
    for name, config in coming.items():
        refusal = hosts.unreachable_source(config, addresses) or _taken(name, config, {**others, **fresh})
        if refusal:
            found[name] = ControlPlaneError(refusal)
        else:
            fresh[name] = _served(config)
    changed = {name for name in fresh.keys() & known.keys() if known[name].checksum != fresh[name].checksum}
    stay = (others.keys() | coming.keys()) - changed
    rest = {name: each for name, each in known.items() if name in stay}
    if known.keys() != rest.keys():
        logger.info("the control plane goes on without %s", ", ".join(known.keys() - rest.keys()))
        _leave(store, known, rest, coming=changed)
    if known and not known.keys() & (others.keys() | coming.keys()):
        store.delete(STARTED)
    for name, mine in fresh.items():
        placed = replace(mine, prefix=place_of(store, name))
        register(store, name, placed)
        # Also for a planner that Ray restarts: it was made with settings that may be older.
        put(InternalKvStore(placed.prefix), CONFIGURATION, SETTINGS, mine.settings)
    failed = _bring_up({name: coming[name] for name in fresh}, routes=routes)
    return {**{name: mine.token for name, mine in fresh.items()}, **found, **failed}


def _served(config: HeadwayConfig) -> Served:
    """What is known of an application with these settings, but its place in the store."""
    kept = hashlib.sha256(json.dumps(fixed(config), sort_keys=True).encode()).hexdigest()
    settings, token = settings_json(config), uuid.uuid4().hex
    return Served(settings=settings, checksum=kept, token=token, prefix="", model=config.model)


def _taken(application: str, config: HeadwayConfig, others: Mapping[str, Served]) -> str:
    """Why it cannot have its model; empty if it can, as those of one fleet can, to which it spills over."""
    fleet = config.fleet.application
    taken = (
        f"the application {name!r} of this cluster serves {config.model!r} already; "
        f"end that one first, or run {application!r} in another cluster"
        for name, each in others.items()
        if each.model == config.model
        and not (fleet and json.loads(each.settings)["fleet"]["application"] == fleet)
    )
    return next(taken, "")


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
    for failure in _bring_up({application: config}, routes=routes).values():
        raise failure
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
    rest = {} if application is None else _others(known, {application})
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


def _others(known: Mapping[str, Served], but: Collection[str]) -> Mapping[str, Served]:
    """Those of the applications but these that are alive, as far as is known."""
    there = live()
    return {
        name: each
        for name, each in known.items()
        if name not in but and (there is None or name in there or host_of(name, each) in there)
    }


def _leave(
    store: Store, known: Mapping[str, Served], rest: Mapping[str, Served], coming: Collection[str] = ()
) -> None:
    """Serve nobody but the rest any more: without any, all actors end. Those `coming` keep their place in the
    store.

    The others are forgotten first: neither who keeps the actors nor a restarted one must make what is ended.
    """
    for name in known.keys() - rest.keys():
        forget(store, name, comes_again=name in coming)
    if not rest:
        _end(running())
        return
    kept = {_router(each) for each in rest.values()}
    for name in known.keys() - rest.keys():
        router, there = _router(known[name]), set(running())
        for host in (names.HOSTS | ({router} & kept)) & there:
            if (actor := names.find_actor(host)) is not None:
                _wait(actor.remove.remote(name), host, time.monotonic() + START_S)
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


def _bring_up(coming: Mapping[str, HeadwayConfig], *, routes: bool) -> Mapping[str, ControlPlaneError]:
    """Create what is not there, wait for it, and have the planner plan; what failed, by application."""
    settings = {application: settings_json(config) for application, config in coming.items()}
    wanted = {application: _names(config, routes=routes) for application, config in coming.items()}
    actors, failed = dict[str, Any](), dict[str, ControlPlaneError]()
    for application, config in coming.items():
        if not actors.keys() >= set(wanted[application]):
            actors |= _create(config, settings[application], application, routes=routes)

    def call(name: str, method: str, given: Callable[[str], Mapping[str, str]]) -> None:
        those = [each for each in coming if name in wanted[each] and each not in failed]
        asked = {each: getattr(actors[name], method).remote(**given(each)) for each in those}
        until_s = time.monotonic() + START_S + len(asked)
        for each, answer in asked.items():
            try:
                _wait(answer, name, until_s)
            except ControlPlaneError as error:
                failed[each] = error

    for name in sorted(actors, key=names.PLANNER.__eq__):
        if names.hosts(name):
            call(name, "add", lambda each: {"application": each, "settings": settings[each]})
        else:
            call(name, names.READY, lambda _: {})
    call(names.PLANNER, "configure", lambda each: {"application": each, "config_json": settings[each]})
    call(names.PLANNER, "start", lambda each: {"application": each})
    return failed


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


def _wait(answer: Any, name: str, until_s: float) -> None:  # noqa: ANN401 - an object reference
    try:
        ray.get(answer, timeout=max(0.0, until_s - time.monotonic()))
    except GetTimeoutError as error:
        raise ControlPlaneError(f"{name} did not start in time") from error
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
