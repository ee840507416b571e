"""Settings → candidates and supply: the GPU types of `gpu_types`, each with the engine that it would run."""

from collections.abc import Mapping

from headway.config import ConfigError, HeadwayConfig, resolve_profile
from headway.engine import engine_rules
from headway.planning.gpu_types.needs import Candidate
from headway.planning.gpu_types.values import Supply
from headway.planning.replay import ReplayEngine
from headway.planning.types import Role, Slo
from interp import ProfileError, load_profile, scaled


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
        rules = engine_rules(config, profile)
    except ProfileError as error:
        raise ConfigError(f"{key}: {error}") from error
    slo = Slo(ttft_s=config.slo.ttft_s, itl_s=config.slo.itl_s)
    decode = profile.decode.gpus_per_engine
    gpus = {Role.PREFILL: profile.prefill.gpus_per_engine, Role.DECODE: decode, Role.MIXED: decode}
    return Candidate(engine=ReplayEngine.of(profile, slo, rules), gpus_per_replica=gpus)
