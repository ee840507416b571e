"""One request for output: read, validate, count, admit, relay, measure. The same for all endpoints.

The order is that of the checks: body, fields, model, length, limits of the key, slots; a request that fails
one is not weighed by the next. Slots come last, as what is turned away for want of them is load all the same.
What the client, the deadline or the backend do wrong meets in one place, `Generation.__call__`.

Text is cut at stop strings, the same wherever the borders between chunks are (`StopCutter`). The stop string
that is complete first wins; of those complete at the same character the one that began first. Text is held
back only while it may be the beginning of a stop string: the longest suffix that is a proper prefix of one.
So what was given out never has to be taken back.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TypeVar

from starlette.types import Receive, Scope, Send

from headway.routing.types import Placement
from serve_apps.access import Holder
from serve_apps.engines.protocol import EngineRequest, FinishReason
from serve_apps.gateway.backend import (
    BackendError,
    Broken,
    ClientGone,
    Expired,
    Fault,
    OnPlaced,
    Outcome,
    OutputLost,
    TooLongForModel,
    fault_of,
)
from serve_apps.gateway.metrics import RequestTimes
from serve_apps.gateway.passing import PassedStream, PassedWhole
from serve_apps.gateway.request import GenerationRequest, Usage
from serve_apps.gateway.responses import (
    Answer,
    Api,
    Channel,
    Endpoint,
    Envelope,
    HeaderList,
    StreamedAnswer,
    WholeAnswer,
)
from serve_apps.gateway.slo_targets import SloTargets, explanation, route_request
from serve_apps.gateway.state import GatewayState


class DisconnectWatch:
    """Ends a request's deadline early when the client goes away.

    The deadline does the cancelling, so that a client that left and a cancellation from outside stay apart.
    """

    __slots__ = ("_deadline", "_task", "gone")

    def __init__(self, deadline: asyncio.Timeout, receive: Receive) -> None:
        self.gone = False
        self._deadline = deadline
        self._task = asyncio.create_task(self._wait(receive))

    def stop(self) -> None:
        """No longer watch: the answer is complete, or the request over."""
        self._task.cancel()

    async def _wait(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self._deadline.expired():
            self.gone = True
            self._deadline.reschedule(asyncio.get_running_loop().time())


class StopCutter:
    """Gives out the text of one output as far as it surely comes before any stop string."""

    __slots__ = ("_held", "_longest", "_stopped", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops)) - 1
        self._held = ""
        self._stopped = False

    def cut(self, text: str, reason: FinishReason | None) -> tuple[str, FinishReason | None]:
        """The text that can leave with a chunk, and why the output ends with it, if it does."""
        text = self._feed(text)
        if self._stopped:
            return text, "stop"
        return (text, None) if reason is None else (text + self._held, reason)

    def _feed(self, text: str) -> str:
        text = self._held + text
        begin = _first_stop(text, self._stops)
        if begin is not None:
            self._stopped, self._held = True, ""
            return text[:begin]
        keep = len(text) - self._possible_beginning(text)
        self._held = text[keep:]
        return text[:keep]

    def _possible_beginning(self, text: str) -> int:
        """The length of the longest suffix that is a proper prefix of a stop string."""
        for length in range(min(self._longest, len(text)), 0, -1):
            suffix = text[-length:]
            if any(len(stop) > length and stop.startswith(suffix) for stop in self._stops):
                return length
        return 0


def _first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the stop string begins that is complete first."""
    found = ((begin + len(stop), begin) for stop in stops if (begin := text.find(stop)) >= 0)
    return min(found, default=(0, None))[1]


T = TypeVar("T")
Prompt = TypeVar("Prompt")

FAREWELL_S = 5.0
"""Seconds for saying what went wrong: a client that reads nothing would hold its request for ever."""

LONG_TEXT = 16_384
"""Characters from which a text is counted beside the event loop, which would stand still meanwhile."""

logger = logging.getLogger(__name__)


class Generation:
    """The endpoint of one API; called with the headers that every response carries."""

    def __init__(self, state: GatewayState, api: Endpoint) -> None:
        self._state = state
        self._api = api
        self._read: Callable[[bytes], GenerationRequest]
        if state.calls is not None:
            self._read = partial(state.calls.read, api.path)
        else:
            assert isinstance(api, Api), f"{api.path} is for engines that answer by themselves"
            self._read = api.read

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, headers: HeaderList, holder: Holder
    ) -> None:
        """Serve one request of the holder of a key."""
        state = self._state
        channel, times = Channel(send, headers), RequestTimes(state.metrics, state.clock)
        outcome: Outcome = "aborted"
        try:
            await self._serve(scope, receive, channel, times, holder)
            outcome = "ok"
        except ClientGone:
            pass
        except Fault as fault:
            outcome = fault.outcome
            await _say(channel, fault)
        except Exception:
            outcome = "failed"
            logger.exception("A request failed for a reason that nobody foresaw")
            await _say(channel, Broken("The gateway failed; its log says why"))
        finally:
            # A cancellation from outside passes through and counts as aborted.
            times.ended(outcome)

    async def _serve(
        self, scope: Scope, receive: Receive, channel: Channel, times: RequestTimes, holder: Holder
    ) -> None:
        """The request within its deadline."""
        timeout_s, watch = self._state.settings.request_timeout_s, None
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                self._state.quotas.check(holder.name, holder.limits)
                async with self._state.bodies.read(scope["headers"], receive) as body:
                    times.received()
                    watch = DisconnectWatch(deadline, receive)
                    targets = self._state.slo_targets.read(scope["headers"])
                    times.judged_by(targets)
                    asked = await self._beside(self._read, body, len(body))
                    request = await self._engine_request(asked, targets, times.arrived_s)
                answer = self._answer(asked, request, channel)
                explain = _explaining(answer) if targets.explain else None
                outputs = 1 if request.call is None else request.call.outputs
                most = request.input_tokens + request.max_tokens * outputs
                quota = self._state.quotas.used(holder.name, holder.limits, most, stream=asked.stream)
                with quota as tell:
                    # What a key may not have is no load that a planner has to size for.
                    times.accepted(request.input_tokens, outputs)
                    try:
                        with self._state.slot():
                            await self._relay(request, answer, times, watch, explain)
                    finally:
                        tell(request.input_tokens + times.output_tokens)
        except (TimeoutError, BackendError) as error:
            if channel.ended:
                return
            if watch is not None and watch.gone:
                raise ClientGone("The client went away") from error
            if isinstance(error, BackendError):
                raise fault_of(error, self._state.settings.retry_after_s) from error
            if not deadline.expired():
                raise
            raise Expired(f"The request took longer than {timeout_s:g} s") from error
        finally:
            if watch is not None:
                watch.stop()

    async def _engine_request(
        self, asked: GenerationRequest, targets: SloTargets, arrived_s: float
    ) -> EngineRequest:
        """The request as engines see it: counted, and known to fit."""
        identity, settings = self._state.identity, self._state.settings
        identity.check(asked.model)
        prompt, input_tokens = await self._beside(self._state.prompts.read, asked, asked.size)
        room = identity.max_tokens - input_tokens
        max_tokens = asked.max_tokens or min(settings.default_max_tokens, max(1, room))
        # Text stands for a prompt that was estimated: the engine knows better.
        if max_tokens > room and not (asked.call is not None and isinstance(prompt, str)):
            raise TooLongForModel(
                f"This model holds at most {identity.max_tokens} tokens, but {input_tokens + max_tokens} were"
                f" asked for: {input_tokens} of input and {max_tokens} of output",
                param=self._api.prompt_param,
            )
        request_id, route = self._api.id_prefix + uuid.uuid4().hex, None
        if self._state.routes.needed(targets):
            blocks = await self._beside(self._state.routes.blocks, prompt, len(prompt))
            route = route_request(request_id, arrived_s, (input_tokens, max_tokens), blocks, targets)
        return EngineRequest(
            request_id=request_id,
            model=identity.model,
            prompt=prompt if asked.call is None else "",
            input_tokens=input_tokens,
            max_tokens=max_tokens,
            stop=asked.stop,
            sampling=asked.sampling,
            route=route,
            call=asked.call,
        )

    @staticmethod
    async def _beside(work: Callable[[Prompt], T], prompt: Prompt, size: int) -> T:
        """Work on a prompt of `size` characters or ids, beside the event loop when it is long."""
        return work(prompt) if size < LONG_TEXT else await asyncio.to_thread(work, prompt)

    def _answer(self, asked: GenerationRequest, request: EngineRequest, channel: Channel) -> Answer:
        identity = self._state.identity
        if asked.call is not None:
            passed = PassedStream if asked.stream else PassedWhole
            return passed(channel, [(b"x-headway-token-count", b"exact")])
        assert isinstance(self._api, Api)
        envelope = Envelope(
            api=self._api,
            id=request.request_id,
            created=int(time.time()),
            model=identity.model,
            fingerprint=identity.fingerprint,
        )
        counts = identity.text_counts if isinstance(asked.prompt, str) else "exact"
        headers = [(b"x-headway-token-count", counts.encode())]
        if asked.stream:
            return StreamedAnswer(channel, envelope, headers, usage=asked.include_usage)
        return WholeAnswer(channel, envelope, headers)

    async def _relay(
        self,
        request: EngineRequest,
        answer: Answer,
        times: RequestTimes,
        watch: DisconnectWatch,
        placed: OnPlaced | None,
    ) -> None:
        """Pass the output on; leaving early closes the backend's generator, which aborts the request."""
        async with aclosing(self._state.traffic.backend.generate(request, placed)) as chunks:
            cutter = StopCutter(request.stop) if request.stop else None
            async for text, count, reason, cached_tokens in chunks:
                times.tokens(count)
                whole = reason is not None
                if cutter is not None and isinstance(text, str):
                    text, reason = cutter.cut(text, reason)  # noqa: PLW2901 - what leaves instead
                if reason is not None:
                    times.finished(reason, cached_tokens)
                    # From here on a disconnect is what servers report once the answer is complete.
                    watch.stop()
                    self._state.traffic.backend.complete(request.request_id)
                    usage = Usage(request.input_tokens, times.output_tokens, cached_tokens)
                    await answer.end(text, reason, usage)
                    break
                if text:
                    await answer.text(text)
            else:
                raise OutputLost("The output ended before it was complete")
            if whole:
                # Lets the generator run out by itself: closed early it would abort what is complete.
                await anext(chunks, None)


def _explaining(answer: Answer) -> OnPlaced:
    def placed(placement: Placement) -> None:
        answer.add_headers(explanation(placement))

    return placed


async def _say(channel: Channel, fault: Fault) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(FAREWELL_S):
            await channel.fail(fault)
