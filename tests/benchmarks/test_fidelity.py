"""The benchmark of fidelity: figures of a replay by hand, and the simulated engine against the simulator."""

import numpy as np
import pytest

from benchmarks.fidelity.engines import ONE_REPLICA, merged
from benchmarks.fidelity.figures import Figures, compare, figures_of
from benchmarks.fidelity.replays import live, simulated
from benchmarks.surfaces import left_out
from headway.planning.types import Role
from headway.profiling import Phase
from headway.profiling.sweep import Arrival, Measured, StreamTimes, SweepPoint
from headway.workload import open_trace
from headway_cli.profile_targets import EngineTarget
from interp import DecodeSamples, PrefillSamples, build_profile
from serve_apps.arguments import beside
from serve_apps.engines import make_engine
from tests.engines.virtual_loop import run

POINT = SweepPoint(phase=Phase.PREFILL, tokens=128)


def stream(sent_s, *arrivals):
    return StreamTimes(sent_s=sent_s, arrivals=tuple(Arrival(*arrival) for arrival in arrivals))


def figures(ttft_ms):
    return Figures(ttft_ms=ttft_ms, itl_ms=10.0, tokens_per_s=100.0)


def test_a_chunk_of_several_tokens_counts_as_many_gaps():
    found = figures_of([stream(1.0, (1.5, 1), (2.5, 1), (2.9, 4)), stream(2.0, (2.1, 1))])
    assert found.ttft_ms == pytest.approx(300.0)
    assert found.itl_ms == pytest.approx(100.0)
    assert found.tokens_per_s == pytest.approx(7 / 1.9)


def test_the_median_of_the_repeats_is_compared():
    repeats = [figures(100.0), figures(900.0), figures(110.0)]
    (row,) = compare(repeats, figures(99.0), {"ttft_ms": 0.1})
    assert row.live == (110.0, 100.0, 900.0)
    assert row.difference == pytest.approx(-0.1)
    (missed,) = compare(repeats, figures(98.0), {"ttft_ms": 0.1})
    assert not missed.met
    (met,) = compare(repeats, figures(120.0), {"ttft_ms": 0.1})
    assert met.met


def test_points_have_the_runs_of_all_sweeps():
    failed, once, twice = Measured(unmeasurable="no"), Measured(runs_s=(1.0,)), Measured(runs_s=(2.0, 3.0))
    assert merged([{POINT: failed}, {POINT: once}, {}, {POINT: twice}])[POINT].runs_s == (1.0, 2.0, 3.0)
    assert merged([{POINT: once}, {POINT: failed}])[POINT] == Measured(runs_s=(1.0,), visits=2)
    assert merged([{POINT: failed}, {POINT: failed}])[POINT].unmeasurable == "no"


def test_on_an_exact_clock_the_simulated_engine_is_the_simulator():
    config = beside(None, ONE_REPLICA)
    with open_trace("steady:rate_rps=4,duration_s=6,input_tokens=3000,output_tokens=150,seed=2") as trace:

        async def replayed():
            target = EngineTarget(make_engine(config, Role.MIXED, "here"), config.model)
            return await live(target, trace, seed=0)

        exact, found = run(replayed()), simulated(config, trace)
    assert found.ttft_ms == pytest.approx(exact.ttft_ms, rel=1e-9)
    assert found.tokens_per_s == pytest.approx(exact.tokens_per_s, rel=1e-9)
    assert found.itl_ms == pytest.approx(exact.itl_ms, rel=0.005)  # a histogram's bucket


def test_a_straight_surface_foretells_what_is_left_out_and_a_bump_not():
    isl, batch = np.array([100.0, 200.0, 400.0, 800.0]), np.array([1.0, 2.0, 3.0, 4.0])
    ttft, itl = isl * 1e-4, 0.01 + 0.001 * batch
    ttft[2] *= 2.0
    prefill = PrefillSamples(isl_tokens=isl, ttft_s=ttft, throughput_per_gpu=isl / ttft)
    decode = DecodeSamples(
        max_kv_tokens=10_000,
        kv_usage=batch * 500 / 10_000,
        context_tokens=np.full(4, 500.0),
        itl_s=itl,
        throughput_per_gpu=batch / itl,
    )
    ttft_errors, itl_errors = left_out(build_profile(prefill, decode))
    assert ttft_errors[1] == pytest.approx(0.5)
    assert itl_errors == pytest.approx([0.0, 0.0], abs=1e-9)
