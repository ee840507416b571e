"""The actor that routes: `headway.routing.Router` with a clock, a timer and several gateways.

Named after the model, or after the fleet, of which it has a part for each deployment (`actors.hosting`). It
follows the planner's SLO (`actors.planning.settings`), to which requests without one are held, and the
Interpolator's performance model (`performance_model`); until that answers it goes by the profiles as
measured. It keeps nothing in the store: after a crash it has its requests from gateways and replicas
(`routing.gateway_sessions`), and its corrections from the Interpolator. Times are those of this process'
monotonic clock. Where gateways started it and no control plane runs, it ends by itself some time after the
last of them.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf, isfinite
from typing import Any

import numpy as np
import ray

from actors import names
from actors.applications import ApplicationStore
from actors.garbage import SharedCollecting
from actors.names import NamedActor
from actors.performance_model import ModelFollower, load_profiles, own_profile
from actors.planning.settings import follow_slo
from actors.routing.gateway_sessions import GatewaySessions
from actors.routing.messages import Batch
from actors.routing.rehearsal import rehearse
from actors.wire import Address, SecretListener, ServerConnection
from headway.config import HeadwayConfig
from headway.engine import engine_rules
from headway.engine.kinds import caches_prefixes
from headway.routing import RequestSlo, Sample, make_router
from headway.routing.fleet.gpu_profiles import GpuProfile
from headway.routing.router import Router as RouterCore
from predictors.latency import LatencyModel

SWEEP_S = 5.0
"""Seconds between two looks for gateways that have gone, whatever is due."""

FORSAKEN_S = 30.0
"""Seconds without any gateway after which a router leaves that no control plane would end."""

LEAST_S = 0.001
"""Seconds between two looks at least."""

AGAIN_S = 1.0
"""Seconds until a failed expiry is tried again."""

logger = logging.getLogger(__name__)


class Router:
    """The router of one model. Made within a running event loop."""

    def __init__(self, config_json: str, application: str = "") -> None:
        config = HeadwayConfig.model_validate_json(config_json)
        self._config = config
        profiles = load_profiles(config)
        rehearse(live_router(config, profiles), config)
        self._router = live_router(config, profiles)
        self._sessions = GatewaySessions(self._router)
        self._connections = GatewayConnections(
            self._sessions, ray.util.get_node_ip_address, time.monotonic, self._set_timer
        )
        self._epoch = uuid.uuid4().hex
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf
        self._set_timer()
        self._slo = asyncio.create_task(follow_slo(ApplicationStore(application), self._use_slo))
        self._model = ModelFollower(
            self._router, profiles, NamedActor(names.INTERPOLATOR, application=application)
        )
        self._following = asyncio.create_task(self._model.run())
        self._leaving = asyncio.create_task(self._leave_when_forsaken())
        router = self._router
        _collecting().join(self, lambda: router.queued + router.running)

    async def close(self) -> None:
        """Route no more; gateways that are connected are cut off."""
        for task in (self._slo, self._following, self._leaving):
            task.cancel()
        _collecting().leave(self)
        await self._connections.close()
        if self._timer is not None:
            self._timer.cancel()

    async def address(self) -> Address:
        """Where gateways connect to, and their secret (`GatewayConnections`)."""
        return await self._connections.address()

    async def take_samples(self) -> tuple[str, int, Sequence[Sample]]:
        """The epoch of this router, which changes with a restart, and the samples since the last call.

        Between them the version of the profiles that the samples are about.
        """
        return self._epoch, self._model.basis, self._router.take_samples()

    async def use_model(self, model: LatencyModel, basis: int, age_s: float = 0.0) -> None:
        """Predict with this model from now on, unless it was learnt on other profiles.

        Its newest sample is `age_s` old.
        """
        if basis == self._model.basis:
            self._router.use_model(model, age_s)

    async def offload_traces(self, limit: int) -> list[Mapping[str, str | float | None]]:
        """The latest `limit` offload traces, the oldest first (`OffloadTrace.breakdown`), in Unix time."""
        shift_s = time.time() - time.monotonic()
        return [trace.breakdown(shift_s) for trace in self._router.traces.latest(limit)]

    async def status(self) -> dict[str, Any]:
        """Profile, gateways, GPU types, requests held and on replicas, performance model, and metrics."""
        return {
            "profile": self._config.routing.live_profile,
            "gateways": len(self._sessions.gateways),
            "gpu_types": dict(self._router.gpu_types),
            "queued": self._router.queued,
            "running": self._router.running,
            "epoch": self._epoch,
            "performance_model": {
                "version": self._model.version,
                "profiles_version": self._model.profiles_version,
                "corrections": dict(self._router.corrections),
            },
            "metrics": {
                name: {"/".join(map(str, labels)): value for labels, value in values.items()}
                for name, values in self._sessions.metrics().items()
            },
        }

    async def ready(self) -> tuple[bool, str]:
        """Always ready: requests can be routed as soon as this actor runs."""
        return True, ""

    async def _leave_when_forsaken(self) -> None:
        """End, for good, when those are gone that started routing without a control plane."""
        spoken_s = time.monotonic()
        while True:
            await asyncio.sleep(SWEEP_S)
            if len(self._sessions.gateways):
                spoken_s = time.monotonic()
            elif time.monotonic() - spoken_s > FORSAKEN_S:
                await asyncio.to_thread(_end_routing, names.router_of(self._config))

    def _use_slo(self, ttft_s: float, itl_s: float) -> None:
        self._router.use_slo(RequestSlo(ttft_s=ttft_s, tpot_s=itl_s))

    def _expire(self) -> None:
        self._timer, self._timer_s = None, inf
        done = self._sessions.expire(time.monotonic())
        self._connections.deliver()
        self._set_timer(LEAST_S if done else AGAIN_S)

    def _set_timer(self, least_s: float = LEAST_S) -> None:
        """Wake up when something is due, at the latest for the next look around."""
        now_s = time.monotonic()
        due_s = self._router.next_due_s
        due_s = min(max(due_s, now_s + least_s), now_s + SWEEP_S) if isfinite(due_s) else now_s + SWEEP_S
        if self._timer is not None and self._timer_s <= due_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = asyncio.get_running_loop().call_later(due_s - now_s, self._expire)


@cache
def _collecting() -> SharedCollecting:
    """Of all routers of this process."""
    return SharedCollecting()


class GatewayConnections:
    """The Router's connections to gateways (`actors.wire`); the other end is `serve_apps.routed.client`.

    gateway ──▶   (name, Batch)
            ◀──   BatchAnswer, in the order of the batches; Messages in between

    One event loop, on which `clock` gives the router's seconds.
    """

    def __init__(
        self,
        sessions: GatewaySessions,
        host: Callable[[], str],
        clock: Callable[[], float],
        handled: Callable[[], None],
    ) -> None:
        """`handled` is called after each batch."""
        self._sessions, self._clock, self._handled = sessions, clock, handled
        self._listener = SecretListener(host, partial(_GatewayConnection, self))
        self._by_gateway: dict[str, _GatewayConnection] = {}
        self._connected: set[_GatewayConnection] = set()

    async def address(self) -> Address:
        """Where it listens."""
        return await self._listener.address()

    async def close(self) -> None:
        """Stop accepting connections, and end all that there are."""
        await self._listener.close()
        for connection in self._connected:
            connection.transport.abort()
        while self._connected:
            await asyncio.sleep(0)

    def begun(self, connection: "_GatewayConnection") -> None:
        """A connection has begun."""
        self._connected.add(connection)

    def exchange(self, connection: "_GatewayConnection", name: str, batch: Batch) -> None:
        """Take a gateway's events; the outcomes for it at once, and those for others."""
        self._by_gateway[name] = connection
        connection.post(self._sessions.exchange(self._clock(), name, batch))
        self.deliver()
        self._handled()

    def deliver(self) -> None:
        """Send what has become of requests to their gateways, as far as these are connected."""
        gateways = self._sessions.gateways
        for name in gateways.with_messages():
            if (connection := self._by_gateway.get(name)) is not None:
                connection.post(gateways.take(name))

    def over(self, ended: "_GatewayConnection") -> None:
        """A connection has ended."""
        self._connected.discard(ended)
        for name in [name for name, connection in self._by_gateway.items() if connection is ended]:
            del self._by_gateway[name]
            self._sessions.parted(self._clock(), name)
        self.deliver()
        self._handled()


class _GatewayConnection(ServerConnection):
    def __init__(self, connections: GatewayConnections, secret: bytes) -> None:
        super().__init__(secret)
        self._connections = connections
        connections.begun(self)

    def received(self, messages: Sequence[tuple[str, Batch]]) -> None:
        for name, batch in messages:
            self._connections.exchange(self, name, batch)

    def connection_ended(self) -> None:
        self._connections.over(self)


def _end_routing(router: str) -> None:
    """Kill trainer and router for good, unless a control plane runs, which will end them with the rest."""
    if names.find_actor(names.PLANNER) is not None:
        return
    logger.info("no gateway has spoken for %g s, and no control plane runs: routing ends", FORSAKEN_S)
    for name in (names.LATENCY_TRAINER, router):
        if (actor := names.find_actor(name)) is not None:
            ray.kill(actor, no_restart=True)


def live_router(config: HeadwayConfig, profiles: Mapping[str, GpuProfile]) -> RouterCore:
    """The router of real requests: it lives on when a plugin fails, and caches prefixes as the engines do."""
    rules = engine_rules(config, profile := own_profile(profiles))
    if not rules.prefix_cache_tokens and caches_prefixes(config):
        # The engine's KV cache is its prefix cache.
        rules = replace(rules, prefix_cache_tokens=int(profile.decode.table.max_kv_tokens))
    return make_router(config, profiles, rules, np.random.default_rng(), live=True)
