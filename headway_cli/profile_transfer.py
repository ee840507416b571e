"""The KV transfer of `headway profile`: the pair of engines that is timed, and what is kept of it.

    simulated, vllm on CPUs    a prefill and a decode engine of the settings, both made in this process
    URL                        the prefill side, `--decode` the decode side (`EndpointPair`)

Two real engines of one process would share a GPU, and move KV within its memory; on GPUs it takes a pair of
servers. DIR/measurements/kv-transfer-tpN.json holds what meta.json says.
"""

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headway.config import HeadwayConfig
from headway.engine.kinds import engine_kind
from headway.loadgen import LoadPlan, fetch_models
from headway.planning.types import Role, Slo
from headway.profiling import MeasurementsError, TargetError
from headway.profiling.sweep.points import Limits
from headway.profiling.transfer import (
    EndpointPair,
    Handover,
    measure_transfers,
    transfer_lengths,
    transfer_meta,
)
from headway_cli.errors import CliError
from headway_cli.profile_targets import (
    Closes,
    EngineRequests,
    ProfileOptions,
    SaysSizes,
    arrivals,
    configuration,
    is_endpoint,
)
from headway_cli.terminal import bar
from serve_apps.engines.protocol import Engine, EngineError


def check_transfer(options: ProfileOptions) -> None:
    """CliError where the flags ask for a transfer that cannot be timed."""
    engine = options.engine or ""
    if options.decode is not None and not is_endpoint(engine):
        raise CliError("--decode: goes with --engine ADDRESS, the prefill side; engines made here need none")
    if not options.kv_transfer:
        return
    if is_endpoint(engine):
        if options.decode is None:
            raise CliError("--kv-transfer: needs --decode ADDRESS, the decode side that goes with --engine")
        return
    config = _split(options, 1)
    if engine_kind(config).resources(config, Role.PREFILL).gpus:
        raise CliError(
            "--kv-transfer: two engines of one process would share a GPU; start a prefill and a decode "
            "server and give both, --engine ADDRESS --decode ADDRESS"
        )


def wants_transfer(options: ProfileOptions) -> bool:
    """True if the flags ask for it."""
    return options.kv_transfer or options.decode is not None


async def measure_transfer(options: ProfileOptions, tp: int, limits: Limits, path: Path) -> None:
    """Time the KV transfer at one TP and write what meta.json is to say. Raises ProfilingError, CliError."""
    lengths = transfer_lengths(limits.longest_tokens)
    opening = _endpoints(options) if is_endpoint(options.engine or "") else _in_process(options, tp)
    async with opening as (pair, how):
        with bar(f"tp {tp}: KV transfer") as show:
            samples = await measure_transfers(
                pair,
                lengths,
                repeats=options.repeats,
                seed=secrets.randbits(32),
                progress=lambda done: show(done, len(lengths)) if show else None,
            )
        meta = transfer_meta(samples, bytes_per_token=await pair.bytes_per_token(), how=how)
    path.write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def read_transfer(path: Path) -> Mapping[str, Any]:
    """The keys of meta.json that a KV transfer gives; none where it was not timed. MeasurementsError."""
    if not path.exists():
        return {}
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        size = {"kv_bytes_per_token": float(said["bytes_per_token"])} if said["bytes_known"] else {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MeasurementsError(f"{path}: is no measured KV transfer ({error!r})") from error
    return {**size, "kv_transfer": said}


class EnginePair:
    """A prefill and a decode engine of this process, on the running loop."""

    def __init__(self, prefill: Engine, decode: Engine, model: str) -> None:
        self._prefill, self._decode, self._requests = prefill, decode, EngineRequests("transfer", model)

    async def hand_over(self, prompt: Sequence[int], output_tokens: int) -> Handover:
        """One request over both engines. Raises TargetError."""
        before = self._decode.stats().external_tokens
        request = self._requests.next(prompt, output_tokens)
        try:
            kv = await self._prefill.prefill(request)
        except EngineError as error:
            raise TargetError(str(error)) from error
        prefilled_s = asyncio.get_running_loop().time()
        came = await arrivals(self._decode, request, kv)
        if self._decode.stats().external_tokens <= before:
            raise TargetError("the decode engine computed the prompt by itself; no KV came to it")
        return Handover(prefilled_s, came)

    async def bytes_per_token(self) -> float | None:
        """As the decode engine says."""
        return self._decode.sizes().kv_bytes_per_token if isinstance(self._decode, SaysSizes) else None


def _split(options: ProfileOptions, tp: int) -> HeadwayConfig:
    """The settings with a prefill and a decode pool instead of the mixed one that is swept."""
    return configuration(
        options, tp, {"pools": {role: {"gpus_per_replica": tp} for role in ("prefill", "decode")}}
    )


@asynccontextmanager
async def _in_process(options: ProfileOptions, tp: int) -> AsyncIterator[tuple[EnginePair, str]]:
    from serve_apps.engines import make_engine

    config = _split(options, tp)
    kind, engines = engine_kind(config), dict[Role, Engine]()
    try:
        with kind.quiet():
            for role in (Role.PREFILL, Role.DECODE):
                engines[role] = make_engine(config, role, f"profile-{role.value}")
        how = f"two engines of kind {config.engine.kind} in one process"
        yield EnginePair(engines[Role.PREFILL], engines[Role.DECODE], config.model), how
    except EngineError as error:
        raise TargetError(str(error)) from error
    finally:
        for engine in engines.values():
            if isinstance(engine, Closes):
                engine.close()


@asynccontextmanager
async def _endpoints(options: ProfileOptions) -> AsyncIterator[tuple[EndpointPair, str]]:
    prefill_url, decode_url = str(options.engine), str(options.decode)
    key, slo = os.environ.get(options.api_key_env), configuration(options, 1).slo
    plan = LoadPlan(
        url=decode_url,
        model=options.model or (await fetch_models(decode_url, key))[0],
        slo=Slo(ttft_s=slo.ttft_s, itl_s=slo.itl_s),
        api_key=key,
        timeout_s=options.timeout,
    )
    async with EndpointPair(prefill_url, plan, asyncio.get_running_loop().time) as target:
        yield target, "a prefill and a decode server, over HTTP"
