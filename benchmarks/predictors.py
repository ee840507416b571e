"""Cost of a tick of each predictor, and the error of its forecasts of real request counts.

Cost: `observe` + `forecast(1)` on 200 points of history; libraries are loaded, and the first fit is done,
before the clock starts.
Accuracy, one step ahead, over request counts per interval; every predictor starts from the same warm points:
WAPE = Σ|y - mean| / Σy, and the pinball loss at 0.9 over Σy (0 is perfect; lower is better in both).
"""

import pathlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import predictors

Series = npt.NDArray[np.float64]

HISTORY = 200
TRACES = ("azure2023_conv", "mooncake_conversation", "servegen_r1_1d_full")
INTERVALS_S = (60, 180)
WARM_POINTS = 10
SCORED_TICKS = 100
LEVEL = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Cost that one tick may have: the median, or the mean of `ticks` where costs are amortised."""

    limit_ms: float
    ticks: int
    amortised_over: int = 1


TARGETS = {
    "constant": Target(limit_ms=1.0, ticks=400),
    "kalman": Target(limit_ms=1.0, ticks=400),
    "daily": Target(limit_ms=1.0, ticks=400),
    "arima": Target(limit_ms=100.0, ticks=60, amortised_over=20),
    "prophet": Target(limit_ms=1000.0, ticks=20),
}


def main(data: pathlib.Path | None) -> int:
    """Print both tables; accuracy needs the traces in `data`/traces."""
    print_costs()
    print_accuracy(data)
    return 0


def print_costs() -> None:
    print(f"cost of one tick, {HISTORY} points of history")
    print(f"  {'predictor':<10}{'median ms':>11}{'p95 ms':>10}{'mean ms':>10}   {'target':<34}")
    for name, target in TARGETS.items():
        ticks = tick_times_ms(name, target.ticks)
        judged = float(ticks.mean() if target.amortised_over > 1 else np.median(ticks))
        verdict = "met" if judged < target.limit_ms else "MISSED"
        over = f"amortised over {target.amortised_over} ticks" if target.amortised_over > 1 else "a tick"
        figures = f"{np.median(ticks):>11.3f}{np.quantile(ticks, 0.95):>10.3f}{ticks.mean():>10.3f}"
        print(f"  {name:<10}{figures}   {over} < {target.limit_ms:g} ms: {verdict} ({judged:.3g} ms)")


def tick_times_ms(name: str, ticks: int) -> Series:
    values = diurnal(HISTORY + ticks)
    predictor = predictors.make(name)
    predictors.warm_start(predictor, values[:HISTORY])
    predictor.forecast()
    return np.array([_timed_ms(predictor, value) for value in values[HISTORY:]])


def _timed_ms(predictor: predictors.Predictor, value: float) -> float:
    start = time.perf_counter()
    predictor.observe(value)
    predictor.forecast()
    return 1e3 * (time.perf_counter() - start)


def diurnal(points: int) -> Series:
    """Poisson counts around a daily swing in steps of three minutes."""
    phase = 2.0 * np.pi * np.arange(points) / 480.0
    return np.asarray(np.random.default_rng(5).poisson(900.0 + 500.0 * np.sin(phase)), dtype=np.float64)


def print_accuracy(data: pathlib.Path | None) -> None:
    if data is None or not (data / "traces").is_dir():
        print("\naccuracy: not run, no traces (give --data DIR with DIR/traces)")
        return
    limit = f"{WARM_POINTS} warm points, then up to {SCORED_TICKS} ticks"
    print(f"\none-step accuracy, WAPE / pinball at {LEVEL:g}, {limit}")
    names = predictors.known()
    print(f"  {'requests per interval':<30}{'ticks':>6}" + "".join(f"{name:>16}" for name in names))
    for label, counts in request_counts(data / "traces"):
        scores = [score(name, counts) for name in names]
        figures = "".join(f"{f'{wape:.3f} / {pinball:.3f}':>16}" for wape, pinball in scores)
        print(f"  {label:<30}{counts.size - WARM_POINTS:>6}{figures}")


def request_counts(traces: pathlib.Path) -> Iterator[tuple[str, Series]]:
    """Requests per whole interval from each trace's start, cut after the scored ticks."""
    import pandas as pd

    for trace in TRACES:
        path = traces / f"{trace}.csv.gz"
        if not path.is_file():
            print(f"  {trace}: not there")
            continue
        stamps = pd.read_csv(path, usecols=["timestamp_s"])["timestamp_s"].to_numpy(dtype=np.float64)
        for interval_s in INTERVALS_S:
            counts = np.bincount(((stamps - stamps.min()) // interval_s).astype(np.int64))[:-1]
            yield (
                f"{trace}, {interval_s} s",
                np.asarray(counts[: WARM_POINTS + SCORED_TICKS], dtype=np.float64),
            )


def score(name: str, counts: Series) -> tuple[float, float]:
    """WAPE and relative pinball loss of one-step forecasts after the warm points."""
    predictor = predictors.make(name)
    predictors.warm_start(predictor, counts[:WARM_POINTS])
    means, tails = [], []
    for value in counts[WARM_POINTS:]:
        forecast = predictor.forecast()
        means.append(forecast.mean[0])
        tails.append(forecast.quantile(LEVEL)[0])
        predictor.observe(value)
    actual = counts[WARM_POINTS:]
    above = actual - np.array(tails)
    pinball = np.maximum(LEVEL * above, (LEVEL - 1.0) * above)
    total = actual.sum()
    return float(np.abs(actual - np.array(means)).sum() / total), float(pinball.sum() / total)
