"""`headway profile --fleet`: the profile of engines that serve, from what they show and from a few probes.

addresses of vLLM servers      readings of their metrics and probes correct the profile of --base
a Headway gateway              its replicas observe themselves, and the Interpolator learns: probes are
                               sent through the gateway, and its profile is saved at the end
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.config import resolve_profile
from headway.loadgen import LoadPlan, fetch_models
from headway.planning.types import Slo
from headway.profiling import refuse_what_exists
from headway.profiling.fleet_probing import (
    FleetOptions,
    fleet_meta,
    fleet_profile,
    rebased,
    watch_fleet,
)
from headway.profiling.fleet_replica import GATEWAY, VLLM, EndpointReplica
from headway.profiling.sweep.endpoint import endpoint_facts
from headway.profiling.sweep.points import LONGEST_ISL_TOKENS, Limits
from headway_cli.control import ControlClient
from headway_cli.errors import CliError
from headway_cli.profile_targets import ProfileOptions, check_budget, configuration, is_endpoint, limits_of
from headway_cli.profile_view import fleet_lines
from headway_cli.terminal import bar
from interp import (
    DecodeSamples,
    PrefillSamples,
    Profile,
    ProfileError,
    build_profile,
    load_profile,
    save_profile,
)

PATH = "/v1/control/profile"
DEFAULT_MINUTES = 5.0
SECONDS_PER_MINUTE = 60.0


def run_fleet(options: ProfileOptions) -> list[str]:
    """Watch, probe, and write the profile; what to say of it. CliError and ProfilingError, one line."""
    output, addresses = _checked(options)
    running = profile_of(addresses[0], options) if len(addresses) == 1 else None
    if running is None and options.base is None:
        raise CliError("--base: needed, a profile that what is seen corrects (headway profile list)")
    profile, meta = asyncio.run(_watched(options, addresses, running))
    save_profile(output, profile.prefill.samples, profile.decode.samples, meta)
    return [*fleet_lines(meta["fleet"]), f"wrote {output}"]


def profile_of(address: str, options: ProfileOptions) -> Profile | None:
    """The profile that a Headway at `address` plans by; None where no Headway answers there."""
    try:
        document = ControlClient(url=address, api_key=_key(options)).get(PATH)
        return profile_from(document)
    except (CliError, KeyError, TypeError, ValueError, ProfileError):
        return None


def profile_from(document: Mapping[str, Any]) -> Profile:
    """The profile in an answer of the control API. KeyError, TypeError, ValueError, ProfileError."""
    prefill, decode = PrefillSamples(**document["prefill"]), DecodeSamples(**document["decode"])
    return build_profile(prefill, decode, dict(document["meta"]))


async def _watched(
    options: ProfileOptions, addresses: Sequence[str], running: Profile | None
) -> tuple[Profile, Mapping[str, Any]]:
    minutes = DEFAULT_MINUTES if options.budget is None else options.budget
    slo_settings = configuration(options, 1).slo
    slo = Slo(ttft_s=slo_settings.ttft_s, itl_s=slo_settings.itl_s)
    if options.model is None:
        # First of all, since it says why where nothing answers.
        options = replace(options, model=(await fetch_models(addresses[0], _key(options)))[0])
    limits = await _limits(options, addresses, running)
    base = running or rebased(
        load_profile(resolve_profile(str(options.base), key="--base")), limits, _gpus(options)
    )
    async with _opened(options, addresses, slo, gateway=running is not None) as replicas:
        with bar("fleet") as show:
            asked = FleetOptions(
                slo=slo,
                attainment=slo_settings.attainment,
                budget_s=minutes * SECONDS_PER_MINUTE,
                clock=asyncio.get_running_loop().time,
                probes=not options.no_probes,
                learns=running is None,
                seed=secrets.randbits(32),
                progress=lambda seconds, _: show(seconds, minutes * SECONDS_PER_MINUTE) if show else None,
            )
            evidence = await watch_fleet(replicas, base, limits, asked)
    said = fleet_meta(base, evidence, len(addresses))
    if running is None:
        return fleet_profile(base, evidence), _meta(options, limits, said)
    learnt = profile_of(addresses[0], options)
    if learnt is None:
        raise CliError(f"{addresses[0]}{PATH}: no longer answers")
    return learnt, {**learnt.meta, "fleet": _sent(said["fleet"])}


def _meta(options: ProfileOptions, limits: Limits, said: Mapping[str, Any]) -> Mapping[str, Any]:
    gpus = _gpus(options)
    return {
        "source": f"a running fleet: {options.base} corrected by traffic and probes, not swept",
        "engine": "fleet",
        "model": options.model,
        "base": options.base,
        "tp": gpus,
        "gpus_per_engine": gpus,
        "max_kv_tokens": limits.max_kv_tokens,
        "max_batch_size": limits.max_batch,
        **said,
    }


def _sent(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a fleet that learns by itself: what was sent."""
    return {name: said[name] for name in ("probes", "probe_seconds")}


@asynccontextmanager
async def _opened(
    options: ProfileOptions, addresses: Sequence[str], slo: Slo, *, gateway: bool
) -> AsyncIterator[list[EndpointReplica]]:
    key, clock = _key(options), asyncio.get_running_loop().time
    async with AsyncExitStack() as stack:
        replicas = []
        for address in addresses:
            plan = LoadPlan(
                url=address,
                model=str(options.model),
                slo=slo,
                api_key=key,
                timeout_s=options.timeout,
            )
            replica = EndpointReplica(plan, GATEWAY if gateway else VLLM, clock)
            replicas.append(await stack.enter_async_context(replica))
        yield replicas


async def _limits(options: ProfileOptions, addresses: Sequence[str], running: Profile | None) -> Limits:
    """By the flags, then the first server, then the profile of a Headway that runs."""
    facts = await endpoint_facts(addresses[0], _key(options))
    if running is not None:
        capacity = int(running.decode.table.max_kv_tokens)
        longest = min(capacity, LONGEST_ISL_TOKENS, facts.request_tokens or LONGEST_ISL_TOKENS)
        facts = replace(facts, kv_tokens=facts.kv_tokens or capacity, request_tokens=longest)
    return limits_of(options, facts)


def _key(options: ProfileOptions) -> str | None:
    return os.environ.get(options.api_key_env)


def _gpus(options: ProfileOptions) -> int:
    if not options.tp.isdecimal() or int(options.tp) < 1:
        raise CliError(f"--tp: a fleet has one size, got {options.tp!r}")
    return int(options.tp)


def _checked(options: ProfileOptions) -> tuple[Path, list[str]]:
    addresses = [part.strip().rstrip("/") for part in (options.fleet or "").split(",") if part.strip()]
    for address in addresses:
        if not is_endpoint(address):
            raise CliError(f"--fleet: {address!r} is no address such as http://10.0.0.7:8000")
    if not addresses:
        raise CliError("--fleet: expected addresses such as http://10.0.0.7:8000,http://10.0.0.8:8000")
    if options.output is None:
        raise CliError("--output: needed")
    if options.engine is not None:
        raise CliError("--engine: goes without --fleet, which says where the engines are")
    check_budget(options)
    if options.base is not None:
        resolve_profile(options.base, key="--base")
    place = Path(options.output)
    refuse_what_exists(place)
    return place, addresses
