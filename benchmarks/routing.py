"""Cost of the router, without I/O: placements and events at 1,000 and 4,000 replicas of each role.

    place           `submit` of a request, from the event to the placement
    of held         an event that places held requests, for each of them
    hold            `submit` of a request for which no replica has room
    the others      one event of a request or a replica that places nothing, by its name

Ten requests to a replica are under way. Every built-in profile, with one GPU type and with four; those that
predict also with a latency model that was trained on what this router's own requests would have taken on
engines slower than profiled; at 4,000 replicas `slo` alone. "5,000 held": all replicas are full, and so many
requests of some tenants, classes and lengths wait, a part of them with prefixes in common; each completion
makes room for one. All with sessions and prefix blocks. An event for which there are too few times, since the
row has no such events, has no figure.

CPU time of the one thread, so that neighbours on the machine count less. A figure is the median and the 99th
percentile, each the least of the repeats. The limits are 200 µs a placement, 250 µs an event that places, 50
µs any other, and 1 ms for each in 99 of 100; what is beyond is marked with a `!`. "In batches" is all that
the Router's process does for a request: batches of the events of 20 requests are read, handled and answered
(`actors.routing`).
"""

import pickle
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from statistics import median
from time import thread_time
from typing import NamedTuple

import numpy as np

from actors.routing.gateway_sessions import GatewaySessions
from actors.routing.messages import Batch, Completed, Event, FirstToken, Prefilled, Submit
from headway.config import HeadwayConfig, Role, resolve_profile
from headway.config.routing import PredictionSettings
from headway.engine import engine_profile, engine_rules
from headway.routing import (
    OutputProgress,
    Placement,
    ReplicaLoad,
    ReplicaUpdate,
    RequestSlo,
    RouteRequest,
    RoutingOutcome,
    Running,
    make_router,
)
from headway.routing.factory import BUILT_IN
from headway.routing.predict.learning import Training
from headway_cli.errors import CliError
from interp import load_profile
from predictors.latency import LatencyModel

GPU_TYPES = ("h100", "h200", "a100", "b200")
POOLS: Mapping[str, Mapping[str, Mapping[str, int]]] = {
    "mixed": {"mixed": {}},
    "disaggregated": {"prefill": {}, "decode": {}},
}
PREDICTING = ("slo", "default")
WAITING = {"mixed": 0.2, "disaggregated": 0.1}
"""The share that waits for its prompt where requests are to be held: both roles are full then."""
YOUNG = 0.02
"""The share that waits for its prompt in a fleet that has room."""
REPLICAS, MANY = 1000, 4000
EACH, HELD = 10, 5000
"""Requests at each replica, which are a whole batch where others are held."""
ENDED = 2
"""Requests at each replica that have ended before: in its first minute a router learns more of each."""
STEPS, REPEATS, TAUGHT = 150, 3, 1500
LIMITS_US = {"place": 200.0, "of held": 250.0, "hold": 200.0}
EVENT_US, MOST_US = 50.0, 1000.0
COLUMNS = ("place", "of held", "hold", "prefilled", "first token", "progress", "load report", "complete")
BATCH = 20
"""Requests in a batch: of 2,000 a second, those of a hundredth."""


class Case(NamedTuple):
    """One row of the table."""

    pools: str
    profile: str
    types: int
    learned: bool
    held: int
    replicas: int = REPLICAS

    def __str__(self) -> str:
        learned, held = ", learned" * self.learned, f", {self.held:,} held" * bool(self.held)
        types = f"{self.types} GPU type{'s' * (self.types > 1)}"
        return f"{self.replicas:,} {self.pools[:5]} {self.profile}, {types}{learned}{held}"


def cases() -> Iterator[Case]:
    """All rows; a learned one follows the one whose requests teach it."""
    profiles = sorted(BUILT_IN, key=lambda name: name not in PREDICTING)
    for replicas, some in ((REPLICAS, profiles), (MANY, ["slo"])):
        for pools, profile, types, held in product(POOLS, some, (1, len(GPU_TYPES)), (0, HELD)):
            for learned in (False, True)[: 1 + (profile in PREDICTING)]:
                yield Case(pools, profile, types, learned, held, replicas)


def main(data: Path | None, only: str = "") -> int:
    """Print the figures; `data` is not needed. `only`: those rows whose name has this in it."""
    chosen = [case for case in cases() if only in str(case)]
    if not chosen:
        raise CliError(f"--only: no row has {only!r} in it")
    print(f"µs, median · 99th percentile\n{'':56s}" + "".join(f"{name:>16s}" for name in COLUMNS))
    models: dict[tuple[str, int], LatencyModel] = {}
    missed, traffic, before = 0, None, None
    for case in chosen:
        # Where requests are held a learned row goes on with the traffic of the row before: to set up takes
        # longer than all events.
        shared = case.learned and case.held > 0 and case._replace(learned=False) == before
        if traffic is None or not shared:
            traffic = Traffic(case)
        before = case
        if case.learned:
            key = case.pools, case.types
            if key not in models:
                models[key] = taught(Traffic(case._replace(profile="slo", held=0, replicas=REPLICAS)))
            traffic.router.use_model(models[key])
        if case.held and not shared:
            traffic.hold(case.held)
        row, fine = figures(measured(traffic))
        missed += not fine
        print(f"{case!s:56s}{row}  {'met' if fine else 'MISSED'}", flush=True)
    for pools in POOLS if not only else ():
        traffic = Traffic(Case(pools, "slo", 1, learned=True, held=0))
        traffic.router.use_model(models[pools, 1])
        batches = exchanges(traffic)
        print(
            f"{pools} slo, learned, in batches: {median(batches):.0f} µs a request (least {min(batches):.0f})"
        )
    limits = ", ".join(f"{name} {limit_us:.0f}" for name, limit_us in LIMITS_US.items())
    print(f"{missed} rows beyond {limits}, others {EVENT_US:.0f} µs, {MOST_US:.0f} at 99 %")
    return 0


def figures(times: dict[str, list[list[float]]]) -> tuple[str, bool]:
    """A row of the table, and whether all of it is within the limits."""
    cells, fine = [], True
    for name in COLUMNS:
        repeats = [np.array(each) * 1e6 for each in times[name] if len(each) >= STEPS // 5]
        if not repeats:
            cells.append(f"{'-':>16s}")
            continue
        usual, most = (float(min(np.quantile(each, share) for each in repeats)) for share in (0.5, 0.99))
        within = usual <= LIMITS_US.get(name, EVENT_US) and most <= MOST_US
        fine &= within
        cells.append(f"{f'{usual:.0f} · {most:.0f}' + '!' * (not within):>16s}")
    return "".join(cells), fine


class Requests:
    """An endless stream of requests, alike from run to run: three classes, twelve tenants, long tails."""

    def __init__(self, seed: int = 7) -> None:
        self._generator, self._number = np.random.default_rng(seed), 0

    def next(self, now_s: float) -> RouteRequest:
        """One more."""
        draw, number = self._generator, self._number
        self._number += 1
        session = int(draw.random() * 2000)
        tokens = min(64 + int(draw.lognormal(7.0, 1.0)), 30_000)
        urgent, ttft_s, tpot_s = ((True, 0.5, 0.03), (False, 5.0, 0.1), (False, 30.0, 0.2))[number % 3]
        blocks = tuple(range(session * 100, session * 100 + tokens // 512))
        return RouteRequest(
            request_id=f"r{number}",
            arrival_s=now_s,
            input_tokens=tokens,
            max_tokens=256 << number % 4,
            slo=RequestSlo(ttft_s=ttft_s, tpot_s=tpot_s),
            critical=urgent,
            session=f"s{session}",
            blocks=blocks,
            tenant=f"t{min(int(draw.pareto(1.0)), 11)}",
        )


class Traffic:
    """A router with a fleet and what runs there, and the clock of its events."""

    def __init__(self, case: Case) -> None:
        settings = {
            "engine": {
                "prefix_cache_tokens": 400_000,
                **({"max_batch_size": EACH} if case.held else {}),
            },
            "pools": POOLS[case.pools],
            "routing": {"profile": case.profile, "saturation": {"max_waiting": 2 if case.held else None}},
        }
        config = HeadwayConfig.model_validate(settings)
        types = GPU_TYPES[: case.types]
        profiles = {each: load_profile(resolve_profile(f"llama-3.1-8b_{each}_tp1")) for each in types}
        default = engine_profile(config)
        rules = engine_rules(config, default)
        self.router = make_router(config, {"": default, **profiles}, rules, np.random.default_rng(0))
        self._case, self._running = case, EACH * case.replicas
        self.requests, self._draw = Requests(), np.random.default_rng(1)
        self.now_s = 10.0
        self.running: list[tuple[str, Placement]] = []
        self.young: deque[Placement] = deque()
        self._there: dict[str, int] = defaultdict(int)
        self._tokens: dict[str, int] = {}
        self._roles = {name: Role(name) for name in config.pools}
        self.types = types
        for number in range(case.replicas):
            for role in self._roles.values():
                update = ReplicaUpdate(
                    replica=f"{role}-{number}", role=role, gpu_type=types[number % len(types)]
                )
                self.router.replica_changed(0.0, update)
        ended = ENDED * case.replicas
        self.router.restore(self.now_s, [self._placed(number) for number in range(-ended, self._running)])
        for name, at in self.running[:ended]:
            self.router.complete(self.now_s, name, self._output())
            self._there[at.decode_replica] -= 1
        del self.running[:ended]

    def _output(self) -> int:
        return 64 + int(self._draw.lognormal(5.0, 0.5))

    def _placed(self, number: int) -> Running:
        """One that runs already, or waits for its prompt."""
        came_s = 10.0 * abs(number) / self._running
        request, first, last = self.requests.next(came_s), *self._pair(number % self._case.replicas)
        profile = "restored"
        placement = Placement(
            request_id=request.request_id, prefill_replica=first, decode_replica=last, profile=profile
        )
        self._there[last] += 1
        self._tokens[request.request_id] = 1
        young = WAITING[self._case.pools] if self._case.held else YOUNG
        waits = number >= self._running * (1.0 - young)
        if waits:
            self.young.append(placement)
        else:
            self.running.append((request.request_id, placement))
        return Running(
            request=request,
            placement=placement,
            prefilled=not waits,
            output_tokens=0 if waits else 1,
            first_token_s=-1.0 if waits else request.arrival_s,
        )

    def _pair(self, number: int) -> tuple[str, str]:
        names = [f"{role}-{number}" for role in self._roles]
        return names[0], names[-1]

    def take(self, outcome: RoutingOutcome) -> int:
        """What an event placed; the number of them."""
        for each in outcome.placements:
            self._there[each.decode_replica] += 1
            self._tokens[each.request_id] = 0
            self.young.append(each)
        return len(outcome.placements)

    def hold(self, count: int) -> None:
        """Have so many wait: they come within two seconds."""
        step_s = 2.0 / count
        for _ in range(4 * count):
            if self.router.queued >= count:
                return
            self.now_s += step_s
            self.take(self.router.submit(self.now_s, self.requests.next(self.now_s)))
        raise RuntimeError(f"only {self.router.queued} are held")

    def steps(self) -> Iterator[tuple[str, Callable[[], RoutingOutcome]]]:
        """The events that come with one request, each a name and a call; ten thousand stay under way."""
        router, draw = self.router, self._draw
        self.now_s += 2.5e-4
        now_s, request = self.now_s, self.requests.next(self.now_s)
        yield "place", lambda: router.submit(now_s, request)
        young = self.young.popleft() if self.young else None
        if young is not None:
            name = young.request_id
            yield "prefilled", lambda: router.prefilled(now_s, name)
            yield "first token", lambda: router.first_token(now_s, name)
            self.running.append((name, young))
        name, _ = self.running[int(draw.random() * len(self.running))]
        tokens = self._tokens[name] = self._tokens[name] + 20
        yield "progress", lambda: router.progress(now_s, [OutputProgress(name, tokens)])
        last = self._pair(int(draw.random() * self._case.replicas))[1]
        there = self._there[last]
        update = ReplicaUpdate(
            replica=last,
            role=list(self._roles.values())[-1],
            load=ReplicaLoad(
                running=min(there, 8),
                waiting=max(there - 8, 0),
                kv_usage=0.02 * there + 0.01 * draw.random(),
                busy_s=now_s,
            ),
        )
        yield "load report", lambda: router.replica_changed(now_s, update)
        place = int(draw.random() * len(self.running))
        if self._case.held and young is not None:
            # Where a prompt is computed: a full replica has room once one ends there, too.
            same = (at.decode_replica == young.decode_replica for _, at in self.running)
            place = next(number for number, ours in enumerate(same) if ours)
        ended, at = self.running[place]
        self.running[place] = self.running[-1]
        self.running.pop()
        self._there[at.decode_replica] -= 1
        output = self._output()
        yield "complete", lambda: router.complete(now_s, ended, output)


def measured(traffic: Traffic) -> dict[str, list[list[float]]]:
    """Seconds of the events by column, for each repeat; the first steps warm up."""
    times: dict[str, list[list[float]]] = {name: [] for name in COLUMNS}
    for repeat in range(-1, REPEATS):
        taken: dict[str, list[float]] = {name: [] for name in COLUMNS}
        for _ in range(STEPS if repeat >= 0 else STEPS // 5):
            for name, event in traffic.steps():
                begun = thread_time()
                outcome = event()
                took_s = thread_time() - begun
                placed = traffic.take(outcome)
                if name == "place":
                    taken["place" if placed else "hold"].append(took_s)
                elif placed:
                    taken["of held"].append(took_s / placed)
                else:
                    taken[name].append(took_s)
        if repeat >= 0:
            for name, each in taken.items():
                times[name].append(each)
    return times


def taught(traffic: Traffic) -> LatencyModel:
    """A model of engines that take one and a half times what is predicted, and some noise."""
    noise, router, requests = np.random.default_rng(1), traffic.router, traffic.requests
    for number in range(TAUGHT):
        begun_s = 50.0 + 1e-2 * number
        request = requests.next(begun_s)
        for placement in router.submit(begun_s, request).placements:
            slowness = 1.5 * noise.lognormal(0.0, 0.1)
            first_s = begun_s + slowness * (placement.predicted_ttft_s or 0.0)
            router.prefilled(first_s, placement.request_id)
            router.first_token(first_s, placement.request_id)
            took_s = 99 * slowness * (placement.predicted_tpot_s or 0.0)
            router.complete(first_s + took_s, placement.request_id, 100)
    samples = router.take_samples()
    training = Training(PredictionSettings())
    training.add(samples)
    training.train()
    if training.model is None:
        raise RuntimeError(f"nothing was learned of {len(samples)} samples")
    return training.model


def exchanges(traffic: Traffic, count: int = 30) -> list[float]:
    """Microseconds of the Router's process for a request and all its events, of each repeat."""
    router, requests = traffic.router, traffic.requests
    sessions, now_s, found = GatewaySessions(router), 10_000.0, []
    sessions.exchange(now_s, "g", Batch(1, now_s, (), hello=True))
    ended: tuple[Event, ...] = ()
    for _ in range(REPEATS):
        frames = []
        for _ in range(count):
            now_s += 1e-2
            batch = [requests.next(now_s) for _ in range(BATCH)]
            submits = tuple(Submit(now_s, one) for one in batch)
            frames.append((now_s, pickle.dumps([("g", Batch(1, now_s, (*ended, *submits)))])))
            ended = tuple(
                event
                for one in batch
                for event in (
                    Prefilled(now_s, one.request_id),
                    FirstToken(now_s, one.request_id),
                    Completed(now_s, one.request_id, 100),
                )
            )
        begun = thread_time()
        for at_s, frame in frames:
            for name, said in pickle.loads(frame):
                pickle.dumps([sessions.exchange(at_s, name, said)], pickle.HIGHEST_PROTOCOL)
        found.append((thread_time() - begun) / (count * BATCH) * 1e6)
    return found
