"""Profiles of other systems: what becomes of them, and the one line for those that are broken."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from headway.profiling import ForeignProfileError
from headway.profiling.foreign_profiles import import_aibrix, import_pre_swept, is_pre_swept
from interp import build_profile

AIBRIX: dict[str, Any] = {
    "gpu": "A10",
    "cost": 1.0,
    "indexes": [[1, 100, 200], [500, 1000]],
    "tputs": [[9.0, 7.0], [4.0, 2.0], [1.0, 0.0]],
    "ttft": [[0.30, 0.40], [0.20, 0.35], [0.25, 0.5]],
    "tpot": [[0.0, 0.0], [0.02, 0.03], [0.025, 0.0]],
    "slos": {"tpot": 0.05},
}
PREFILL = {
    "tp": [[1], [2]],
    "prefill_isl": [[100.0, 1000.0], [100.0, 1000.0]],
    "prefill_ttft": [[10.0, 50.0], [6.0, 30.0]],
    "prefill_thpt_per_gpu": [[10_000.0, 20_000.0], [8_000.0, 16_000.0]],
    "gpu_type": [["h200_sxm"], ["h200_sxm"]],
}
DECODE = {
    "tp": [[1], [2]],
    "max_kv_tokens": [[50_000], [120_000]],
    "x_kv_usage": [[0.1, 0.5], [0.1, 0.5]],
    "y_context_length": [[1000.0, 1000.0], [1000.0, 1000.0]],
    "z_itl": [[5.0, 9.0], [4.0, 8.0]],
    "z_thpt_per_gpu": [[1000.0, 2700.0], [900.0, 2500.0]],
    "max_batch_size": [[128], [128]],
    "gpu_type": [["h200_sxm"], ["h200_sxm"]],
}


def aibrix(folder: pathlib.Path, **changes: Any) -> pathlib.Path:
    content = {key: value for key, value in (AIBRIX | changes).items() if value is not None}
    path = folder / "a10.json"
    path.write_text(json.dumps(content))
    return path


def pre_swept(folder: pathlib.Path, prefill: dict[str, Any], decode: dict[str, Any]) -> pathlib.Path:
    for name, arrays in (("prefill", prefill), ("decode", decode)):
        kept = {key: np.array(value) for key, value in arrays.items() if value is not None}
        np.savez(folder / f"{name}.npz", **kept)  # type: ignore[arg-type]
    return folder


def test_aibrix_latencies_at_the_slos_rates_become_tables(tmp_path: pathlib.Path) -> None:
    found = import_aibrix(aibrix(tmp_path), max_kv_tokens=20_000, gpus=2)
    assert found.prefill.isl_tokens.tolist() == [500, 1000]
    assert found.prefill.ttft_s.tolist() == [0.20, 0.35]
    assert found.prefill.throughput_per_gpu.tolist() == pytest.approx([500 / 0.2 / 2, 1000 / 0.35 / 2])
    decode = found.decode
    assert decode.context_tokens.tolist() == [550, 1050, 600]
    assert decode.itl_s.tolist() == [0.02, 0.03, 0.025]
    batch = [4 * 99 * 0.02, 2 * 99 * 0.03, 1 * 199 * 0.025]
    assert decode.batch_size.tolist() == pytest.approx(batch)
    assert decode.throughput_per_gpu.tolist() == pytest.approx([4 * 99 / 2, 2 * 99 / 2, 199 / 2])
    profile = build_profile(found.prefill, found.decode, found.meta)
    assert profile.gpus_per_engine == 2
    assert "A10" in str(profile.meta["source"])


def test_tpot_follows_from_e2e_where_it_is_missing(tmp_path: pathlib.Path) -> None:
    e2e = [[0.3, 0.4], [0.2 + 99 * 0.01, 0.35 + 99 * 0.02], [0.25 + 199 * 0.03, 1.0]]
    found = import_aibrix(aibrix(tmp_path, tpot=None, e2e=e2e), max_kv_tokens=20_000, gpus=1)
    assert found.decode.itl_s.tolist() == pytest.approx([0.01, 0.02, 0.03])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"ttft": None}, "ttft: missing"),
        ({"tpot": None}, "tpot: missing, and no e2e"),
        ({"tputs": None}, "tputs: missing"),
        ({"indexes": [[1], [2]]}, "tputs: must have 1 rows"),
        (
            {"tputs": [[0, 0], [0, 0], [0, 0]]},
            "prompt lengths none, and a profile needs first-token times at two",
        ),
        ({"tputs": [[1, 1], [0, 0], [0, 0]]}, "no output of more than one token"),
        ({"tpot": [[0, 0], [0, 0.1], [0.1, 0]]}, r"tpot\[1\]\[0\]: must be positive"),
        ({"ttft": [[0, 0], [0, 0], [0, 0]]}, "first-token times must be positive"),
    ],
)
def test_a_broken_aibrix_profile_is_one_line(
    tmp_path: pathlib.Path, changes: dict[str, Any], complaint: str
) -> None:
    path = aibrix(tmp_path, **changes)
    with pytest.raises(ForeignProfileError, match=complaint) as caught:
        import_aibrix(path, max_kv_tokens=20_000, gpus=1)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_json_is_said_so(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ForeignProfileError, match=r"x\.json: not JSON"):
        import_aibrix(tmp_path / "x.json", max_kv_tokens=1, gpus=1)


def test_each_row_of_a_pre_swept_folder_is_a_profile(tmp_path: pathlib.Path) -> None:
    folder = pre_swept(tmp_path, PREFILL, DECODE)
    assert is_pre_swept(folder)
    one, two = import_pre_swept(folder)
    assert (one.tp, two.tp) == (1, 2)
    assert two.prefill.ttft_s.tolist() == [0.006, 0.030]
    assert two.decode.max_kv_tokens == 120_000
    assert two.decode.itl_s.tolist() == [0.004, 0.008]
    assert one.meta["gpu_type"] == "h200_sxm"
    assert build_profile(two.prefill, two.decode, two.meta).gpus_per_engine == 2


def test_rows_in_one_dimension_are_a_single_one(tmp_path: pathlib.Path) -> None:
    flat = [{key: value[0] for key, value in table.items()} for table in (PREFILL, DECODE)]
    (found,) = import_pre_swept(pre_swept(tmp_path, *flat))
    assert found.tp == 1
    assert found.decode.kv_usage.tolist() == [0.1, 0.5]


@pytest.mark.parametrize(
    ("prefill", "decode", "complaint"),
    [
        ({"tp": None}, {}, r"prefill.npz: tp: missing"),
        ({}, {"z_itl": None}, r"decode.npz: z_itl: missing"),
        ({"tp": [[1], [1]]}, {}, r"prefill.npz: tp 1 stands in several rows"),
        ({"tp": [[1], [4]]}, {}, r"tp 2 is only in decode.npz"),
        ({"tp": [[1], [0.5]]}, {}, r"tp: must be one whole number"),
        ({"prefill_isl": [[100.0, 1000.0]]}, {}, r"different numbers of rows"),
        ({}, {"z_itl": [[5.0, -9.0], [4.0, 8.0]]}, r"tp 1: itl_s: must be positive"),
        ({}, {"x_kv_usage": [[0.1, 2.0], [0.1, 0.5]]}, r"tp 1: kv_usage: must lie in \[0, 1\]"),
    ],
)
def test_a_broken_pre_swept_folder_is_one_line(
    tmp_path: pathlib.Path, prefill: dict[str, Any], decode: dict[str, Any], complaint: str
) -> None:
    folder = pre_swept(tmp_path, PREFILL | prefill, DECODE | decode)
    with pytest.raises(ForeignProfileError, match=complaint) as caught:
        import_pre_swept(folder)
    assert str(folder) in str(caught.value)


def test_a_folder_with_half_of_it_or_with_something_else_is_said(tmp_path: pathlib.Path) -> None:
    assert not is_pre_swept(tmp_path)
    pre_swept(tmp_path, PREFILL, DECODE)
    (tmp_path / "decode.npz").write_bytes(b"no zip")
    with pytest.raises(ForeignProfileError, match=r"decode\.npz: not a readable npz file"):
        import_pre_swept(tmp_path)
    (tmp_path / "decode.npz").unlink()
    with pytest.raises(ForeignProfileError, match=r"decode\.npz: no such file"):
        import_pre_swept(tmp_path)
