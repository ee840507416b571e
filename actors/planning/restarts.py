"""Parts that died and came back, as Ray's table of actors has them; for `status`.

    named actors         those of the control plane and routers: Ray counts their restarts
    replicas of Serve    each is an actor of its own: one that crashed stays in the table; by deployment

Ray keeps the table as long as its GCS lives, with Redis behind it longer, so that no restart of the planner
forgets one. Actors and replicas that were ended in an orderly way count as none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from actors import names

REPLICA = "SERVE_REPLICA::"
DIED = frozenset({"WORKER_DIED", "NODE_DIED"})
"""Ray's reasons of an actor's death (`ActorDiedErrorContext`) that nobody asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """How often a part came back or a replica of it was lost, and when last (Unix seconds)."""

    count: int
    at: float


def restarts(actors: Iterable[Mapping[str, Any]], application: str) -> Mapping[str, Restarts]:
    """By part, of the rows of Ray's table of actors; replicas are those of the application."""
    found: dict[str, Restarts] = {}
    ours = f"{REPLICA}{application}#"
    for actor in actors:
        name, state = actor["Name"], actor["State"]
        if name in names.ACTORS or name.startswith(names.ROUTER_PREFIX):
            if state == "ALIVE" and actor["NumRestarts"] > 0:
                found[name] = Restarts(count=actor["NumRestarts"], at=actor["Timestamp"] / 1e3)
        elif name.startswith(ours) and state == "DEAD" and _reason(actor["DeathCause"]) in DIED:
            part, at = name.removeprefix(ours).partition("#")[0], actor["EndTime"] / 1e3
            before = found.get(part, Restarts(count=0, at=at))
            found[part] = Restarts(count=before.count + 1, at=max(before.at, at))
    return found


def _reason(cause: Any) -> str:  # noqa: ANN401 - a message of Ray's
    context = cause.actor_died_error_context
    return str(context.DESCRIPTOR.fields_by_name["reason"].enum_type.values_by_number[context.reason].name)
