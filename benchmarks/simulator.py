"""Speed of the simulator on one core: requests a second, a whole day, and the start of a short run.

    python -m benchmarks simulator --data DIR

In-process figures leave out start-up: the trace is open and the kernel is loaded. The day and the short run
are whole processes of the `headway` command, imports and reading included. Without the data directory
generated traces serve.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.config import HeadwayConfig, load_config
from headway.simulation.build import make_plan, make_scenario, run
from headway.workload import Trace, TraceOptions, open_trace

REPEATS = 7
MADE = "burst:rate_rps=40,peak_rps=80,duration_s=3600,input_tokens=1155,output_tokens=211,seed=1"
MADE_DAY = "diurnal:rate_rps=16,duration_s=86400,input_tokens=1270,output_tokens=1520,seed=1"
SHORT = "steady:rate_rps=5,duration_s=60,seed=1"
SETTINGS: Mapping[str, Any] = {
    "slo.ttft_ms": 200,
    "slo.itl_ms": 20,
    "planner.policy": "reference",
    "planner.predictor": "kalman",
}


def main(data: Path | None) -> int:
    """Print the figures; a missed target is printed as such."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # children inherit it
    try:
        measure(data)
    finally:
        os.sched_setaffinity(0, cores)
    return 0


def measure(data: Path | None) -> None:
    """All figures, one after the other."""
    profile, hour, day = inputs(data)
    config = load_config(None, {**SETTINGS, "engine.profile": profile})
    print(f"profile {profile}, planner reference with kalman, {REPEATS} repeats: median (least to most)")
    with open_trace(hour, TraceOptions(rate_scale=10.0 if data else 1.0)) as trace:
        in_process(config, trace, 200_000)
    flags = ["--profile", profile, "--policy", "reference", "--ttft-ms", "200", "--itl-ms", "20"]
    whole_process("day", [day, *flags], most_s=30.0)
    whole_process("short run", [SHORT, *flags], most_s=5.0)


def inputs(data: Path | None) -> tuple[str, str, str]:
    """Profile, a trace of an hour, a trace of a day."""
    if data is None or not (data / "traces").is_dir():
        print("no data directory: generated traces and an embedded profile instead")
        return "llama-3.1-8b_h100_tp1", MADE, MADE_DAY
    return (
        str(data / "profiles" / "dynamo_h200_llama31-8b-fp8_tp1"),
        str(data / "traces" / "azure2023_conv.csv.gz"),
        str(data / "traces" / "servegen_r1_1d_full.csv.gz"),
    )


def in_process(config: HeadwayConfig, trace: Trace, target: float) -> None:
    """Requests a second with the planner in the loop."""
    rates = []
    for _ in range(REPEATS + 1):
        plan = make_plan(config)
        scenario = make_scenario(plan, trace)
        begun_s = time.perf_counter()
        result = run(plan, scenario, trace)
        rates.append(result.tally.requests / (time.perf_counter() - begun_s))
    rates = sorted(rates[1:])
    verdict = "ok" if statistics.median(rates) >= target else "MISSED"
    print(
        f"least_load (compiled) {trace.request_count:>9,} requests  {statistics.median(rates):>9,.0f}/s"
        f" ({rates[0]:,.0f} to {rates[-1]:,.0f}), at least {target:,.0f}: {verdict}"
    )


def whole_process(what: str, arguments: list[str], most_s: float) -> None:
    """Wall time and peak memory of `headway simulate`, three times, the first not counted."""
    walls = []
    for _ in range(4):
        begun_s = time.perf_counter()
        command = [sys.executable, "-m", "headway_cli", "simulate", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        walls.append(time.perf_counter() - begun_s)
    walls = sorted(walls[1:])
    peak_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    verdict = "ok" if walls[1] < most_s and peak_gib < 2.0 else "MISSED"
    print(
        f"{what:24} whole process {walls[1]:.2f} s ({walls[0]:.2f} to {walls[2]:.2f}), under {most_s:g} s;"
        f" peak memory so far {peak_gib:.2f} GiB, under 2: {verdict}"
    )
