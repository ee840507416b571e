"""A sweep of the simulated engine, in virtual time, finds the tables that it runs on."""

import asyncio
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scripted_target import ScriptedTarget

from headway.engine import engine_profile
from headway.planning.types import Role
from headway.profiling import Phase, TargetError, UnmeasurableError
from headway.profiling.sweep.measure import Arrival, StreamTimes, SweepOptions, Target, sweep
from headway.profiling.sweep.measurements import Measured, Measurements, open_measurements, swept_tables
from headway.profiling.sweep.points import Limits, SweepPoint, sweep_points
from headway_cli.profile_targets import EngineTarget, SaysSizes
from interp import load_profile, save_profile
from serve_apps.engines import make_engine
from serve_apps.engines.protocol import EngineSizes
from serve_apps.engines.simulated import InjectedFault
from tests.engines.engine_cases import MIXED, SPLIT, config_of
from tests.engines.virtual_loop import run

LIMITS = Limits(
    max_request_tokens=16_384,
    max_kv_tokens=432_992,
    max_batch=48,
    isl_points=7,
    kv_points=4,
    context_points=4,
)
FEW = Limits(
    max_request_tokens=1024, max_kv_tokens=4096, max_batch=4, isl_points=3, kv_points=2, context_points=2
)


class Laps:
    """A clock that moves a second each time it is read."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


async def swept(target: Target, path: pathlib.Path, limits: Limits, ends_s: float | None = None):
    measurements = open_measurements(path, {"engine": "test"})
    told: list[tuple[int, int, str]] = []
    options = SweepOptions(clock=Laps(), progress=lambda *state: told.append(state), repeats=2, ends_s=ends_s)
    done = await sweep(target, sweep_points(limits), measurements, options)
    return measurements, done, told


async def sweep_simulated(path: pathlib.Path, pools: Mapping[str, Mapping]) -> Measurements:
    engine = make_engine(config_of(pools), Role.MIXED, "one")
    measurements, done, _ = await swept(EngineTarget(engine, "m"), path, LIMITS)
    assert done
    return measurements


def test_the_tables_of_the_engine_are_found_and_written(tmp_path: pathlib.Path) -> None:
    measurements = run(sweep_simulated(tmp_path / "tp1.jsonl", SPLIT))
    truth = engine_profile(config_of())
    tables = swept_tables(measurements.points, gpus=1, max_kv_tokens=LIMITS.max_kv_tokens)
    assert tables.notes == ()
    prefill, decode = tables.prefill, tables.decode
    # Runs are up to some tokens shorter than their point.
    ttft_s = truth.prefill.ttft_s(prefill.isl_tokens)
    assert (prefill.ttft_s <= ttft_s * (1 + 1e-9)).all()
    assert np.allclose(prefill.ttft_s, ttft_s, rtol=0.005)
    assert decode.kv_usage.max() > 0.9
    expected = truth.decode.itl_s(decode.kv_usage, decode.context_tokens)
    assert np.allclose(decode.itl_s, expected, rtol=0.005)
    assert np.allclose(decode.throughput_per_gpu * decode.itl_s, decode.batch_size)
    save_profile(tmp_path / "profile", prefill, decode, {"tp": 1})
    found = load_profile(tmp_path / "profile")
    best, known = (each.decode.best_throughput_per_gpu(0.0075, 4000.0) for each in (found, truth))
    assert best.throughput_per_gpu == pytest.approx(known.throughput_per_gpu, rel=0.03)


def test_itl_is_the_same_where_prompts_are_computed_in_chunks_among_decodes(tmp_path: pathlib.Path) -> None:
    """Prefills share iterations with decodes and slow them down; the windows leave that out."""
    measurements = run(sweep_simulated(tmp_path / "tp1.jsonl", MIXED))
    truth = engine_profile(config_of())
    decode = swept_tables(measurements.points, gpus=1, max_kv_tokens=LIMITS.max_kv_tokens).decode
    expected = truth.decode.itl_s(decode.kv_usage, decode.context_tokens)
    assert np.allclose(decode.itl_s, expected, rtol=0.02)


def test_a_second_start_measures_what_is_missing_and_no_more(tmp_path: pathlib.Path) -> None:
    path, points = tmp_path / "tp1.jsonl", sweep_points(FEW)
    target = ScriptedTarget()
    target.fails_after = 20
    with pytest.raises(TargetError):
        asyncio.run(swept(target, path, FEW))
    kept = dict(open_measurements(path, {"engine": "test"}).points)
    assert 0 < len(kept) < len(points)
    measurements, done, told = asyncio.run(swept(ScriptedTarget(itl_s=0.5), path, FEW))
    assert done
    assert told[0][:2] == (len(kept), len(points))
    assert told[-1] == (len(points), len(points), "")
    assert {point: measurements.points[point] for point in kept} == kept
    idle = ScriptedTarget()
    asyncio.run(swept(idle, path, FEW))
    assert idle.asked == []


class SlowAtFirst(ScriptedTarget):
    """Prompts take a millisecond a token, and twice that in the beginning."""

    async def stream(self, prompt: Sequence[int], output_tokens: int) -> StreamTimes:
        slowness = 2.0 if len(self.asked) < 4 else 1.0
        usual = await super().stream(prompt, output_tokens)
        first_s = usual.arrivals[0].at_s
        late_s = slowness * (1.0 + len(prompt) / 1000) - first_s
        return StreamTimes(
            sent_s=0.0, arrivals=tuple(Arrival(at_s + late_s, n) for at_s, n in usual.arrivals)
        )


def test_points_that_contradict_each_other_are_measured_again(tmp_path: pathlib.Path) -> None:
    target = SlowAtFirst()
    measurements, done, told = asyncio.run(swept(target, tmp_path / "tp1.jsonl", FEW))
    assert done
    prefill = sorted(point for point in measurements.points if point.phase is Phase.PREFILL)
    assert [measurements.points[point].visits for point in prefill] == [3, 2, 1]
    assert measurements.latencies_s()[prefill[0]] == pytest.approx(1.0 + prefill[0].tokens / 1000, rel=0.01)
    alone = [prompt for prompt, (_, output) in zip(target.prompts, target.asked, strict=True) if output == 1]
    assert len({len(prompt) for prompt in alone}) == len(alone)
    visits = sum(found.visits for found in measurements.points.values())
    assert told[-1] == (visits, visits, "")


def test_no_point_is_begun_when_time_is_up(tmp_path: pathlib.Path) -> None:
    measurements, done, told = asyncio.run(swept(ScriptedTarget(), tmp_path / "tp1.jsonl", FEW, ends_s=3.5))
    assert not done
    assert len(measurements.points) == 3
    assert told[-1][0] == 3


def test_points_that_the_engine_cannot_do_are_kept_with_the_reason(tmp_path: pathlib.Path) -> None:
    measurements, done, _ = asyncio.run(swept(ScriptedTarget(most=600), tmp_path / "tp1.jsonl", FEW))
    assert done
    longest = max(sweep_points(FEW), key=lambda point: point.tokens if point.batch == 1 else 0)
    assert measurements.points[longest] == Measured(unmeasurable="too long")
    assert isinstance(longest, SweepPoint)


def test_what_an_engine_raises_is_said_as_the_sweep_understands_it() -> None:
    engine = make_engine(config_of(max_model_tokens=1000, max_batch_size=7), Role.MIXED, "one")
    target = EngineTarget(engine, "m")
    with pytest.raises(UnmeasurableError, match="more than the 1000"):
        run(target.stream(range(2000), 5))
    assert isinstance(engine, SaysSizes)
    assert engine.sizes() == EngineSizes(
        kv_tokens=432_992, request_tokens=1000, batch=7, kv_bytes_per_token=131_072.0
    )
    engine = make_engine(config_of(), Role.MIXED, "two")
    engine.inject(InjectedFault.FAIL)
    with pytest.raises(TargetError, match="failed, as it was told to"):
        run(EngineTarget(engine, "m").stream(range(20), 5))
