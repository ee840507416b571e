"""Answers of an engine that makes text: a call becomes requests of the engine, and its text an answer.

    call -> Asked -> one request of the engine for each output -> text, cut at stop strings -> bytes of a form

`n` outputs of one prompt begin when the first of them has its first token: by then the prompt is computed.
What an output says is the engine's, unless a `Plan` says it: then the engine only says when.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import pairwise

from serve_apps.engines.answering.forms import ChatForm, CompletionForm, Form, Head, Output, Piece, Usage
from serve_apps.engines.answering.prompts import Prompt, text_of_ids
from serve_apps.engines.answering.reading import Asked, Tool, read_call, refusal
from serve_apps.engines.answering.responses import ResponseForm
from serve_apps.engines.answering.stopping import StopCutter
from serve_apps.engines.protocol import EngineError, EngineRequest, TokenChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one output says: `script` token by token, None for the engine's own text. `chances` of a token."""

    tool: Tool | None = None
    script: Sequence[str] | None = None
    tokens: Callable[[int, int], Sequence[str]] | None = None
    """The engine's own tokens from one to another, where a text may be asked for one by one."""
    chances: Callable[[int, str], Piece] | None = None


Planner = Callable[[Asked, Prompt, int], Plan]
"""Asked, the prompt and which of its copies → what that output says. Refused."""

Run = Callable[[EngineRequest, bool], AsyncGenerator[TokenChunk, None]]
"""A request of the engine, and whether its prompt is computed there already → its text."""


def plain(asked: Asked, _prompt: Prompt, _copy: int) -> Plan:
    """The engine's own text; Refused where more is asked for."""
    if (field := asked.beyond_text) is not None:
        raise refusal(f"Unsupported parameter: {field!r}: this engine makes only text", field)
    return Plan()


FORMS: dict[str, Callable[[Asked, Head], Form]] = {
    "completions": CompletionForm,
    "chat": ChatForm,
    "responses": ResponseForm,
}


class _Said:
    """One output on its way."""

    def __init__(self, asked: Asked, request: EngineRequest, output: Output, plan: Plan) -> None:
        self.request, self.output, self.plan = request, output, plan
        self._cutter = None
        if asked.stops and plan.script is None:
            self._cutter = StopCutter(asked.stops, keep=asked.keep_stop)

    def take(self, chunk: TokenChunk) -> tuple[str, Sequence[Piece]]:
        """Some more of the engine's, as text that can leave, with its tokens where they are asked for."""
        output, plan, begin = self.output, self.plan, self.output.tokens
        output.tokens += chunk.tokens
        text, reason = str(chunk.text), chunk.finish_reason
        if output.tokens >= self.request.max_tokens:
            # Whatever the engine would go on with.
            reason = reason or "length"
        tokens: Sequence[str] = ()
        if plan.script is not None:
            tokens = plan.script[begin : output.tokens]
            text = "".join(tokens)
            if output.tokens >= len(plan.script):
                reason = "stop"
        elif plan.chances is not None and plan.tokens is not None:
            tokens = plan.tokens(begin, output.tokens)
        if self._cutter is not None:
            text, reason = self._cutter.cut(text, reason)
        if reason is not None:
            output.reason = "tool_calls" if plan.tool is not None and reason == "stop" else reason
        if plan.chances is None:
            return text, ()
        return text, [plan.chances(begin + at, token) for at, token in enumerate(tokens)]


def check(request: EngineRequest, plan: Planner) -> None:
    """Refused where the call of a request can't be answered; for a prefill, which answers nothing."""
    assert request.call is not None
    asked = read_call(request.call)
    for prompt in asked.prompts:
        plan(asked, prompt, 0)


async def answer(
    request: EngineRequest, run: Run, plan: Planner, engine: str
) -> AsyncGenerator[TokenChunk, None]:
    """The answer's bytes and tokens as they come, the last with its end. Refused, or what `run` raises."""
    assert request.call is not None
    asked = read_call(request.call)
    said = _outputs(asked, request, plan)
    form = FORMS[asked.api](asked, Head(id=request.request_id, model=request.model, engine=engine))
    produced, cached, times, left = 0, None, None, len(said)
    begun = not asked.stream
    async with aclosing(_side_by_side(said, asked.copies, run)) as chunks:
        async for one, chunk in chunks:
            produced += chunk.tokens
            cached = chunk.cached_tokens if cached is None else cached
            times = chunk.times if one is said[0] else times
            usage = Usage(request.input_tokens, produced, cached)
            parts = [] if begun else [form.begin()]
            begun = True
            text, pieces = one.take(chunk)
            if asked.echo and one.output.tokens == chunk.tokens:
                text = _echoed(one.request.prompt) + text
            if asked.stream and (text or pieces or one.output.reason):
                parts.append(form.step(one.output, text, pieces, usage))
            one.output.text += text
            one.output.pieces.extend(pieces)
            if one.output.reason is None:
                yield TokenChunk(b"".join(parts), chunk.tokens)
                continue
            left -= 1
            if left:
                yield TokenChunk(b"".join(parts), chunk.tokens)
                continue
            outputs = [each.output for each in said]
            parts.append(form.finish(outputs, usage) if asked.stream else form.whole(outputs, usage))
            cut = any(output.reason == "length" for output in outputs)
            yield TokenChunk(b"".join(parts), chunk.tokens, "length" if cut else "stop", cached, times)


def _outputs(asked: Asked, request: EngineRequest, plan: Planner) -> Sequence[_Said]:
    """The outputs, in order; the first has the request's own id."""
    said: list[_Said] = []
    shares = _shares(request.input_tokens, asked.prompts)
    for prompt, input_tokens in zip(asked.prompts, shares, strict=True):
        for copy in range(asked.copies):
            planned, index = plan(asked, prompt, copy), len(said)
            most = (
                request.max_tokens if planned.script is None else min(request.max_tokens, len(planned.script))
            )
            own = replace(
                request,
                request_id=request.request_id if not index else f"{request.request_id}#{index}",
                prompt=prompt,
                input_tokens=input_tokens,
                max_tokens=most,
                stop=asked.stops,
                sampling=_seeded(asked, copy),
                route=request.route if len(asked.prompts) == 1 else None,
                call=None,
            )
            said.append(_Said(asked, own, Output(index, planned.tool), planned))
    return said


def _seeded(asked: Asked, copy: int) -> dict[str, object]:
    """The client's sampling; copies of one prompt differ."""
    if not copy:
        return dict(asked.sampling)
    return {**asked.sampling, "seed": int(asked.sampling.get("seed", 0)) + copy}


def _shares(tokens: int, prompts: Sequence[Prompt]) -> Sequence[int]:
    """The tokens of all prompts, by their lengths."""
    if len(prompts) == 1:
        return [tokens]
    lengths = [max(1, len(prompt)) for prompt in prompts]
    begins = [sum(lengths[:at]) * tokens // sum(lengths) for at in range(len(prompts) + 1)]
    return [max(1, end - begin) for begin, end in pairwise(begins)]


def _echoed(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else text_of_ids(prompt)


async def _side_by_side(
    said: Sequence[_Said], copies: int, run: Run
) -> AsyncGenerator[tuple[_Said, TokenChunk], None]:
    """The chunks of all outputs as they come; each output's until it has ended."""
    if len(said) == 1:
        (one,) = said
        async with aclosing(run(one.request, False)) as chunks:
            async for chunk in chunks:
                yield one, chunk
                if one.output.reason is not None:
                    await _run_out(chunks, chunk)
                    return
        return
    queue: asyncio.Queue[tuple[_Said, TokenChunk] | Exception] = asyncio.Queue()
    computed = [asyncio.Event() for _ in range(len(said) // copies)]

    async def pump(at: int, one: _Said) -> None:
        first = at % copies == 0
        ready = computed[at // copies]
        try:
            if not first:
                await ready.wait()
            async with aclosing(run(one.request, not first)) as chunks:
                async for chunk in chunks:
                    ready.set()
                    queue.put_nowait((one, chunk))
                    if chunk.finish_reason is not None:
                        await _run_out(chunks, chunk)
                        return
            raise EngineError(f"{one.request.request_id}: the output ended before it was complete")
        except Exception as error:  # noqa: BLE001 - raised where the answer is made
            queue.put_nowait(error)

    tasks = [asyncio.create_task(pump(at, one)) for at, one in enumerate(said)]
    try:
        while not all(one.output.reason for one in said):
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item[0].output.reason is None:
                yield item
            if item[0].output.reason is not None:
                tasks[item[0].output.index].cancel()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run_out(chunks: AsyncGenerator[TokenChunk, None], last: TokenChunk) -> None:
    """Let what the engine has ended run out by itself: closed early it would be aborted."""
    if last.finish_reason is not None:
        await anext(chunks, None)
