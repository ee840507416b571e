"""The driver: feeds a trace to the kernel, and at each tick lets the policy observe, plan and scale.

    loop:  run the kernel to the next tick → observe the interval → forecast → plan → scale

It is the simulator's Planner actor: same Observation, same `plan`, virtual time instead of a clock. What
takes time per request happens in the kernel; here is what happens per tick, per chunk, per full buffer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headway.engine.kernel import layout, lifecycle
from headway.engine.kernel.layout import ArrivalColumns, Exit, Routing
from headway.engine.kernel.state import make_space, make_state, quantile
from headway.engine.rules import at_start
from headway.planning.deciding import call, decide
from headway.planning.forecasting import Forecaster, with_forecast
from headway.planning.sleeping import kept_for_sleep
from headway.planning.types import NAN, Decision, Observation, Policy
from headway.routing.offload import OffloadTrace
from headway.simulation import kernel
from headway.simulation.fleet import Fleet, Loads
from headway.simulation.observing import EngineReports, PerformanceLearner, TrafficLog
from headway.simulation.report import Interval, IntervalForecast, IntervalQuantiles
from headway.simulation.results import FluidBound, SimulationResult, Tally
from headway.simulation.router_driver import RequestContext, RouterDriver, SimulatedTrainer, named
from headway.simulation.scenario import Scenario, ScenarioRouter
from headway.simulation.utilisation import Utilisation
from headway.words import plural
from headway.workload import RequestChunk
from interp.jit import drop_stale_cache


class RequestSource(Protocol):
    """The part of a trace that the simulator needs: chunks in order of arrival, prefix blocks, its span.

    It may have `shared_blocks`, as `Trace` has; else its prompts share the first block.
    """

    @property
    def blocks(self) -> NDArray[np.int64]:
        """Prefix block ids that the chunks point into."""

    @property
    def duration_s(self) -> float:
        """Seconds that the trace covers."""

    def chunks(self) -> Iterator[RequestChunk]:
        """The requests, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchers:
    """Callbacks while a simulation runs: `progress(now_s, duration_s)`, each batch of finished records, and
    offload traces as their requests end, where a router drives.
    """

    progress: Callable[[float, float], None] | None = None
    finished: Callable[[NDArray[Any]], None] | None = None
    traces: Callable[[Sequence[OffloadTrace]], None] | None = None


def simulate(
    scenario: Scenario,
    trace: RequestSource,
    policy: Policy,
    forecaster: Forecaster | None = None,
    watchers: Watchers | None = None,
    *,
    learner: PerformanceLearner | None = None,
    state: Any = None,  # noqa: ANN401 - each policy's state is its own
) -> SimulationResult:
    """Run `trace` through the deployment of `scenario` under `policy`, until the last request has ended.

    Where a `learner` learns of the engines, its policies replace `policy`. `state` is the policy's before its
    first decision, None for that of a policy without a past.

    The same arguments give the same result, byte for byte. Requests that have not ended
    `scenario.drain_limit_s` after the trace count as failed.
    """
    drop_stale_cache(*kernel.COMPILED_FROM)
    return SimulationRun(
        scenario, trace, policy, forecaster, watchers or Watchers(), learner=learner, state=state
    ).result()


class SimulationRun:
    """One simulation under way: `result`, or tick by tick `advance` and `act` until `finish`."""

    def __init__(
        self,
        scenario: Scenario,
        trace: RequestSource,
        policy: Policy,
        forecaster: Forecaster | None,
        watchers: Watchers,
        *,
        learner: PerformanceLearner | None = None,
        state: Any = None,  # noqa: ANN401 - each policy's state is its own
    ) -> None:
        self.woken = False
        self.learner, self.report_s = learner, inf if learner is None else learner.every_s
        self.scenario, self.trace, self.policy = scenario, trace, policy
        self.forecaster, self.watchers = forecaster, watchers
        streams = np.random.SeedSequence(scenario.seed).spawn(4)
        kernel_seed = int(streams[0].generate_state(1, np.uint64)[0])
        arrays = make_state(scenario.profile, scenario.settings, trace.blocks, kernel_seed)
        start_up_s = scenario.start_up.sampler(np.random.default_rng(streams[1]))
        slowness = partial(scenario.speeds.draw, np.random.default_rng(streams[3]))
        self.fleet = Fleet(
            arrays,
            scenario.pools,
            start_up_s,
            slowness,
            capacity=scenario.capacity,
            wake_s=scenario.start_up.wake_s,
            loads=Loads(scenario.start_up.at_once),
        )
        self.fleet.set_slowness(*scenario.speeds.slowness(0.0))
        self.speed_changes = [*scenario.speeds.changes(), inf]
        self.mix = scenario.mix
        self.traffic = TrafficLog(self.fleet, self.mix)
        self.spilled = [np.empty(0, layout.REQUEST)]
        engines = at_start(scenario.profile, scenario.speeds)
        shared = scenario.engine.chunk_tokens > 0
        self.tally = Tally(self.mix, FluidBound(engines, scenario.slo, shared_iterations=shared))
        self.router_driver = self._make_driver(np.random.default_rng(streams[2]))
        self.utilisation = None if self.router_driver is None else Utilisation(self.fleet)
        self.intervals: list[Interval] = []
        self.state: Any = call(policy.name, policy.initial_state) if state is None else state
        self.chunks: Iterator[RequestChunk] = trace.chunks()
        self.ticked_s = 0.0
        self.tick_s = policy.interval_s
        self.met_before = self.ended_before = 0
        self.fleet.arrays.clock["horizon_s"] = trace.duration_s
        self.fleet.open(scenario.initial)
        self.fleet.plan_crashes([(crash.role, crash.at_s) for crash in scenario.crashes])

    def _make_driver(self, generator: np.random.Generator) -> RouterDriver | None:
        """The driver of the kernel, where a router routes."""
        routed, rules = self.scenario.routing, self.fleet.arrays.settings[0]
        if not isinstance(routed, ScenarioRouter):
            return None
        context = RequestContext(
            classes=self.mix.classes,
            most_tokens=routed.most_tokens or int(rules["kv_capacity_tokens"]),
            block_tokens=self.scenario.engine.block_tokens,
            shared_blocks=getattr(self.trace, "shared_blocks", 1),
            spills=self.scenario.spills,
        )
        trainer = SimulatedTrainer(routed.learn) if routed.learn else None
        router, traces = routed.make(generator), self.watchers.traces
        reports = EngineReports(self.fleet, routed.gpu_type) if routed.reports else None
        return RouterDriver(
            self.fleet, router, context, trainer, routed.gpu_type, traces=traces, reports=reports
        )

    def result(self) -> SimulationResult:
        """Run to the end; the policy decides at each tick."""
        while (observation := self.advance()) is not None:
            self.act(observation, decide(self.policy, observation, self.state, self.scenario.bounds))
        return self.finish()

    def finish(self) -> SimulationResult:
        """The result, once `advance` has no more ticks; takes in what came after the last one."""
        scenario, fleet = self.scenario, self.fleet
        observation = self._observe()
        if observation.interval_s > 0:
            self._record(observation, None)
        self._close_window()
        clock = fleet.arrays.clock[0]
        unfinished = self.tally.fail_unfinished(fleet.arrays.requests, float(clock["now_s"]))
        notes = [f"{plural(unfinished, 'request')} had not ended at the drain limit"] if unfinished else []
        missed = len(scenario.crashes) - int(clock["crashes"])
        if missed:
            notes.append(f"{missed} of {len(scenario.crashes)} crashes found no ready replica")
        if spilled := sum(map(len, self.spilled)):
            notes.append(f"{plural(spilled, 'request')} found no place and spilled over")
        if self.learner is not None:
            notes += self.learner.notes()
        routing = scenario.routing
        return SimulationResult(
            policy=self.policy.name,
            routing=routing.name.lower() if isinstance(routing, Routing) else routing.name,
            seed=scenario.seed,
            slo=scenario.slo,
            tally=self.tally,
            gpu_hours=fleet.gpu_hours(),
            simulated_s=float(clock["now_s"]),
            scale_events=fleet.scale_events,
            direction_reversals=fleet.direction_reversals,
            replicas=fleet.series,
            intervals=tuple(self.intervals),
            notes=tuple(notes),
            routing_metrics=named(self.router_driver.router.metrics()) if self.router_driver else {},
            utilisation=self.utilisation.summary() if self.utilisation else {},
            spilled=np.concatenate(self.spilled),
        )

    def advance(self) -> Observation | None:
        """Run the kernel to the next tick and say what came; None at the end of the run."""
        trace_s = self.trace.duration_s
        limit_s, wake_s = trace_s + self.scenario.drain_limit_s, inf
        while True:
            now_s = float(self.fleet.arrays.clock[0]["now_s"])
            room_s = self.scenario.capacity.next_s(now_s)
            # Once seen it stays due: the request may have been the last of its chunk.
            wake_s = min(wake_s, self._wake_s())
            stop_s = min(self._look_s(), room_s, self.tick_s, wake_s, trace_s if now_s < trace_s else limit_s)
            if self.router_driver is not None:
                code = self.router_driver.advance(stop_s)
            else:
                code = Exit(kernel.run(self.fleet.handle, stop_s))
            if code is Exit.REACHED:
                if stop_s >= room_s:
                    self.fleet.place_waiting()
                self._look(stop_s)
                if stop_s >= min(self.tick_s, wake_s):
                    self.woken = stop_s < self.tick_s
                    self.tick_s = stop_s
                    self.tick_s += self.policy.interval_s
                    return self._tick()
                if stop_s >= limit_s:
                    return None
            elif code is Exit.DONE:
                return None
            elif code is Exit.NEED_ARRIVALS:
                self._load_arrivals()
            elif code is Exit.FLEET_CHANGED:
                self.fleet.take_transitions()
            else:
                self._empty_buffers()
                self.fleet.arrays = make_space(self.fleet.arrays)

    def _wake_s(self) -> float:
        """When the first request comes to a pool that is empty: a tick is due then, one an interval."""
        if self.woken or not self.fleet.asleep:
            return inf
        clock, arrival_s = self.fleet.arrays.clock[0], self.fleet.arrays.arrivals.arrival_s
        first = int(clock["next_arrival"])
        return float(arrival_s[first]) if first < clock["arrivals"] else inf

    def _look_s(self) -> float:
        """When there is something to do between two ticks."""
        sample_s = inf if self.utilisation is None else self.utilisation.due_s
        return min(sample_s, self.report_s, self.speed_changes[0])

    def _look(self, now_s: float) -> None:
        """Do it."""
        if now_s >= self.speed_changes[0]:
            self.fleet.set_slowness(*self.scenario.speeds.slowness(self.speed_changes.pop(0)))
        if self.learner is not None and now_s >= self.report_s:
            self.learner.learn(self.fleet, now_s)
            self.report_s += self.learner.every_s
            if self.router_driver is not None and (profile := self.learner.routed()) is not None:
                self.router_driver.go_by(profile)
            if self.learner.urgent and now_s < self.tick_s:
                self.tick_s = now_s
        if self.utilisation is not None and now_s >= self.utilisation.due_s:
            self.utilisation.look()

    def act(self, observation: Observation, decision: Decision) -> None:
        """Carry out what was decided at the tick that `advance` returned."""
        self.state = decision.next_state
        self._record(observation, decision)
        self.fleet.keep(kept_for_sleep(decision.reasons))
        self.fleet.scale(decision.targets)
        self._close_window()
        self.fleet.arrays.window[:] = 0
        self.fleet.arrays.histograms[:] = 0
        self.ticked_s = observation.now_s

    def _load_arrivals(self) -> None:
        chunk = next(self.chunks, None)
        self.traffic.chunk_taken()
        clock = self.fleet.arrays.clock[0]
        clock["next_arrival"] = clock["arrivals"] = 0
        if chunk is None:
            clock["last_chunk"] = 1
            return
        whole = [chunk.input_tokens, chunk.output_tokens, chunk.block_start, chunk.block_count, chunk.copy]
        whole.append(self.mix.draw(int(clock["numbered"]) + np.arange(len(chunk))))
        whole.append(np.zeros(len(chunk)))
        columns = ArrivalColumns(
            np.array(chunk.arrival_s, np.float64), *(np.array(c, np.int64) for c in whole)
        )
        self.fleet.arrays = self.fleet.arrays._replace(arrivals=columns)
        clock["arrivals"] = len(columns.arrival_s)
        if self.watchers.progress:
            self.watchers.progress(float(clock["now_s"]), self.trace.duration_s)

    def _empty_buffers(self) -> None:
        clock = self.fleet.arrays.clock[0]
        finished = self.fleet.arrays.finished[: clock["finished"]]
        if self.scenario.spills:
            shed = finished["outcome"] == layout.SHED
            self.spilled.append(finished[shed])
            finished = finished[~shed]
        self.tally.add(finished)
        self.traffic.ended(finished)
        if self.watchers.finished:
            self.watchers.finished(finished.copy())
        clock["finished"] = 0
        self.fleet.take_transitions()

    def _tick(self) -> Observation:
        if self.watchers.progress:
            self.watchers.progress(float(self.fleet.arrays.clock[0]["now_s"]), self.trace.duration_s)
        observation = self._observe()
        if self.learner is not None:
            self.learner.observe(observation, self.scenario.engine.chunk_tokens)
            self.policy = self.learner.policy() or self.policy
        if self.forecaster is not None:
            self.forecaster.observe(observation)
            observation = with_forecast(observation, self.forecaster.forecast())
        return observation

    def _observe(self) -> Observation:
        lifecycle.catch_up_all(self.fleet.handle)
        if self.router_driver is not None:
            self.router_driver.count_held()
        self._empty_buffers()
        window, now_s = self.fleet.arrays.window[0], float(self.fleet.arrays.clock[0]["now_s"])
        return Observation(
            now_s=now_s,
            interval_s=now_s - self.ticked_s,
            requests=float(window["arrivals"]),
            isl_tokens=_ratio(window["input_tokens"], window["arrivals"]),
            osl_tokens=_ratio(window["output_tokens"], window["completed"]),
            ttft_s=_ratio(window["ttft_s"], window["first_tokens"]),
            itl_s=_ratio(window["gap_s"], window["gaps"]),
            request_duration_s=_ratio(window["duration_s"], window["completed"]),
            pools={role: self.fleet.pool_state(role) for role in self.scenario.pools},
            traffic=self.traffic.take(),
            slow=self.fleet.known_slow(),
            repeats=float(window["repeats"]),
        )

    def _record(self, observation: Observation, decision: Decision | None) -> None:
        histograms, window = self.fleet.arrays.histograms, self.fleet.arrays.window[0]
        ended, forecast = self.tally.requests - self.ended_before, observation.forecast
        self.intervals.append(
            Interval(
                start_s=self.ticked_s,
                end_s=observation.now_s,
                requests=int(observation.requests),
                isl_tokens=observation.isl_tokens,
                osl_tokens=observation.osl_tokens,
                ttft_s=_window_latency(
                    _ratio(window["waited_s"], window["first_tokens"]), histograms[layout.TTFT]
                ),
                itl_s=_window_latency(observation.itl_s, histograms[layout.ITL]),
                attainment=(self.tally.met - self.met_before) / ended if ended else None,
                forecast=IntervalForecast.of(forecast) if forecast else None,
                load={
                    role.value: {"running": pool.running, "waiting": pool.waiting, "kv_usage": pool.kv_usage}
                    for role, pool in observation.pools.items()
                },
                targets={role.value: int(count) for role, count in decision.targets.items()}
                if decision
                else {},
                reasons=decision.reasons if decision else {},
            )
        )
        self.met_before, self.ended_before = self.tally.met, self.tally.requests

    def _close_window(self) -> None:
        """Add the window's token latencies to the totals."""
        state = self.fleet.arrays
        window, histograms, latencies = state.window[0], state.histograms, self.tally.latencies
        latencies["ttft_s"].merge(
            int(window["first_tokens"]), float(window["waited_s"]), histograms[layout.TTFT]
        )
        latencies["itl_s"].merge(int(window["gaps"]), float(window["gap_s"]), histograms[layout.ITL])


def _ratio(total: float, count: int) -> float:
    return float(total) / int(count) if count else NAN


def _window_latency(mean_s: float, counts: NDArray[np.int64]) -> IntervalQuantiles:
    if not counts.any():
        return IntervalQuantiles(mean=None, p50=None, p95=None, p99=None)
    p50, p95, p99 = (quantile(counts, q) for q in (0.5, 0.95, 0.99))
    return IntervalQuantiles(mean=mean_s, p50=p50, p95=p95, p99=p99)
