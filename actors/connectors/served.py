"""Deployments of Ray Serve as its controller describes them.

    Serve's state of a replica                                  counted as
    STARTING                                                    starting
    RUNNING, UPDATING, RECOVERING, PENDING_MIGRATION            ready: its constructor has returned, it serves
    STOPPING, STOPPED                                           draining

A restarted Serve controller calls replicas RECOVERING that never stopped serving.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from actors.connectors.protocol import PoolCounts

Phase = Literal["starting", "ready", "draining"]

PHASES: Mapping[str, Phase] = {
    "STARTING": "starting",
    "RUNNING": "ready",
    "UPDATING": "ready",
    "RECOVERING": "ready",
    "PENDING_MIGRATION": "ready",
    "STOPPING": "draining",
    "STOPPED": "draining",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedReplica:
    """One replica: its id, Serve's word for its state, the Unix time of its actor's start, its node."""

    replica: str
    state: str
    started_s: float
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDeployment:
    """One deployment. `model` is what its user config names, None where it names none.

    `autoscaling` is Serve's own, as text; empty where there is none. `message` is Serve's word on it.
    `asleep` replicas are not among the others (`sleepers`). `crowded`: one has nothing to do, and another
    engine waits for its GPU.
    """

    target: int
    replicas: tuple[ServedReplica, ...]
    model: str | None = None
    autoscaling: str = ""
    message: str = ""
    asleep: int = 0
    crowded: bool = False


def counts_of(deployment: ServedDeployment) -> PoolCounts:
    """One deployment in a pool's four counts."""
    phases = [PHASES.get(replica.state, "draining") for replica in deployment.replicas]
    return PoolCounts(
        desired=deployment.target,
        starting=phases.count("starting"),
        ready=phases.count("ready"),
        draining=phases.count("draining"),
    )


def served(details: dict[str, Any]) -> ServedDeployment:
    """A deployment from Serve's own description of it."""
    config = details.get("deployment_config") or {}
    user_config, autoscaling = config.get("user_config"), config.get("autoscaling_config")
    model = user_config.get("model") if isinstance(user_config, dict) else None
    return ServedDeployment(
        target=int(details["target_num_replicas"]),
        replicas=tuple(
            ServedReplica(
                replica=replica["replica_id"],
                state=str(replica["state"]),
                started_s=float(replica["start_time_s"]),
                node=replica.get("node_id") or "",
            )
            for replica in details["replicas"]
        ),
        model=model if isinstance(model, str) else None,
        autoscaling=_range(autoscaling) if isinstance(autoscaling, dict) else "",
        message=_last_line(details.get("message") or ""),
    )


def _range(autoscaling: dict[str, Any]) -> str:
    return f"{autoscaling.get('min_replicas')} to {autoscaling.get('max_replicas')} replicas"


def _last_line(message: str) -> str:
    """Of a replica that failed it is what was raised, beneath a traceback."""
    return next((line.strip()[:200] for line in reversed(message.splitlines()) if line.strip()), "")
