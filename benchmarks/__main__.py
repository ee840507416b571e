"""`python -m benchmarks [NAME ...] [--data DIR]`: run the benchmarks and print their figures.

`policies`, `mismatch` and `advice` take hours, `routings` half of one, and run only when they are named.
So do `size` and `embedded_profiles`, which measure no speed, `gateway`, which wants its peers, and
`kv_events`, which wants vLLM.
"""

import argparse
import pathlib
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from headway_cli.errors import is_wrong_input

BENCHMARKS: Mapping[str, str] = {
    "embedded_profiles": "the embedded profiles made again (--output writes them; minutes)",
    "policies": "planner policies at equal attainment over a grid of deployments (hours; --quick: one)",
    "decisions": "CPU time of a decision of headway, by past and deployments (minutes)",
    "mismatch": "plans for engines of other speeds than profiled, corrected and not (an hour; --quick: less)",
    "bursts": "headway on kinds of load, beside the best fixed fleet (minutes; --ablation: hours)",
    "fleet": "30 models, few of them busy, for a day, alone and on a budget (an hour; --quick: minutes)",
    "applications": "memory and ticks of a control plane of many applications (minutes, Rays)",
    "advice": "savings that a dry run forecasts against those really made (an hour; --quick: minutes)",
    "advice_live": "the same on a live fleet of simulated engines (8 minutes, two Rays)",
    "routing": "cost of a routing decision and of a request's events",
    "routings": "goodput, tails and prefix hits of routings on unlike loads (half an hour; --only: some)",
    "size": "lines, files, import circles; files that a tick and a request cross (--journeys: minutes)",
    "kv_events": "the router's idea of vLLM's prefix cache, by KV events and estimated (minutes; with vLLM)",
    "simulator": "simulated requests per second, memory, cold start",
    "gateway": "CPU per request beside Serve's default path, HAProxy, Rust routers (minutes, a Ray)",
}

OPTIONS: Mapping[str, Sequence[str]] = {
    "policies": ("cells", "quick", "output", "workers", "report"),
    "mismatch": ("cells", "quick", "output", "workers", "scrape", "unprofiled"),
    "bursts": ("only", "seeds", "workers", "without", "ablation"),
    "fleet": ("quick", "workers"),
    "advice": ("cells", "quick", "output", "workers"),
    "advice_live": (),
    "applications": ("counts",),
    "routing": ("only",),
    "routings": (
        "only",
        "loads",
        "duration",
        "seeds",
        "routings",
        "learn",
        "json",
        "before",
        "plot",
        "workers",
    ),
    "size": ("root", "journeys"),
    "gateway": ("peers",),
    "embedded_profiles": ("output",),
    "kv_events": (),
}
"""Benchmarks that take more than the data directory, or too long to run unasked."""

REPLAY_TRACES = {"policies", "mismatch", "advice"}
"""Those that have nothing to run without traces and profiles."""

ALWAYS = {"routing"}
"""Those of them that run unasked."""


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for, all by default; the highest code that a benchmark returned."""
    chosen = _parse(arguments)
    code = 0
    for name in chosen.names or [name for name in BENCHMARKS if name not in OPTIONS or name in ALWAYS]:
        print(f"\n== {name}: {BENCHMARKS[name]}", flush=True)
        if name in REPLAY_TRACES and (chosen.data is None or not (chosen.data / "traces").is_dir()):
            print("needs traces and profiles: --data DIR")
            continue
        options = {key: getattr(chosen, key) for key in OPTIONS.get(name, ()) if getattr(chosen, key)}
        try:
            code = max(code, int(import_module(f"benchmarks.{name}").main(chosen.data, **options)))
        except Exception as error:
            if not is_wrong_input(error):
                raise
            print(f"benchmarks: {name}: {error}", file=sys.stderr)
            code = 2
    return code


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    listed = ", ".join(f"{name} ({what})" for name, what in BENCHMARKS.items())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{listed}; all by default")
    parser.add_argument("--data", type=pathlib.Path, help="directory with traces/ and profiles/")
    policies = parser.add_argument_group("policies, mismatch, advice")
    policies.add_argument(
        "--cells", metavar="PATTERNS", help="only cells of such names, as azure10_8b_*,r1_*"
    )
    policies.add_argument(
        "--quick", action="store_true", help="traces of an hour, no budgets; fleet: 10 models, 6 hours"
    )
    policies.add_argument(
        "--output", metavar="DIR", type=pathlib.Path, help="results; those there stay (profiles: replaced)"
    )
    policies.add_argument("--workers", metavar="N", type=int, help="processes; else one per core")
    policies.add_argument(
        "--scrape", metavar="S", type=float, nargs="+", help="mismatch: engines known by scraped metrics"
    )
    policies.add_argument(
        "--unprofiled", metavar="S", type=float, help="mismatch: engines without a profile, read every S s"
    )
    policies.add_argument("--report", action="store_true", help="of what lies in --output; runs nothing")
    routings = parser.add_argument_group("routings")
    routings.add_argument(
        "--only",
        metavar="WORDS",
        help="cells with one of the words, as mooncake,onoff+split+classes; routing: rows with this in them",
    )
    routings.add_argument("--loads", metavar="LIST", help="percent; else each load's own")
    routings.add_argument("--duration", metavar="S", type=float, help="at most so many seconds of each load")
    routings.add_argument("--seeds", metavar="N", type=int, help="runs of each, else 2; bursts: 3")
    routings.add_argument("--routings", metavar="LIST", help="the first is judged beside the others")
    routings.add_argument("--learn", action="store_true", help="with the learned latency model")
    routings.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write the rows")
    routings.add_argument("--before", metavar="FILE", type=pathlib.Path, help="rows of an earlier --json")
    routings.add_argument("--plot", metavar="FILE", type=pathlib.Path, help="draw goodput over load instead")
    bursts = parser.add_argument_group("bursts")
    bursts.add_argument("--without", metavar="RULE", help="headway lacks it, as peak")
    bursts.add_argument(
        "--ablation", metavar="RULES", nargs="?", const="all", help="headway without each, beside itself"
    )
    size = parser.add_argument_group("size")
    size.add_argument("--root", metavar="DIR", type=pathlib.Path, help="another checkout than this one")
    size.add_argument("--journeys", action="store_true", help="also run its live system and trace it")
    applications = parser.add_argument_group("applications")
    applications.add_argument("--counts", metavar="LIST", help="of applications, as 1,10,30")
    gateway = parser.add_argument_group("gateway")
    gateway.add_argument(
        "--peers", metavar="DIR", type=pathlib.Path, help="where vllm-router and sglang-router are installed"
    )
    chosen = parser.parse_args(arguments)
    if strangers := [name for name in chosen.names if name not in BENCHMARKS]:
        parser.error(f"unknown benchmark {strangers[0]!r}; known: {', '.join(BENCHMARKS)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
