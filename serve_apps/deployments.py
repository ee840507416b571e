"""Serve deployments `Prefill`, `Decode` and `Mixed`: one inference engine each, reached through handles.

RUNNING means that the constructor has returned, so the constructor loads the engine: Serve's state is the
readiness of the engine. The engine does its own queueing; Serve's bound on requests in flight only has to
stay out of its way. A replica that is scaled down drains: its time for that exceeds the longest request.
Everything that the caller cancels or closes arrives here as CancelledError in `prefill` or at a `yield` of
`decode`, and ends the engine's part. A call that was lost on the way may be made again under the same request
id: the engine lets the new attempt take the place of the old one (`serve_apps.engines.protocol`).

Where the profile is refined by traffic, the latencies of an engine are observed on their way out, and go
straight to the Interpolator every few seconds: not with the load that routers read, since what is learnt must
not depend on where metrics come from. A report that gets lost is a report less. The answer has how this
replica differs from its peers, if it does, which goes with its load to the routers.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import asdict
from math import inf
from typing import Any, cast

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.handle import DeploymentHandle

from actors import names
from actors.names import CallError, NamedActor
from actors.wire import Address
from headway.config import HeadwayConfig
from headway.engine.kinds import SHARED_GPU, engine_kind, engines_per_gpu, shared_gpus_asked
from headway.engine.observed_latency import LatencyObserver
from headway.planning import Role
from headway.planning.silence import Watch
from headway.routing.types import KnownBlocks
from headway.words import duration, plural
from serve_apps.call_server import CallServer, Method
from serve_apps.engines import make_engine
from serve_apps.engines.protocol import (
    AuxiliaryAnswer,
    AuxiliaryCall,
    Engine,
    EngineError,
    EngineFailed,
    EngineRequest,
    EngineStats,
    KvHandle,
    SleepingEngine,
    TokenChunk,
    joined,
)
from serve_apps.sleeping import GpuTurn, Sleeper, shared_gpus
from serve_apps.tracing.engine_spans import TracedEngine, traced


class MeasuredEngine:
    """The two calls of an engine that take time, observed; `used` is called before each."""

    def __init__(self, engine: Engine, observer: LatencyObserver, used: Callable[[], None]) -> None:
        self._engine, self._observer, self._used = engine, observer, used

    async def prefill(self, request: EngineRequest) -> KvHandle:
        """The engine's `prefill`."""
        self._used()
        now_s, observer, cached = asyncio.get_running_loop().time, self._observer, self._cached_tokens()
        part = observer.begin(now_s(), max(1, request.input_tokens), computes=True)
        try:
            kv = await self._engine.prefill(request)
            observer.computed(part, now_s(), reused=self._cached_tokens() > cached)
            return kv
        finally:
            observer.end(part, now_s())

    async def decode(self, request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
        """The engine's `decode`."""
        self._used()
        now_s, observer, cached = asyncio.get_running_loop().time, self._observer, self._cached_tokens()
        part = observer.begin(now_s(), max(1, request.input_tokens), computes=kv is None)
        # Of beams, which are made side by side, the time of one is not seen.
        alone, computing = request.call is None or request.call.divisible, kv is None
        try:
            stream = cast("AsyncGenerator[TokenChunk, None]", self._engine.decode(request, kv))
            async with aclosing(stream):
                async for chunk in stream:
                    if chunk.tokens and computing:
                        computing = False
                        observer.computed(part, now_s(), reused=self._cached_tokens() > cached)
                    if chunk.tokens and alone:
                        observer.produced(part, now_s(), chunk.tokens)
                    yield chunk
        finally:
            observer.end(part, now_s())

    def _cached_tokens(self) -> int:
        """Found in the prefix cache so far; engines count them before the prompt's first token is out."""
        return self._engine.stats().cached_tokens


TIMEOUT_S = 5.0
logger = logging.getLogger(__name__)


class LatencyReporter:
    """Sends an observer's reports from the first request on; without requests there is nothing to report."""

    def __init__(
        self, observer: LatencyObserver, period_s: float, actor: NamedActor, replica: str = ""
    ) -> None:
        self._observer, self._period_s, self._replica = observer, period_s, replica
        self._actor = actor
        self.standing: Mapping[str, float] = {}
        """The Interpolator's last answer: how this replica differs from its peers, if it does."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless it has begun; on the event loop of the engine."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            seen = self._observer.take()
            # A replica that differs reports that it still exists, and learns when its difference is over.
            if seen or self.standing:
                await self._send(seen)

    async def _send(self, seen: tuple[object, ...]) -> None:
        try:
            self.standing = await self._actor.call("learn", seen, self._replica, timeout_s=TIMEOUT_S)
        except CallError as error:
            logger.debug("a report is lost: %s", error)
        except Exception:
            logger.exception("the Interpolator failed on a report")


LABEL = "ray.io/accelerator-type"
RESOURCE = "accelerator_type:"


def gpu_type_of_node() -> str:
    """The GPU type of this process's node as Ray labels it, such as H100 or L20; "" where it has no label.

    Ray labels a node with the accelerator that it finds. A node that is started by hand may be labelled by
    hand, too, or have the resource `accelerator_type:NAME`.
    """
    if not ray.is_initialized():
        return ""  # to ask would start a cluster
    try:
        context = ray.get_runtime_context()
        labelled = context.get_node_labels().get(LABEL)
        return str(labelled) if labelled else _by_resource(context.get_node_id())
    except RayError:
        logger.warning("Ray does not report the GPU of this node", exc_info=True)
        return ""


def _by_resource(node_id: str) -> str:
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    named = (name for node in nodes if node["NodeID"] == node_id for name in node["Resources"])
    return min((name.removeprefix(RESOURCE) for name in named if name.startswith(RESOURCE)), default="")


@contextmanager
def engine_errors() -> Iterator[None]:
    """EngineFailed for what an engine raises beside its protocol: callers would take it for Serve's own."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        raise EngineFailed(f"{type(error).__name__}: {error}") from error


KV_KEPT_S = 35.0
"""Longer than an engine keeps a prompt's KV that nobody fetches: NIXL's lease is 30 s."""

GATHERED_S = 0.25


async def gathered(chunks: AsyncGenerator[TokenChunk, None]) -> AsyncGenerator[TokenChunk, None]:
    """The first chunk, then what came since in one, every GATHERED_S and at the end.

    So TTFT and the number of tokens stay right, and the router sees how far long answers are; gaps between
    tokens are means over that time.
    """
    now_s = asyncio.get_running_loop().time
    held: list[TokenChunk] = []
    due_s = 0.0
    async with aclosing(chunks):
        async for chunk in chunks:
            held.append(chunk)
            if chunk.finish_reason is not None or now_s() >= due_s:
                yield joined(held)
                held.clear()
                due_s = now_s() + GATHERED_S
        if held:
            yield joined(held)


EngineFactory = Callable[[HeadwayConfig, Role, str], Engine]
"""Settings, role and a name that is unique in the cluster -> a loaded engine."""


class EngineReplica:
    """One engine behind Serve."""

    role: Role
    _moved = 0
    """Prompts computed and chunks sent so far."""
    _fetched_by_s = 0.0
    """When all KV that was computed here for others has been fetched, or is no longer kept."""

    async def __init__(  # type: ignore[misc] # Serve awaits it, and can end a replica while it waits
        self, config: HeadwayConfig, make: EngineFactory = make_engine, *others: DeploymentHandle[Any]
    ) -> None:
        """`others` are deployments that only live and die with the application."""
        self._others = others
        context = serve.get_replica_context()
        self.replica, self._application = context.replica_id.unique_id, context.app_name
        self._model = config.model
        gpu_type = config.engine.gpu_type
        self._gpu_type = gpu_type_of_node() if gpu_type is None else gpu_type
        turn = self._turn(config)
        await turn.wait()
        self._engine = make(config, self.role, self.replica)
        self._reporter: LatencyReporter | None = None
        self._serving = traced(self._with_reports(config), config.tracing, self.role, self.replica)
        self._watch = Watch(config.engine.restart_silent_after_s or inf)
        methods = {**self._methods(), "progress": self.progress}
        self._calls = CallServer(ray.util.get_node_ip_address, methods)
        self._sleeper: Sleeper | None = None
        if config.pools[self.role.value].sleepers:
            engine, level = cast("SleepingEngine", self._engine), config.engine.sleep.level
            within_s = config.engine.ready_within_s
            self._sleeper = Sleeper(engine, level, self._calls, turn, self._idle, within_s=within_s)

    def _turn(self, config: HeadwayConfig) -> GpuTurn:
        """On the GPUs that this replica got from Ray, or took, where engines share them. EngineFailed."""
        engines, context = engines_per_gpu(config, self.role), ray.get_runtime_context()
        if engines == 1 or not shared_gpus_asked(config, self.role):
            return GpuTurn(context.get_accelerator_ids()["GPU"] if engines > 1 else ())
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        (has,) = (each["Resources"] for each in nodes if each["NodeID"] == context.get_node_id())
        if "GPU" in has:
            raise EngineFailed(f"this node has GPUs of Ray beside {SHARED_GPU}: start it with --num-gpus 0")
        gpus = int(engine_kind(config).resources(config, self.role).gpus or 0)
        self._place = shared_gpus(gpus, engines, of=int(has[SHARED_GPU]))
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self._place.gpus)
        return GpuTurn(self._place.gpus)

    def _idle(self) -> bool:
        now = self._engine.stats()
        return not (now.running or now.waiting) and time.monotonic() >= self._fetched_by_s

    async def rest(self, asleep: bool | None = None) -> Mapping[str, Any]:
        """Fall asleep or wake, None: neither. How it rests, and its requests."""
        if self._sleeper is None:
            return {}
        if asleep is not None:
            self._sleeper.rest(asleep)
        now = self._engine.stats()
        return {**self._sleeper.said(), "requests": now.running + now.waiting}

    def _methods(self) -> Mapping[str, Method]:
        """What gateways call."""
        raise NotImplementedError

    async def address(self) -> Address:
        """Where this replica takes calls from gateways, and the secret that they begin with."""
        return await self._calls.address()

    def __del__(self) -> Awaitable[None] | None:
        """Serve calls and awaits this when the replica ends: what gateways have here is to end first."""
        calls: CallServer | None = getattr(self, "_calls", None)
        return self._ended(calls) if calls is not None and calls.begun and not calls.closing else None

    async def _ended(self, calls: CallServer) -> None:
        await calls.close()
        if isinstance(self._serving, TracedEngine):
            await asyncio.to_thread(self._serving.close)

    async def stats(self) -> EngineStats:
        """The engine's load now."""
        return self._engine.stats()

    async def progress(self) -> tuple[float, ...]:
        """Figures of which one changes as soon as the engine has done something. EngineFailed."""
        return self._progress(self._engine.stats())

    def _progress(self, now: EngineStats) -> tuple[float, ...]:
        # A long prompt fills the KV cache chunk by chunk.
        return self._moved, now.prompt_tokens, now.output_tokens, now.kv_usage

    async def known_blocks(self, since: int | None) -> KnownBlocks | None:
        """What the engine's prefix cache holds, or what changed since then; None where that is not known."""
        known: Callable[[int | None], KnownBlocks | None] | None = getattr(self._engine, "known_blocks", None)
        return None if known is None else known(since)

    async def describe(self) -> Mapping[str, str]:
        """Role, model, replica and its GPU type, "" where that is unknown."""
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
        """The engine's load, its GPU type and how it differs from its peers; nothing once it has failed."""
        try:
            standing = {} if self._reporter is None else self._reporter.standing
            rest = {} if self._sleeper is None else self._sleeper.said()
            return {**asdict(self._engine.stats()), "gpu_type": self._gpu_type, **standing, **rest}
        except EngineFailed:
            return {}

    async def check_health(self) -> None:
        """EngineFailed when the engine is broken, or silent for as long as the settings say, so that Serve
        replaces this replica.

        Serve asks before it sends the first request, so an engine prepares what takes a loop then.
        """
        if (prepare := getattr(self._engine, "prepare", None)) is not None:  # beyond the protocol
            await prepare()
        if self._sleeper is not None:
            self._sleeper.check()
        now, now_s = self._engine.stats(), asyncio.get_running_loop().time()
        self._watch.begin(now_s)
        self._watch.heard(now_s, self.replica, now.running + now.waiting, self._progress(now))
        for silence in self._watch.silent(now_s):
            lasts = duration(round(now_s - silence.since_s))
            raise EngineFailed(f"no progress on {plural(silence.work, 'request')} for {lasts}")

    async def _computed(self, request: EngineRequest) -> KvHandle:
        """Its prompt, computed here."""
        with engine_errors():
            kv = await self._serving.prefill(request)
        self._moved += 1
        self._fetched_by_s = time.monotonic() + KV_KEPT_S
        return kv

    def _with_reports(self, config: HeadwayConfig) -> Engine | MeasuredEngine:
        """The engine as requests get it: observed, where the profile is refined by what it does."""
        settings = config.engine.refinement
        # Latencies of a GPU type with a profile of its own do not refine the deployment's.
        if not settings.enabled or self._gpu_type in config.routing.gpu_profiles:
            return self._engine
        observer, every_s = LatencyObserver(), settings.report_interval_s
        actor = NamedActor(names.INTERPOLATOR, application=self._application)
        self._reporter = LatencyReporter(observer, every_s, actor, self.replica)
        return MeasuredEngine(self._engine, observer, self._reporter.start)


class Prefill(EngineReplica):
    """Computes prompts; their KV stays here until a decode replica has fetched it."""

    role = Role.PREFILL

    def _methods(self) -> Mapping[str, Method]:
        return {"prefill": self.prefill, "known_blocks": self.known_blocks}

    async def prefill(self, request: EngineRequest) -> KvHandle:
        """Compute the prompt."""
        return await self._computed(request)


class Decode(EngineReplica):
    """Fetches the KV of a prefilled prompt and streams the output."""

    role = Role.DECODE

    def _methods(self) -> Mapping[str, Method]:
        return {"decode": self.answer, "auxiliary": self.auxiliary}

    async def decode(self, request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
        """Stream the output; closing the stream ends the request in the engine.

        It ends at `max_tokens`, whatever the engine does, unless the engine answers a call of its own. The
        text of the last chunk stays whole.
        """
        left = request.max_tokens if request.call is None else sys.maxsize
        with engine_errors():
            stream = cast("AsyncGenerator[TokenChunk, None]", self._serving.decode(request, kv))
            async with aclosing(stream):
                async for chunk in stream:
                    self._moved += 1
                    left -= chunk.tokens
                    if left < 0 or (left == 0 and chunk.finish_reason is None):
                        yield chunk._replace(tokens=chunk.tokens + min(left, 0), finish_reason="length")
                        return
                    yield chunk

    def answer(self, request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
        """The output as it travels: of an answer that leaves whole, in few pieces."""
        chunks = self.decode(request, kv)
        whole = request.call is not None and not request.call.stream
        return gathered(chunks) if whole else chunks

    async def auxiliary(self, question: AuxiliaryCall) -> AuxiliaryAnswer:
        """The engine's reply, where it answers clients by itself."""
        ask: Callable[[AuxiliaryCall], Awaitable[AuxiliaryAnswer]] = self._engine.auxiliary  # type: ignore[attr-defined]
        with engine_errors():
            return await ask(question)


class Mixed(Decode):
    """Does both phases, of one request or of two: `decode` without KV computes the prompt first."""

    role = Role.MIXED

    def _methods(self) -> Mapping[str, Method]:
        return {**super()._methods(), "prefill": self.prefill, "known_blocks": self.known_blocks}

    async def prefill(self, request: EngineRequest) -> KvHandle:
        """Compute the prompt for another replica."""
        return await self._computed(request)
