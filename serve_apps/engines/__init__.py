"""Inference engines behind one protocol. No Ray in here.

    engine = make_engine(config, Role.DECODE, "decode-1")

Engines load when they are made: what only talks to them imports `protocol` and nothing heavy.
"""

from headway.config import HeadwayConfig
from headway.planning.types import Role
from serve_apps.engines.protocol import Engine


def make_engine(config: HeadwayConfig, role: Role, engine_id: str) -> Engine:
    """The engine that `config.engine.kind` names; returns when it can serve, which may take its start-up.

    Raises ConfigError or ProfileError, each one line.
    """
    if config.engine.kind == "vllm":
        from serve_apps.engines.vllm.engine import VllmEngine

        return VllmEngine(config, role, engine_id)
    from serve_apps.engines.simulated import SimulatedEngine

    return SimulatedEngine(config, role, engine_id)


__all__ = ["make_engine"]
