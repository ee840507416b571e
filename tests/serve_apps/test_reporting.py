"""Reports on their way from a replica: periodically, from the first request on, and lost without harm."""

import asyncio

import pytest

from actors.names import ActorGone, TooSlow
from headway.profiling.observed_latency import LatencyObserver
from serve_apps.deployments import LatencyReporter
from tests.engines.virtual_loop import run

PERIOD_S = 5.0


class Interpolator:
    """Takes reports, or answers with errors first."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.taken: list[tuple[float, str, int]] = []

    async def call(self, method, reports, *, timeout_s):
        if self.errors:
            raise self.errors.pop(0)
        self.taken.append((asyncio.get_running_loop().time(), method, len(reports)))


def prompt(meter: LatencyObserver) -> None:
    part = meter.begin(0.0, 1000, computes=True)
    meter.computed(part, 0.1, reused=False)
    meter.end(part, 0.1)


async def reported(actor: Interpolator, prompts: int, gap_s: float) -> list[tuple[float, str, int]]:
    meter = LatencyObserver()
    reporter = LatencyReporter(meter, PERIOD_S, actor)  # type: ignore[arg-type]
    for _ in range(prompts):
        reporter.start()
        prompt(meter)
        await asyncio.sleep(gap_s)
    await asyncio.sleep(3 * PERIOD_S)
    return actor.taken


def test_there_is_a_report_a_period_while_there_is_something_to_say():
    assert run(reported(Interpolator(), prompts=4, gap_s=2.0)) == [(5.0, "learn", 1), (10.0, "learn", 1)]


@pytest.mark.parametrize("error", [ActorGone("gone"), TooSlow("slow"), ValueError("no profile")])
def test_a_report_that_is_lost_is_not_the_last(error):
    assert run(reported(Interpolator(error), prompts=2, gap_s=6.0)) == [(10.0, "learn", 1)]
