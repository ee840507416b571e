"""Observations of a run: the interval's requests for the policy, and what engines report.

Arrivals are the rows that the kernel has taken of the chunks it was given, so that each is part of exactly
one interval and of the one whose counters it is in. Completions are read from the records of ended requests;
nothing is said of the output of a request, nor of what was cached of it, before it has completed.

Engines report what they do right now (`reports`): of a replica that decodes the ITL of its batch, of one that
computes prompts from their beginning the time of one of them, beside what its decode batch takes.

Engines and gateways tell a router unasked of loads, and how far requests are (`EngineReports`). Each LOAD_S
every ready replica says its load, if that has changed since it last did: requests in its batch and those
whose prompts it computes right now, all others that are there, KV usage of the batch, and the seconds that it
has computed. Each PROGRESS_S the output tokens of the requests that have more than when last told. So it is
live: stats of replicas come twice a second, gateways send progress once in a second, and nothing that is no
news. A stretch of iterations under way is looked into and not closed, as for utilisation.
"""

from collections.abc import Callable, Iterator, Mapping
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.engine.kernel import layout, lifecycle
from headway.engine.kernel.layout import COMPLETED, DECODING, IDLE, PREFILLING, SERVING, KernelState
from headway.engine.observed_latency import LatencyReport, Phase
from headway.engine.observed_limits import with_kv_tokens
from headway.engine.observed_metrics import EngineLoad, EngineReadings, EngineTotals, engine_reports
from headway.engine.refinement import (
    URGENT,
    Corrections,
    Refinement,
    corrections,
    difference,
    learn,
    measured,
    moved,
    refined,
    with_limits,
)
from headway.engine.replica_speeds import Lengths, ReplicaSpeeds, batch_line
from headway.engine.surfaces import find_cell, iterations_until, itl_at
from headway.planning.synthetic import length_spread
from headway.planning.types import FloatArray, Observation, Policy, Role, Traffic
from headway.routing import ReplicaLoad, ReplicaState, ReplicaUpdate
from headway.routing.types import OutputProgress
from headway.simulation.fleet import Fleet
from headway.simulation.scenario import ClassMix
from interp import Profile
from interp.jit import compiled

Columns = tuple[NDArray[Any], ...]
COMPLETED_COLUMNS = ("input_tokens", "output_tokens", "cached_tokens", "arrival_s", "ttft_s", "itl_s")


class TrafficLog:
    """Collects one interval's requests; `take` ends the interval."""

    def __init__(self, fleet: Fleet, mix: ClassMix) -> None:
        self._fleet, self._mix = fleet, mix
        self._seen = 0
        self._arrived: list[Columns] = []
        self._completed: list[Columns] = []

    def chunk_taken(self) -> None:
        """The kernel has taken every row of its chunk, and is about to be given the next."""
        self._look()
        self._seen = 0

    def ended(self, records: NDArray[Any]) -> None:
        """These requests have ended, in this order. The buffer is used again: what is kept is copied."""
        completed = records["outcome"] == COMPLETED
        done = records[completed]
        gaps = done["output_tokens"] - 1
        itl_s = np.where(gaps > 0, done["finished_s"] - done["first_token_s"], np.nan) / np.maximum(gaps, 1)
        known = tuple(done[name].copy() for name in COMPLETED_COLUMNS[:4])
        ttft_s = done["first_token_s"] - done["arrival_s"]
        self._completed.append((*known, ttft_s, itl_s, done["slo_class"].copy()))

    def take(self) -> Traffic:
        """Arrivals and completions since this was last called."""
        self._look()
        named = self._mix.named
        arrival_s, input_tokens, *classes = _joined(self._arrived, 3 if named else 2)
        *completed, completed_classes = _joined(self._completed, len(COMPLETED_COLUMNS) + 1)
        columns = zip(COMPLETED_COLUMNS, completed, strict=True)
        self._arrived, self._completed = [], []
        return Traffic(
            arrival_s=arrival_s,
            input_tokens=input_tokens,
            **{f"completed_{name}": column for name, column in columns},
            **(self._promised(classes[0], completed_classes) if named else {}),
        )

    def _promised(self, classes: FloatArray, completed: FloatArray) -> dict[str, FloatArray]:
        """SLOs of arrivals and completions, by their places among the run's classes, and classes."""
        promised = self._mix.limits_s[:, classes.astype(np.int64)]
        kept = self._mix.limits_s[:, completed.astype(np.int64)]
        return {
            "slo_ttft_s": promised[0],
            "slo_itl_s": promised[1],
            "slo_class": classes + 1.0,
            "completed_slo_ttft_s": kept[0],
            "completed_slo_itl_s": kept[1],
        }

    def _look(self) -> None:
        state = self._fleet.arrays
        rows = slice(self._seen, int(state.clock[0]["next_arrival"]))
        names = ("arrival_s", "input_tokens", "slo_class")[: 3 if self._mix.named else 2]
        self._arrived.append(tuple(getattr(state.arrivals, name)[rows] for name in names))
        self._seen = rows.stop


def _joined(parts: list[Columns], count: int) -> list[FloatArray]:
    columns = zip((np.zeros(0),) * count, *parts, strict=True)
    return [np.concatenate(column, dtype=np.float64) for column in columns]


REPORT_S = 5.0
"""Seconds between two reports of each replica, as live (`engine.refinement.report_interval_s`)."""


def reports(fleet: Fleet) -> Iterator[LatencyReport]:
    """What the engines of ready and draining replicas report at this time."""
    state = fleet.arrays
    columns = np.zeros((len(state.replicas), 3))
    report(fleet.handle, columns)
    prefilling, serials = state.replicas["phase"] == PREFILLING, state.replicas["serial"]
    for replica in np.flatnonzero(columns[:, 1] > 0.0).tolist():
        phase = Phase.PREFILL if prefilling[replica] else Phase.DECODE
        tokens, latency_s, batch = columns[replica].tolist()
        yield LatencyReport(phase, tokens, latency_s, batch, str(serials[replica]))


COLUMNS = {
    "first_tokens": "first_tokens",
    "asked_tokens": "computed_tokens",
    "prompts": "prompts",
    "prompt_tokens": "shown_tokens",
    "prefills": "prompts",
    "prefill_s": "prefill_s",
    "gaps": "gaps",
    "gap_s": "gap_s",
    "iterations": "iteration",
}
"""Totals, by the replicas' columns that count them: tokens there are without cached ones."""


def engine_totals(fleet: Fleet) -> Mapping[str, EngineTotals]:
    """What the engines that serve have counted by now, by serial."""
    lifecycle.catch_up_all(fleet.handle)
    return {
        str(unit["serial"]): EngineTotals(**{name: float(unit[column]) for name, column in COLUMNS.items()})
        for unit in _serving(fleet)
    }


def engine_loads(fleet: Fleet) -> Mapping[str, EngineLoad]:
    """The load of the engines that serve, by serial; prompts that are computed now are in the batch."""
    capacity = float(fleet.arrays.settings[0]["kv_capacity_tokens"])
    loads = {}
    for unit in _serving(fleet):
        computing = int(unit["chunk_requests"]) if unit["phase"] == PREFILLING else 0
        loads[str(unit["serial"])] = EngineLoad(
            running=float(unit["running"] + computing),
            waiting=float(unit["waiting"] - computing),
            kv_usage=min(1.0, float(unit["kv_tokens"]) / capacity),
            kv_tokens=capacity,
        )
    return loads


def _serving(fleet: Fleet) -> NDArray[Any]:
    units = fleet.arrays.replicas
    up: NDArray[Any] = units[(units["state"] == layout.SERVING) | (units["state"] == layout.DRAINING)]
    return up


class PerformanceLearner:
    """The surfaces by which a run plans: the profile as measured, corrected by what engines report.

    `make` gives the policy that plans by a profile. With `scrape_s` engines are another's: they report
    nothing, and are read every so many seconds (`engine.observed_metrics`). As live, what an interval's
    reads show counts after its decision, and neither the routing, which is another's, nor the plan goes by
    which replicas differ.
    """

    def __init__(
        self, profile: Profile, make: Callable[[Profile], Policy], scrape_s: float | None = None
    ) -> None:
        self._measured = self._base = profile
        self._make = make
        self._lengths: Lengths | None = None
        self._served = self.refinement = Refinement()
        self._served_by = self._routed = self._corrections
        self.speeds = ReplicaSpeeds()
        self.every_s = scrape_s or REPORT_S
        self._scraped = EngineReadings() if scrape_s else None
        self._shown: list[LatencyReport] = []

    def learn(self, fleet: Fleet, now_s: float) -> None:
        """Take what the engines report or have shown, and let our routing know of replicas that differ."""
        before = self.speeds
        seen = measured(self._base, reports(fleet) if self._scraped is None else self._shown)
        if self._scraped is not None:
            self._scraped.add(engine_totals(fleet), now_s, engine_loads(fleet))
            self._shown = []
        self.speeds = before.with_reports(self.refinement, seen, now_s, fleet.serials())
        self.refinement = learn(self.refinement, self.speeds.typical_reports(seen), now_s)
        if self._scraped is None and (before.differ or self.speeds.differ):
            fleet.know_speeds(self.speeds, self._idle_requests(fleet))

    def observe(self, observation: Observation, chunk_tokens: int) -> None:
        """Take the lengths of an interval's requests, as far as they were observed, and its reads."""
        lengths = Lengths(observation.isl_tokens, observation.osl_tokens)
        if not any(map(isnan, lengths)):
            self._lengths = lengths
        if self._scraped is not None:
            readings, spread = self._scraped.take(), length_spread(observation)
            profiled = float(self._measured.decode.table.max_kv_tokens)
            limits = self.refinement.limits.with_readings(readings, chunk_tokens, profiled)
            if limits.kv_tokens != self.refinement.limits.kv_tokens:
                self._shown, self._base = [], with_kv_tokens(self._measured, limits.kv_tokens)
            self.refinement = with_limits(self.refinement, limits)
            self._shown += engine_reports(self._profile(self.refinement), readings, spread, chunk_tokens)

    def _idle_requests(self, fleet: Fleet) -> Mapping[Role, float]:
        if self._lengths is None:
            return {}
        profile, most = self._profile(self._served), float(fleet.arrays.settings[0]["max_batch"])
        return {
            role: batch_line(profile, role, self._lengths, most).idle_requests
            for role in fleet.pools
            if role is not Role.PREFILL
        }

    def _profile(self, refinement: Refinement) -> Profile:
        return refined(self._base, refinement)

    @property
    def urgent(self) -> bool:
        """True if surfaces have moved so far that the next decision should not wait for its time."""
        return moved(self._served_by, self._corrections, URGENT)

    @property
    def _corrections(self) -> Corrections:
        return corrections(self._base, self.refinement)

    def notes(self) -> Iterator[str]:
        """By phase, how engines differ in the end from their profile, as the plan saw it."""
        for phase in Phase:
            if said := difference(phase, self._served.factor(phase)):
                yield f"engines: {said}; the plan went by that"

    def routed(self) -> Profile | None:
        """The surfaces for our router, where they have moved from those that it goes by."""
        if self._scraped is not None or not moved(self._routed, now := self._corrections):
            return None
        self._routed = now
        return self._profile(self.refinement)

    def policy(self) -> Policy | None:
        """The policy for surfaces that have moved; None while they have not."""
        if not moved(self._served_by, now := self._corrections):
            return None
        self._served, self._served_by = self.refinement, now
        return self._make(self._profile(self._served))


@compiled
def report(state: KernelState, out: NDArray[np.float64]) -> None:
    """Fill f8[replicas, 3]: tokens, seconds, batch; no seconds where there is nothing to report."""
    for replica in range(len(state.replicas)):
        unit = state.replicas[replica]
        if unit.phase == DECODING:
            elapsed_s = (state.clock[0].now_s - unit.checkpoint_s) / unit.decode_slowness
            done, _ = iterations_until(state.itl, unit.running, unit.kv_tokens, elapsed_s, unit.planned)
            tokens = unit.kv_tokens + (done - 1.0) * unit.running
            itl_s = itl_at(find_cell(state.itl, unit.running, tokens), tokens) * unit.decode_slowness
            out[replica, 0], out[replica, 1], out[replica, 2] = tokens / unit.running, itl_s, unit.running
        elif unit.phase == PREFILLING and state.requests[unit.head].prefilled_tokens == 0:
            prompts, tokens, request = unit.chunk_requests, float(unit.chunk_last_tokens), unit.head
            for _ in range(prompts - 1):
                asked = state.requests[request]
                tokens += asked.input_tokens - asked.cached_tokens
                request = asked.next
            own_s = unit.boundary_s - unit.checkpoint_s
            empty_s = state.work.seconds[0] * unit.prefill_slowness
            if unit.running > 0:
                batch_s = itl_at(find_cell(state.itl, unit.running, unit.kv_tokens), unit.kv_tokens)
                own_s += empty_s - batch_s * unit.decode_slowness
            out[replica, 0], out[replica, 2] = tokens / prompts, 1.0
            out[replica, 1] = empty_s + (own_s - empty_s) / prompts


@compiled
def observe(state: KernelState, busy_s: NDArray[np.float64], kv_tokens: NDArray[np.float64]) -> None:
    """Seconds that each replica has computed, and the tokens of its batch, as of now; f8[replicas] each."""
    now_s = state.clock[0].now_s
    for replica in range(len(state.replicas)):
        unit = state.replicas[replica]
        busy_s[replica] = unit.busy_s + (0.0 if unit.phase == IDLE else now_s)
        kv_tokens[replica] = unit.kv_tokens
        if unit.phase == DECODING:
            elapsed_s = (now_s - unit.checkpoint_s) / unit.decode_slowness
            done, ends_s = iterations_until(state.itl, unit.running, unit.kv_tokens, elapsed_s, unit.planned)
            if ends_s > elapsed_s:
                done -= 1.0
            kv_tokens[replica] += done * unit.running


LOAD_S, PROGRESS_S = 0.5, 1.0
LOOKS = round(PROGRESS_S / LOAD_S)
"""Looks at loads for one at progress."""


class EngineReports:
    """What there is to tell of one run's fleet; `due_s` is when to look next."""

    def __init__(self, fleet: Fleet, gpu_type: str) -> None:
        self._fleet, self._gpu_type = fleet, gpu_type
        self._capacity = float(fleet.arrays.settings[0]["kv_capacity_tokens"])
        self._looks = 1
        self._loads: dict[str, ReplicaLoad] = {}
        self._outputs: dict[int, int] = {}

    @property
    def due_s(self) -> float:
        """When to look next."""
        return self._looks * LOAD_S

    def look(
        self, replicas: Mapping[str, tuple[int, int]], roles: Mapping[int, Role]
    ) -> tuple[list[ReplicaUpdate], list[OutputProgress]]:
        """What is new of `replicas` (slot and serial by name) and, every other time, of requests."""
        self._looks += 1
        updates = list(self._updates(replicas, roles))
        return updates, self._progress() if (self._looks - 1) % LOOKS == 0 else []

    def _updates(
        self, replicas: Mapping[str, tuple[int, int]], roles: Mapping[int, Role]
    ) -> Iterator[ReplicaUpdate]:
        units = self._fleet.arrays.replicas
        busy_s, kv_tokens = np.empty(len(units)), np.empty(len(units))
        observe(self._fleet.handle, busy_s, kv_tokens)
        computing = np.where(units["phase"] == PREFILLING, units["chunk_requests"], 0)
        running: list[int] = (units["running"] + computing).tolist()
        waiting: list[int] = (units["waiting"] - computing).tolist()
        tokens, seconds = kv_tokens.tolist(), busy_s.tolist()
        serving = (units["state"] == SERVING).tolist()
        before, self._loads = self._loads, {}
        for name, (slot, serial) in replicas.items():
            if not serving[slot]:
                continue
            load = self._loads[name] = ReplicaLoad(
                running=running[slot],
                waiting=waiting[slot],
                kv_usage=min(1.0, tokens[slot] / self._capacity),
                busy_s=seconds[slot],
            )
            if load != before.get(name):
                state = ReplicaState.READY
                yield ReplicaUpdate(
                    replica=name, role=roles[serial], state=state, gpu_type=self._gpu_type, load=load
                )

    def _progress(self) -> list[OutputProgress]:
        most, before = int(self._fleet.arrays.clock[0]["active"]), self._outputs
        told = np.empty((2, most), np.int64)
        count = outputs(self._fleet.handle, told)
        numbers, tokens_of = told[:, :count].tolist()
        self._outputs = dict(zip(numbers, tokens_of, strict=True))
        return [
            OutputProgress(str(number), tokens)
            for number, tokens in self._outputs.items()
            if tokens > before.get(number, 0)
        ]


@compiled
def outputs(state: KernelState, told: NDArray[np.int64]) -> int:
    """Fill i8[2, active] with number and output tokens so far of each request in a batch; their count."""
    now_s, count = state.clock[0].now_s, 0
    for replica in range(len(state.replicas)):
        unit = state.replicas[replica]
        if unit.running == 0:
            continue
        iteration = unit.iteration
        if unit.phase == DECODING:
            elapsed_s = (now_s - unit.checkpoint_s) / unit.decode_slowness
            done, ends_s = iterations_until(state.itl, unit.running, unit.kv_tokens, elapsed_s, unit.planned)
            iteration += int(done) - (1 if ends_s > elapsed_s else 0)
        for place in range(unit.running):
            asked = state.requests[state.finish_request[replica, place]]
            tokens = asked.output_tokens - (state.finish_iteration[replica, place] - iteration)
            if tokens > 0:
                told[0, count], told[1, count] = asked.number, tokens
                count += 1
    return count
