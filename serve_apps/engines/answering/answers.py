"""Answers of an engine that makes text: a call becomes requests of the engine, and its text an answer.

    call -> ParsedRequest -> a request of the engine -> text, cut at stop strings -> bytes

The text is the engine's, unless a `Plan` has a script: then the engine only sets the times. A call has one
output: of those with more the gateway makes several (`serve_apps.gateway.outputs`).
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple

from serve_apps.engines.answering.fields import text_of_ids
from serve_apps.engines.answering.forms import (
    ChatForm,
    Choice,
    CompletionForm,
    Form,
    Head,
    ResponseForm,
    TokenLogprob,
    Usage,
)
from serve_apps.engines.answering.reading import ParsedRequest, Tool, read_call, refusal
from serve_apps.engines.protocol import (
    AuxiliaryAnswer,
    AuxiliaryCall,
    Engine,
    EngineRequest,
    FinishReason,
    KvHandle,
    TokenChunk,
    error_body,
)


class Plan(NamedTuple):
    """The text of an output: `script` token by token, None for the engine's own; the arguments of a `tool`.

    `logprobs` gives probabilities to the tokens of a script, or to those of a text of the engine.
    """

    tool: Tool | None = None
    script: Sequence[str] | None = None
    logprobs: Callable[[str | Sequence[str]], Sequence[TokenLogprob]] | None = None


Planner = Callable[[ParsedRequest], Plan]
"""Raises Refused where no such answer can be made."""

Run = Callable[[EngineRequest], AsyncGenerator[TokenChunk, None]]
"""A request of the engine → its text."""


def plain(request: ParsedRequest) -> Plan:
    """The engine's own text; Refused where more is asked for."""
    if (field := request.beyond_text) is not None:
        raise refusal(f"Unsupported parameter: {field!r}: this engine makes only text", field)
    return Plan()


def check(request: EngineRequest, plan: Planner) -> None:
    """Refused where the call of a request can't be answered; for a prefill, which answers nothing."""
    assert request.call is not None
    plan(read_call(request.call))


FORMS: dict[str, Callable[[ParsedRequest, Head], Form]] = {
    "completions": CompletionForm,
    "chat": ChatForm,
    "responses": ResponseForm,
}


async def answer(
    request: EngineRequest, run: Run, plan: Planner, engine: str
) -> AsyncGenerator[TokenChunk, None]:
    """The answer's bytes and tokens as they come, the last with its end. Refused, or what `run` raises."""
    assert request.call is not None
    parsed = read_call(request.call)
    part = _Part(parsed, request, plan(parsed))
    choice, prompt, cached = part.choice, part.request.prompt, None
    form = FORMS[parsed.api](parsed, Head(id=request.request_id, model=request.model, engine=engine))
    body = form.begin() if parsed.stream else b""
    async with aclosing(run(part.request)) as chunks:
        async for chunk in chunks:
            cached = chunk.cached_tokens if cached is None else cached
            text, logprobs = part.take(chunk)
            usage = Usage(request.input_tokens, choice.tokens, cached)
            if parsed.echo and choice.tokens == chunk.tokens:
                text = (prompt if isinstance(prompt, str) else text_of_ids(prompt)) + text
            if parsed.stream and (text or logprobs or choice.finish_reason):
                body += form.step(choice, text, logprobs, usage)
            choice.text += text
            choice.logprobs.extend(logprobs)
            if choice.finish_reason is None:
                yield TokenChunk(body, chunk.tokens)
                body = b""
                continue
            body += form.finish([choice], usage) if parsed.stream else form.whole([choice], usage)
            reason: FinishReason = "length" if choice.finish_reason == "length" else "stop"
            yield TokenChunk(body, chunk.tokens, reason, cached, chunk.times)
            if chunk.finish_reason is not None:
                # Let what the engine has ended run out by itself: closed early it would be aborted.
                await anext(chunks, None)
            return


class _Part:
    """The choice of an answer and the request of the engine that it is made of."""

    def __init__(self, parsed: ParsedRequest, request: EngineRequest, plan: Plan) -> None:
        longest = request.max_tokens if plan.script is None else min(request.max_tokens, len(plan.script))
        self.request = replace(
            request,
            prompt=parsed.prompt,
            max_tokens=longest,
            stop=parsed.stops,
            sampling=parsed.sampling,
            call=None,
        )
        self.choice, self._plan = Choice(tool=plan.tool), plan
        cuts = parsed.stops and plan.script is None
        self._cutter = StopCutter(parsed.stops, keep=parsed.keep_stop) if cuts else None

    def take(self, chunk: TokenChunk) -> tuple[str, Sequence[TokenLogprob]]:
        """More text of the engine, as text that can leave, with its tokens where they are asked for."""
        choice, plan, begin = self.choice, self._plan, self.choice.tokens
        choice.tokens += chunk.tokens
        text, reason = str(chunk.text), chunk.finish_reason
        tokens: str | Sequence[str] = text
        if choice.tokens >= self.request.max_tokens:
            # Whatever the engine would go on with.
            reason = reason or "length"
        if plan.script is not None:
            tokens = plan.script[begin : choice.tokens]
            text = "".join(tokens)
            reason = "stop" if choice.tokens >= len(plan.script) else reason
        if self._cutter is not None:
            text, reason = self._cutter.cut(text, reason)
        choice.finish_reason = "tool_calls" if plan.tool is not None and reason == "stop" else reason
        return text, plan.logprobs(tokens) if plan.logprobs is not None else ()


class StopCutter:
    """Cuts the text of one output at stop strings, the same wherever the borders between chunks are.

    The stop string that is complete first wins; of those complete at the same character the one that began
    first. Text is held back only while it may be the beginning of a stop string, so what was given out never
    has to be taken back.
    """

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        """`keep`: the stop string itself is given out, too."""
        self._stops, self._keep, self._held = tuple(stops), keep, ""

    def cut(self, text: str, reason: FinishReason | None) -> tuple[str, FinishReason | None]:
        """The text that can leave with a chunk, and why the output ends with it, if it does."""
        text = self._held + text
        found = [(begin + len(stop), begin) for stop in self._stops if (begin := text.find(stop)) >= 0]
        if found:
            end, begin = min(found)
            return text[: end if self._keep else begin], "stop"
        if reason is not None:
            return text, reason
        leaves = len(text) - self._possible_beginning(text)
        self._held = text[leaves:]
        return text[:leaves], None

    def _possible_beginning(self, text: str) -> int:
        """The length of the longest suffix that is a proper prefix of a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            suffix = text[-length:]
            if any(len(stop) > length and stop.startswith(suffix) for stop in self._stops):
                return length
        return 0


class AnsweringEngine:
    """`engine`, of that kind, which answers calls with the text that it makes. All else is the engine's."""

    def __init__(self, engine: Engine, kind: str) -> None:
        self._engine, self._kind = engine, kind

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the engine has
        return getattr(self._engine, name)

    async def prefill(self, request: EngineRequest) -> KvHandle:
        """The engine's `prefill`, of what can be answered. Refused."""
        if request.call is not None:
            check(request, plain)
        return await self._engine.prefill(request)

    async def decode(self, request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
        """The engine's `decode`, as an answer where a call asks for one. Refused."""

        def run(part: EngineRequest) -> AsyncGenerator[TokenChunk, None]:
            return self._engine.decode(part, kv)  # type: ignore[return-value] # all engines' are generators

        chunks = run(request) if request.call is None else answer(request, run, plain, self._kind)
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    async def auxiliary(self, question: AuxiliaryCall) -> AuxiliaryAnswer:
        """404: an engine that makes only text has no answer to anything else."""
        text = f"{question.method} {question.path}: an engine of kind {self._kind!r} makes only text"
        return AuxiliaryAnswer(404, error_body(text, "invalid_request_error", None, "not_found"))
