"""The Interpolator without Ray: surfaces by version, a profile that comes late, calibration that is kept."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from actors.interpolator import Interpolator
from actors.store import MemoryStore
from actors.surfaces.calibration import KEY
from headway.config import load_config
from headway.planning import PoolState, Role
from interp import save_profile
from tests.planning.planning_cases import OBSERVED, PROFILE


def make(profile: Path | str, store: MemoryStore | None = None, **changes: object) -> Interpolator:
    overrides = {"engine.profile": str(profile), **{key.replace("__", "."): v for key, v in changes.items()}}
    return Interpolator(load_config(None, overrides).model_dump_json(), store or MemoryStore())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "profile"
    save_profile(path, PROFILE.prefill.samples, PROFILE.decode.samples, dict(PROFILE.meta))
    return path


def test_surfaces_are_sent_once_and_the_version_survives_a_restart(directory: Path) -> None:
    version, profile = make(directory).surfaces()
    assert profile is not None
    assert profile.prefill.ttft_s(1000.0) == pytest.approx(0.060)
    assert make(directory).surfaces(version) == (version, None)


def test_surfaces_are_in_the_engines_real_time_and_have_their_own_version(directory: Path) -> None:
    slow_version, slow = make(directory, engine__time_scale=0.1).surfaces()
    version, _ = make(directory).surfaces()
    assert slow is not None
    assert slow.prefill.ttft_s(1000.0) == pytest.approx(0.60)
    assert slow_version != version


def test_a_profile_that_comes_late_is_found(tmp_path: Path) -> None:
    path = tmp_path / "late"
    interpolator = make(path)
    ready, reason = interpolator.ready()
    assert not ready
    assert "neither a directory nor a shipped profile" in reason
    assert interpolator.surfaces() == (0, None)
    assert interpolator.calibrate(OBSERVED) == {}
    save_profile(path, PROFILE.prefill.samples, PROFILE.decode.samples, dict(PROFILE.meta))
    assert interpolator.ready() == (True, "")


def test_calibration_is_the_smoothed_ratio_and_is_kept(directory: Path) -> None:
    store = MemoryStore()
    interpolator = make(directory, store)
    for at_s, ttft_s in ((10.0, 0.060), (20.0, 0.120), (20.0, 0.9)):
        interpolator.calibrate(replace(OBSERVED, now_s=at_s, ttft_s=ttft_s))
    prefill = make(directory, store).calibrate(replace(OBSERVED, now_s=20.0))["prefill"]
    assert prefill["count"] == 2
    assert prefill["last"] == pytest.approx(2.0)
    assert prefill["smoothed"] == pytest.approx(1.2)
    assert make(directory, store).status()["calibration_applied"] is False


def test_what_was_not_measured_changes_nothing(directory: Path) -> None:
    store = MemoryStore()
    interpolator = make(directory, store)
    nothing = replace(OBSERVED, ttft_s=math.nan, itl_s=math.nan)
    assert interpolator.calibrate(nothing)["decode"]["count"] == 0
    assert store.get(KEY) is None


def test_another_profile_is_calibrated_anew(directory: Path) -> None:
    store = MemoryStore()
    make(directory, store).calibrate(OBSERVED)
    assert make(directory, store, engine__time_scale=0.5).status()["calibration"]["prefill"]["count"] == 0


def test_a_mixed_pool_is_compared_in_both_phases(directory: Path) -> None:
    mixed = {Role.MIXED: PoolState(desired=2, starting=0, ready=2, draining=0)}
    ratios = make(directory).calibrate(replace(OBSERVED, pools=mixed))
    assert ratios["prefill"]["count"] == ratios["decode"]["count"] == 1
