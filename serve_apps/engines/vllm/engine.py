"""One vLLM engine as a replica: AsyncLLM behind the engine protocol.

    prefill   max_tokens 1 with `do_remote_decode`: vLLM keeps the prompt's blocks and returns where they are:
              that is the handle. They are freed when the decode side has read them or drops the request, and
              unread ones after NIXL's lease of 30 s, which a waiting decode side renews
    decode    with the handle (`kv_transfer_params`): vLLM fetches the blocks before it schedules
              the request. KV that can't be fetched, because its replica died, is computed here. Without it:
              computes the prompt too
    leaving   closing the iterator, or cancelling the task that waits in `prefill`, aborts in vLLM
    calls     what a client sent is answered by vLLM's own server, for both phases (`answers`)
    death     vLLM computes in a process of its own. When that dies, everything here raises EngineFailed

The first token belongs to decode: what prefill samples is thrown away. Sampling parameters are what the model
suggests, then the client's.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headway.config import HeadwayConfig
from headway.planning.types import Role
from headway.routing.types import KnownBlocks
from serve_apps.engines.protocol import (
    AuxiliaryAnswer,
    AuxiliaryCall,
    EngineError,
    EngineFailed,
    EngineRequest,
    EngineSizes,
    EngineStats,
    KvHandle,
    LoadedAdapters,
    RequestAborted,
    TokenChunk,
    check_length,
)
from serve_apps.engines.vllm.answers import ENDS, KV_PARAMETERS, Answers, prompt_only
from serve_apps.engines.vllm.arguments import on_cpu
from serve_apps.engines.vllm.kv_events import follow_events
from serve_apps.engines.vllm.loading import check_model, load, one_line, prepare, prepare_tracing
from serve_apps.engines.vllm.requests import Attempt, Statistics, Streams

if TYPE_CHECKING:
    from vllm import RequestOutput


LEAST_TOP_P = 1e-9
"""Stands for 0, which OpenAI allows and vLLM refuses: either way the likeliest token alone is left."""


def decode_parameters(
    request: EngineRequest, kv: KvHandle | None, default: Mapping[str, Any]
) -> dict[str, Any]:
    """For the output."""
    parameters = {**default, **request.sampling, "max_tokens": request.max_tokens, "stop": list(request.stop)}
    if "top_p" in parameters:
        parameters["top_p"] = max(LEAST_TOP_P, parameters["top_p"])
    if kv is not None and kv.transfer:
        parameters["extra_args"] = {KV_PARAMETERS: dict(kv.transfer)}
    return parameters


class VllmEngine:
    """One replica of `role`; all calls belong to one event loop.

    The constructor loads the model. ConfigError, one line, where that can't be done.
    """

    def __init__(self, config: HeadwayConfig, role: Role, engine_id: str) -> None:
        self.role, self.engine_id, self._slept = role, engine_id, 0
        # vLLM loads one after the other as it begins, and keeps the last ones.
        loaded = LoadedAdapters(config.engine.adapters_at_once, config.engine.vllm.adapters)
        self._statistics, self._streams = Statistics(), Streams(adapters=loaded)
        check_model(config)
        # Held for as long as the engine lives: it keeps the side channel's port.
        self._port = prepare(config.engine.vllm, on_cpu=on_cpu(config.engine.vllm))
        prepare_tracing(config.tracing)
        self._events = follow_events(config, role)
        self._llm = load(config, role, self._statistics, self._events)
        if self._events is not None:
            cache = self._llm.vllm_config.cache_config
            self._events.loaded(cache.num_gpu_blocks, cache.block_size)
        self._longest_tokens: int = self._llm.model_config.max_model_len
        self._default = self._llm.model_config.get_diff_sampling_param()
        self._answers = Answers(config, role, self._llm)

    async def prefill(self, request: EngineRequest) -> KvHandle:
        """Compute the prompt; vLLM keeps its KV for the decode side."""
        self._require(self.role is not Role.DECODE, "does not prefill")
        attempt = await self._begin(request, prefill_only=True)
        output = await self._prefilled(attempt)
        return KvHandle(
            request_id=request.request_id,
            engine_id=self.engine_id,
            input_tokens=request.input_tokens,
            transfer=output.kv_transfer_params or {},
            cached_tokens=output.num_cached_tokens,
            times=attempt.times,
        )

    async def _prefilled(self, attempt: Attempt) -> "RequestOutput":
        call = attempt.request.call
        if call is not None:
            with self._ours(attempt):
                return await self._answers.prefill(attempt, call)
        parameters = {**self._default, **prompt_only()}
        async with aclosing(self._outputs(attempt, parameters, delta=False)) as outputs:
            async for output in outputs:
                last = output
        return last

    async def decode(self, request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
        """Stream the output; tokens that came since the last chunk was taken make one chunk."""
        self._require(self.role is not Role.PREFILL, "does not decode")
        self._require(kv is not None or self.role is Role.MIXED, "needs the KV of the prompt")
        attempt = await self._begin(request, prefilled_elsewhere=kv is not None)
        if request.call is not None:
            with self._ours(attempt):
                async with aclosing(self._answers.answer(attempt, request.call, kv)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            return
        parameters = decode_parameters(request, kv, self._default)
        async with aclosing(self._outputs(attempt, parameters, delta=True)) as outputs:
            async for output in outputs:
                (part,) = output.outputs
                reason = ENDS.get(part.finish_reason or "")
                # What came as KV counts as cached in vLLM: there the prefill's own figure is meant.
                cached_tokens = output.num_cached_tokens if kv is None else kv.cached_tokens
                count = len(part.token_ids)
                if reason is None:
                    yield TokenChunk(part.text, count)
                else:
                    yield TokenChunk(part.text, count, reason, cached_tokens, attempt.times)

    async def abort(self, request_id: str) -> None:
        """End the request if it is here; unknown ids are ignored."""
        await self._end(request_id, RequestAborted(f"{request_id}: aborted"))

    def stats(self) -> EngineStats:
        """The load now. Raises EngineFailed once the engine has failed."""
        self._require_alive()
        book = None if self._events is None else self._events.book
        stats = self._statistics.now(len(self._streams), self._streams.busy_s(), self._streams.adapters)
        return stats if book is None else replace(stats, blocks_at=book.sequence)

    def known_blocks(self, since: int | None) -> KnownBlocks | None:
        """What the prefix cache holds, or what changed since then; None where that is not known."""
        book = None if self._events is None else self._events.book
        return None if book is None else book.since(since)

    async def sleep(self, level: int) -> None:
        """vLLM's sleep: its GPU memory is free, and its prefix cache empty."""
        self._require_alive()
        self._slept = level
        await self._llm.sleep(level=level)

    async def wake(self) -> None:
        """After level 2 the weights are read again before there is a KV cache."""
        self._require_alive()
        if self._slept == 1:
            await self._llm.wake_up()
            return
        await self._llm.wake_up(["weights"])
        await self._llm.collective_rpc("reload_weights")
        await self._llm.wake_up(["kv_cache"])

    def sizes(self) -> EngineSizes:
        """The engine's sizes, as vLLM found them when it had loaded the model."""
        vllm = self._llm.vllm_config
        return EngineSizes(
            kv_tokens=vllm.cache_config.num_gpu_blocks * vllm.cache_config.block_size,
            request_tokens=self._longest_tokens,
            batch=vllm.scheduler_config.max_num_seqs,
            kv_bytes_per_token=_kv_bytes_per_token(vllm),
        )

    async def auxiliary(self, question: AuxiliaryCall) -> AuxiliaryAnswer:
        """The reply of vLLM's server. Raises EngineFailed once the engine has failed."""
        self._require_alive()
        return await self._answers.auxiliary(question)

    async def prepare(self) -> None:
        """Make what answers clients, before the first one waits for it. Raises EngineFailed."""
        self._require_alive()
        self._follow()
        await self._answers.made()

    def close(self) -> None:
        """End the engine's process; nothing may be asked of it any more."""
        if self._events is not None:
            self._events.close()
        self._llm.shutdown()
        self._answers.close()
        # Here and now, not when the interpreter ends and vLLM's modules are gone: vLLM shuts down once more.
        del self._llm
        self._port.close()

    async def _begin(
        self, request: EngineRequest, *, prefill_only: bool = False, prefilled_elsewhere: bool = False
    ) -> Attempt:
        """A new attempt, in the place of an earlier one at the same request."""
        self._require_alive()
        self._follow()
        request_id = request.request_id
        if request.call is None:
            self._require(request.max_tokens >= 1, f"max_tokens of {request_id} must be at least 1")
            check_length(request.input_tokens, request.max_tokens, self._longest_tokens)
        await self._end(request_id, RequestAborted(f"{request_id}: came again"))
        return self._streams.begin(
            request, prefill_only=prefill_only, prefilled_elsewhere=prefilled_elsewhere
        )

    def _follow(self) -> None:
        """Follow vLLM's cache from now on, on the loop of all calls."""
        if self._events is not None:
            self._events.start()

    async def _end(self, request_id: str, error: EngineError) -> None:
        attempt = self._streams.end(request_id, error)
        if attempt is not None:
            await self._llm.abort(attempt.inner_ids)

    async def _outputs(
        self, attempt: Attempt, parameters: Mapping[str, Any], *, delta: bool
    ) -> "AsyncGenerator[RequestOutput, None]":
        """vLLM's outputs of an attempt, its errors as ours; closing it aborts the attempt."""
        (inner_id,) = attempt.inner_ids
        with self._ours(attempt):
            stream = self._llm.generate(
                _prompt(attempt.request), _sampling(parameters, delta=delta), inner_id
            )
            async with aclosing(stream):
                async for output in stream:
                    self._raise_if_ended(attempt, output)
                    if output.finished:
                        attempt.finished(output.metrics)
                    yield output

    @contextmanager
    def _ours(self, attempt: Attempt) -> Iterator[None]:
        """An attempt in vLLM: its errors as ours, and over at the end."""
        from vllm.exceptions import VLLMError

        try:
            yield
        except EngineError:
            # What vLLM answered of an engine that has died is no answer.
            self._require_alive()
            raise
        except (VLLMError, ValueError) as error:
            raise self._translated(error) from error
        finally:
            self._streams.leave(attempt)

    def _raise_if_ended(self, attempt: Attempt, output: "RequestOutput") -> None:
        if attempt.ended is not None:
            raise attempt.ended
        reason = output.outputs[0].finish_reason
        self._require(
            reason is None or reason in ENDS, f"vLLM ended {attempt.request.request_id} with {reason!r}"
        )

    def _translated(self, error: Exception) -> EngineError:
        if self._llm.errored:
            return self._failure()
        cause = error.__cause__ or error
        return EngineError(f"{self.role} engine {self.engine_id}: {one_line(cause)}")

    def _require(self, holds: bool, complaint: str) -> None:
        if not holds:
            raise EngineError(f"{self.role} engine {self.engine_id}: {complaint}")

    def _require_alive(self) -> None:
        if self._llm.errored:
            raise self._failure()

    def _failure(self) -> EngineFailed:
        return EngineFailed(f"{self.role} engine {self.engine_id}: vLLM's engine process has died")


def _kv_bytes_per_token(vllm: Any) -> float:  # noqa: ANN401 - vLLM's VllmConfig
    """K and V of all layers that have a cache; of latent attention one vector a layer."""
    model, kind = vllm.model_config, vllm.cache_config.cache_dtype
    bytes_each = 1 if kind.startswith("fp8") else model.dtype.itemsize
    vectors = 1 if model.use_mla else 2 * model.get_total_num_kv_heads()
    return float(model.get_total_num_hidden_layers() * vectors * model.get_head_size() * bytes_each)


def _prompt(request: EngineRequest) -> dict[str, Any]:
    if isinstance(request.prompt, str):
        return {"prompt": request.prompt}
    return {"prompt_token_ids": list(request.prompt)}


def _sampling(parameters: Mapping[str, Any], *, delta: bool) -> Any:  # noqa: ANN401 - vLLM's SamplingParams
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    kind = RequestOutputKind.DELTA if delta else RequestOutputKind.FINAL_ONLY
    return SamplingParams(**parameters, output_kind=kind)
