"""The policy `headway` by what its source of metrics lets it see: GPU-hours and attainment.

    python -m benchmarks sources --data DIR

`gateway` sees each request; `counts N s` what a Prometheus that scrapes every N seconds keeps of it: counts
by scrape, histograms of lengths; `means` Poisson arrivals of mean lengths. All else is the same run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.policies.scaled_reference import WrappedPolicy
from headway.config import HeadwayConfig
from headway.planning import Decision, Observation
from headway.planning.synthetic import CountedTraffic, LengthHistogram, made_of
from headway.planning.types import FloatArray
from headway.simulation.build import make_plan, make_scenario
from headway.simulation.demand import reach
from headway.simulation.simulate import simulate
from headway.workload import TraceOptions, open_trace

BOUNDS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
"""vLLM's buckets of lengths."""

See = Callable[[Observation], Observation]


@dataclass(frozen=True, slots=True)
class Seeing(WrappedPolicy):
    """A policy that is shown less than there is."""

    see: See

    def plan(self, observation: Observation, state: Any) -> Decision:  # noqa: ANN401
        return self.inner.plan(self.see(observation), state)


def all_of_it(observation: Observation) -> Observation:
    """As our gateway lists it."""
    return observation


def only_means(observation: Observation) -> Observation:
    """Counts and means of the interval."""
    return replace(observation, traffic=None)


def only_counts(scrape_s: float, observation: Observation) -> Observation:
    """Counts by scrape, and histograms."""
    traffic = observation.traffic
    if traffic is None or not len(traffic.arrival_s):
        return observation
    start_s = observation.now_s - observation.interval_s
    edges = np.append(np.arange(start_s, observation.now_s - 1e-6, scrape_s), observation.now_s)
    counts = np.histogram(traffic.arrival_s, edges)[0]
    completed = len(traffic.completed_output_tokens)
    counted = CountedTraffic(
        start_s=start_s,
        steps=tuple(zip(edges[1:].tolist(), counts.tolist(), strict=True)),
        input_tokens=_histogram(traffic.input_tokens),
        output_tokens=_histogram(traffic.completed_output_tokens) if completed else None,
        completed=completed,
    )
    return replace(observation, traffic=made_of(counted))


def _histogram(lengths: FloatArray) -> LengthHistogram:
    places = np.searchsorted(BOUNDS, lengths, side="left")
    counts = np.bincount(places, minlength=len(BOUNDS) + 1)
    return LengthHistogram(bounds=BOUNDS, counts=tuple(counts.tolist()), mean=float(lengths.mean()))


SOURCES: Mapping[str, See] = {
    "gateway": all_of_it,
    "counts 5 s": partial(only_counts, 5.0),
    "counts 15 s": partial(only_counts, 15.0),
    "means": only_means,
}

TRACES = {
    "azure2023_conv × 10": ("traces/azure2023_conv.csv.gz", 10.0, ((500, 20), (2000, 40))),
    "mooncake_conversation × 4": ("traces/mooncake_conversation.csv.gz", 4.0, ((5000, 20),)),
}
PROFILE = "profiles/vidur_llama-3-8b_a100_tp1"
MOST_REPLICAS = 512
MODES = ("disagg", "mixed")


def _config(data: Path, mode: str, ttft_ms: int, itl_ms: int) -> HeadwayConfig:
    pools = (
        {"mixed": {"max_replicas": MOST_REPLICAS}}
        if mode == "mixed"
        else {"prefill": {"max_replicas": MOST_REPLICAS}, "decode": {"max_replicas": MOST_REPLICAS}}
    )
    return HeadwayConfig.model_validate(
        {
            "engine": {"profile": str(data / PROFILE)},
            "slo": {"ttft_ms": ttft_ms, "itl_ms": itl_ms},
            "pools": pools,
            "planner": {"policy": "headway"},
            "simulation": {"start_up_delay_s": 60.0},
        }
    )


def _run(config: HeadwayConfig, path: Path, rate_scale: float, see: See) -> tuple[float, float]:
    """Requests that met their SLO over those that an idle engine serves within it, and GPU-hours."""
    plan = make_plan(config)
    with open_trace(path, TraceOptions(rate_scale=rate_scale)) as trace:
        attainable = reach(trace, plan.settings.slo, plan.idle).attainable
        result = simulate(make_scenario(plan, trace), trace, Seeing(plan.policy, see))
    return result.tally.met / attainable, result.gpu_hours


def main(data: Path) -> int:
    """Print the table, and the geometric mean of GPU-hours over those of `gateway`."""
    print("| trace | mode | SLO (ms) | source | of the attainable | GPU-hours | × gateway |")
    print("|---|---|---|---|---|---|---|")
    ratios: dict[str, list[float]] = {}
    for (trace_name, (path, scale, slos)), mode in product(TRACES.items(), MODES):
        for ttft_ms, itl_ms in slos:
            config = _config(data, mode, ttft_ms, itl_ms)
            whole = 0.0
            for source, see in SOURCES.items():
                attainment, gpu_hours = _run(config, data / path, scale, see)
                whole = whole or gpu_hours
                ratios.setdefault(source, []).append(gpu_hours / whole)
                row = (trace_name, mode, f"{ttft_ms}/{itl_ms}", source, f"{100 * attainment:.2f} %")
                print("|", " | ".join(row), f"| {gpu_hours:.3f} | {gpu_hours / whole:.3f} |", flush=True)
    for source, each in ratios.items():
        print(f"{source}: × {exp(sum(map(log, each)) / len(each)):.3f}")
    return 0
