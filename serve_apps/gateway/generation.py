"""One call for output: read, validate, count, admit, relay, measure. The same for all endpoints.

A call with several outputs becomes as many requests (`outputs`), with a record, a place and a placement each.

The order is that of the checks: body, fields, model, length, limits of the key, slots; a request that fails
one is not weighed by the next. Slots come last, as what is turned away for want of them is load all the same.
What the client, the deadline or the backend do wrong meets in one place, `Generation.__call__`.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing, closing, suppress
from dataclasses import replace
from functools import partial
from math import ceil
from types import TracebackType
from typing import TypeVar

from starlette.types import Receive, Scope, Send

from serve_apps.access import Holder
from serve_apps.compat_uvicorn import PUSH
from serve_apps.engines.protocol import EngineRequest, TokenChunk
from serve_apps.faults import (
    Broken,
    ClientGone,
    Expired,
    Fault,
    Outcome,
    OutputLost,
    Shed,
    TooLongForModel,
    Unready,
)
from serve_apps.gateway.admission import held_to
from serve_apps.gateway.backend import BackendError, Timeline, fault_of
from serve_apps.gateway.outputs import Document, Events, Merged, OutputAnswer, Shape
from serve_apps.gateway.prompts import Read
from serve_apps.gateway.reading import LONG_BYTES, GenerationRequest
from serve_apps.gateway.repeats import Attempt, claimed
from serve_apps.gateway.request_record import RequestRecord
from serve_apps.gateway.responses import (
    Answer,
    BeatingAnswer,
    Channel,
    Endpoint,
    HeaderList,
    StreamedAnswer,
    WholeAnswer,
)
from serve_apps.gateway.slo_targets import SloTargets, explanation, route_request
from serve_apps.gateway.spillover import BEFORE, NEXT, Before, Spillover
from serve_apps.gateway.state import GatewayState


class RequestTime:
    """What a request has until its deadline, or until its client goes away. Expired, or ClientGone.

    The deadline does the cancelling in both cases, so that a client that left and a cancellation from outside
    stay apart.
    """

    __slots__ = ("_deadline", "_gone", "_task", "_timeout_s")

    def __init__(self, timeout_s: float, spent_s: float) -> None:
        """It has `timeout_s` in all."""
        self._timeout_s, self._deadline = timeout_s, asyncio.timeout(timeout_s - spent_s)
        self._gone = False
        self._task: asyncio.Task[None] | None = None

    def watch(self, receive: Receive) -> None:
        """From now on it ends with the client."""
        self._task = asyncio.create_task(self._wait(receive))

    def stop_watching(self) -> None:
        """The answer is complete, or the request over: servers report a disconnect then, too."""
        # Let go of the task, too: it holds this object, and cycles are left to the garbage collector.
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def __aenter__(self) -> "RequestTime":
        await self._deadline.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_watching()
        over: BaseException | None = error if isinstance(error, Fault) else None
        try:
            await self._deadline.__aexit__(kind, error, trace)
        except TimeoutError as late:
            over = late
            if not self._gone:
                raise Expired(f"The request took longer than {self._timeout_s:g} s") from late
        if self._gone and over is not None:
            raise ClientGone("The client went away") from over

    async def _wait(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self._deadline.expired():
            self._gone = True
            self._deadline.reschedule(asyncio.get_running_loop().time())


T = TypeVar("T")
Prompt = TypeVar("Prompt")

FAREWELL_S = 5.0
"""Seconds for saying what went wrong: a client that reads nothing would hold its request for ever."""

LONG_TEXT = 16_384
"""Characters, or ids, that are cut into prefix blocks beside the event loop, which would stand still."""

logger = logging.getLogger(__name__)


NO_PLACE = (Shed, Unready, TooLongForModel)
"""Faults after which the next deployment is asked, where there is one."""


class Generation:
    """The endpoint of one API; called with the headers of every response, the request's id first."""

    def __init__(self, state: GatewayState, api: Endpoint) -> None:
        self._state = state
        self._api = api

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, headers: HeaderList, holder: Holder
    ) -> None:
        """Serve one request of the holder of a key."""
        state = self._state
        push = scope.get("extensions", {}).get(PUSH)
        before: Before | None = scope.get(BEFORE)
        channel = before.channel if before and before.channel.started else Channel(send, headers, push)
        tracing = state.tracing
        timeline = Timeline(state.clock, None if tracing is None else tracing.begin(scope["headers"]))
        record = RequestRecord(headers[0][1].decode(), self._api.path, holder.name, state.metrics, timeline)
        # Until its body says more: what is refused before is its key's.
        record.judged_by(SloTargets(tenant=holder.tenant))
        state.records.begin(record)
        records = [record]
        after: Spillover | None = scope.get(NEXT)
        outcome: Outcome = "aborted"
        refusal: Fault | None = None
        try:
            await self._serve(scope, receive, channel, records, holder)
            outcome = "ok"
        except ClientGone:
            outcome = "ok" if channel.ended else "aborted"
        except Fault as fault:
            # What is too long only here is what was turned away before. No other name: it has this frame.
            fault = before.refusal if before and isinstance(fault, TooLongForModel) else fault
            # Once its last byte has left, a request has gone well.
            outcome = "ok" if channel.ended else fault.outcome
            if _goes_on(after, channel, record, fault):
                outcome, refusal = "spilled", fault.with_traceback(None)
            elif not channel.ended:
                for each in records:
                    each.failed(fault)
                fault.spread(state.random)
                await _say(channel, fault)
        except Exception:
            outcome, broken = "failed", Broken("The gateway failed; its log says why")
            for each in records:
                each.failed(broken)
            logger.exception("A request failed for an unforeseen reason")
            await _say(channel, broken)
        finally:
            # A cancellation from outside passes through and counts as aborted.
            begun = any(each.output_tokens for each in records)
            state.retry_budgets.ended(outcome, record.attempt, begun=begun)
            told = self._told(record, before)
            # Who leaves a stream of tokens has had what it read.
            had = outcome == "aborted" and begun and channel.started
            for tell in told if outcome != "spilled" else ():
                tell("ok" if had else outcome)
            for each in records:
                each.ended(outcome, channel.status)
                state.records.end(each)
                if tracing is not None:
                    tracing.ended(each)
        if after is not None and refusal is not None:
            await after.serve(Before(record.arrived_s, refusal, channel, told))

    async def _serve(
        self, scope: Scope, receive: Receive, channel: Channel, records: list[RequestRecord], holder: Holder
    ) -> None:
        """The call within its time; the records of its further outputs are added to `records`. Fault."""
        state, record = self._state, records[0]
        before, now_s = scope.get(BEFORE), state.clock()
        arrived_s = None if before is None else before.arrived_s
        spent_s = 0.0 if arrived_s is None else now_s - arrived_s
        async with RequestTime(state.settings.request_timeout_s, spent_s) as time:
            state.quotas.check(holder.name, holder.limits)
            async with state.bodies.read(scope["headers"], receive) as body:
                record.received(arrived_s)
                time.watch(receive)
                prompts = await self._asked(scope["headers"], body, channel, record, holder)
                alike = partial(state.repeats.digest, holder.tenant, self._api.path)
                digest = await self._beside(alike, body, long=len(body) >= LONG_BYTES)
                requests, counts = await self._engine_requests(prompts, len(body), record)
                longest = max(each.input_tokens + each.max_tokens for each in requests)
                if (after := scope.get(NEXT)) is not None and await after.ready(longest):
                    requests = [
                        replace(each, route=each.route and replace(each.route, spills=True))
                        for each in requests
                    ]
            for number in range(1, len(requests)):
                records.append(record.another(number))
                state.records.begin(records[-1])
            shape = Shape(len(requests), len(requests) // len(prompts), prompts[0].beams)
            input_tokens = sum(each.input_tokens for each in requests[:: shape.copies])
            stream = prompts[0].calls[0].stream
            with state.quotas.used(
                holder.name,
                holder.limits,
                input_tokens + shape.beams * sum(each.max_tokens for each in requests),
                lambda: input_tokens + sum(each.output_tokens for each in records),
                stream=stream,
                requests=len(requests),
                given_back=partial(_goes_on, after, channel, record),
            ):
                # What a key may not have is no load that a planner has to size for.
                for each, request in zip(records, requests, strict=True):
                    each.accepted(request.input_tokens)
                attempt = self._attempt(records, holder.tenant, digest, claimed=claimed(scope["headers"]))
                state.retry_budgets.check(attempt)
                answer = self._answer(channel, counts, stream=stream)
                with closing(answer), state.slots(len(requests), holder):
                    await self._relay(requests, answer, records, shape, time)

    def _told(self, record: RequestRecord, before: Before | None) -> Sequence[Callable[[Outcome], None]]:
        """Who hears how the call ends, here or where it goes on."""
        # The attempt holds the records, and cycles are left to the garbage collector.
        attempt, record.attempt = record.attempt, None
        here = [] if attempt is None else [partial(self._state.repeats.end, attempt)]
        return here if before is None else [*before.told, *here]

    def _attempt(
        self, records: Sequence[RequestRecord], key: str, digest: bytes, *, claimed: bool
    ) -> Attempt:
        """The call as an attempt. If it is another one tried again, its records say so, now or later."""

        def on_repeat() -> None:
            for each in records:
                each.repeats()

        records[0].attempt = attempt = self._state.repeats.begin(key, digest, on_repeat, claimed=claimed)
        if attempt.repeat:
            on_repeat()
        return attempt

    async def _asked(
        self, headers: HeaderList, body: bytes, channel: Channel, record: RequestRecord, holder: Holder
    ) -> Sequence[GenerationRequest]:
        """The prompts of a body, and their SLO in the record. Fault."""
        state = self._state
        wished = state.slo_targets.read(headers)
        read = partial(state.calls.read, self._api, headers)
        prompts = await self._beside(read, body, long=len(body) >= LONG_BYTES)
        holder.check_model(prompts[0].model or state.identity.model)
        targets = state.tenants.granted(holder, prompts[0], wished)
        record.judged_by(targets)
        channel.add_headers(held_to(wished, targets, state.metrics.promised(targets)))
        return prompts

    def _answer(self, channel: Channel, counts: str, *, stream: bool) -> Answer:
        headers = [(b"x-headway-token-count", counts.encode())]
        if not stream:
            return WholeAnswer(channel, headers)
        every_s = self._state.settings.heartbeat_s
        if every_s is None:
            return StreamedAnswer(channel, headers)
        return BeatingAnswer(channel, headers, every_s, self._waits)

    def _waits(self) -> HeaderList:
        """What a request is told of a model that has a pool without a replica."""
        readiness = self._state.traffic.backend.ready()
        if readiness.empty is None:
            return ()
        headers = [(b"x-headway-model-state", readiness.empty.encode())]
        if readiness.serves_in_s is not None:
            headers.append((b"x-headway-serves-in-s", b"%d" % ceil(readiness.serves_in_s)))
        return headers

    async def _engine_requests(
        self, prompts: Sequence[GenerationRequest], body_bytes: int, record: RequestRecord
    ) -> tuple[Sequence[EngineRequest], str]:
        """The requests as engines see them, counted, and known to fit; and how their tokens are counted."""
        identity, model = self._state.identity, prompts[0].model
        identity.check(model)
        record.adapter = str(model) if model in identity.adapters else ""
        # By the whole body: many short prompts take as long as a long one.
        long = body_bytes >= self._state.prompts.long_bytes
        requests, exact = list[EngineRequest](), True
        for asked in prompts:
            read = await self._beside(self._state.prompts.read, asked, long=long)
            exact = exact and read.exact
            requests += await self._of_prompt(asked, read, record)
        return requests, "exact" if exact else identity.text_counts

    async def _of_prompt(
        self, asked: GenerationRequest, read: Read, record: RequestRecord
    ) -> Sequence[EngineRequest]:
        """A request for each output of a prompt."""
        identity, settings, targets = self._state.identity, self._state.settings, record.targets
        room = identity.max_tokens - read.tokens
        max_tokens = asked.max_tokens or min(settings.default_max_tokens, max(1, room))
        # Where it is not certain, the engine knows better.
        if max_tokens > room and read.certain:
            raise TooLongForModel(
                f"This model holds at most {identity.max_tokens} tokens, but {read.tokens + max_tokens} were"
                f" asked for: {read.tokens} of input and {max_tokens} of output",
                param=self._api.prompt_param,
            )
        routed = self._state.routes.needed(targets)
        blocks: tuple[int, ...] = ()
        if routed:
            blocks_of = partial(self._state.routes.blocks, adapter=record.adapter)
            blocks = await self._beside(blocks_of, read.prompt, long=len(read.prompt) >= LONG_TEXT)
        lengths, trace = (read.tokens, max_tokens * asked.beams), record.timeline.trace
        requests = []
        for call in asked.calls:
            request_id = self._api.id_prefix + secrets.token_hex(16)
            route = route_request(
                request_id,
                record.arrived_s,
                lengths,
                blocks,
                targets,
                adapter=record.adapter,
            )
            requests.append(
                EngineRequest(
                    request_id=request_id,
                    model=identity.model,
                    prompt="",
                    input_tokens=read.tokens,
                    max_tokens=max_tokens,
                    route=route if routed else None,
                    adapter=record.adapter,
                    call=call if trace is None else call._replace(trace=trace.headers()),
                )
            )
        return requests

    @staticmethod
    async def _beside(work: Callable[[Prompt], T], prompt: Prompt, *, long: bool) -> T:
        """Work on a prompt, beside the event loop when it is long."""
        return await asyncio.to_thread(work, prompt) if long else work(prompt)

    async def _relay(
        self,
        requests: Sequence[EngineRequest],
        answer: Answer,
        records: Sequence[RequestRecord],
        shape: Shape,
        time: RequestTime,
    ) -> None:
        """Pass the outputs on. Fault: that of the first that fails, which ends the others.

        Leaving early closes the backend's generators, which aborts the requests.
        """
        try:
            if shape.outputs == 1:
                await self._passed_on(requests[0], answer, records[0], time.stop_watching)
            else:
                form = Document(shape) if isinstance(answer, WholeAnswer) else Events(shape)
                merged = Merged(answer, form, shape.outputs, time.stop_watching)
                await self._side_by_side(requests, merged, records)
        except BackendError as error:
            raise fault_of(error) from error

    async def _side_by_side(
        self, requests: Sequence[EngineRequest], merged: Merged, records: Sequence[RequestRecord]
    ) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for index, (request, record) in enumerate(zip(requests, records, strict=True)):
                    output = OutputAnswer(merged, index)
                    group.create_task(self._passed_on(request, output, record, lambda: None))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _passed_on(
        self,
        request: EngineRequest,
        answer: Answer | OutputAnswer,
        record: RequestRecord,
        complete: Callable[[], None],
    ) -> None:
        """One output. `complete` is called when it has ended, before its last bytes leave."""
        timeline, explain = record.timeline, record.targets.explain
        counted = 0
        """Tokens that the sink has seen and left: their time was that of the engine."""

        def sink(chunk: TokenChunk, waited_for: bool) -> bool:
            nonlocal counted
            assert isinstance(chunk.text, bytes), "engines answer calls with bytes"
            record.tokens(chunk.tokens)
            taken = waited_for and (not chunk.text or answer.push(chunk.text))
            counted += 0 if taken else chunk.tokens
            return taken

        async with aclosing(self._state.traffic.backend.generate(request, timeline, sink)) as chunks:
            async for part, count, reason, cached_tokens, engine_times in chunks:
                record.tokens(count - counted)
                counted = max(0, counted - count)
                if explain and timeline.placement is not None:
                    explain = False
                    answer.add_headers(explanation(timeline.placement))
                assert isinstance(part, bytes), "engines answer calls with bytes"
                if reason is not None:
                    record.finished(reason, cached_tokens, engine_times)
                    # Once the answer is complete, a disconnect is what servers report.
                    complete()
                    await answer.part(part, last=True)
                    break
                if part:
                    await answer.part(part)
            else:
                raise OutputLost("The output ended before it was complete")
            # Lets the generator run out by itself: closed early it would abort what is complete.
            await anext(chunks, None)


def _goes_on(after: Spillover | None, channel: Channel, record: RequestRecord, fault: Fault) -> bool:
    """Whether the next deployment takes a call that ended so: no part of its answer has left.

    What a key tries again too often is turned away by all.
    """
    refused = record.attempt is not None and record.attempt.refused
    return after is not None and not channel.spoken and not refused and isinstance(fault, NO_PLACE)


async def _say(channel: Channel, fault: Fault) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(FAREWELL_S):
            await channel.fail(fault)
