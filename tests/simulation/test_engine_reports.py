"""What a simulated router hears of engines and requests under way: it is true, on time, and news."""

from contextlib import contextmanager

import numpy as np
import pytest

from headway.config import load_config
from headway.planning.types import Role
from headway.routing import NOTHING
from headway.simulation.build import make_plan, make_scenario
from headway.simulation.build import run as run_plan
from headway.simulation.scenario import EngineRules, ScenarioRouter
from headway.workload import open_trace
from tests.simulation.routers import Scripted, place
from tests.simulation.worlds import ArrayTrace, constant_profile, run, scenario

TTFT_S, ITL_S, CAPACITY = 0.1, 0.032, 100_000
PROFILE = constant_profile(ITL_S, TTFT_S / 1000, capacity=CAPACITY)
ONE = {Role.MIXED: 1}


class Listening(Scripted):
    """Puts all on the first replica, and keeps what it is told of loads and of outputs, with the time."""

    def __init__(self):
        super().__init__(
            lambda _, event, now_s, name: [place(name, "mixed-0")] if event == "submit" else None
        )
        self.loads, self.outputs = [], []

    @contextmanager
    def gathering(self):
        yield

    def replica_changed(self, now_s, update):
        if update.load is None:
            return super().replica_changed(now_s, update)
        self.loads.append((now_s, update.load))
        return NOTHING

    def progress(self, now_s, progress):
        self.outputs += [(now_s, *each) for each in progress]
        return NOTHING


def told(trace, *, reports=True, **changes):
    router = Listening()
    routing = ScenarioRouter(name="listening", make=lambda generator: router, reports=reports)
    result, records = run(scenario(PROFILE, ONE, routing=routing, **changes), trace)
    return router, result, records


def alike(*arrivals_s):
    count = len(arrivals_s)
    return ArrayTrace(np.array(arrivals_s), np.full(count, 1000), np.full(count, 100))


def tokens_at(now_s):
    """Of a request that came at 0 and runs alone."""
    return 1 + int((now_s - TTFT_S) / ITL_S)


def test_progress_is_what_has_left_once_in_a_second():
    router, _, records = told(alike(0.0))
    assert records["finished_s"][0] == pytest.approx(TTFT_S + 99 * ITL_S)
    assert router.outputs == [(at_s, "0", tokens_at(at_s)) for at_s in (1.0, 2.0, 3.0)]


def test_loads_are_those_of_the_instant_twice_in_a_second():
    router, _, records = told(alike(0.0, 20.0))
    times, loads = zip(*((at_s, load) for at_s, load in router.loads if at_s < 20.0), strict=True)
    ends_s = float(records["finished_s"][0])
    assert times == (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
    assert [load.running for load in loads] == [1] * 6 + [0]
    assert [load.kv_usage * CAPACITY for load in loads[:6]] == pytest.approx(
        [1000 + tokens_at(at_s) for at_s in times[:6]]
    )
    assert [load.busy_s for load in loads] == pytest.approx([min(at_s, ends_s) for at_s in times])


def test_an_engine_that_rests_says_nothing():
    router, _, _ = told(alike(0.0, 20.0))
    times = [at_s for at_s, _ in router.loads]
    assert times[6:8] == [3.5, 20.0]
    assert times[-1] == 23.0


def test_prompts_that_are_computed_run_and_the_others_wait():
    router, _, _ = told(alike(0.45, 0.46, 0.47), engine=EngineRules(max_batch_size=2))
    first, second = (load for _, load in router.loads[:2])
    assert (first.running, first.waiting, first.kv_usage) == (1, 2, 0.0)
    assert (second.running, second.waiting) == (2, 1)
    assert second.kv_usage > 2000 / CAPACITY


def test_hearing_changes_nothing_for_a_router_that_does_not_listen():
    trace = alike(*np.arange(0.0, 20.0, 0.3))
    _, _, with_reports = told(trace)
    silent, _, without = told(trace, reports=False)
    assert silent.loads == silent.outputs == []
    assert with_reports.tobytes() == without.tobytes()


def busy_by(*, reports):
    settings = {
        "engine.profile": "llama-3.1-8b_h100_tp1",
        "pools": {"mixed": {"max_replicas": 4}},
        "planner.policy": "static",
        "planner.static.mixed": 2,
        "routing.profile": "slo",
        "simulation.reports": reports,
    }
    plan = make_plan(load_config(None, settings))
    with open_trace("burst:rate_rps=10,peak_rps=60,burst_s=3,every_s=10,duration_s=12,seed=5") as trace:
        report = run_plan(plan, make_scenario(plan, trace), trace).report().document()
    return report["routing_metrics"]["busy_s"]


def test_a_real_router_hears():
    assert set(busy_by(reports=True)) == {"mixed/mixed-0", "mixed/mixed-1"}
    assert busy_by(reports=False) == {}
