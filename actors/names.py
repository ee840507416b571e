"""The named actors: names that other programs rely on, how actors are created, and calls with a timeout.

Ray's many errors are brought down to three outcomes of a call:

    CallError(Exception)
    ├── NotConnected    this process has not joined a cluster
    ├── ActorGone       there is no such actor, or it died during the call; it may be back soon
    └── TooSlow         no answer in time; the call has been cancelled
    and whatever the method itself raised, as it was raised

A handle is looked up once and again after `ActorGone`: an actor that was created anew has another handle.
Ray's own retries are off here: they would start a call again with its full time, so the caller decides.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from actors.hosts import on_head

if TYPE_CHECKING:
    from headway.config import HeadwayConfig

NAMESPACE = "headway"

METRIC_COLLECTOR = "MetricCollector"
PREDICTOR = "Predictor"
INTERPOLATOR = "Interpolator"
PLANNER = "Planner"
VIRTUAL_CONNECTOR = "VirtualConnectorCoordinator"
VIRTUAL_CONNECTOR_CLIENT = "VirtualConnectorClient"
LATENCY_TRAINER = "LatencyTrainer"
GATEWAY, CONTROL_PLANE = "Gateway", "ControlPlane"
"""The deployments of a Serve application that are its gateway, and that keep its actors."""

ROUTER_PREFIX = "Router:"
"""Routers are named after the model whose requests they route, or the fleet: one shard each."""

ACTORS = (
    METRIC_COLLECTOR,
    PREDICTOR,
    INTERPOLATOR,
    PLANNER,
    VIRTUAL_CONNECTOR,
    VIRTUAL_CONNECTOR_CLIENT,
    LATENCY_TRAINER,
)
"""All but the routers, whose names depend on the model (`router`)."""


HOSTS = frozenset(ACTORS) - {VIRTUAL_CONNECTOR_CLIENT}
"""Those that have a part for each application; so have routers, for those of a fleet."""

READY = "__ray_ready__"
"""A method of every actor, which answers as soon as its loop or one of its threads is free."""


def router(of: str) -> str:
    """The name of the router of a model, or of a fleet."""
    return ROUTER_PREFIX + of


def router_of(config: "HeadwayConfig") -> str:
    """The name of the actor that routes requests by these settings: of the model, or of all of a fleet."""
    return router((not config.routing.own_process and config.fleet.application) or config.model)


def hosts(name: str) -> bool:
    """True for an actor that has a part for each application that it serves."""
    return name in HOSTS or name.startswith(ROUTER_PREFIX)


def detached(name: str) -> dict[str, Any]:
    """Options of a named actor that outlives its creator and restarts however often it dies."""
    return {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "max_task_retries": 3,
        "num_cpus": 0,
    }


def start_actor(kind: type, name: str, *args: object, **options: object) -> Any:  # noqa: ANN401
    """The handle of the detached actor of that name, made from `args` unless it runs, on the head if it fits.

    `options` are Ray's.
    """
    import ray

    return ray.remote(kind).options(**{**detached(name), **on_head(), **options}).remote(*args)


def find_actor(name: str) -> Any:  # noqa: ANN401 - an actor handle, or None
    """The handle of one of our actors, None where there is none of that name. Blocks."""
    import ray

    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


class CallError(Exception):
    """Base of what a call raises besides the method's own errors."""


class NotConnected(CallError):
    """This process has not joined a cluster."""


class ActorGone(CallError):
    """There is no such actor, or it died during the call."""


class TooSlow(CallError):
    """No answer in time."""


class NamedActor:
    """One actor by its name, for coroutines (`call`) and for plain code (`call_now`).

    Of those that have a part for each application (`actors.hosting`) that of `application`, by default the
    first.
    """

    def __init__(self, name: str, namespace: str = NAMESPACE, application: str = "") -> None:
        self.name = name
        self._namespace = namespace
        self._whose = {"application": application} if application and hosts(name) else {}
        self._handle: Any = None

    async def call(self, method: str, *args: object, timeout_s: float) -> Any:  # noqa: ANN401
        """The method's answer. Ended early, by whatever cancels it, it ends in the actor too."""
        ref = await asyncio.to_thread(self._submit, method, args)
        try:
            async with asyncio.timeout(timeout_s):
                return await ref
        except TimeoutError:
            self._cancel(ref)
            raise self._too_slow(method, timeout_s) from None
        except asyncio.CancelledError:
            self._cancel(ref)
            raise
        except _ray_errors() as error:
            raise self._translated(error) from None

    def call_now(self, method: str, *args: object, timeout_s: float) -> Any:  # noqa: ANN401
        """The method's answer, for code without an event loop."""
        import ray
        from ray.exceptions import GetTimeoutError

        ref = self._submit(method, args)
        try:
            return ray.get(ref, timeout=timeout_s)
        except GetTimeoutError:
            self._cancel(ref)
            raise self._too_slow(method, timeout_s) from None
        except _ray_errors() as error:
            raise self._translated(error) from None

    def _submit(self, method: str, args: tuple[object, ...]) -> Any:  # noqa: ANN401
        try:
            if self._handle is None:
                self._handle = self._found()
            whose = {} if method == READY else self._whose
            return getattr(self._handle, method).options(max_task_retries=0).remote(*args, **whose)
        except _ray_errors() as error:
            raise self._translated(error) from None

    def _found(self) -> Any:  # noqa: ANN401
        import ray

        if not ray.is_initialized():
            raise NotConnected("connect to the cluster first, with ray.init(address=...)")
        try:
            return ray.get_actor(self.name, namespace=self._namespace)
        except ValueError:
            raise ActorGone(f"there is no actor {self.name} in the namespace {self._namespace}") from None

    def _translated(self, error: Exception) -> Exception:
        from ray.exceptions import RayTaskError

        if isinstance(error, RayTaskError):
            return error.cause if isinstance(error.cause, Exception) else error
        self._handle = None
        first_line = (str(error).strip() or repr(error)).splitlines()[0]
        return ActorGone(f"{self.name} is not there: {first_line}")

    def _too_slow(self, method: str, timeout_s: float) -> TooSlow:
        return TooSlow(f"{self.name}.{method} did not answer within {timeout_s:.1f} s")

    @staticmethod
    def _cancel(ref: Any) -> None:  # noqa: ANN401
        import ray

        ray.cancel(ref)


def _ray_errors() -> tuple[type[Exception], ...]:
    """The errors of Ray for an actor, or a Ray Client server, that is not there."""
    from ray.exceptions import RayError

    return RayError, ConnectionError
