"""Settings → candidates and supply: the GPU types of `gpu_types`, each with the engine that it would run."""

from collections.abc import Mapping

from headway.config import ConfigError, HeadwayConfig, resolve_profile
from headway.planning.engine_rules import engine_rules
from headway.planning.gpu_types.needs import Candidate
from headway.planning.gpu_types.values import Supply
from headway.planning.replay import ReplayEngine
from headway.planning.types import Role, Slo
from interp import Profile, ProfileError, load_profile, scaled


def candidates(config: HeadwayConfig) -> Mapping[str, Candidate]:
    """The types by name; GPUs per replica are as profiled. ConfigError begins with the key."""
    return {name: _candidate(config, name) for name in config.gpu_types}


def supplies(config: HeadwayConfig) -> Mapping[str, Supply]:
    """Prices and stock by type."""
    return {
        name: Supply(price_per_gpu_hour=each.price_per_gpu_hour, max_gpus=each.max_gpus)
        for name, each in config.gpu_types.items()
    }


def _candidate(config: HeadwayConfig, name: str) -> Candidate:
    key = f"gpu_types.{name}.profile"
    try:
        profile = load_profile(resolve_profile(config.gpu_types[name].profile, key=key))
        profile = scaled(profile, config.engine.time_scale)
        engine = _engine(config, profile)
    except ProfileError as error:
        raise ConfigError(f"{key}: {error}") from error
    decode = profile.decode.gpus_per_engine
    gpus = {Role.PREFILL: profile.prefill.gpus_per_engine, Role.DECODE: decode, Role.MIXED: decode}
    return Candidate(engine=engine, gpus_per_replica=gpus)


def _engine(config: HeadwayConfig, profile: Profile) -> ReplayEngine:
    rules = engine_rules(config, profile)
    return ReplayEngine(
        profile=profile,
        slo=Slo(ttft_s=config.slo.ttft_s, itl_s=config.slo.itl_s),
        max_batch_size=rules.max_batch_size,
        chunk_tokens=rules.chunk_tokens,
        transfer_latency_s=rules.transfer_latency_s,
        transfer_s_per_token=rules.kv_bytes_per_token / rules.transfer_bytes_per_s,
    )
