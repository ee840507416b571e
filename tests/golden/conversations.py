"""A router's life as seeded events of every kind, and what it answered to each of them.

Engines here have no physics: stages last as long as is drawn. What the router says of a request decides which
replicas its events come from, so that answers and events fit each other.
"""

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from headway.config import HeadwayConfig, Role
from headway.engine import EngineRules, engine_profile
from headway.routing import (
    OutputProgress,
    Placement,
    ReplicaLoad,
    ReplicaState,
    ReplicaUpdate,
    RequestSlo,
    Router,
    RouteRequest,
    RoutingOutcome,
    Running,
    make_router,
)
from headway.routing.types import KnownBlocks

BLOCK_TOKENS = 512
BLOCK_EVENTS = 500
"""Events that one line of the log stands for."""
SLOS = (
    RequestSlo(),
    RequestSlo(ttft_s=0.5, tpot_s=0.03),
    RequestSlo(ttft_s=2.0, tpot_s=0.05),
    RequestSlo(ttft_s=8.0, tpot_s=0.2),
    RequestSlo(ttft_s=1.0),
)
TENANTS = ("", "a", "b", "c")
ADAPTERS = ("", "", "", "x", "y")


@dataclass(slots=True)
class Asked:
    """A request that the router has, or had."""

    request: RouteRequest
    output_tokens: int
    placement: Placement | None = None
    prefilled: bool = False
    emitted: int = 0
    first_token_s: float = -1.0


@dataclass
class Life:
    """The router, its fleet, its requests, and what is to come."""

    config: HeadwayConfig
    seed: int
    replicas: int
    rate_rps: float
    now_s: float = 0.0
    alive: dict[str, Role] = field(default_factory=dict)
    asked: dict[str, Asked] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    """Events by kind and answers by reason."""

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng(self.seed)
        self.roles = [Role(name) for name in self.config.pools]
        self.names, self.numbers, self.order = count(), count(), count()
        self.agenda: list[tuple[float, int, str, str, int]] = []
        self.lines: list[str] = []
        self.router = self.made()
        for role in self.roles:
            for _ in range(self.replicas):
                self.join(role)
        self.later("submit", 0.0)
        self.later("fleet", 1.0)
        self.later("reports", 0.5)

    def made(self) -> Router:
        """A router that knows nothing yet."""
        chunk = 0 if Role.PREFILL in self.roles else 2048
        rules = EngineRules(chunk_tokens=chunk, prefix_cache_tokens=200_000, max_batch_size=32)
        profiles = {"": engine_profile(self.config)}
        return make_router(self.config, profiles, rules, np.random.default_rng(self.seed))

    def later(self, kind: str, delay_s: float, request_id: str = "", attempt: int = 0) -> None:
        """Have something happen then."""
        heapq.heappush(self.agenda, (self.now_s + delay_s, next(self.order), kind, request_id, attempt))

    def after(self, mean_s: float) -> float:
        return float(self.draw.exponential(mean_s))

    def take(self, outcome: RoutingOutcome) -> None:
        """Write down an answer and go by it."""
        for placement in outcome.placements:
            asked = self.asked[placement.request_id]
            asked.placement, asked.prefilled = placement, False
            self.kinds[f"placed {placement.reason}"] += 1
            self.lines.append(repr(rounded(placement)))
            speed = 0.2 if Role.PREFILL in self.roles else 0.4
            prefill_s = 1e-4 * asked.request.input_tokens * float(self.draw.uniform(0.5, 2.0)) * speed
            self.later("prefilled", prefill_s, placement.request_id, placement.attempt)
        for shed in outcome.sheds:
            self.kinds[f"shed {shed.reason}"] += 1
            self.lines.append(f"{shed.request_id} {shed.reason} {shed.detail} {shed.retry_after_s:.6g}")
            del self.asked[shed.request_id]

    def step(self) -> None:
        """The next event."""
        due_s = self.router.next_due_s
        if due_s <= self.agenda[0][0]:
            self.now_s = max(self.now_s, due_s)
            self.kinds["expire"] += 1
            self.take(self.router.expire(self.now_s))
            return
        self.now_s, _, kind, request_id, attempt = heapq.heappop(self.agenda)
        if not request_id:
            self.kinds[kind] += 1
            getattr(self, kind)()
            return
        asked = self.asked.get(request_id)
        if asked is None or asked.placement is None or asked.placement.attempt != attempt:
            return
        self.kinds[kind] += 1
        getattr(self, kind)(request_id, asked, attempt)

    def submit(self) -> None:
        draw = self.draw
        burst = 3.0 if int(self.now_s / 7.0) % 4 == 0 else 0.6
        self.later("submit", self.after(1.0 / (self.rate_rps * burst)))
        session = int(draw.integers(40))
        tokens = int(min(30_000, 1 + draw.lognormal(6.5, 1.2)))
        slo = SLOS[int(draw.choice(len(SLOS), p=(0.1, 0.3, 0.3, 0.2, 0.1)))]
        request = RouteRequest(
            request_id=f"r{next(self.numbers)}",
            arrival_s=self.now_s,
            input_tokens=tokens,
            max_tokens=int(draw.integers(1, 1500)),
            slo=slo,
            critical=bool(draw.random() < 0.15),
            prediction_based=slo.given and bool(draw.random() < 0.1),
            session=f"s{session}" if draw.random() < 0.6 else None,
            blocks=tuple(range(100 * session, 100 * session + tokens // BLOCK_TOKENS)),
            block_tokens=BLOCK_TOKENS,
            tenant=TENANTS[int(draw.choice(len(TENANTS), p=(0.1, 0.6, 0.2, 0.1)))],
            adapter=ADAPTERS[int(draw.integers(len(ADAPTERS)))],
        )
        output = int(min(request.max_tokens, 1 + draw.lognormal(4.5, 0.8)))
        self.asked[request.request_id] = Asked(request, output)
        self.take(self.router.submit(self.now_s, request))

    def prefilled(self, request_id: str, asked: Asked, attempt: int) -> None:
        asked.prefilled = True
        self.take(self.router.prefilled(self.now_s, request_id))
        self.later("first_token", self.after(0.01), request_id, attempt)

    def first_token(self, request_id: str, asked: Asked, attempt: int) -> None:
        asked.emitted = max(1, asked.emitted)
        asked.first_token_s = self.now_s
        self.take(self.router.first_token(self.now_s, request_id))
        draw = self.draw.random()
        tokens_s = 0.02 * asked.output_tokens * float(self.draw.uniform(0.6, 1.5))
        if draw < 0.02:
            self.later("failed", self.after(0.5), request_id, attempt)
            return
        if draw < 0.5:
            self.later("progress", 0.5 * tokens_s, request_id, attempt)
        self.later("complete", tokens_s, request_id, attempt)

    def progress(self, request_id: str, asked: Asked, attempt: int) -> None:
        asked.emitted = max(asked.emitted, asked.output_tokens // 2)
        self.take(self.router.progress(self.now_s, [OutputProgress(request_id, asked.emitted)]))

    def complete(self, request_id: str, asked: Asked, attempt: int) -> None:
        del self.asked[request_id]
        self.take(self.router.complete(self.now_s, request_id, asked.output_tokens))

    def failed(self, request_id: str, asked: Asked, attempt: int) -> None:
        del self.asked[request_id]
        self.take(self.router.failed(self.now_s, request_id, retry=False))

    def join(self, role: Role) -> None:
        name = f"{role}-{next(self.names)}"
        self.alive[name] = role
        self.take(self.router.replica_changed(self.now_s, ReplicaUpdate(replica=name, role=role)))

    def fleet(self) -> None:
        """A replica dies, drains or comes; rarely the SLO changes, or the router itself dies."""
        self.later("fleet", self.after(2.0))
        draw = self.draw.random()
        if draw < 0.04:
            self.router.use_slo(SLOS[1 + int(self.draw.integers(3))])
        elif draw < 0.1:
            self.restart()
        elif draw < 0.45 and len(self.alive) > len(self.roles):
            name = list(self.alive)[int(self.draw.integers(len(self.alive)))]
            if draw < 0.15:
                draining = ReplicaUpdate(replica=name, role=self.alive.pop(name), state=ReplicaState.DRAINING)
                self.take(self.router.replica_changed(self.now_s, draining))
            else:
                self.die(name)
        elif len(self.alive) < 2 * self.replicas * len(self.roles):
            self.join(self.roles[int(self.draw.integers(len(self.roles)))])

    def die(self, name: str) -> None:
        """Its requests come back, those that have a token too."""
        self.kinds["death"] += 1
        gone = ReplicaUpdate(replica=name, role=self.alive.pop(name), state=ReplicaState.GONE)
        self.take(self.router.replica_changed(self.now_s, gone))
        for request_id, asked in list(self.asked.items()):
            placement = asked.placement
            lost = placement is not None and (
                name == placement.decode_replica
                or (name == placement.prefill_replica and not asked.prefilled)
            )
            if lost:
                asked.placement = None
                self.take(self.router.failed(self.now_s, request_id, retry=not asked.emitted))
                if asked.emitted:
                    self.asked.pop(request_id, None)

    def restart(self) -> None:
        """The next router hears of replicas and of what is on them; those held come again."""
        self.kinds["restart"] += 1
        corrections = self.router.corrections
        self.router = self.made()
        self.router.use_corrections(corrections)
        for name, role in self.alive.items():
            self.take(self.router.replica_changed(self.now_s, ReplicaUpdate(replica=name, role=role)))
        placed = {name: each for name, each in self.asked.items() if each.placement is not None}
        held = [each.request for name, each in self.asked.items() if name not in placed]
        self.asked = {**placed, **{each.request_id: self.asked[each.request_id] for each in held}}
        running = [
            Running(
                request=each.request,
                placement=each.placement,
                prefilled=each.prefilled,
                output_tokens=each.emitted,
                first_token_s=each.first_token_s,
            )
            for each in placed.values()
            if each.placement is not None
        ]
        self.take(self.router.restore(self.now_s, running))
        for request in held:
            self.take(self.router.submit(self.now_s, request))

    def reports(self) -> None:
        """Some engines say how they are, some of their caches; now and then one is saturated."""
        self.later("reports", self.after(0.3))
        names = [name for name in self.alive if self.draw.random() < 0.3]
        for name in names:
            load = ReplicaLoad(
                running=int(self.draw.integers(32)),
                waiting=int(self.draw.choice([0, 0, 0, 1, 40])),
                kv_usage=float(self.draw.choice([0.1, 0.5, 0.9, 0.999])),
                busy_s=0.7 * self.now_s,
                adapters=("x",) if self.draw.random() < 0.5 else None,
                adapter_room=2,
            )
            known = None
            if self.draw.random() < 0.2:
                first = 100 * int(self.draw.integers(40))
                known = KnownBlocks(sequence=int(self.now_s * 1000), held=tuple(range(first, first + 20)))
            update = ReplicaUpdate(replica=name, role=self.alive[name], load=load, blocks=known)
            self.take(self.router.replica_changed(self.now_s, update))

    def blocks(self, events: int) -> Iterator[dict[str, object]]:
        """So many events, a line for each BLOCK_EVENTS: what happened, and a digest of all answers."""
        happened = 0
        while happened < events:
            before, kinds = sum(self.kinds.values()), Counter(self.kinds)
            begun, self.lines = happened, []
            while happened < begun + BLOCK_EVENTS:
                self.step()
                happened += 1
            yield {
                "events": happened,
                "at_s": six(self.now_s),
                "held": self.router.queued,
                "running": self.router.running,
                "happened": dict(sorted((self.kinds - kinds).items())),
                "answers": digest(self.lines),
            }
            assert sum(self.kinds.values()) > before


def rounded(placement: Placement) -> Sequence[object]:
    return [six(each) if isinstance(each, float) else each for each in placement]


def six(value: float) -> float:
    """To six digits, so that the machine does not matter."""
    return float(f"{value:.6g}")


def digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
