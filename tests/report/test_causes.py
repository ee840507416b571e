"""Spikes of latencies, and what is said to stand beside them."""

from dataclasses import replace

import pytest

from headway.config import load_config
from headway.simulation.report import IntervalQuantiles, PoolSeries, SimulationReport
from headway_cli.job import Job, execute
from headway_cli.page.result_charts import NOTHING, spikes

COUNT, SPAN_S, WORST = 20, 60.0, 12


@pytest.fixture(scope="module")
def quiet() -> SimulationReport:
    """Two ready replicas a pool, and in one interval a p99 above the target."""
    config = load_config(None, {"planner.policy": "static"})
    small = execute(Job(trace="steady:rate_rps=1,duration_s=60,seed=1", config=config))
    low, high = (IntervalQuantiles(mean=value, p50=value, p95=value, p99=value) for value in (0.05, 2.0))
    rows = [
        replace(
            small.intervals[0],
            start_s=place * SPAN_S,
            end_s=(place + 1) * SPAN_S,
            requests=60,
            isl_tokens=500.0,
            ttft_s=high if place == WORST else low,
            itl_s=low,
        )
        for place in range(COUNT)
    ]
    return replace(small, intervals=rows, replicas=pools(), simulated_s=COUNT * SPAN_S)


def pools(**prefill: list[float]) -> dict[str, PoolSeries]:
    """Counts that change at the begin of the worst interval, if any are given for prefill."""
    still = {"time_s": [0.0], "desired": [2.0], "starting": [0.0], "ready": [2.0], "draining": [0.0]}
    moved = {"time_s": [0.0, WORST * SPAN_S], "desired": [2.0, 2.0], "starting": [0.0, 0.0],
             "ready": [2.0, 2.0], "draining": [0.0, 0.0]}  # fmt: skip
    return {"prefill": PoolSeries(**(moved | prefill)), "decode": PoolSeries(**still)}


def test_the_worst_interval_is_marked_and_nothing_is_made_up(quiet: SimulationReport) -> None:
    (found,) = spikes(quiet, "ttft_s")
    assert (found.at_s, found.p99_s) == ((WORST + 0.5) * SPAN_S, 2.0)
    assert found.kinds == ()
    assert found.lines == (NOTHING,)
    assert spikes(replace(quiet, intervals=[]), "ttft_s") == []


def test_a_burst_is_told_with_what_came_before(quiet: SimulationReport) -> None:
    rows = list(quiet.intervals)
    rows[WORST] = replace(rows[WORST], requests=120)
    (found,) = spikes(replace(quiet, intervals=rows), "ttft_s")
    assert found.kinds == ("burst",)
    assert found.lines == ("burst: 1,000 input tokens/s, 500 before",)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"desired": [2.0, 4.0], "starting": [0.0, 2.0]}, "start: 2 of prefill starting"),
        (
            {"desired": [2.0, 1.0], "ready": [2.0, 1.0], "draining": [0.0, 1.0]},
            "drain: 1 of prefill draining",
        ),
        ({"ready": [2.0, 1.0]}, "loss: 1 of prefill gone unasked"),
        ({"desired": [2.0, 1.0], "ready": [2.0, 1.0]}, NOTHING),
    ],
)
def test_what_the_replicas_went_through(
    quiet: SimulationReport, change: dict[str, list[float]], line: str
) -> None:
    (found,) = spikes(replace(quiet, replicas=pools(**change)), "ttft_s")
    assert found.lines == (line,)
    assert found.kinds == (() if line == NOTHING else (line.partition(":")[0],))


def test_a_change_long_after_the_spike_is_not_beside_it(quiet: SimulationReport) -> None:
    late = pools(desired=[2.0, 4.0], starting=[0.0, 2.0], time_s=[0.0, (WORST + 3) * SPAN_S])
    assert spikes(replace(quiet, replicas=late), "ttft_s")[0].kinds == ()


def test_waves_below_a_quarter_of_the_target_are_no_spikes(quiet: SimulationReport) -> None:
    easy = replace(quiet, slo=replace(quiet.slo, ttft_s=10.0))
    assert spikes(easy, "ttft_s") == []
