"""Elastic prefill offload on the Mooncake conversation trace: 8 mixed replicas, four modes.

    python -m benchmarks offload --data DIR

Three cuts of the hour, each with an empty fleet at first, at several rates; each figure is the median of the
cuts, with the least and the most. Changes against `never` are of the same cut. D is the replica of the
session; two ways to place new sessions are shown, since what offload gains depends on it. A session is what
shares the second 512-token block of its prompts: the first is the same in all requests. Engine, cache size
(the profile's KV capacity) and thresholds (the defaults) were chosen before any run; nothing is fitted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.config import load_config
from headway.simulation.build import Plan, make_plan, make_scenario
from headway.simulation.layout import COMPLETED
from headway.simulation.simulate import Watchers, simulate
from headway.workload import TraceOptions, open_trace

TRACE = "traces/mooncake_conversation_hash_ids.jsonl.gz"
PROFILE, KV_TOKENS = "llama-3.1-70b_h100_tp4", 454_016
REPLICAS = 8
CUT_S, STARTS_S = 1_180.0, (0.0, 1_180.0, 2_360.0)
MODES = ("never", "always", "heuristic", "cost")
FAR_S = 1e6

HOMES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "new sessions to the least loaded": (
        {"plugin_ref": "session-affinity-scorer", "weight": 10},
        {"plugin_ref": "least-load", "weight": 1},
        {"plugin_ref": "max-score-picker"},
    ),
    "new sessions anywhere": (
        {"plugin_ref": "session-affinity-scorer", "weight": 1},
        {"plugin_ref": "max-score-picker"},
    ),
}
CASES = (
    ("new sessions to the least loaded", 0.5),
    ("new sessions to the least loaded", 1.0),
    ("new sessions to the least loaded", 1.5),
    ("new sessions anywhere", 0.5),
    ("new sessions anywhere", 1.0),
)

DOCUMENT = """\
the document's table (67 of 200 requests, 8 concurrent sessions, other hardware; its baseline is colocation):
  TTFT p50 1.080 → 0.551 s (−49 %), p90 9.410 → 4.135 s (−56 %), TPOT p90 0.074 s (unchanged),
  E2E p50 5.306 → 2.938 s (−45 %), 25 % of requests in error"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Placement of new sessions, the rate scale, the mode, and further settings."""

    homes: str
    rate: float
    mode: str
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One cut in one mode: seconds, shares of requests; counts of errors before the first token and of
    prompts taken back from P.
    """

    ttft_p50_s: float
    ttft_p90_s: float
    tpot_p90_s: float
    e2e_p50_s: float
    e2e_mean_s: float
    errors: float
    classes: Mapping[str, float]
    reasons: Mapping[str, float]
    local: float
    external: float
    unstarted: int
    given_up: int
    transfer: float
    """Measured transfers over the rule, at the end; NaN without any. The engines keep the rule."""
    load: float
    """The fluid bound of the work done over the GPU-hours there were."""


FIGURES = ("ttft_p50_s", "ttft_p90_s", "tpot_p90_s", "e2e_p50_s", "e2e_mean_s")


def main(data: Path | None) -> int:
    """Print the tables."""
    if data is None or not (data / TRACE).is_file():
        print(f"needs {TRACE}: --data DIR")
        return 0
    print(f"{REPLICAS} × {PROFILE}, cuts of {CUT_S:g} s, deadline and thresholds by default")
    for homes, rate in CASES:
        cases = [Case(homes=homes, rate=rate, mode=mode) for mode in MODES]
        runs = {case.mode: [measure(data, case, start_s) for start_s in STARTS_S] for case in cases}
        load = spread([100 * run.load for run in runs["never"]], "{:.0f} %")
        print(f"\n### {homes}, rate × {rate:g}: load {load} of the fluid bound\n")
        report(runs)
    hardship(data)
    print(f"\n{DOCUMENT}")
    return 0


def hardship(data: Path) -> None:
    """Always offload, past the fleet's limits: deadlines without slack, and two replicas that die."""
    homes, rate = CASES[2]
    tight = {"routing.offload.deadline_factor": 1.0, "routing.offload.deadline_slack_ms": 0.0}
    deaths = {"simulation.crashes": [{"at_s": at_s, "role": "mixed"} for at_s in (300.0, 600.0)]}
    print()
    for what, more in (("deadlines without slack", tight), ("two replicas die", deaths)):
        case = Case(homes=homes, rate=rate, mode="always", more=more)
        runs = [measure(data, case, start_s) for start_s in STARTS_S]
        errors = 100 * sum(run.errors for run in runs) / len(runs)
        print(
            f"always, rate × {rate:g}, {what}: {sum(run.given_up for run in runs)} prompts taken back from P,"
            f" {errors:.2g} % errors, {sum(run.unstarted for run in runs)} of them before a first token"
        )


def plan_of(case: Case) -> Plan:
    """The deployment."""
    settings: Mapping[str, Any] = {
        "pools": {"mixed": {"min_replicas": REPLICAS, "max_replicas": REPLICAS}},
        "simulation.initial": {"mixed": REPLICAS},
        "planner.policy": "static",
        "planner.static": {"mixed": REPLICAS},
        "engine.profile": PROFILE,
        "engine.prefix_cache_tokens": KV_TOKENS,
        "routing.profile": "sticky",
        "routing.fallback": "least_load",
        "routing.scheduling_profiles": [{"name": "sticky", "plugins": HOMES[case.homes]}],
        "routing.offload.mode": case.mode,
        "routing.prediction.learn": False,
        "routing.queue.max_wait_s": FAR_S,
        **case.more,
    }
    return make_plan(load_config(None, settings))


def measure(data: Path, case: Case, start_s: float) -> Run:
    """Simulate one cut."""
    plan = plan_of(case)
    records: list[NDArray[Any]] = []
    options = TraceOptions(start_s=start_s, duration_s=CUT_S, rate_scale=case.rate)
    with open_trace(str(data / TRACE), options) as trace:
        scenario = make_scenario(plan, trace)
        result = simulate(scenario, trace, plan.policy, None, Watchers(finished=records.append))
    summary = result.report().document()
    return run_of(np.concatenate(records), summary)


def run_of(records: NDArray[Any], summary: Mapping[str, Any]) -> Run:
    """The figures of one simulation."""
    done = records[records["outcome"] == COMPLETED]
    ttft_s, e2e_s = done["first_token_s"] - done["arrival_s"], done["finished_s"] - done["arrival_s"]
    gaps = done["output_tokens"] - 1
    tpot_s = (e2e_s - ttft_s)[gaps > 0] / gaps[gaps > 0]
    total = summary["requests"]
    placed = summary["routing_metrics"]["placements"]
    by_class, by_reason = summed(placed, 1), summed(placed, 2)
    hits = summary["prefix_hits"]
    return Run(
        ttft_p50_s=float(np.quantile(ttft_s, 0.5)),
        ttft_p90_s=float(np.quantile(ttft_s, 0.9)),
        tpot_p90_s=float(np.quantile(tpot_s, 0.9)),
        e2e_p50_s=float(np.quantile(e2e_s, 0.5)),
        e2e_mean_s=float(e2e_s.mean()),
        errors=1.0 - len(done) / total,
        classes={name: count / total for name, count in by_class.items()},
        reasons={name: count / total for name, count in by_reason.items()},
        local=hits["local"],
        external=hits["external"],
        unstarted=int(((records["outcome"] != COMPLETED) & (records["first_token_s"] < 0.0)).sum()),
        given_up=int(by_reason.get("deadline_passed", 0) + by_reason.get("p_lost", 0)),
        transfer=summary["routing_metrics"]["transfer"].get("factor", nan),
        load=summary["fluid_bound_gpu_hours"] / summary["gpu_hours"],
    )


def summed(placements: Mapping[str, float], place: int) -> Mapping[str, float]:
    """Counters by profile/class/reason, summed over all but one label."""
    totals: dict[str, float] = {}
    for labels, count in placements.items():
        name = labels.split("/")[place]
        totals[name] = totals.get(name, 0.0) + count
    return totals


def report(runs: Mapping[str, Sequence[Run]]) -> None:
    """Two tables and the reasons."""
    print("| mode | TTFT p50 s | TTFT p90 s | TPOT p90 s | E2E p50 s | E2E mean s | errors | taken back |")
    print("|---|---|---|---|---|---|---|---|")
    for mode, of_mode in runs.items():
        cells = [spread([getattr(run, name) for run in of_mode], "{:.3g}") for name in FIGURES]
        errors = spread([100 * run.errors for run in of_mode], "{:.2g} %")
        print(f"| {mode} | {' | '.join(cells)} | {errors} | {sum(run.given_up for run in of_mode)} |")
    print(
        "\n| against never | TTFT p50 | TTFT p90 | TPOT p90 | E2E p50 | E2E mean |\n|---|---|---|---|---|---|"
    )
    for mode, of_mode in list(runs.items())[1:]:
        cells = [change(of_mode, runs["never"], name) for name in FIGURES]
        print(f"| {mode} | {' | '.join(cells)} |")
    print("\n| mode | WARM | MEDIUM | HEAVY_P2P | HEAVY_COLO | local hits | external | combined |")
    print("|---|---|---|---|---|---|---|---|")
    for mode, of_mode in runs.items():
        shares = [
            f"{100 * median(run.classes.get(name, 0.0) for run in of_mode):.1f} %"
            for name in ("WARM", "MEDIUM", "HEAVY_P2P", "HEAVY_COLO")
        ]
        hits = [
            f"{100 * median(values):.1f} %"
            for values in (
                [run.local for run in of_mode],
                [run.external for run in of_mode],
                [run.local + run.external for run in of_mode],
            )
        ]
        print(f"| {mode} | {' | '.join(shares + hits)} |")
    for mode in ("always", "heuristic", "cost"):
        print(f"\ntransfer / rule, {mode}: {spread([run.transfer for run in runs[mode]], '{:.2f}')}")
    for mode in ("heuristic", "cost"):
        names = sorted({name for run in runs[mode] for name in run.reasons})
        shares = [
            f"{name} {100 * median(run.reasons.get(name, 0.0) for run in runs[mode]):.1f} %" for name in names
        ]
        print(f"\nreasons, {mode}: {', '.join(shares)}", flush=True)


def change(of_mode: Sequence[Run], never: Sequence[Run], name: str) -> str:
    """Relative change per cut."""
    pairs = zip(of_mode, never, strict=True)
    return spread(
        [100 * (getattr(run, name) / getattr(base, name) - 1.0) for run, base in pairs], "{:+.0f} %"
    )


def spread(values: Sequence[float], form: str) -> str:
    """The median, and from the least to the most."""
    middle, low, high = (form.format(value) for value in (median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"
