"""Profiles whose values are implausible are refused with the reading that makes them plausible."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interp_cases import decode_samples, grid_samples, prefill_samples, roofline_itl

from interp import ProfileError, load_profile, save_profile
from interp.plausibility import plainly_best, strangeness
from interp.storage import DECODE_FILE, JSON_FILES, PREFILL_FILE, READINGS

Change = Callable[[dict[str, Any]], Any]
TIMES = {PREFILL_FILE: "prefill_ttft", DECODE_FILE: "z_itl"}


def changed(root: Path, file: Path, change: Change) -> None:
    with np.load(root / file) as archive:
        arrays = dict(archive)
    change(arrays)
    np.savez(root / file, **arrays)


def times(key: str, factor: float) -> Change:
    return lambda arrays: arrays.update({key: arrays[key] * factor})


def point(key: str, value: float) -> Change:
    return lambda arrays: arrays[key].__setitem__(1, value)


WRONG: dict[str, tuple[Path, Change, str, str]] = {
    "TTFT in seconds": (PREFILL_FILE, times("prefill_ttft", 1e-3), "prefill_ttft", "prefill_ttft=s"),
    "ITL in seconds": (DECODE_FILE, times("z_itl", 1e-3), "z_itl", "z_itl=s"),
    "TTFT in us": (PREFILL_FILE, times("prefill_ttft", 1e3), "prefill_ttft", "prefill_ttft=us"),
    "ITL in us": (DECODE_FILE, times("z_itl", 1e3), "z_itl", "z_itl=us"),
    "percent": (DECODE_FILE, times("x_kv_usage", 100.0), "x_kv_usage", "percent"),
    "prefill of 8 engines": (
        PREFILL_FILE,
        times("prefill_thpt_per_gpu", 8.0),
        "prefill_thpt_per_gpu",
        "throughput",
    ),
    "decode of 4 engines": (DECODE_FILE, times("z_thpt_per_gpu", 4.0), "z_thpt_per_gpu", "throughput"),
    "no TTFT at a point": (PREFILL_FILE, point("prefill_ttft", np.nan), "prefill_ttft", "drop"),
    "infinite ITL": (DECODE_FILE, point("z_itl", np.inf), "z_itl", "drop"),
    "no throughput": (DECODE_FILE, point("z_thpt_per_gpu", 0.0), "z_thpt_per_gpu", "drop"),
    "TTFTs the other way round": (
        PREFILL_FILE,
        lambda arrays: arrays.update(prefill_ttft=arrays["prefill_ttft"][::-1]),
        "prefill_ttft",
        "reversed",
    ),
}


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_unit_is_named_and_the_reading_repairs_it(tmp_path: Path, case: str, gpus: int) -> None:
    file, change, field, reading = WRONG[case]
    if reading == "throughput" and gpus > 1:
        pytest.skip("throughput of all GPUs of one engine is that of an engine of one GPU")
    root = tmp_path / "profile"
    kv, context = grid_samples().kv_usage, grid_samples().context_tokens
    decode = decode_samples(kv, context, roofline_itl(kv, context), gpus=gpus)
    save_profile(root, prefill_samples(gpus), decode)
    right = load_profile(root)
    changed(root, file, change)
    with pytest.raises(ProfileError) as caught:
        load_profile(root)
    message = str(caught.value)
    assert message.startswith(f"{root / file}: {field}: ")
    assert message.endswith(
        f"if {READINGS[reading]}: headway profile import {root} --reading {reading} --output NEW"
    )
    assert "\n" not in message
    read = load_profile(root, [reading])
    assert read.gpus_per_engine == gpus
    assert float(read.prefill.ttft_s(1024)) == pytest.approx(float(right.prefill.ttft_s(1024)), rel=0.05)
    assert float(read.decode.itl_s(0.4, 1024)) == pytest.approx(
        float(right.decode.itl_s(0.4, 1024)), rel=0.05
    )


def test_seconds_whose_throughput_is_wrong_as_well_are_still_seconds(tmp_path: Path) -> None:
    root = tmp_path / "profile"
    save_profile(root, prefill_samples(), grid_samples())
    for file, key in TIMES.items():
        thpt = {PREFILL_FILE: "prefill_thpt_per_gpu", DECODE_FILE: "z_thpt_per_gpu"}[file]
        changed(root, file, lambda arrays, key=key: times(key, 1e-3)(arrays))
        changed(root, file, lambda arrays, key=thpt: times(key, 1e3)(arrays))
    with pytest.raises(ProfileError, match=r"prefill_ttft: .*--reading prefill_ttft=s,z_itl=s"):
        load_profile(root)


@pytest.mark.parametrize("speed", [0.05, 0.2, 5.0])
def test_engines_that_are_slow_or_fast_are_not_doubted(tmp_path: Path, speed: float) -> None:
    root = tmp_path / "profile"
    kv, context = grid_samples().kv_usage, grid_samples().context_tokens
    prefill = prefill_samples()
    slower = type(prefill).timed(prefill.isl_tokens, prefill.ttft_s / speed, 1)
    save_profile(root, slower, decode_samples(kv, context, roofline_itl(kv, context) / speed))
    assert load_profile(root).doubts == ()


def test_a_config_map_s_json_is_a_profile(tmp_path: Path) -> None:
    save_profile(tmp_path / "npz", prefill_samples(), grid_samples())
    root = tmp_path / "json"
    root.mkdir()
    for file in TIMES:
        with np.load(tmp_path / "npz" / file) as archive:
            content = {key: archive[key].tolist() for key in archive}
        content["max_kv_tokens"] = 100_000
        (root / JSON_FILES[file.parts[0]]).write_text(json.dumps(content))
    read, right = load_profile(root), load_profile(tmp_path / "npz")
    assert read.decode.samples.itl_s.tolist() == right.decode.samples.itl_s.tolist()
    (root / "decode_raw_data.json").write_text('{"z_itl": [1, [2]]}')
    with pytest.raises(ProfileError, match=r"decode_raw_data\.json: x_kv_usage: missing"):
        load_profile(root)


def test_what_lies_in_place_of_a_profile_is_named(tmp_path: Path) -> None:
    (tmp_path / "mocker.npz").write_bytes(b"PK")
    with pytest.raises(ProfileError, match=r"no such file; headway profile import .*mocker\.npz"):
        load_profile(tmp_path)


def test_the_best_reading_is_plainly_best_or_nobody_knows() -> None:
    assert plainly_best({"s": 1.0, "ms": 50.0}) == "s"
    assert plainly_best({"s": 1.0, "ms": 49.0}) is None
    assert strangeness(itl_s=0.02) == 1.0
    assert strangeness(itl_s=2e-5) == pytest.approx(100.0)
    assert strangeness(itl_s=float("nan")) == 50.0
