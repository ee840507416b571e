"""Both fleets of advice: the one that the plan would have, and either replayed without a break.

The fleet that a plan would have: what it orders serves a start-up later, what it releases drains.

Of releases those go first that have not come yet, the newest ones first. What is seen of the real fleet's
starts says how long a start takes (`SeenStarts`).

A fleet replayed without a break: its requests as they come, its replicas as they come and go.

Where the policy's replays ask what a constant fleet would have lost of one interval, this one goes on from
interval to interval, with what is queued and under way. It is the kernel's own engines (`engine.kernel`):
each request goes to the replica of the least load, takes its prompt, the transfer of its KV and its decoding
in turn, and is judged once, when it ends: by the time of its first token and by its TPOT, against its own SLO
or the deployment's. Requests that no KV cache holds are refused: missed.

A replica that is released takes no new request and is gone when its last one has ended; the emptiest goes
first. Requests that come while a pool has no replica wait for the next one.

More than MOST_UNDER_WAY requests are never kept: what comes beyond is refused, too, as by a gateway whose
queue is full.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from statistics import median

import numpy as np
from numpy.typing import NDArray

from headway.engine.kernel import layout
from headway.engine.kernel.layout import NONE, ArrivalColumns, Exit, KernelState, Routing
from headway.engine.kernel.lifecycle import start_replica, stop_replica
from headway.engine.kernel.serving import serve_until
from headway.engine.kernel.state import grow_replicas, handle_of, make_room, make_space, make_state
from headway.engine.surfaces import engine_surfaces
from headway.planning.replay.engine import TOLERANCE, ReplayEngine, Requests, fits, targets
from headway.planning.types import NAN, FloatArray, PoolState, Role

RECENT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPool:
    """One pool: `desired` replicas, of which `ready` serve and the others do so from `coming_s` on, ascending
    seconds of the observation's clock.
    """

    desired: int
    ready: int
    coming_s: tuple[float, ...] = ()

    @classmethod
    def like(cls, pool: PoolState, now_s: float, start_up_s: float) -> "PlannedPool":
        """The real pool, as a plan finds it that begins now."""
        ready = min(pool.ready, pool.desired)
        coming = (now_s + start_up_s,) * (pool.desired - ready)
        return cls(desired=pool.desired, ready=ready, coming_s=coming)

    def at(self, now_s: float) -> "PlannedPool":
        """With what has become ready by then."""
        came = sum(at_s <= now_s for at_s in self.coming_s)
        return replace(self, ready=self.ready + came, coming_s=self.coming_s[came:]) if came else self

    def order(self, target: int, now_s: float, start_up_s: float) -> "PlannedPool":
        """With another target, set now."""
        more = target - self.desired
        if more >= 0:
            coming = tuple(sorted((*self.coming_s, *(now_s + start_up_s,) * more)))
            return replace(self, desired=target, coming_s=coming)
        cancelled = min(-more, len(self.coming_s))
        kept = self.coming_s[: len(self.coming_s) - cancelled]
        return PlannedPool(desired=target, ready=self.ready + more + cancelled, coming_s=kept)


PlannedFleet = Mapping[Role, PlannedPool]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStarts:
    """Starts of one real pool: when those under way were first seen, and how long the latest took, in s."""

    under_way_s: tuple[float, ...] = ()
    ready: int | None = None
    took_s: tuple[float, ...] = ()

    def see(self, now_s: float, starting: int, ready: int) -> "SeenStarts":
        """With the counts of now."""
        came = 0 if self.ready is None else min(max(0, ready - self.ready), len(self.under_way_s))
        took = (now_s - at_s for at_s in self.under_way_s[:came] if not isnan(at_s))
        left = self.under_way_s[came:][:starting]
        # Of those that were under way at the first look it is not known since when.
        begun_s = NAN if self.ready is None else now_s
        return SeenStarts(
            under_way_s=(*left, *(begun_s,) * (starting - len(left))),
            ready=ready,
            took_s=(*self.took_s, *took)[-RECENT:],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """How long a start takes: `stated_s` where settings say, else as seen, else a guess."""

    guess_s: float
    stated_s: float | None = None
    seen: Mapping[Role, SeenStarts] = field(default_factory=dict)

    @property
    def sure(self) -> bool:
        """True where it is no guess."""
        return self.stated_s is not None or any(each.took_s for each in self.seen.values())

    def of(self, role: Role) -> float:
        """Seconds that a replica of that role takes; another role's where its own were never seen."""
        if self.stated_s is not None:
            return self.stated_s
        own = self.seen.get(role)
        took = own.took_s if own else ()
        took = took or tuple(each for seen in self.seen.values() for each in seen.took_s)
        return float(median(took)) if took else self.guess_s

    def see(self, looks: Sequence[tuple[float, Mapping[Role, PoolState]]]) -> "StartUp":
        """With looks at the real fleet, in order of time."""
        seen = dict(self.seen)
        for now_s, pools in looks:
            for role, pool in pools.items():
                seen[role] = seen.get(role, SeenStarts()).see(now_s, pool.starting, pool.ready)
        return replace(self, seen=seen)


MOST_UNDER_WAY = 50_000

NOTHING = Requests(np.zeros(0), np.zeros(0), np.zeros(0))

Counts = Mapping[Role, int]

CODES = {Role.PREFILL: layout.PREFILL, Role.DECODE: layout.DECODE, Role.MIXED: layout.MIXED}
ROLES = {code: role for role, code in CODES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Requests that ended in a span: how many, how many `met` both SLOs, how many that of TTFT.

    Means over those that were served, in seconds, NaN where there were none; `drained_s` are the
    replica-seconds of draining replicas by role.
    """

    ended: float
    met: float
    met_ttft: float
    ttft_s: float
    itl_s: float
    duration_s: float
    drained_s: Mapping[Role, float]


class FleetReplay:
    """One fleet. `run` up to times that only rise; `counts` are the replicas that serve at first."""

    def __init__(self, engine: ReplayEngine, counts: Counts, now_s: float) -> None:
        self.now_s = now_s
        self._engine = engine
        self._roles = tuple(counts)
        self._arrays = make_state(engine.profile, _rules(engine, self._roles), np.zeros(0, np.int64), 0)
        self._handle = handle_of(self._arrays)
        self._arrays.clock["now_s"] = now_s
        self._serial = 0
        self._draining = dict.fromkeys(self._roles, 0)
        self._drained_s = dict.fromkeys(self._roles, 0.0)
        self._promised = _Promised()
        self._resize(counts)

    def use(self, engine: ReplayEngine) -> None:
        """Go on with this engine, as after a correction of its surfaces."""
        if engine is self._engine:
            return
        self._engine = engine
        surfaces, prefill = engine_surfaces(engine.profile), engine.profile.prefill.table
        self._arrays.settings["kv_capacity_tokens"] = int(engine.kv_capacity_tokens)
        self._set(
            self._arrays._replace(
                work=surfaces.work,
                itl=surfaces.itl,
                prefill_tokens=np.array(prefill.isl_tokens, np.float64),
                prefill_s=np.array(prefill.ttft_s, np.float64),
            )
        )

    def run(self, arrived: Requests, until_s: float, changes: Sequence[tuple[float, Counts]] = ()) -> Served:
        """Serve what arrived since the last call; at each of `changes` other counts serve from then on."""
        kept = fits(self._engine, arrived)
        kept &= np.cumsum(kept) <= MOST_UNDER_WAY - int(self._arrays.clock[0]["active"])
        arrived, refused = arrived.where(kept), int(np.count_nonzero(~kept))
        self._offer(arrived)
        ended: list[NDArray[np.void]] = []
        for at_s, counts in [*changes, (until_s, None)]:
            if at_s > self.now_s:
                ended += self._serve(at_s)
            if counts is not None:
                ended += self._resize(counts)
        return self._judged(np.concatenate(ended) if ended else self._arrays.finished[:0], refused)

    def pools(self, desired: Counts, starting: Counts) -> Mapping[Role, PoolState]:
        """The pools as a planner sees them."""
        return {role: self._pool(role, desired[role], starting[role]) for role in self._roles}

    def _set(self, arrays: KernelState) -> None:
        if arrays is not self._arrays:
            self._arrays, self._handle = arrays, handle_of(arrays)

    def _offer(self, arrived: Requests) -> None:
        """Let requests come. Their cached tokens are those that so many replicas as now serve would find."""
        computing = Role.MIXED if Role.MIXED in self._roles else Role.PREFILL
        found = arrived.on(max(1, len(self._serving(computing))))
        count = len(arrived.arrival_s)
        inputs = np.rint(arrived.input_tokens).astype(np.int64)
        cached = np.zeros(count) if found.cached_tokens is None else found.cached_tokens
        unused = np.zeros(count, np.int64)
        columns = ArrivalColumns(
            arrival_s=np.array(arrived.arrival_s),
            input_tokens=inputs,
            output_tokens=np.maximum(1, np.rint(arrived.output_tokens)).astype(np.int64),
            block_start=unused,
            block_count=unused,
            copy=unused,
            slo_class=unused,
            cached_tokens=np.minimum(np.rint(cached).astype(np.int64), inputs - 1),
        )
        clock = self._arrays.clock[0]
        clock["next_arrival"], clock["arrivals"] = 0, count
        own = (arrived.ttft_s, arrived.itl_s)
        self._promised.add(*(np.full(count, NAN) if each is None else each for each in own))
        self._set(self._arrays._replace(arrivals=columns))

    def _serve(self, until_s: float) -> list[NDArray[np.void]]:
        """Let everything happen by then; the records of requests that ended, in parts."""
        ended = []
        while True:
            code = Exit(serve_until(self._handle, until_s))
            self._take_transitions()
            clock = self._arrays.clock[0]
            ended.append(self._arrays.finished[: clock["finished"]].copy())
            clock["finished"] = 0
            if code is Exit.REACHED:
                break
            self._set(make_space(self._arrays))
        self._let_drain(until_s)
        return ended

    def _let_drain(self, now_s: float) -> None:
        """Count the replica-seconds of what drains, up to a time."""
        for role in self._roles:
            self._drained_s[role] += self._draining[role] * (now_s - self.now_s)
        self.now_s = now_s

    def _take_transitions(self) -> None:
        clock = self._arrays.clock[0]
        for entry in self._arrays.transitions[: clock["transitions"]]:
            change = {layout.DRAINING: 1, layout.GONE: -1}.get(int(entry["state"]), 0)
            self._let_drain(max(self.now_s, float(entry["time_s"])))
            self._draining[ROLES[int(entry["role"])]] += change
        clock["transitions"] = clock["retired"] = 0

    def _serving(self, role: Role) -> NDArray[np.int64]:
        units = self._arrays.replicas
        return np.flatnonzero((units["role"] == CODES[role]) & (units["state"] == layout.SERVING))

    def _resize(self, counts: Counts) -> list[NDArray[np.void]]:
        """Start and stop replicas; the records of requests that end by it, in parts."""
        for role in self._roles:
            serving = self._serving(role)
            if counts[role] > len(serving):
                self._start(role, counts[role] - len(serving))
            self._set(make_room(self._arrays, len(serving)))
            units = self._arrays.replicas[serving]
            emptiest = np.argsort(units["running"] + units["waiting"], kind="stable")
            for replica in serving[emptiest][: max(0, len(serving) - counts[role])].tolist():
                stop_replica(self._handle, replica)
        # What starts is ready at once, with what waited for it.
        return self._serve(self.now_s)

    def _start(self, role: Role, count: int) -> None:
        free = np.flatnonzero(self._arrays.replicas["state"] == layout.GONE)
        if len(free) < count:
            self._set(grow_replicas(self._arrays, 2 * (len(self._arrays.replicas) + count)))
            free = np.flatnonzero(self._arrays.replicas["state"] == layout.GONE)
        self._set(make_room(self._arrays, count + int(self._arrays.clock[0]["parked"].sum())))
        for replica in free[:count].tolist():
            unit = self._arrays.replicas[replica]
            unit["role"], unit["serial"] = CODES[role], self._serial
            self._serial += 1
            start_replica(self._handle, replica, self.now_s)

    def _pool(self, role: Role, desired: int, starting: int) -> PoolState:
        units = self._arrays.replicas[self._serving(role)]
        in_prefill = int(units["chunk_requests"][units["phase"] == layout.PREFILLING].sum())
        parked = int(self._arrays.clock[0]["parked"][CODES[role]])
        capacity = self._engine.kv_capacity_tokens * max(1, len(units))
        return PoolState(
            desired=desired,
            starting=starting,
            ready=len(units),
            draining=self._draining[role],
            running=float(units["running"].sum() + in_prefill),
            waiting=float(units["waiting"].sum() - in_prefill + parked),
            kv_usage=float(units["kv_tokens"].sum()) / capacity,
        )

    def _judged(self, ended: NDArray[np.void], refused: int) -> Served:
        own_ttft_s, own_itl_s = self._promised.of(ended["number"])
        promised = targets(self._engine, NOTHING._replace(ttft_s=own_ttft_s, itl_s=own_itl_s))
        gaps = ended["output_tokens"] - 1.0
        ttft_s = ended["first_token_s"] - ended["arrival_s"]
        itl_s = (ended["finished_s"] - ended["first_token_s"]) / np.maximum(gaps, 1.0)
        in_time = ttft_s <= promised.ttft_s * TOLERANCE
        smooth = (itl_s <= promised.itl_s * TOLERANCE) | (gaps < 1.0)
        drained_s, self._drained_s = self._drained_s, dict.fromkeys(self._roles, 0.0)
        self._promised.forget_until(self._oldest())
        return Served(
            ended=float(len(ended) + refused),
            met=float(np.count_nonzero(in_time & smooth)),
            met_ttft=float(np.count_nonzero(in_time)),
            ttft_s=_mean(ttft_s),
            itl_s=_mean(itl_s[gaps >= 1.0]),
            duration_s=_mean(ended["finished_s"] - ended["arrival_s"]),
            drained_s=drained_s,
        )

    def _oldest(self) -> int:
        """The number of the oldest request that has not ended."""
        numbers = self._arrays.requests["number"]
        active = numbers[numbers != NONE]
        return int(active.min()) if len(active) else int(self._arrays.clock[0]["numbered"])


class _Promised:
    """Requests' own SLOs by their number, from `first` on: f8[N] each, NaN for the deployment's."""

    def __init__(self) -> None:
        self.first, self.ttft_s, self.itl_s = 0, np.zeros(0), np.zeros(0)

    def add(self, ttft_s: FloatArray, itl_s: FloatArray) -> None:
        self.ttft_s, self.itl_s = np.append(self.ttft_s, ttft_s), np.append(self.itl_s, itl_s)

    def of(self, numbers: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        return self.ttft_s[numbers - self.first], self.itl_s[numbers - self.first]

    def forget_until(self, number: int) -> None:
        over = number - self.first
        self.first, self.ttft_s, self.itl_s = number, self.ttft_s[over:], self.itl_s[over:]


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else NAN


def _rules(engine: ReplayEngine, roles: Sequence[Role]) -> NDArray[np.void]:
    """The kernel's settings of this engine: no prefix cache is modelled, what is cached is known."""
    rules = np.zeros(1, layout.SETTINGS)
    rules["disaggregated"] = Role.MIXED not in roles
    rules["routing"] = Routing.LEAST_LOAD
    rules["max_batch"] = engine.max_batch_size
    rules["kv_capacity_tokens"] = int(engine.kv_capacity_tokens)
    rules["chunk_tokens"] = engine.chunk_tokens
    rules["transfer_latency_s"] = engine.transfer_latency_s
    rules["transfer_s_per_token"] = engine.transfer_s_per_token
    rules["block_tokens"] = 1
    return rules
