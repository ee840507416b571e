"""Inference engines behind one protocol. No Ray in here.

    engine = make_engine(config, Role.DECODE, "decode-1")

A kind of engine is a declaration (`headway.engine.kinds.EngineKind`) that imports its engine when it makes
one. Declared here are the default kind and that of engines which others start, in `vllm` the third.
`protocol` is what all engines follow; `answering` makes answers of the text of those that make no more.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.config import ConfigError, HeadwayConfig, Role
from headway.engine.kinds import EngineKind, engine_kind
from interp import ProfileError

if TYPE_CHECKING:
    from serve_apps.engines.protocol import Engine


def make_engine(config: HeadwayConfig, role: Role, engine_id: str) -> "Engine":
    """The engine that `config.engine.kind` names; returns when it can serve, which may take its start-up.

    Raises ConfigError or ProfileError, each one line; EngineFailed where the engine's own code raises.
    """
    kind = engine_kind(config)
    try:
        engine: Engine = kind.make(config, role, engine_id)
    except (ConfigError, ProfileError):
        raise
    except Exception as error:
        from serve_apps.engines.protocol import EngineFailed

        cause = f"{type(error).__name__}: {error}"
        raise EngineFailed(
            f"engine.kind {config.engine.kind!r}: the engine does not start: {cause}"
        ) from error
    if kind.answers:
        return engine
    from serve_apps.engines.answering.answers import AnsweringEngine

    return AnsweringEngine(engine, config.engine.kind)


def _make_simulated(config: HeadwayConfig, role: Role, engine_id: str) -> "Engine":
    from serve_apps.engines.simulated import SimulatedEngine

    return SimulatedEngine(config, role, engine_id)


def _profile_settings(model: str | None, tp: int) -> Mapping[str, Any]:
    """The profile to measure; `{tp}` in its name stands for the tensor parallelism."""
    return {} if model is None else {"engine.profile": model.replace("{tp}", str(tp))}


def _started_by_others(config: HeadwayConfig, role: Role, engine_id: str) -> "Engine":
    raise ConfigError("engine.kind: external engines are started by others; headway attach plans for them")


EXTERNAL = EngineKind(make=_started_by_others, elsewhere=True)
SIMULATED = EngineKind(
    make=_make_simulated,
    simulated=True,
    answers=True,
    adapters=lambda config: config.engine.lora.names,
    sleeps=lambda _: "",
    profile_settings=_profile_settings,
)
