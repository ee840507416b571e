"""The outcome of a simulation: what came of requests, what that cost at least, and how the fleet moved.

A request met its SLOs if TTFT and, with two tokens or more, TPOT are within those of its class (without
classes, of the deployment). Attainment is met / (completed + failed + shed). Means are exact; quantiles come
from histograms (within 0.25 %). Over all, TTFT and ITL count every token that left, TPOT and E2E completed
requests; the latencies of a class are those of completed requests. TTFT and E2E begin with the first arrival
of a request that was tried again. `ttft_met_s` is the TTFT of those that met their SLOs: a routing that lets
many fail cannot hide a long tail of the others behind them.

A prompt is looked up in the prefix cache of the replica that computes it, and once more where its KV comes to
a mixed replica that decodes it: hits are local, and the rest of a prompt that came as KV is an external hit.

The fluid bound is Σ work / best throughput under the SLO: GPU-seconds of a fleet that is never idle. Prompt
tokens that the run's own prefix caches saved are not in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.engine.kernel import layout
from headway.engine.kernel.state import BUCKETS, QUANTILES, buckets_of, quantile
from headway.engine.surfaces import prompt_work_s
from headway.planning.types import Role, Slo
from headway.simulation.fleet import ReplicaSeries
from headway.simulation.report import (
    ClassFigures,
    ClassSlo,
    Interval,
    Minutes,
    PoolSeries,
    PrefixHits,
    Quantiles,
    ReportSlo,
    SimulationReport,
    TraceFigures,
)
from headway.simulation.scenario import ClassMix, RequestClass
from interp import Profile

CONTEXT_GRID = 4096
ANY_ITL_S = 1e9


class FluidBound:
    """GPU-seconds that the work done needs at least, with every GPU at its best throughput under the SLO.

    Prompts cost their TTFT where a replica prefills one at a time; where iterations are shared only their
    work (`engine.surfaces`). Decode tokens cost one over the best throughput at the request's mean context;
    where no batch meets the ITL target, one over the best without a target: the figure stays a bound.
    """

    def __init__(self, profile: Profile, slo: Slo, *, shared_iterations: bool) -> None:
        self.gpu_seconds = 0.0
        self._prefill, self._shared = profile.prefill, shared_iterations
        longest = max(2.0, float(profile.decode.table.max_kv_tokens))
        self._contexts = np.geomspace(1.0, longest, CONTEXT_GRID)
        best = profile.decode.best_throughput_per_gpu(slo.itl_s, self._contexts)
        any_itl = profile.decode.best_throughput_per_gpu(ANY_ITL_S, self._contexts)
        throughput = np.where(best.feasible, best.throughput_per_gpu, any_itl.throughput_per_gpu)
        self._seconds_per_token = 1.0 / np.maximum(throughput, 1e-12)

    def add(
        self,
        computed_tokens: NDArray[np.int64],
        decoded_tokens: NDArray[np.int64],
        context: NDArray[np.float64],
    ) -> None:
        """Add requests: prompt tokens computed, tokens decoded, and mean context while decoding."""
        if self._shared:
            work = prompt_work_s(self._prefill.table, computed_tokens.astype(np.float64))
            prefill_s = work * self._prefill.gpus_per_engine
        else:
            prefill_s = computed_tokens / np.asarray(self._prefill.throughput_per_gpu(computed_tokens))
        decode_s = decoded_tokens * np.interp(context, self._contexts, self._seconds_per_token)
        self.gpu_seconds += float(prefill_s.sum() + decode_s.sum())


TOLERANCE = 1.0 + 1e-9
FAILURES = (layout.FAILED, layout.GAVE_UP)
MINUTE_COUNTS = ("requests", "completed", "met", "shed", "failed")


@dataclass(slots=True)
class Latency:
    """One latency over the run: count, exact sum, histogram."""

    count: int = 0
    total_s: float = 0.0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))

    def add(self, values_s: NDArray[np.float64]) -> None:
        """Take in an array of values."""
        self.merge(len(values_s), float(values_s.sum()), np.bincount(buckets_of(values_s), minlength=BUCKETS))

    def merge(self, count: int, total_s: float, counts: NDArray[np.int64]) -> None:
        """Take in a count, a sum and a histogram made elsewhere."""
        self.count += count
        self.total_s += total_s
        self.counts += counts

    def summary(self) -> dict[str, float | None]:
        """Mean and quantiles in seconds; None where nothing was measured."""
        if self.count == 0:
            return dict.fromkeys(("mean", *QUANTILES))
        quantiles = {name: quantile(self.counts, q) for name, q in QUANTILES.items()}
        return {"mean": self.total_s / self.count, **quantiles}


class Outcomes:
    """Counts of ended requests, and latencies of completed ones."""

    def __init__(self, *latencies: str) -> None:
        self.requests = self.completed = self.shed = self.failed = self.met = 0
        self.latencies = {name: Latency() for name in latencies}

    @property
    def attainment(self) -> float | None:
        """Share of all requests that met all their SLOs; None without requests."""
        return self.met / self.requests if self.requests else None

    def figures(self, seconds: float) -> dict[str, Any]:
        """Counts, attainment, goodput over `seconds` and latencies, by the keys that reports have."""
        return {
            "requests": self.requests,
            "completed": self.completed,
            "shed": self.shed,
            "failed": self.failed,
            "attainment": self.attainment,
            "goodput_rps": self.met / seconds if seconds else 0.0,
            **{name: Quantiles(**latency.summary()) for name, latency in self.latencies.items()},
        }

    def count(self, outcomes: NDArray[np.int32], met: int) -> None:
        """Add requests that ended, `met` of them within their SLOs."""
        self.requests += len(outcomes)
        self.completed += int((outcomes == layout.COMPLETED).sum())
        self.shed += int((outcomes == layout.SHED).sum())
        self.failed += int(np.isin(outcomes, FAILURES).sum())
        self.met += met

    def fail(self, count: int) -> None:
        """Add requests that never ended."""
        self.requests += count
        self.failed += count


class PerMinute:
    """Counts by the minute of the run: requests by their arrival, what came of them by their end."""

    def __init__(self) -> None:
        self.counts = {name: np.zeros(1, np.int64) for name in MINUTE_COUNTS}

    def add(self, **times_s: NDArray[np.float64]) -> None:
        """Count, under each name, what happened at these times."""
        for name, each_s in times_s.items():
            new, old = np.bincount((each_s // 60.0).astype(np.int64)), self.counts[name]
            longer, shorter = (new, old) if len(new) > len(old) else (old, new)
            self.counts[name] = longer.astype(np.int64)
            self.counts[name][: len(shorter)] += shorter

    def columns(self) -> dict[str, list[int]]:
        """The counts of each minute, all names equally long."""
        most = max(map(len, self.counts.values()))
        return {name: np.pad(each, (0, most - len(each))).tolist() for name, each in self.counts.items()}


class Tally(Outcomes):
    """Running totals over finished requests; memory grows with the minutes of the run, not with requests."""

    def __init__(self, mix: ClassMix, fluid: FluidBound) -> None:
        super().__init__("ttft_s", "ttft_met_s", "itl_s", "tpot_s", "e2e_s")
        self.fluid = fluid
        self.retried = self.too_long = self.repeats = self.gave_up = 0
        self.input_tokens = self.cached_tokens = self.received_tokens = self.external_tokens = 0
        self.mix, self.minutes = mix, PerMinute()
        self.classes = tuple(Outcomes("ttft_s", "ttft_met_s", "tpot_s") for _ in mix.classes)
        self._ttft_s, self._tpot_s = mix.limits_s * TOLERANCE

    def add(self, finished: NDArray[Any]) -> None:
        """Count records of requests that ended."""
        done = finished[finished["outcome"] == layout.COMPLETED]
        of_class = done["slo_class"]
        ttft_s = done["first_token_s"] - done["first_arrival_s"]
        decoded = done["output_tokens"] - 1
        streamed = decoded > 0
        tpot_s = (done["finished_s"] - done["first_token_s"])[streamed] / decoded[streamed]
        met = ttft_s <= self._ttft_s[of_class]
        met[streamed] &= tpot_s <= self._tpot_s[of_class[streamed]]
        self.count(finished["outcome"], int(met.sum()))
        self._add_minutes(finished, done["finished_s"][met])
        self.retried += int((finished["retries"] > 0).sum())
        self.repeats += int(finished["repeats"].sum())
        self.gave_up += int((finished["outcome"] == layout.GAVE_UP).sum())
        self.too_long += int(
            ((finished["outcome"] == layout.FAILED) & (finished["prefill_replica"] < 0)).sum()
        )
        self.latencies["ttft_met_s"].add(ttft_s[met])
        self.latencies["tpot_s"].add(tpot_s)
        self.latencies["e2e_s"].add(done["finished_s"] - done["first_arrival_s"])
        context = done["input_tokens"] + done["output_tokens"] / 2.0
        self.fluid.add(done["input_tokens"] - done["cached_tokens"], decoded, context)
        self._add_prefixes(done)
        if self.mix.named:
            self._add_classes(finished, met, ttft_s, (streamed, tpot_s))

    def hits(self) -> dict[str, float]:
        """Hit rates: of all tokens looked up, those found there, those that came as KV, and both."""
        looked_up = max(1, self.input_tokens + self.received_tokens)
        local = self.cached_tokens + self.received_tokens - self.external_tokens
        rates = {"local": local / looked_up, "external": self.external_tokens / looked_up}
        return {**rates, "combined": rates["local"] + rates["external"]}

    def fail_unfinished(self, requests: NDArray[Any], now_s: float) -> int:
        """Count those among slots that hold a request as failed now; their number."""
        requests = requests[requests["number"] >= 0]
        left = requests["slo_class"]
        self.repeats += int(requests["repeats"].sum())
        self.fail(len(left))
        self.minutes.add(requests=requests["first_arrival_s"], failed=np.full(len(left), now_s))
        for place, outcomes in enumerate(self.classes):
            outcomes.fail(int((left == place).sum()))
        return len(left)

    def _add_minutes(self, finished: NDArray[Any], met_s: NDArray[np.float64]) -> None:
        ended_s, outcome = finished["finished_s"], finished["outcome"]
        self.minutes.add(
            requests=finished["first_arrival_s"],
            completed=ended_s[outcome == layout.COMPLETED],
            met=met_s,
            shed=ended_s[outcome == layout.SHED],
            failed=ended_s[np.isin(outcome, FAILURES)],
        )

    def _add_prefixes(self, done: NDArray[Any]) -> None:
        external = done["external_tokens"]
        self.input_tokens += int(done["input_tokens"].sum())
        self.cached_tokens += int(done["cached_tokens"].sum())
        self.received_tokens += int(done["input_tokens"][external > 0].sum())
        self.external_tokens += int(external.sum())

    def _add_classes(
        self,
        finished: NDArray[Any],
        met: NDArray[np.bool_],
        ttft_s: NDArray[np.float64],
        streams: tuple[NDArray[np.bool_], NDArray[np.float64]],
    ) -> None:
        """The same for each class; `met` and `ttft_s` are of completed ones, `streams` of those decoding."""
        streamed, tpot_s = streams
        of_done = finished["slo_class"][finished["outcome"] == layout.COMPLETED]
        for place, outcomes in enumerate(self.classes):
            mine = of_done == place
            outcomes.count(finished["outcome"][finished["slo_class"] == place], int(met[mine].sum()))
            outcomes.latencies["ttft_s"].add(ttft_s[mine])
            outcomes.latencies["ttft_met_s"].add(ttft_s[mine & met])
            outcomes.latencies["tpot_s"].add(tpot_s[mine[streamed]])


NO_TRACE = TraceFigures(name="", rate_scale=1.0, isl_mean_tokens=0.0, osl_mean_tokens=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetting:
    """The setting of a run, for its report; without one the report is of the run alone."""

    profile: str = ""
    predictor: str | None = None
    trace: TraceFigures = NO_TRACE
    aim: float = 1.0
    adjustment_interval_s: float | None = None
    wall_s: float | None = None
    attainable: float | None = None
    gpus_per_replica: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """The outcome of one run."""

    policy: str
    routing: str
    seed: int
    slo: Slo
    tally: Tally
    gpu_hours: float
    simulated_s: float
    scale_events: Mapping[Role, int]
    direction_reversals: Mapping[Role, int]
    replicas: Mapping[Role, ReplicaSeries]
    intervals: tuple[Interval, ...]
    notes: tuple[str, ...] = ()
    routing_metrics: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    utilisation: Mapping[str, Any] = field(default_factory=dict)
    spilled: NDArray[Any] = field(default_factory=lambda: np.empty(0, layout.REQUEST))
    """Records of requests that found no place and are counted nowhere in it (`Scenario.spills`)."""

    @property
    def attainment(self) -> float | None:
        """Share of all requests that met all their SLOs; None without requests."""
        return self.tally.attainment

    def report(self, setting: RunSetting | None = None) -> SimulationReport:
        """The report of the run in its setting."""
        tally, setting = self.tally, setting or RunSetting(notes=self.notes)
        bound_hours = tally.fluid.gpu_seconds / 3600.0
        of_class = zip(tally.mix.classes, tally.classes, strict=True)
        classes = {each.name: _class_figures(each, ended, self.simulated_s) for each, ended in of_class}
        return SimulationReport(
            policy=self.policy,
            predictor=setting.predictor,
            routing=self.routing,
            seed=self.seed,
            profile=setting.profile,
            trace=setting.trace,
            slo=ReportSlo(ttft_s=self.slo.ttft_s, itl_s=self.slo.itl_s, attainment=setting.aim),
            adjustment_interval_s=setting.adjustment_interval_s,
            wall_s=setting.wall_s,
            **tally.figures(self.simulated_s),
            retried=tally.retried,
            repeats=tally.repeats or None,
            gave_up=tally.gave_up or None,
            gpu_hours=self.gpu_hours,
            fluid_bound_gpu_hours=bound_hours,
            prefix_hit_rate=tally.cached_tokens / tally.input_tokens if tally.input_tokens else 0.0,
            scale_events=sum(self.scale_events.values()),
            direction_reversals=sum(self.direction_reversals.values()),
            simulated_s=self.simulated_s,
            replicas={role.value: PoolSeries(**asdict(series)) for role, series in self.replicas.items()},
            notes=setting.notes,
            classes=classes if tally.mix.named else None,
            routing_metrics=self.routing_metrics or None,
            prefix_hits=PrefixHits(**tally.hits()) if self.routing_metrics else None,
            utilisation=self.utilisation if self.routing_metrics else None,
            fluid_bound_ratio=self.gpu_hours / bound_hours if bound_hours else None,
            attainable=setting.attainable,
            gpus_per_replica=setting.gpus_per_replica,
            minutes=Minutes(**tally.minutes.columns()),
            intervals=self.intervals,
        )


def _class_figures(each: RequestClass, outcomes: Outcomes, simulated_s: float) -> ClassFigures:
    return ClassFigures(
        slo=ClassSlo(ttft_s=each.slo.ttft_s, tpot_s=each.slo.itl_s),
        critical=each.critical,
        **outcomes.figures(simulated_s),
    )
