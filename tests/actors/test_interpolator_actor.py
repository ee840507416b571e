"""The Interpolator without Ray: surfaces by version, a late profile, calibration and refinement kept."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.interpolator import CALIBRATION, CORRECTIONS, REFINEMENT, Interpolator
from actors.performance_model import PerformanceModel, largest_change
from headway.config import load_config
from headway.engine.nearest import Told
from headway.engine.observed_latency import LatencyReport
from headway.engine.observed_metrics import EngineLoad, EngineReading, EngineTotals, LengthSpread
from headway.engine.refinement import MATERIAL
from headway.planning import PoolState, Role
from headway.profiling import Phase
from interp import DecodeSamples, PrefillSamples, build_profile, save_profile
from tests.planning.planning_cases import OBSERVED, PROFILE
from tests.stores import MemoryStore


def make(profile: Path | str, store: MemoryStore | None = None, **changes: object) -> Interpolator:
    overrides = {"engine.profile": str(profile), **{key.replace("__", "."): v for key, v in changes.items()}}
    clock = map(float, itertools.count(step=5))
    return Interpolator(
        load_config(None, overrides).model_dump_json(), store or MemoryStore(), clock.__next__
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "profile"
    save_profile(path, PROFILE.prefill.samples, PROFILE.decode.samples, dict(PROFILE.meta))
    return path


def served(interpolator: Interpolator) -> PerformanceModel:
    model = interpolator.model()
    assert model is not None
    return model


def test_a_model_is_sent_once_and_its_version_survives_a_restart(directory: Path) -> None:
    model = served(make(directory))
    assert model.profile.prefill.ttft_s(1000.0) == pytest.approx(0.060)
    assert make(directory).model(model.version) is None


def test_surfaces_are_in_the_engines_real_time_and_have_their_own_version(directory: Path) -> None:
    slow, model = served(make(directory, engine__time_scale=0.1)), served(make(directory))
    assert slow.profile.prefill.ttft_s(1000.0) == pytest.approx(0.60)
    assert slow.profiles_version != model.profiles_version


def test_the_profiles_of_gpu_types_are_in_the_model(directory: Path) -> None:
    model = served(make(directory, routing__gpu_profiles={"L20": str(directory)}))
    assert set(model.profiles) == {"", "L20"}
    assert model.profiles_version != served(make(directory)).profiles_version


def test_a_profile_that_comes_late_is_found(tmp_path: Path) -> None:
    path = tmp_path / "late"
    interpolator = make(path)
    ready, reason = interpolator.ready()
    assert not ready
    assert "neither a directory nor a shipped profile" in reason
    assert interpolator.model() is None
    interpolator.calibrate(OBSERVED)
    save_profile(path, PROFILE.prefill.samples, PROFILE.decode.samples, dict(PROFILE.meta))
    assert interpolator.ready() == (True, "")


def test_calibration_is_the_smoothed_ratio_and_is_kept(directory: Path) -> None:
    store = MemoryStore()
    interpolator = make(directory, store)
    for at_s, ttft_s in ((10.0, 0.060), (20.0, 0.120), (20.0, 0.9)):
        interpolator.calibrate(replace(OBSERVED, now_s=at_s, ttft_s=ttft_s))
    again = make(directory, store)
    again.calibrate(replace(OBSERVED, now_s=20.0))
    prefill = served(again).calibration[Role.PREFILL]
    assert (prefill.count, prefill.last, prefill.smoothed) == (2, pytest.approx(2.0), pytest.approx(1.2))


def test_what_was_not_measured_changes_nothing(directory: Path) -> None:
    store = MemoryStore()
    interpolator = make(directory, store)
    nothing = replace(OBSERVED, ttft_s=math.nan, itl_s=math.nan)
    interpolator.calibrate(nothing)
    assert served(interpolator).calibration[Role.DECODE].count == 0
    assert store.get(CALIBRATION) is None


def test_another_profile_is_calibrated_anew(directory: Path) -> None:
    store = MemoryStore()
    make(directory, store).calibrate(OBSERVED)
    anew = served(make(directory, store, engine__time_scale=0.5))
    assert anew.calibration[Role.PREFILL].count == 0


def test_a_mixed_pool_is_compared_in_both_phases(directory: Path) -> None:
    mixed = {Role.MIXED: PoolState(desired=2, starting=0, ready=2, draining=0)}
    interpolator = make(directory)
    interpolator.calibrate(replace(OBSERVED, pools=mixed))
    assert [ratio.count for ratio in served(interpolator).calibration.values()] == [1, 1]


REFINE = {"engine__refinement__enabled": True}
MANY = 40
SLOWER = [LatencyReport(Phase.PREFILL, 1000.0, 0.060 * 1.5)]


def taught(
    interpolator: Interpolator, reports: list[LatencyReport] = SLOWER, times: int = MANY
) -> Interpolator:
    for _ in range(times):
        interpolator.learn(reports)
    return interpolator


def refinement(interpolator: Interpolator) -> dict[str, Any]:
    """Of the profile that is served; empty while it is as measured."""
    found: dict[str, Any] = served(interpolator).profile.meta.get("refined", {})
    return found


def test_reports_change_the_surfaces(directory: Path) -> None:
    interpolator = make(directory, **REFINE)
    measured = served(interpolator)
    assert refinement(interpolator) == {}
    taught(interpolator)
    profile = served(interpolator).profile
    assert served(interpolator).profiles_version != measured.profiles_version
    assert profile.prefill.ttft_s(1000.0) == pytest.approx(0.090, rel=0.04)
    learnt = refinement(interpolator)
    assert learnt["factors"] == {"prefill": pytest.approx(1.5, rel=0.02), "decode": 1.0}
    assert learnt["version"] <= MANY


def test_a_slow_replica_is_told_and_leaves_the_surfaces_alone(directory: Path) -> None:
    now_s = 1000.0
    config = load_config(None, {"engine.profile": str(directory)})
    interpolator = Interpolator(config.model_dump_json(), MemoryStore(), lambda: now_s)
    slower, usual = [LatencyReport(Phase.PREFILL, 1000.0, 0.060 * times) for times in (2.0, 1.0)]
    for _ in range(20):
        now_s += 5.0
        standings = {
            name: interpolator.learn([slower if name == "c" else usual], name) for name in ("a", "b", "c")
        }
    assert standings == {
        "a": {},
        "b": {},
        "c": {"slowness": pytest.approx(2.0, rel=0.06), "idle_requests": 0.0},
    }
    assert refinement(interpolator).get("factors", {}).get("prefill", 1.0) == pytest.approx(1.0, abs=0.05)
    model = served(interpolator)
    ((one,),) = model.differing.values()
    assert (one.replica, one.since_s) == ("c", 1015.0)
    now_s += 45.0
    assert interpolator.learn([], "c")["slowness"] > 1.8
    now_s += 45.0
    for name in ("a", "b"):
        interpolator.learn([usual], name)
    assert served(interpolator).differing
    now_s += 61.0
    for name in ("a", "b"):
        interpolator.learn([usual], name)
    assert not served(interpolator).differing
    assert served(interpolator).version != model.version


LENGTHS = LengthSpread(1000.0, 100.0)


def shown(engine: str, begun_s: float, slower: float = 1.5) -> EngineReading:
    """15 s of an engine whose 30 prompts of 1,000 tokens take so many times longer than profiled."""
    gained = EngineTotals(
        first_tokens=30.0,
        asked_tokens=30_000.0,
        prompts=30.0,
        prompt_tokens=30_000.0,
        prefills=30.0,
        prefill_s=30.0 * 0.060 * slower,
    )
    return EngineReading(engine, begun_s, begun_s + 15.0, gained)


def attached(directory: Path, **changes: object) -> Interpolator:
    """For engines that others run, whose iterations take prompts of any length whole."""
    return make(directory, engine__kind="external", engine__chunk_tokens=100_000, **changes)


def test_what_attached_engines_show_changes_the_surfaces(directory: Path) -> None:
    interpolator = attached(directory)
    readings = [shown(engine, 15.0 * place) for place in range(12) for engine in "abc"]
    interpolator.calibrate(OBSERVED, readings, LENGTHS)
    learnt = refinement(interpolator)
    assert learnt["factors"] == {"prefill": pytest.approx(1.5, rel=0.05), "decode": 1.0}
    # The same again: intervals that overlap are learnt from once.
    interpolator.calibrate(OBSERVED, readings, LENGTHS)
    assert refinement(interpolator)["version"] == learnt["version"]
    interpolator.calibrate(OBSERVED, [shown("a", 180.0, 1.0)], LENGTHS)
    assert refinement(interpolator)["version"] > learnt["version"]


def test_one_attached_engine_that_is_slow_leaves_the_surfaces_alone(directory: Path) -> None:
    interpolator = attached(directory)
    for place in range(12):
        slower = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 1.0}
        readings = [shown(engine, 15.0 * place, times) for engine, times in slower.items()]
        interpolator.calibrate(OBSERVED, readings, LENGTHS)
    ((one,),) = served(interpolator).differing.values()
    assert (one.replica, one.slowness) == ("c", pytest.approx(2.0, rel=0.1))
    assert refinement(interpolator).get("factors", {}).get("prefill", 1.0) == pytest.approx(1.0, abs=0.08)


@pytest.mark.parametrize(("gpu_type", "factor"), [("NVIDIA H100", 1.0), (None, 2.0)])
def test_engines_of_another_gpu_leave_the_surfaces_alone(
    directory: Path, gpu_type: str | None, factor: float
) -> None:
    interpolator = attached(directory, engine__gpu_type=gpu_type)
    gpus = {"a": "h100", "b": "h100", "c": "a100", "d": "a100", "e": "a100"}
    for place in range(12):
        readings = [
            shown(engine, 15.0 * place, 2.0 if gpu == "a100" else 1.0)._replace(load=EngineLoad(gpu=gpu))
            for engine, gpu in gpus.items()
        ]
        interpolator.calibrate(OBSERVED, readings, LENGTHS)
    assert refinement(interpolator)["factors"]["prefill"] == pytest.approx(factor, rel=0.1)


def test_engines_that_report_themselves_are_not_learnt_from_twice(directory: Path) -> None:
    interpolator = make(directory)
    interpolator.calibrate(OBSERVED, [shown("a", 15.0 * place) for place in range(12)], LENGTHS)
    assert refinement(interpolator) == {}


def test_the_document_is_the_profile_that_is_served(directory: Path, tmp_path: Path) -> None:
    assert make(tmp_path / "none").document() == {}
    document = json.loads(json.dumps(taught(make(directory, **REFINE)).document()))
    prefill, decode = PrefillSamples(**document["prefill"]), DecodeSamples(**document["decode"])
    again = build_profile(prefill, decode, document["meta"])
    assert again.prefill.ttft_s(1000.0) == pytest.approx(0.090, rel=0.04)
    assert again.meta["refined"]["cells"] == 1


def test_more_of_the_same_makes_no_new_surfaces(directory: Path) -> None:
    interpolator = taught(make(directory, **REFINE))
    taught(interpolator, times=50)
    settled = served(interpolator).version
    taught(interpolator, times=50)
    assert interpolator.model(settled) is None
    taught(interpolator, [LatencyReport(Phase.PREFILL, 1000.0, 0.060)], times=10)
    assert interpolator.model(settled) is not None


def test_what_was_learnt_is_kept_for_this_profile_alone(directory: Path) -> None:
    store = MemoryStore()
    before = served(taught(make(directory, store, **REFINE)))
    after = make(directory, store, **REFINE)
    assert largest_change(before.profile, served(after).profile) < MATERIAL
    assert refinement(after)["version"] == MANY
    assert refinement(make(directory, store, engine__time_scale=0.5, **REFINE)) == {}


@pytest.mark.parametrize(
    "stored", [b"\xff", b"[]", b'{"profile": %d}', b'{"profile": %d, "version": 3, "cells": [["prefill"]]}']
)
def test_a_stored_refinement_that_cannot_be_read_begins_anew(directory: Path, stored: bytes) -> None:
    store = MemoryStore()
    measured = served(make(directory))
    store.put(REFINEMENT, stored.replace(b"%d", str(measured.profiles_version).encode()))
    assert make(directory, store, **REFINE).model(measured.version) is None


def test_switched_off_reports_change_nothing(directory: Path) -> None:
    store = MemoryStore()
    interpolator = make(directory, store, engine__refinement__enabled=False)
    version = served(interpolator).version
    assert taught(interpolator).model(version) is None
    assert refinement(interpolator) == {}
    assert store.keys() == []


def test_what_the_refined_profile_explains_is_not_in_the_calibration_as_well(directory: Path) -> None:
    interpolator = make(directory, **REFINE)
    slow = replace(OBSERVED, isl_tokens=1000.0, ttft_s=0.090)
    interpolator.calibrate(slow)
    assert served(interpolator).calibration[Role.PREFILL].smoothed == pytest.approx(1.5)
    taught(interpolator).calibrate(slow)
    after = served(interpolator).calibration[Role.PREFILL]
    assert (after.count, after.smoothed) == (1, pytest.approx(1.0, rel=0.04))


def test_calibration_makes_another_model_of_the_same_surfaces(directory: Path) -> None:
    interpolator = make(directory)
    before = served(interpolator)
    interpolator.calibrate(replace(OBSERVED, ttft_s=0.120))
    after = served(interpolator)
    assert (after.version, after.profiles_version) != (before.version, before.profiles_version)
    assert after.profiles_version == before.profiles_version
    assert after.calibration[Role.PREFILL].last == pytest.approx(2.0, rel=0.2)


CORRECTED = {"ttft": 1.4, "tpot": 1.1, "transfer": 1.0}


def test_what_a_router_has_learnt_is_kept_for_the_measured_profile(directory: Path) -> None:
    store = MemoryStore()
    interpolator = make(directory, store, **REFINE)
    assert served(interpolator).corrections == {}
    interpolator.correct(CORRECTED)
    assert served(taught(interpolator)).corrections == CORRECTED, "also where the surfaces change"
    assert served(make(directory, store, **REFINE)).corrections == CORRECTED
    assert served(make(directory, store, engine__time_scale=0.5)).corrections == {}
    store.put(CORRECTIONS, b'{"profile": %d}' % served(make(directory)).profiles_version)
    assert served(make(directory, store)).corrections == {}


def test_limits_that_attached_engines_show_are_served_and_outlive_the_actor(directory: Path) -> None:
    store, before = MemoryStore(), served(attached(directory))
    interpolator = attached(directory, store=store)
    load = EngineLoad(4.0, 9.0, 0.3, 50_000.0)
    readings = [
        EngineReading("a", 15.0 * place, 15.0 * place + 15.0, EngineTotals(gaps=3000.0, gap_s=60.0), load)
        for place in range(8)
    ]
    interpolator.calibrate(OBSERVED, readings, LENGTHS)
    for each in (interpolator, attached(directory, store=store)):
        learnt = served(each).profile.decode
        assert (learnt.largest_batch, float(learnt.table.max_kv_tokens)) == (4.0, 50_000.0)
    after = served(interpolator)
    assert after.profiles_version != before.profiles_version
    assert largest_change(before.profile, after.profile) > math.log(2.0)


def test_without_a_profile_what_engines_say_chooses_the_estimate() -> None:
    """It outlives the actor; a profile that is given stays, whatever they say."""
    settings = {"engine.kind": "external", "model": "chat"}
    store, told = MemoryStore(), Told(("/models/Llama-3.1-70B", "chat"), ("NVIDIA-A100-SXM4-80GB",))

    def made(**more: object) -> Interpolator:
        return Interpolator(load_config(None, settings | more).model_dump_json(), store, lambda: 0.0)

    interpolator = made()
    assert served(interpolator).profile.meta["guessed"]["within"] == 10.0
    interpolator.tell(told)
    for each in (interpolator, made()):
        assert served(each).profile.meta["guessed"]["from"] == "llama-3.1-70b_a100_tp4"
    given = made(**{"engine.profile": "llama-3.1-8b_h100_tp1"})
    given.tell(told)
    assert "guessed" not in served(given).profile.meta
