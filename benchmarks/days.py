"""Two days of load with the policy headway, by the predictors that it asks beside its levels.

    python -m benchmarks days --data DIR [--cells 'r1@180*'] [--output DIR]

    r1      servegen_r1's day twice, thinned to half: each day has a level of its own (sd 10 %), drifts by
            12 % over hours and 4 % from one ten minutes to the next, and comes some minutes early or late
    mlarge  the first days of servegen_mlarge, four times as dense: copies a few seconds apart

8B on A100, TTFT 2 s, ITL 40 ms, promise 99 %, start-up delays of 180 and 600 s. Attainment over the
attainable, GPU-hours, changes of direction an hour and pool, and how often which forecast was chosen.
Results lie in
--output, one file a run; what is there stays.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.policies.cells import PROFILES
from benchmarks.policies.recording import Recording, read
from headway.config import load_config
from headway.simulation.build import make_plan, make_scenario, run
from headway.simulation.demand import reach
from headway.workload import Trace, TraceOptions

OUTPUT = Path("out/days")
DAY_S, STEP_S, DAYS = 86_400.0, 600.0, 2
DELAYS_S = (180, 600)
ASKED = {
    "none": (),
    "kalman+daily": ("kalman", "daily"),
    "kalman": ("kalman",),
    "daily": ("daily",),
    "arima": ("arima",),
    "prophet": ("prophet",),
}

Floats = NDArray[np.float64]


def main(data: Path, *, cells: str = "*", output: Path = OUTPUT) -> int:
    """Run what is missing, then print the table."""
    for trace, delay_s, asked in product(("r1", "mlarge"), DELAYS_S, ASKED):
        name = f"{trace}@{delay_s}_{asked}"
        if any(fnmatch(name, pattern.strip()) for pattern in cells.split(",")):
            path = output / f"{name}.json"
            if not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(_run(data, trace, delay_s, ASKED[asked])), encoding="utf-8")
            print(_line(name, json.loads(path.read_text(encoding="utf-8"))), flush=True)
    return 0


def _run(data: Path, trace: str, delay_s: int, asked: tuple[str, ...]) -> Mapping[str, Any]:
    recording = cast(Trace, _recording(data, trace))
    settings = {
        "slo": {"ttft_ms": 2000.0, "itl_ms": 40.0, "attainment": 0.99},
        "engine.profile": str(data / "profiles" / PROFILES["8b"]),
        "pools.prefill.max_replicas": 1000,
        "pools.decode.max_replicas": 1000,
        "planner.headway.predictors": list(asked),
        "simulation.start_up_delay_s": delay_s,
    }
    plan = make_plan(load_config(None, settings))
    scenario = make_scenario(plan, recording)
    known = reach(recording, scenario.mix, plan.idle)
    result = run(plan, scenario, recording)
    chosen: dict[str, Counter[str]] = {role.value: Counter() for role in plan.settings.limits}
    for interval in result.intervals:
        for role, need in interval.reasons.get("needs", {}).items():
            if need["option"]:
                chosen[role][need["option"]["forecast"]] += 1
    return {
        "attained": result.tally.met / known.attainable,
        "gpu_hours": result.gpu_hours,
        "reversals": sum(result.direction_reversals.values()) / (2.0 * recording.duration_s / 3600.0),
        "chosen": chosen,
    }


@cache
def _recording(data: Path, trace: str) -> Recording:
    if trace == "mlarge":
        return _dense(read(data / "traces" / "servegen_mlarge_wk1_thin50.csv.gz", TraceOptions()))
    return _repeated(read(data / "traces" / "servegen_r1_1d_full.csv.gz", TraceOptions()))


def _dense(whole: Recording) -> Recording:
    rng = np.random.default_rng(2)
    part = whole.head(3 * DAY_S)
    shifted = [np.maximum(0.0, part.arrival_s + rng.normal(0.0, 2.0, len(part.arrival_s))) for _ in range(4)]
    columns = (part.input_tokens, part.output_tokens)
    return _joined(shifted, *([column] * 4 for column in columns)).head(DAYS * DAY_S)


def _repeated(day: Recording) -> Recording:
    rng = np.random.default_rng(1)
    at_s = np.arange(0.0, DAY_S + STEP_S, STEP_S)
    arrivals, inputs, outputs = [], [], []
    for number in range(DAYS):
        level = 0.1 * rng.normal()
        busy = np.exp(level + 0.12 * _drift(rng, len(at_s), 12.0) + 0.04 * _drift(rng, len(at_s), 1.0))
        late_s = 300.0 * _drift(rng, len(at_s), 12.0)
        kept = rng.random(len(day.arrival_s)) < 0.5 * np.interp(day.arrival_s, at_s, busy)
        own_s = day.arrival_s[kept]
        moved_s = np.clip(own_s + np.interp(own_s, at_s, late_s), 0.0, DAY_S - 0.01)
        arrivals.append(moved_s + number * DAY_S)
        inputs.append(day.input_tokens[kept])
        outputs.append(day.output_tokens[kept])
    return _joined(arrivals, inputs, outputs)


def _drift(rng: np.random.Generator, count: int, memory: float) -> Floats:
    """A stationary series of variance 1 that forgets in so many steps."""
    kept = np.exp(-1.0 / memory)
    values = np.empty(count)
    values[0] = rng.normal()
    for i in range(1, count):
        values[i] = kept * values[i - 1] + np.sqrt(1.0 - kept * kept) * rng.normal()
    return values


def _joined(
    arrivals: list[Floats], inputs: list[NDArray[np.int64]], outputs: list[NDArray[np.int64]]
) -> Recording:
    arrival_s = np.concatenate(arrivals)
    order = np.argsort(arrival_s, kind="stable")
    return Recording(
        arrival_s=arrival_s[order],
        input_tokens=np.concatenate(inputs)[order],
        output_tokens=np.concatenate(outputs)[order],
        duration_s=float(arrival_s[order[-1]]),
    )


def _line(name: str, found: Mapping[str, Any]) -> str:
    return (
        f"{name:<24}{found['attained']:>9.2%}{found['gpu_hours']:>9.1f} GPU-hours"
        f"{found['reversals']:>6.1f} reversals   {'; '.join(_shares(found['chosen']))}"
    )


def _shares(chosen: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for role, counts in chosen.items():
        total = max(1, sum(counts.values()))
        shares = sorted(counts.items(), key=lambda item: -item[1])
        yield f"{role} " + ", ".join(f"{name} {count / total:.0%}" for name, count in shares)
