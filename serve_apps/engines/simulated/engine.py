"""The simulator's engine model on the real clock: an engine without GPU and weights.

The model (`headway.engine.live`) decides when iterations end; this drives it with the event loop's clock
and hands out its tokens. One timer per engine, set to the model's next boundary. Iterations end at model
times: a loop that wakes up late finds several of them ended and hands their tokens out at once, so a busy
machine makes streams coarser but the engine no slower.

    prefill    returns when the model has computed the prompt. Its KV counts as held until the transfer time
               (latency + tokens x bytes / bandwidth) is over
    decode     with a KV handle: comes to the model after the transfer time of what the prefix cache lacks,
               counted from the call; without (a mixed engine): prompt and output
    blocks     the prompt's keys for the prefix cache are those of the request's route, where they stand for
               as many tokens as the cache's
    calls      what a client sent is answered in its form (`answering`, `content`)
    adapters   a request whose LoRA adapter is not loaded waits `engine.lora.load_ms` more; answers are the
               model's all the same, and a batch has any number of adapters
    faults     `inject`: fail (everything raises EngineFailed from now on), stall (time stops until `clear`),
               exit (the process ends at once)

Transfer times follow the settings and not `engine.time_scale`, which is about what was profiled. The engine
runs by the profile and the speeds of `simulation.engine`; what it reports of itself is what it does.
"""

import asyncio
import os
import time
import zlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from enum import StrEnum
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from headway.config import HeadwayConfig
from headway.engine import Boundary, LiveEngine, engine_rules
from headway.engine.live import Slowness
from headway.engine.live_batch import LiveJob
from headway.engine.rules import simulated_profile, simulated_speeds
from headway.planning.types import Role
from headway.routing.types import RouteRequest
from serve_apps.engines.answering.answers import answer, check
from serve_apps.engines.protocol import (
    AuxiliaryAnswer,
    AuxiliaryCall,
    EngineError,
    EngineFailed,
    EngineRequest,
    EngineSizes,
    EngineStats,
    EngineTimes,
    KvHandle,
    LoadedAdapters,
    RequestAborted,
    TokenChunk,
    check_length,
)
from serve_apps.engines.simulated.content import answer_auxiliary, plan, words
from serve_apps.engines.simulated.timing import Inbox, PausableTimer


class InjectedFault(StrEnum):
    """Faults for tests and demonstrations. CLEAR ends a stall; a failed engine stays failed."""

    FAIL = "fail"
    STALL = "stall"
    EXIT = "exit"
    CLEAR = "clear"


class _Part(NamedTuple):
    """One output, or a prompt alone, in the model."""

    inbox: Inbox
    request: EngineRequest


class _HeldKv(NamedTuple):
    """KV of a prefilled request that the decode side has not fetched yet, and when it will have."""

    tokens: int
    until_s: float


def slowness_of(config: HeadwayConfig, engine_id: str) -> Slowness | None:
    """The slowness of this engine over time, by its id one of the slow ones or not; None: as profiled."""
    speeds, began_s = simulated_speeds(config), config.simulation.engine.began_s or time.time()
    if speeds.as_profiled:
        return None
    own = speeds.draw(np.random.default_rng(zlib.crc32(engine_id.encode())))

    def slowness() -> tuple[float, float]:
        prefill, decode = speeds.slowness(time.time() - began_s)
        return prefill * own, decode * own

    return slowness


class SimulatedEngine:
    """One simulated replica of `role`; all calls belong to one event loop.

    The constructor takes `engine.start_up_s` longer than it needs, as loading a model would. Output is
    exactly `max_tokens` tokens of deterministic text; answers to calls are made of it (`answering`).
    """

    def __init__(self, config: HeadwayConfig, role: Role, engine_id: str) -> None:
        profile = simulated_profile(config)
        self.role, self.engine_id = role, engine_id
        self._rules = engine_rules(config, profile)
        self._model = LiveEngine(profile, self._rules, role, slowness_of(config, engine_id))
        self._wake_up_s = config.engine.sleep.wake_up_s
        self._queueing_s = config.simulation.engine.queueing_s
        self._longest_tokens = min(
            config.engine.max_model_tokens or self._model.capacity_tokens, self._model.capacity_tokens
        )
        self._parts: dict[str, _Part] = {}
        self._names = (config.model, *config.aliases)
        self._held: dict[str, _HeldKv] = {}
        self._releases: list[tuple[float, str]] = []
        lora = config.engine.lora
        self._adapters = LoadedAdapters(config.engine.adapters_at_once, load_s=lora.load_ms / 1e3)
        self._timer = PausableTimer(self._catch_up)
        self._failed = False
        time.sleep(config.engine.start_up_s)

    async def prefill(self, request: EngineRequest) -> KvHandle:
        """Compute the prompt; the KV is held here for the time of its transfer."""
        self._require(self.role is not Role.DECODE, "does not prefill")
        if request.call is not None:
            check(request, plan)
        inbox, job, asked_s = self._take_in(request, prefill_only=True)
        try:
            await inbox.take()
        finally:
            self._let_go(request.request_id, inbox)
        times = EngineTimes(begun_s=job.begun_s - asked_s, ended_s=self._timer.now_s() - asked_s)
        return self._hold_kv(request.request_id, _input_tokens(request), job.cached_tokens, times)

    async def decode(self, request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
        """Stream the output; tokens that came since the last chunk was taken make one chunk."""
        self._require(self.role is not Role.PREFILL, "does not decode")
        self._require(kv is not None or self.role is Role.MIXED, "needs the KV of the prompt")
        chunks = self._output(request, kv) if request.call is None else self._answer(request, kv)
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    async def auxiliary(self, question: AuxiliaryCall) -> AuxiliaryAnswer:
        """Embeddings, token ids, the version: at once, and without being load."""
        self._require_alive()
        return answer_auxiliary(question, self._names, self._longest_tokens)

    def _answer(self, request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
        """What a client sent, answered in its form."""

        return answer(request, lambda part: self._output(part, kv), plan, "simulated")

    async def _output(self, request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
        """The words of one output."""
        inbox, job, asked_s = self._take_in(request, kv)
        sent, first_s = 0, None
        try:
            while sent < request.max_tokens:
                start, sent = sent, sent + await inbox.take()
                first_s = self._timer.now_s() - asked_s if first_s is None else first_s
                if sent < request.max_tokens:
                    yield TokenChunk(words(start, sent), sent - start)
            cached_tokens = job.cached_tokens if kv is None else kv.cached_tokens
            times = EngineTimes(
                transferred_s=None if kv is None else job.came_s - asked_s,
                begun_s=job.begun_s - asked_s,
                first_token_s=first_s,
                ended_s=self._timer.now_s() - asked_s,
            )
            yield TokenChunk(words(start, sent), sent - start, "length", cached_tokens, times)
        finally:
            self._let_go(request.request_id, inbox)

    async def abort(self, request_id: str) -> None:
        """End the request if it is here and free what it holds; unknown ids are ignored."""
        self._held.pop(request_id, None)
        self._end(request_id, RequestAborted(f"{request_id}: aborted"))

    def stats(self) -> EngineStats:
        """The load now. Raises EngineFailed once the engine has failed."""
        self._require_alive()
        return EngineStats(
            engine="simulated",
            running=self._model.running,
            waiting=self._model.waiting,
            kv_usage=min(1.0, self._model.kv_usage),
            held_kv_tokens=sum(held.tokens for held in self._held.values()),
            prompt_tokens=self._model.prompt_tokens,
            cached_tokens=self._model.cached_tokens,
            external_tokens=self._model.external_tokens,
            busy_s=self._model.busy_s(self._timer.now_s()),
            adapters=self._adapters.names,
            adapter_room=self._adapters.room,
        )

    async def sleep(self, level: int) -> None:
        """Nothing is kept of the prefix cache, at either level."""
        del level
        self._require_alive()
        self._model.clear_cache()

    async def wake(self) -> None:
        """Return after `engine.sleep.wake_up_s`."""
        self._require_alive()
        await asyncio.sleep(self._wake_up_s)

    def sizes(self) -> EngineSizes:
        """The model's sizes."""
        return EngineSizes(
            kv_tokens=self._model.capacity_tokens,
            request_tokens=self._longest_tokens,
            batch=self._rules.max_batch_size,
            kv_bytes_per_token=self._rules.kv_bytes_per_token,
        )

    def inject(self, fault: str) -> None:
        """Make something go wrong, now, by the name of an `InjectedFault`. ValueError for another name."""
        match InjectedFault(fault):
            case InjectedFault.EXIT:
                os._exit(1)
            case InjectedFault.STALL:
                self._timer.pause()
            case InjectedFault.CLEAR:
                self._timer.resume()
            case InjectedFault.FAIL:
                self._fail()

    def _fail(self) -> None:
        self._failed = True
        self._held.clear()
        self._releases.clear()
        for request_id in list(self._parts):
            self._end(request_id, self._failure())
        self._set_timer()

    def _take_in(
        self, request: EngineRequest, kv: KvHandle | None = None, *, prefill_only: bool = False
    ) -> tuple[Inbox, LiveJob, float]:
        """Hand a request to the model, in the place of an earlier attempt at it.

        Returned are the inbox to which its tokens come, the model's job, and the model's time now.
        """
        self._require_alive()
        request_id, asked = request.request_id, (_input_tokens(request), request.max_tokens)
        self._require(request.max_tokens >= 1, f"max_tokens of {request_id} must be at least 1")
        check_length(*asked, self._longest_tokens)
        self._end(request_id, RequestAborted(f"{request_id}: came again"))
        blocks, delay_s = self._blocks(request.route), self._queueing_s
        if kv is not None:
            delay_s = self._rules.transfer_s(self._model.missing_tokens(asked[0], blocks))
        now_s = self._timer.now_s()
        delay_s += self._adapters.begin(request.adapter, now_s)
        job = self._model.submit(
            request_id,
            *asked,
            at_s=now_s + delay_s,
            prefilled=kv is not None,
            prefill_only=prefill_only,
            blocks=blocks,
        )
        inbox = Inbox()
        self._parts[request_id] = _Part(inbox, request)
        self._set_timer()
        return inbox, job, now_s

    def _blocks(self, route: RouteRequest | None) -> Sequence[int]:
        """The keys of the prompt's blocks, none where they are not of the cache's size."""
        if route is None or route.block_tokens != self._rules.block_tokens:
            return ()
        return route.blocks

    def _end(self, request_id: str, error: EngineError) -> None:
        """Free what the request holds, if it is here, and give its consumer the error."""
        part = self._parts.get(request_id)
        if part is not None:
            self._let_go(request_id, part.inbox)
            part.inbox.fail(error)

    def _let_go(self, request_id: str, inbox: Inbox) -> None:
        """The consumer has all it wants: free whatever the request still holds in the model."""
        part = self._parts.get(request_id)
        if part is not None and part.inbox is inbox:
            del self._parts[request_id]
            self._adapters.end(part.request.adapter)
            self._model.abort(request_id)

    def _catch_up(self) -> None:
        """Hand out everything that the model has done up to now."""
        now_s = self._timer.now_s()
        for boundary in self._model.advance(now_s):
            self._deliver(boundary)
        while self._releases and self._releases[0][0] <= now_s:
            self._release_kv(*heappop(self._releases))
        self._set_timer()

    def _deliver(self, boundary: Boundary) -> None:
        for request_id in (*boundary.emitted, *boundary.left):
            self._parts[request_id].inbox.add()

    def _hold_kv(self, request_id: str, tokens: int, cached_tokens: int, times: EngineTimes) -> KvHandle:
        """Keep the KV for as long as its transfer takes from now on."""
        until_s = self._timer.now_s() + self._rules.transfer_s(tokens)
        self._held[request_id] = _HeldKv(tokens, until_s)
        heappush(self._releases, (until_s, request_id))
        self._set_timer()
        return KvHandle(
            request_id=request_id,
            engine_id=self.engine_id,
            input_tokens=tokens,
            cached_tokens=cached_tokens,
            times=times,
        )

    def _release_kv(self, until_s: float, request_id: str) -> None:
        held = self._held.get(request_id)
        if held is not None and held.until_s == until_s:
            del self._held[request_id]

    def _set_timer(self) -> None:
        due_s = self._model.next_boundary_s()
        if self._releases and (due_s is None or self._releases[0][0] < due_s):
            due_s = self._releases[0][0]
        self._timer.wake_at(due_s)

    def _require(self, holds: bool, complaint: str) -> None:
        if not holds:
            raise EngineError(f"{self.role} engine {self.engine_id}: {complaint}")

    def _require_alive(self) -> None:
        if self._failed:
            raise self._failure()

    def _failure(self) -> EngineFailed:
        return EngineFailed(f"{self.role} engine {self.engine_id}: failed, as it was told to")


def _input_tokens(request: EngineRequest) -> int:
    """An empty prompt counts as one token: models begin with one."""
    return max(1, request.input_tokens)
