"""The baselines on public traces: `headway compare` over five seeds of the start-up delay.

    python -m benchmarks baselines --data DIR

Each row is one policy on one trace: the least and the most over the seeds. The static fleet is the cheapest
in hindsight that holds 99 %, or 99 % of what the largest one attains; nothing in it is random, so it runs
once.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEEDS = range(1, 6)
POLICIES = "reference,threshold"
COMMON = ("--start-up-delay", "60", "--max-replicas", "64")
PROFILE = "profiles/dynamo_h200_llama31-8b-fp8_tp1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A trace and what is promised on it."""

    name: str
    trace: str
    flags: tuple[str, ...]


CASES = (
    Case(
        name="azure2023_conv × 10, TTFT 200 ms, ITL 20 ms",
        trace="traces/azure2023_conv.csv.gz",
        flags=("--rate-scale", "10", "--ttft-ms", "200", "--itl-ms", "20"),
    ),
    Case(
        name="mooncake_conversation × 4, TTFT 2 s, ITL 25 ms, prefix cache",
        trace="traces/mooncake_conversation_hash_ids.jsonl.gz",
        flags=(
            *("--rate-scale", "4", "--ttft-ms", "2000", "--itl-ms", "25"),
            *("--prefix-cache-tokens", "900000"),
        ),
    ),
    Case(
        name="servegen_r1, a day, TTFT 1 s, ITL 25 ms",
        trace="traces/servegen_r1_1d_full.csv.gz",
        flags=("--ttft-ms", "1000", "--itl-ms", "25"),
    ),
)


def main(data: Path) -> int:
    """Print the table."""
    print(
        "| trace | policy | attainment | GPU-hours | × fluid bound | reversals |\n|---|---|---|---|---|---|"
    )
    for case in CASES:
        rows: dict[str, list[Mapping[str, Any]]] = {}
        for seed in SEEDS:
            for row in compare(data, case, POLICIES, "--start-up-cv", "0.5", "--seed", str(seed)):
                rows.setdefault(row["label"], []).append(row)
        (best,) = compare(data, case, "static:auto")
        rows[best["label"]] = [best]
        for label, runs in rows.items():
            print(f"| {case.name} | {label} | {line(runs)} |", flush=True)
    return 0


def compare(data: Path, case: Case, policies: str, *flags: str) -> Sequence[Mapping[str, Any]]:
    """The results of `headway compare`."""
    command = [sys.executable, "-m", "headway_cli", "compare", str(data / case.trace), "--json", "-"]
    command += ["--profile", str(data / PROFILE), "--policies", policies, *COMMON, *case.flags, *flags]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    found: Sequence[Mapping[str, Any]] = json.loads(run.stdout)["policies"]
    return found


def line(runs: Sequence[Mapping[str, Any]]) -> str:
    """Least and most of each figure over the runs."""
    return " | ".join(
        (
            spread([100 * run["attainment"] for run in runs], "{:.1f} %"),
            spread([run["gpu_hours"] for run in runs], "{:.4g}"),
            spread([run["fluid_bound_ratio"] for run in runs], "{:.2f}"),
            spread([run["direction_reversals"] for run in runs], "{:g}"),
        )
    )


def spread(values: Sequence[float], form: str) -> str:
    """One figure, or from the least to the most."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"
