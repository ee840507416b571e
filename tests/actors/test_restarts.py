"""Which parts restarted, of rows as Ray's table of actors has them."""

from typing import Any

from ray.core.generated.common_pb2 import ActorDeathCause, ActorDiedErrorContext

from actors.planning.restarts import Restarts, restarts


def row(name: str, state: str = "ALIVE", times: int = 0, at: float = 0.0, reason: str = "") -> dict[str, Any]:
    cause = ActorDeathCause()
    if reason:
        cause.actor_died_error_context.reason = ActorDiedErrorContext.Reason.Value(reason)
    moments = {"Timestamp": 1e3 * at, "EndTime": 1e3 * at}
    return {"Name": name, "State": state, "NumRestarts": times, "DeathCause": cause, **moments}


def replica(of: str, at: float, reason: str, app: str = "headway") -> dict[str, Any]:
    return row(f"SERVE_REPLICA::{app}#{of}#x{at:g}", "DEAD", at=at, reason=reason)


def test_actors_that_came_back_and_replicas_that_were_lost_are_counted() -> None:
    found = restarts(
        [
            row("Planner", times=2, at=50.0),
            row("Router:m", times=1, at=60.0),
            row("Interpolator"),
            replica("Gateway", 30.0, "WORKER_DIED"),
            replica("Gateway", 20.0, "NODE_DIED"),
        ],
        "headway",
    )
    assert found == {
        "Planner": Restarts(count=2, at=50.0),
        "Router:m": Restarts(count=1, at=60.0),
        "Gateway": Restarts(count=2, at=30.0),
    }


def test_what_ended_in_an_orderly_way_or_is_not_ours_is_none() -> None:
    assert not restarts(
        [
            # Replaced by an actor with other settings, and one that is not back yet.
            row("Planner", "DEAD", times=2, reason="RAY_KILL"),
            row("Predictor", "RESTARTING", times=1),
            row("Somebody", times=3),
            replica("Decode", 30.0, "RAY_KILL"),
            replica("Decode", 30.0, ""),
            replica("Decode", 30.0, "WORKER_DIED", app="other"),
        ],
        "headway",
    )
