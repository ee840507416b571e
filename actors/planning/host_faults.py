"""Hosts that are lost or cut off, and parts that died and came back, as the planner sees them; for `status`.

Every PERIOD_S the raylet of each host is asked for a TCP connection, for Ray itself notices a cut only when
its health checks have failed for long (`RAY_health_check_*`), and names none.

    unreachable   FAILURES probes in a row failed; Ray still counts on the host
    lost          Ray has given the host up, and it was not drained or stopped in an orderly way
    back          reachable again, or another Ray runs at its address; shown for BACK_S

`since_s` is the time of the first probe that failed. What ran on the host is what ran there when it was last
well.

Parts that died are counted by Ray's table of actors, which it keeps as long as its GCS lives (with Redis
behind it longer), so that no restart of the planner forgets one:

    named actors         those of the control plane and routers: Ray counts their restarts
    replicas of Serve    each is an actor of its own: one that crashed stays in the table; by deployment

Actors and replicas that were ended in an orderly way count as none.

`HostFaults` and `restarts` are pure; `HostWatch` asks Ray, beside the event loop and with time limits, as the
GCS may be away: then the document says so instead. It is one for all applications of a process.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from actors import compat_ray, names
from headway.planning.documents import HostFault, RestartFigures

logger = logging.getLogger(__name__)

PERIOD_S, PROBE_S, ASK_S = 1.5, 1.5, 3.0
FAILURES = 2
BACK_S = 600.0
ORDERLY = frozenset({1, 3, 4})
"""Ray's reasons of a node's death (`NodeDeathInfo`): expected, drained for preemption, drained as idle."""


REPLICA = "SERVE_REPLICA::"
DIED = frozenset({"WORKER_DIED", "NODE_DIED"})
"""Ray's reasons of an actor's death (`ActorDiedErrorContext`) that nobody asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenHost:
    """One node of Ray at one moment. `ran` are the named actors on it; `answers` is what the probe said."""

    node: str
    address: str
    alive: bool
    answers: bool
    orderly: bool = False
    ran: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The last that was seen of a node."""

    ran: tuple[str, ...] = ()
    failures: int = 0
    since_s: float = 0.0


class HostFaults:
    """The faults of hosts so far."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._faults: dict[str, HostFault] = {}

    def see(self, now_s: float, hosts: Sequence[SeenHost]) -> None:
        """Take in how all nodes are now."""
        for host in hosts:
            self._see(now_s, host)
        # A host that was lost comes back as another node of Ray.
        well = {host.address for host in hosts if host.alive and host.answers}
        for node, fault in list(self._faults.items()):
            if fault.back_s is None and fault.address in well:
                self._faults[node] = _back(fault, now_s)
            elif fault.back_s is not None and now_s - fault.back_s > BACK_S:
                del self._faults[node]
        present = {host.node for host in hosts if host.alive}
        self._known = {node: known for node, known in self._known.items() if node in present}

    def now(self) -> tuple[HostFault, ...]:
        """The faults, the oldest first."""
        return tuple(sorted(self._faults.values(), key=lambda fault: fault.since_s))

    def _see(self, now_s: float, host: SeenHost) -> None:
        known = self._known.get(host.node)
        if host.alive and host.answers:
            self._known[host.node] = _Known(ran=host.ran)
            return
        # A node that was dead when the watch began is nothing that happened now.
        if known is None:
            return
        first = known.failures == 0
        known = replace(known, failures=known.failures + 1, since_s=now_s if first else known.since_s)
        self._known[host.node] = known
        if host.orderly and not host.alive:
            self._faults.pop(host.node, None)
        elif not host.alive or known.failures >= FAILURES:
            self._faults[host.node] = HostFault(
                address=host.address,
                node=host.node,
                state="unreachable" if host.alive else "lost",
                since_s=known.since_s,
                back_s=None,
                ran=known.ran,
            )


def _back(fault: HostFault, now_s: float) -> HostFault:
    return fault.model_copy(update={"state": "back", "back_s": now_s})


def restarts(
    actors: Collection[Mapping[str, Any]], application: str, front: str = ""
) -> Mapping[str, RestartFigures]:
    """By part, of the rows of Ray's table of actors; replicas are those of the application and of its front.

    What happened before the first replica of the application is of others.
    """
    found: dict[str, RestartFigures] = {}
    own = f"{REPLICA}{application}#"
    ours = (own, f"{REPLICA}{front or application}#")
    begins = (actor["StartTime"] / 1e3 for actor in actors if actor["Name"].startswith(own))
    since_s = min(filter(None, begins), default=0.0)
    for actor in actors:
        name, state = actor["Name"], actor["State"]
        if name in names.ACTORS or name.startswith(names.ROUTER_PREFIX):
            if state == "ALIVE" and actor["NumRestarts"] > 0:
                found[name] = RestartFigures(count=actor["NumRestarts"], at=actor["Timestamp"] / 1e3)
        elif name.startswith(ours) and state == "DEAD" and _reason(actor["DeathCause"]) in DIED:
            part, at = name.split("#")[1], actor["EndTime"] / 1e3
            before = found.get(part, RestartFigures(count=0, at=at))
            found[part] = RestartFigures(count=before.count + 1, at=max(before.at, at))
    return {part: each for part, each in found.items() if each.at >= since_s}


def parts(actors: Iterable[Mapping[str, Any]], application: str) -> frozenset[str]:
    """The parts that run and have to answer: named actors by name, replicas as `Gateway#x1`."""
    ours = tuple(f"{REPLICA}{application}#{name}#" for name in (names.GATEWAY, names.CONTROL_PLANE))
    return frozenset(
        _short(name)
        for name in (actor["Name"] for actor in actors if actor["State"] == "ALIVE")
        if name in names.ACTORS or name.startswith((names.ROUTER_PREFIX, *ours))
    )


def _reason(cause: Any) -> str:  # noqa: ANN401 - a message of Ray's
    context = cause.actor_died_error_context
    return str(context.DESCRIPTOR.fields_by_name["reason"].enum_type.values_by_number[context.reason].name)


class HostWatch:
    """Looks after the hosts, and parts that die, until it is cancelled; `clock` gives Unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock, self._faults = clock, HostFaults()
        self.actors: Collection[Mapping[str, Any]] = ()
        """The rows of Ray's table of actors as Ray said last."""
        # A thread of its own: while the GCS is away a call of it takes as long as it likes.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hosts")
        self._away_since_s: float | None = None

    def document(self, application: str, front: str) -> dict[str, Any]:
        """Its part of an application's status document: `hosts`, `restarts`, and `gcs_away_since_s`, null
        while the GCS answers. `front` is the application of its gateway, empty where that is its own.
        """
        hosts = [fault.document() for fault in self._faults.now()]
        found = restarts(self.actors, application, front).items()
        restarted = {part: each.document() for part, each in found}
        return {"hosts": hosts, "restarts": restarted, "gcs_away_since_s": self._away_since_s}

    async def run(self) -> None:
        """Look every PERIOD_S."""
        asking: asyncio.Future[_Look] | None = None
        nodes: Sequence[_Node] = ()
        loop = asyncio.get_running_loop()
        while True:
            began_s = self._clock()
            try:
                if asking is None:
                    asking = loop.run_in_executor(self._thread, _looked)
                await asyncio.wait({asking}, timeout=ASK_S)
                if asking.done():
                    (nodes, self.actors), self._away_since_s = asking.result(), None
                    asking = None
                else:
                    self._away_since_s = self._away_since_s or began_s
                self._faults.see(self._clock(), await _probed(nodes))
            except Exception:  # the outermost loop: what Ray raises must not end the watch
                logger.exception("hosts could not be looked at")
                asking, self._away_since_s = None, self._away_since_s or began_s
            await asyncio.sleep(PERIOD_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    host: SeenHost
    port: int


_Look = tuple[Sequence[_Node], Collection[Mapping[str, Any]]]


def _looked() -> _Look:
    """All nodes that Ray knows, with their named actors, and its actors; blocks while it asks the GCS."""
    import ray

    actors = compat_ray.actors_table()
    return _nodes(actors, ray.nodes()), actors.values()  # type: ignore[no-untyped-call]


def _nodes(actors: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> Sequence[_Node]:
    ran: dict[str, list[str]] = {}
    for actor in _alive(actors):
        ran.setdefault(actor["Address"]["NodeID"], []).append(_short(actor["Name"]))
    return [
        _Node(
            host=SeenHost(
                node=node["NodeID"],
                address=node["NodeManagerAddress"],
                alive=node["Alive"],
                answers=False,
                orderly=node.get("DeathReason") in ORDERLY,
                ran=tuple(sorted(ran.get(node["NodeID"], ()))),
            ),
            port=node["NodeManagerPort"],
        )
        for node in nodes
    ]


def _alive(actors: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (actor for actor in actors.values() if actor["State"] == "ALIVE" and actor["Name"])


def _short(name: str) -> str:
    """`SERVE_REPLICA::headway#Decode#x1` as `Decode#x1`."""
    return name.removeprefix(REPLICA).partition("#")[2] if name.startswith(REPLICA) else name


async def _probed(nodes: Sequence[_Node]) -> Sequence[SeenHost]:
    """The hosts, those that are alive after a probe of their raylets."""
    answers = await asyncio.gather(*(_answers(node) for node in nodes))
    return [replace(node.host, answers=answer) for node, answer in zip(nodes, answers, strict=True)]


async def _answers(node: _Node) -> bool:
    if not node.host.alive:
        return False
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(node.host.address, node.port)
            writer.close()
            return True
    return False
