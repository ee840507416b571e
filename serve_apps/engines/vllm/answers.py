"""vLLM's own OpenAI server in a replica, without a port: what a client sent goes in as it came.

    body -> vLLM's application: templates, tool and reasoning parsers, structured outputs, logprobs, LoRA
              | generate(prompt, parameters)             | bytes, as vLLM writes them
            MeteredClient -> AsyncLLM                  chunks: these bytes, and the tokens since the last ones

So an answer is vLLM's to the letter, and nothing of it is written again. Between the application and its
engine stands a client that counts tokens, which bytes do not show; that tells vLLM where the KV of the
prompt is, whatever endpoint asked; and that keeps a client from saying that itself.

A prefill runs the same way up to the point at which the engine has the prompt's KV; the answer is dropped.
"""

import asyncio
import os
from argparse import Namespace
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from contextvars import ContextVar
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from headway.config import HeadwayConfig
from headway.planning.types import Role
from serve_apps.engines.protocol import (
    AuxiliaryAnswer,
    AuxiliaryCall,
    ClientCall,
    EngineError,
    FinishReason,
    KvHandle,
    Refused,
    TokenChunk,
)
from serve_apps.engines.vllm.arguments import engine_arguments
from serve_apps.engines.vllm.requests import Attempt

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import Message, Scope
    from vllm import RequestOutput, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

KV_PARAMETERS = "kv_transfer_params"
SEND: Mapping[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""Asks vLLM to keep the KV of a prompt for another engine, and to return where it is."""

OURS = (KV_PARAMETERS, "kv_cache_report_mode")
"""Not for clients to set: where KV is, and that what is found in the cache be reported as if it were new."""

ENDS: Mapping[str, FinishReason] = {"stop": "stop", "length": "length"}
LEAVES_WITHIN_S = 5.0
"""Seconds for vLLM's application to end a call that was closed, before its task is cancelled."""


class Exchange:
    """A request to vLLM's application, and its answer so far: `news` is set whenever there is more of it."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 0
        self.parts: list[bytes] = []
        self.news, self.gone = asyncio.Event(), asyncio.Event()

    async def receive(self) -> "Message":
        """The body at once; then, when the call is closed, that the client has gone."""
        if (body := self._body) is not None:
            self._body = None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: "Message") -> None:
        """What the application answers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif body := message.get("body"):
            self.parts.append(body)
            self.news.set()


class Metered(Exchange):
    """One call for output, and what the engine did for it.

    `asked`: prompts that the application gave to the engine; `ended`: how many of them have ended. `tokens`
    were produced since the last chunk.
    """

    def __init__(self, attempt: Attempt, call: ClientCall, kv: KvHandle | None) -> None:
        super().__init__(call.body)
        self.attempt, self.call, self.kv = attempt, call, kv
        self.tokens = self.asked = self.ended = 0
        self.reason: FinishReason | None = None
        self.cached_tokens: int | None = None
        self.prefilled: RequestOutput | None = None

    def produced(self, output: "RequestOutput") -> None:
        """Some tokens of one of its prompts."""
        self.tokens += sum(len(part.token_ids) for part in output.outputs)
        if not self.call.stream:
            # Nothing leaves before the end, and yet the first token's time is that of the first token.
            self.news.set()
        if output.finished:
            self.attempt.finished(output.metrics)
            self.ended += 1
            reasons = {ENDS.get(part.finish_reason or "") for part in output.outputs}
            self.reason = "length" if "length" in reasons else self.reason or "stop"
            self.cached_tokens = output.num_cached_tokens

    def take(self) -> TokenChunk | None:
        """What came since it was asked last."""
        self.news.clear()
        parts, tokens = self.parts, self.tokens
        self.parts, self.tokens = [], 0
        return TokenChunk(b"".join(parts), tokens) if parts or tokens else None


_CALL: ContextVar[Metered] = ContextVar("call")


class MeteredClient:
    """vLLM's engine as its application sees it, until it is closed."""

    def __init__(self, llm: "AsyncLLM") -> None:
        self._llm: AsyncLLM | None = llm

    def close(self) -> None:
        """Let go of the engine, whatever still holds this."""
        self._llm = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever vLLM's engine has
        return getattr(self._llm, name)

    async def generate(
        self,
        prompt: Any,  # noqa: ANN401 - as vLLM's renderer makes it
        sampling_params: "SamplingParams",
        request_id: str,
        **options: Any,  # noqa: ANN401
    ) -> AsyncGenerator["RequestOutput", None]:
        """The engine's outputs, of the kind that was asked for; every token is counted as it comes."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        call, llm = _CALL.get(), self._llm
        assert llm is not None, "an engine that is closed is asked nothing"
        call.asked += 1
        if call.attempt.prefill_only:
            sampling_params = SamplingParams(**prompt_only())
        else:
            _place(sampling_params, call)
        whole, call_kind = None, sampling_params.output_kind
        sampling_params.output_kind = RequestOutputKind.DELTA
        call.attempt.inner_ids.append(request_id)
        async with aclosing(llm.generate(prompt, sampling_params, request_id, **options)) as outputs:
            async for output in outputs:
                if call.kv is not None:
                    # What came as KV counts as cached in vLLM: meant is what the prefill found.
                    output.num_cached_tokens = call.kv.cached_tokens
                call.produced(output)
                if call.attempt.prefill_only:
                    whole = output
                elif call_kind is RequestOutputKind.DELTA:
                    yield output
                elif whole is None:
                    whole = output
                else:
                    _join(whole, output)
        if call.attempt.prefill_only:
            # The end of vLLM's stream keeps the KV, and no answer is made of the token.
            call.prefilled = whole
            call.news.set()
            await call.gone.wait()
        elif whole is not None:
            yield whole


def _join(whole: "RequestOutput", output: "RequestOutput") -> None:
    """Add what came to what came before, as one output."""
    cached = output.num_cached_tokens
    whole.add(output, aggregate=True)
    whole.num_cached_tokens = whole.num_cached_tokens if cached is None else cached


def prompt_only() -> dict[str, Any]:
    """Sampling parameters of a prefill: one token, which is thrown away, so the client's do not matter."""
    return {"max_tokens": 1, "detokenize": False, "extra_args": {KV_PARAMETERS: dict(SEND)}}


def _place(parameters: "SamplingParams", call: Metered) -> None:
    """Headway sets the KV's place, and the longest output where the client named none."""
    extra = {name: value for name, value in (parameters.extra_args or {}).items() if name not in OURS}
    if call.kv is not None and call.kv.transfer:
        extra[KV_PARAMETERS] = dict(call.kv.transfer)
    parameters.extra_args = extra or None
    if not call.call.bounded and parameters.max_tokens is not None:
        parameters.max_tokens = min(parameters.max_tokens, call.attempt.request.max_tokens)


class Answers:
    """vLLM's application over one engine."""

    def __init__(self, config: HeadwayConfig, role: Role, llm: "AsyncLLM") -> None:
        from vllm.entrypoints.openai.models.protocol import LoRAModulePath

        adapters = [LoRAModulePath(*each) for each in config.engine.vllm.adapters.items()]
        own = {"lora_modules": adapters or None}
        self._arguments = {**engine_arguments(config, role), **config.engine.vllm.server, **own}
        self._client = MeteredClient(llm)
        self._app: Starlette | None = None
        self._making = asyncio.Lock()

    def close(self) -> None:
        """Let go of the engine."""
        self._client.close()

    async def prefill(self, attempt: Attempt, call: ClientCall) -> "RequestOutput":
        """The prompt's output, with the place of its KV. Refused, EngineError."""
        metered = Metered(attempt, call, None)
        async with aclosing(self._running(metered)) as steps:
            async for _ in steps:
                if metered.prefilled is not None:
                    return metered.prefilled
        raise EngineError(f"{call.path}: vLLM answered without computing the prompt")

    async def answer(
        self, attempt: Attempt, call: ClientCall, kv: KvHandle | None
    ) -> AsyncGenerator[TokenChunk, None]:
        """The answer's bytes and tokens as they come, the last chunk with its end. Refused, EngineError."""
        metered = Metered(attempt, call, kv)
        async with aclosing(self._running(metered)) as steps:
            async for _ in steps:
                if attempt.ended is not None:
                    raise attempt.ended
                if metered.status in (0, HTTPStatus.OK) and (chunk := metered.take()) is not None:
                    yield chunk
        if metered.ended < metered.asked:
            raise EngineError(f"{call.path}: vLLM broke the answer off")
        last = metered.take() or TokenChunk(b"", 0)
        reason, cached = metered.reason or "stop", metered.cached_tokens
        yield last._replace(finish_reason=reason, cached_tokens=cached, times=attempt.times)

    async def auxiliary(self, question: AuxiliaryCall) -> AuxiliaryAnswer:
        """The reply of vLLM's server to a call that makes no output, such as /tokenize."""
        app, exchange = await self.made(), Exchange(question.body)
        scope = _scope(question.method, question.path, question.body)
        await app(scope, exchange.receive, exchange.send)
        return AuxiliaryAnswer(exchange.status, b"".join(exchange.parts))

    async def _running(self, metered: Metered) -> AsyncGenerator[None, None]:
        """The call runs; a step whenever there are news of it, the last one at its end."""
        app = await self.made()
        token = _CALL.set(metered)
        scope = _scope("POST", metered.call.path, metered.call.body, metered.call.trace)
        task = asyncio.create_task(app(scope, metered.receive, metered.send))
        _CALL.reset(token)
        task.add_done_callback(lambda _: metered.news.set())
        try:
            while not task.done():
                await metered.news.wait()
                metered.news.clear()
                yield
            # The application writes a refusal, and then raises an unexpected error once more.
            failure = task.exception()
            if metered.attempt.ended is not None:
                raise metered.attempt.ended
            if metered.status not in (0, HTTPStatus.OK):
                raise Refused(metered.status, b"".join(metered.parts))
            if failure is not None:
                raise EngineError(f"{metered.call.path}: {type(failure).__name__}: {failure}") from failure
        finally:
            # Cancelled from outside, the application would leave what it has begun.
            metered.gone.set()
            if not task.done():
                await _ended(task)

    async def made(self) -> "Starlette":
        """The application; it takes seconds the first time."""
        async with self._making:
            if self._app is None:
                self._app = await _application(self._arguments, self._client)
            return self._app


async def _ended(task: "asyncio.Task[None]") -> None:
    """Wait for the end of a call that is closed; shielded, as the caller is often being cancelled."""
    try:
        with suppress(Exception):
            await asyncio.wait_for(asyncio.shield(task), LEAVES_WITHIN_S)
    finally:
        task.cancel()


async def _application(arguments: Mapping[str, Any], client: MeteredClient) -> "Starlette":
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    tasks = await client.get_supported_tasks()
    namespace = _namespace(arguments, client)
    app: Starlette = build_app(namespace, tasks, client.model_config)
    await init_app_state(client, app.state, namespace, tasks)
    return app


def _namespace(arguments: Mapping[str, Any], client: MeteredClient) -> Namespace:
    """What vLLM's command line would have made of the settings."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    namespace: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    for name, value in arguments.items():
        setattr(namespace, name, value)
    namespace.structured_outputs_config = client.vllm_config.structured_outputs_config
    namespace.enable_prompt_tokens_details = True
    return namespace


def _scope(method: str, path: str, body: bytes, more: Sequence[tuple[bytes, bytes]] = ()) -> "Scope":
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *more]
    if key := os.environ.get("VLLM_API_KEY"):
        headers.append((b"authorization", b"Bearer " + key.encode()))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": None,
        "server": None,
        "state": {},
    }
