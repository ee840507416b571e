"""The targets of `headway profile`: an engine made in this process, or an endpoint that runs.

    simulated, vllm    one mixed replica, with settings of --config; TP is the GPUs of its pool
    URL                whatever answers there; its TP is only known from --tp

What the engine holds comes from the flags, else from the engine or the server itself; without --max-tokens
the longest request is at most 131,072 tokens.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import count
from math import isfinite
from typing import Annotated, Any, Protocol, runtime_checkable

from headway.config import ENGINES, HeadwayConfig
from headway.engine.kinds import engine_kind
from headway.loadgen import LoadPlan, fetch_models
from headway.planning.types import Role, Slo
from headway.profiling import TargetError, UnmeasurableError
from headway.profiling.sweep.endpoint import EndpointFacts, OpenAiTarget, endpoint_facts
from headway.profiling.sweep.measure import Arrival, StreamTimes, Target
from headway.profiling.sweep.points import LONGEST_ISL_TOKENS, Limits
from headway_cli.control import KEY_VARIABLE, KeyVariable
from headway_cli.errors import CliError
from headway_cli.flags import option, switch
from headway_cli.options import Itl, Ttft
from serve_apps.engines.protocol import Engine, EngineError, EngineRequest, EngineSizes, PromptTooLong

MOST_AT_ONCE = 256
"""Requests in a batch if neither flag nor server gives a number: vLLM's default of `max_num_seqs`."""


NOTHING_FURTHER: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """One run of the profiler as flags; latencies in milliseconds, as people write them."""

    engine: Annotated[
        str | None, option("ENGINE", "simulated, vllm, or the address of an OpenAI endpoint.")
    ] = None
    output: Annotated[str | None, option("DIR", "Points, profiles and page go here; again to go on.")] = None
    model: Annotated[
        str | None,
        option("NAME", "Simulated: the profile to play, {tp} stands for TP; vllm: a directory or hub name."),
    ] = None
    isl: Annotated[float, option("TOKENS", "Input tokens to recommend for.")] = 3000.0
    osl: Annotated[float, option("TOKENS", "Output tokens to recommend for.")] = 150.0
    ttft_ms: Ttft = None
    itl_ms: Itl = None
    tp: Annotated[str, option("LIST", "Tensor-parallel sizes, such as 1,2,4.")] = "1"
    config: Annotated[str | None, option("FILE", "Settings (YAML) of the engine.")] = None
    budget: Annotated[float | None, option("MIN", "Begin no point after so many minutes.")] = None
    repeats: Annotated[int, option("N", "Runs of a point that count.")] = 3
    isl_points: Annotated[int, option("N", "Granularity of prefill.")] = 16
    kv_points: Annotated[int, option("N", "Granularity of decode: KV usages.")] = 6
    context_points: Annotated[int, option("N", "Granularity of decode: contexts.")] = 6
    max_tokens: Annotated[int | None, option("N", "Input plus output of the longest request.")] = None
    max_kv_tokens: Annotated[int | None, option("N", "Tokens in the KV cache of one engine.")] = None
    max_batch: Annotated[int | None, option("N", "Requests that run at once.")] = None
    timeout: Annotated[float, option("S", "Seconds that one request may take.")] = 600.0
    kv_transfer: Annotated[
        bool, switch("--kv-transfer", "Also time KV from a prefill to a decode engine.")
    ] = False
    decode: Annotated[
        str | None, option("ADDRESS", "The decode side of --engine ADDRESS: times the KV between them.")
    ] = None
    fleet: Annotated[
        str | None, option("ADDRESSES", "Engines that serve, instead of --engine: vLLM's, or a gateway's.")
    ] = None
    base: Annotated[str | None, option("PROFILE", "Of a fleet: the profile that what is seen corrects.")] = (
        None
    )
    no_probes: Annotated[bool, switch("--no-probes", "Of a fleet: only look at its traffic.")] = False
    api_key_env: KeyVariable = KEY_VARIABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A target that answers, what it holds, and what identifies it when a sweep is taken up again."""

    target: Target
    limits: Limits
    question: Mapping[str, Any]


def check_budget(options: ProfileOptions) -> None:
    """CliError unless --budget is a time, or not given."""
    if options.budget is not None and not (isfinite(options.budget) and options.budget > 0):
        raise CliError(f"--budget: expected minutes above 0, got {options.budget:g}")


def is_endpoint(engine: str) -> bool:
    """True for an address."""
    return "://" in engine


def configuration(
    options: ProfileOptions, tp: int, further: Mapping[str, Any] = NOTHING_FURTHER
) -> HeadwayConfig:
    """The settings of the engine at one TP, and `further` ones. Raises ConfigError."""
    overrides: dict[str, Any] = {"slo.ttft_ms": options.ttft_ms, "slo.itl_ms": options.itl_ms}
    if options.engine and options.engine in ENGINES:
        overrides |= ENGINES.load(options.engine).profile_settings(options.model, tp)
        overrides["engine.kind"] = options.engine
        overrides["engine.max_batch_size"] = options.max_batch
        overrides["engine.max_model_tokens"] = options.max_tokens
    from serve_apps.arguments import beside

    return beside(options.config, {**overrides, **further})


@asynccontextmanager
async def open_target(options: ProfileOptions, tp: int) -> AsyncIterator[Opened]:
    """The engine of `options` at one TP, for as long as the block runs."""
    engine = options.engine or ""
    opening = _endpoint(options, engine) if is_endpoint(engine) else _in_process(options, tp)
    async with opening as opened:
        yield opened


@asynccontextmanager
async def _in_process(options: ProfileOptions, tp: int) -> AsyncIterator[Opened]:
    from serve_apps.engines import make_engine

    config = configuration(options, tp)
    kind = engine_kind(config)
    kind.check_here(config)
    with kind.quiet():
        engine = make_engine(config, Role.MIXED, f"profile-tp{tp}")
    try:
        limits = limits_of(options, engine.sizes() if isinstance(engine, SaysSizes) else None)
        name = kind.model(config) or config.engine.profile or ""
        settings = config.engine.model_dump(mode="json")
        yield Opened(
            target=EngineTarget(engine, config.model),
            limits=limits,
            question=_question(options, tp, name, limits) | {"settings": settings},
        )
    finally:
        if isinstance(engine, Closes):
            engine.close()


@asynccontextmanager
async def _endpoint(options: ProfileOptions, url: str) -> AsyncIterator[Opened]:
    key = os.environ.get(options.api_key_env)
    model = options.model or (await fetch_models(url, key))[0]
    limits = limits_of(options, await endpoint_facts(url, key))
    config = configuration(options, 1)
    plan = LoadPlan(
        url=url,
        model=model,
        slo=Slo(ttft_s=config.slo.ttft_s, itl_s=config.slo.itl_s),
        api_key=key,
        timeout_s=options.timeout,
    )
    async with OpenAiTarget(plan, asyncio.get_running_loop().time) as target:
        yield Opened(
            target=target, limits=limits, question=_question(options, int(options.tp), model, limits)
        )


def limits_of(options: ProfileOptions, known: EngineSizes | EndpointFacts | None) -> Limits:
    """The flags, else what engine or server say; raises CliError naming the flag that has to be given."""
    max_kv_tokens = options.max_kv_tokens or (known.kv_tokens if known else None)
    max_request_tokens = options.max_tokens or (known.request_tokens if known else None)
    if max_kv_tokens is None:
        raise CliError("--max-kv-tokens: needed, the engine does not say what its KV cache holds")
    if max_request_tokens is None:
        raise CliError("--max-tokens: needed, the engine does not say how long a request may be")
    return Limits(
        max_request_tokens=options.max_tokens or min(max_request_tokens, LONGEST_ISL_TOKENS),
        max_kv_tokens=max_kv_tokens,
        max_batch=options.max_batch or (known.batch if known else None) or MOST_AT_ONCE,
        isl_points=options.isl_points,
        kv_points=options.kv_points,
        context_points=options.context_points,
    )


def _question(options: ProfileOptions, tp: int, model: str, limits: Limits) -> dict[str, Any]:
    return {
        "version": 1,
        "engine": options.engine,
        "model": model,
        "tp": tp,
        "repeats": options.repeats,
        "limits": asdict(limits),
    }


@runtime_checkable
class SaysSizes(Protocol):
    """An engine that reports its sizes."""

    def sizes(self) -> EngineSizes:
        """The sizes of its cache, requests and batch."""


@runtime_checkable
class Closes(Protocol):
    """An engine that holds more than memory of this process."""

    def close(self) -> None:
        """Let go of it."""


class EngineRequests:
    """Greedy requests of exactly so many tokens for engines of this process, numbered under a name."""

    def __init__(self, name: str, model: str) -> None:
        self._name, self._model, self._numbers = name, model, count()

    def next(self, prompt: Sequence[int], output_tokens: int) -> EngineRequest:
        """Another request."""
        return EngineRequest(
            request_id=f"{self._name}-{next(self._numbers)}",
            model=self._model,
            prompt=prompt,
            input_tokens=len(prompt),
            max_tokens=output_tokens,
            sampling={"temperature": 0.0, "ignore_eos": True},
        )


async def arrivals(engine: Engine, request: EngineRequest, kv: Any = None) -> tuple[Arrival, ...]:  # noqa: ANN401 - the engine's own
    """The tokens of a request as they come, on the running loop. UnmeasurableError, TargetError."""
    now_s, found = asyncio.get_running_loop().time, list[Arrival]()
    try:
        async for chunk in engine.decode(request, kv):
            if chunk.tokens:
                found.append(Arrival(now_s(), chunk.tokens))
    except PromptTooLong as error:
        raise UnmeasurableError(str(error)) from error
    except EngineError as error:
        raise TargetError(str(error)) from error
    if not found:
        raise TargetError("the engine gave no token")
    return tuple(found)


class EngineTarget:
    """A mixed engine, called directly on the running loop, whose clock is read."""

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine, self._requests = engine, EngineRequests("profile", model)

    async def stream(self, prompt: Sequence[int], output_tokens: int) -> StreamTimes:
        """Serve one request to its end."""
        request, sent_s = self._requests.next(prompt, output_tokens), asyncio.get_running_loop().time()
        return StreamTimes(sent_s=sent_s, arrivals=await arrivals(self._engine, request))
