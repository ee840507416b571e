"""The GPU type of the node that this process runs on, as Ray names it, such as H100 or L20.

Ray labels a node with the accelerator that it finds. Who starts a node by hand may label it too, or give it
the resource `accelerator_type:NAME`.
"""

import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, cast

import ray
from ray import serve
from ray.exceptions import RayError

from headway.config import HeadwayConfig
from headway.planning import Role
from headway.profiling.observed_latency import LatencyObserver
from serve_apps.engines.protocol import (
    Engine,
    EngineFailed,
    EngineRequest,
    EngineStats,
    KvHandle,
    RunningRequest,
    TokenChunk,
)
from serve_apps.feed import FeedSender, Frame
from serve_apps.latency_reports import LatencyReporter, MeasuredEngine

LABEL = "ray.io/accelerator-type"
RESOURCE = "accelerator_type:"
logger = logging.getLogger(__name__)


def gpu_type_of_node() -> str:
    """The type, "" where nobody knows it."""
    if not ray.is_initialized():
        return ""  # to ask would start a cluster
    try:
        context = ray.get_runtime_context()
        labelled = context.get_node_labels().get(LABEL)
        return str(labelled) if labelled else _by_resource(context.get_node_id())
    except RayError:
        logger.warning("Ray does not say what GPU this node has", exc_info=True)
        return ""


def _by_resource(node_id: str) -> str:
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    named = (name for node in nodes if node["NodeID"] == node_id for name in node["Resources"])
    return min((name.removeprefix(RESOURCE) for name in named if name.startswith(RESOURCE)), default="")


EngineFactory = Callable[[HeadwayConfig, Role, str], Engine]
"""Settings, role and a name that is unique in the cluster -> a loaded engine."""


def default_engine(config: HeadwayConfig, role: Role, engine_id: str) -> Engine:
    """The engine that the settings name."""
    from serve_apps.engines import make_engine

    return make_engine(config, role, engine_id)


class EngineReplica:
    """One engine behind Serve."""

    role: Role

    def __init__(self, config: HeadwayConfig, make: EngineFactory = default_engine) -> None:
        self.replica = serve.get_replica_context().replica_id.unique_id
        self._model = config.model
        gpu_type = config.engine.gpu_type
        self._gpu_type = gpu_type_of_node() if gpu_type is None else gpu_type
        self._engine = make(config, self.role, self.replica)
        self._serving = self._with_reports(config)

    async def abort(self, request_id: str) -> None:
        """End the request if it is here."""
        await self._engine.abort(request_id)

    async def stats(self) -> EngineStats:
        """The engine's load now."""
        return self._engine.stats()

    async def running(self) -> Sequence[RunningRequest]:
        """The requests that are here, for a router that starts anew; none once the engine has failed."""
        try:
            return self._engine.running()
        except EngineFailed:
            return ()

    async def describe(self) -> Mapping[str, str]:
        """What serves here: role, model, replica and its GPU type, "" where nobody knows."""
        return {
            "role": self.role.value,
            "model": self._model,
            "replica": self.replica,
            "gpu_type": self._gpu_type,
        }

    async def inject(self, fault: str) -> None:
        """Make a simulated engine misbehave (`serve_apps.engines.simulated.InjectedFault`)."""
        inject = getattr(self._engine, "inject", None)  # beyond the protocol: real engines have none
        if inject is None:
            raise NotImplementedError(f"the engine of {self.replica} is real and takes no faults")
        inject(fault)

    async def record_routing_stats(self) -> dict[str, Any]:
        """The engine's load and its GPU type, for routers; nothing once it has failed."""
        try:
            return {**asdict(self._engine.stats()), "gpu_type": self._gpu_type}
        except EngineFailed:
            return {}

    async def check_health(self) -> None:
        """EngineFailed when the engine is broken, so that Serve replaces this replica."""
        self._engine.stats()

    def _with_reports(self, config: HeadwayConfig) -> Engine | MeasuredEngine:
        """The engine as requests get it: metered, where the profile is refined by what it does."""
        settings = config.engine.refinement
        # A GPU type with a profile of its own says nothing of the deployment's.
        if not settings.enabled or self._gpu_type in config.routing.gpu_profiles:
            return self._engine
        meter = LatencyObserver()
        return MeasuredEngine(self._engine, meter, LatencyReporter(meter, settings.report_interval_s).start)


class Prefill(EngineReplica):
    """Computes prompts; their KV stays here until a decode replica has fetched it."""

    role = Role.PREFILL

    async def prefill(self, request: EngineRequest) -> KvHandle:
        """Compute the prompt."""
        return await self._serving.prefill(request)


class Decode(EngineReplica):
    """Fetches the KV of a prefilled prompt and streams the output."""

    role = Role.DECODE

    def __init__(self, config: HeadwayConfig, make: EngineFactory = default_engine) -> None:
        super().__init__(config, make)
        self._outlets: dict[str, FeedSender] = defaultdict(FeedSender)

    async def decode(self, request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
        """Stream the output; closing the stream ends the request in the engine."""
        stream = cast("AsyncGenerator[TokenChunk, None]", self._serving.decode(request, kv))
        async with aclosing(stream):
            async for chunk in stream:
                yield chunk

    async def decode_into_feed(
        self, reader: str, key: int, request: EngineRequest, kv: KvHandle | None
    ) -> int:
        """Send the output with the feed of `reader`, as `key`; return how many chunks when all are sent."""
        put, sent = self._outlets[reader].put, 0
        async with aclosing(self.decode(request, kv)) as stream:
            async for chunk in stream:
                put(key, chunk)
                sent += 1
        return sent

    async def feed(self, reader: str) -> AsyncGenerator[Frame, None]:
        """The chunks of all requests of `reader`, a frame for each step of the engine."""
        try:
            async with aclosing(self._outlets[reader].frames()) as frames:
                async for frame in frames:
                    yield frame
        finally:
            self._outlets.pop(reader, None)


class Mixed(Decode):
    """Does both phases, of one request or of two: `decode` without KV computes the prompt first."""

    role = Role.MIXED

    async def prefill(self, request: EngineRequest) -> KvHandle:
        """Compute the prompt for another replica."""
        return await self._serving.prefill(request)
