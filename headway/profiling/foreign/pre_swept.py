"""Folders of pre-swept results, as Dynamo ships them: one row per engine configuration.

    DIR/prefill.npz    prefill_isl, prefill_ttft (ms), prefill_thpt_per_gpu          each [rows, points]
    DIR/decode.npz     max_kv_tokens [rows, 1], x_kv_usage, y_context_length, z_itl (ms), z_thpt_per_gpu
    in both            tp [rows, 1], and what else describes a row: gpu_type, model, framework, …

A one-dimensional array is a single row. Rows of the two files belong together by `tp`, which must be unique
in each. Format: ai-dynamo/dynamo, planner/utils/pre_swept_results_utils.py. Pure but for reading the files.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headway.profiling.errors import ForeignProfileError
from headway.profiling.foreign.values import ForeignProfile
from interp import DecodeSamples, PrefillSamples, ProfileError
from interp.storage import UNREADABLE

PREFILL_FILE, DECODE_FILE = "prefill.npz", "decode.npz"
PREFILL_KEYS = ("prefill_isl", "prefill_ttft", "prefill_thpt_per_gpu")
DECODE_KEYS = ("max_kv_tokens", "x_kv_usage", "y_context_length", "z_itl", "z_thpt_per_gpu")
DESCRIPTIONS = (
    "gpu_type",
    "model",
    "framework",
    "framework_version",
    "dp",
    "pp",
    "block_size",
    "max_batch_size",
)
MS_PER_S = 1000.0

Row = Mapping[str, Any]


def is_pre_swept(directory: Path) -> bool:
    """Whether the folder looks like one of those."""
    return (directory / PREFILL_FILE).is_file() or (directory / DECODE_FILE).is_file()


def import_pre_swept(directory: Path) -> tuple[ForeignProfile, ...]:
    """The profiles in a folder, by ascending TP. Raises ForeignProfileError: file, key and fault."""
    prefill = _rows(directory / PREFILL_FILE, PREFILL_KEYS)
    decode = _rows(directory / DECODE_FILE, DECODE_KEYS)
    lonely = sorted(prefill.keys() ^ decode.keys())
    if lonely:
        where = PREFILL_FILE if lonely[0] in prefill else DECODE_FILE
        raise ForeignProfileError(f"{directory}: tp {lonely[0]} is only in {where}")
    return tuple(_profile(directory, tp, prefill[tp], decode[tp]) for tp in sorted(prefill))


def _profile(directory: Path, tp: int, prefill: Row, decode: Row) -> ForeignProfile:
    try:
        return ForeignProfile(
            tp=tp,
            prefill=PrefillSamples(
                isl_tokens=prefill["prefill_isl"],
                ttft_s=prefill["prefill_ttft"] / MS_PER_S,
                throughput_per_gpu=prefill["prefill_thpt_per_gpu"],
            ),
            decode=DecodeSamples(
                max_kv_tokens=decode["max_kv_tokens"],
                kv_usage=decode["x_kv_usage"],
                context_tokens=decode["y_context_length"],
                itl_s=decode["z_itl"] / MS_PER_S,
                throughput_per_gpu=decode["z_thpt_per_gpu"],
            ),
            meta={"source": f"pre-swept results {directory.name}", "tp": tp, **_described(decode)},
        )
    except ProfileError as error:
        raise ForeignProfileError(f"{directory}: tp {tp}: {error}") from error


def _described(row: Row) -> dict[str, Any]:
    said = {key: row[key].reshape(-1)[0].item() for key in DESCRIPTIONS if key in row and row[key].size}
    batch = said.get("max_batch_size")
    if not isinstance(batch, int | float) or batch < 1:
        said.pop("max_batch_size", None)
    return said


def _rows(path: Path, keys: tuple[str, ...]) -> dict[int, Row]:
    """The rows of a file by their `tp`."""
    arrays = _arrays(path)
    missing = [key for key in ("tp", *keys) if key not in arrays]
    if missing:
        raise ForeignProfileError(
            f"{path}: {missing[0]}: missing, found {', '.join(sorted(arrays)) or 'no arrays'}"
        )
    counts = {key: len(array) for key, array in arrays.items() if key in ("tp", *keys)}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{key} {count}" for key, count in counts.items())
        raise ForeignProfileError(f"{path}: different numbers of rows: {said}")
    rows: dict[int, Row] = {}
    for number, tp in enumerate(_tps(path, arrays["tp"])):
        if tp in rows:
            raise ForeignProfileError(f"{path}: tp {tp} stands in several rows; keep one of them")
        rows[tp] = {key: array[number] for key, array in arrays.items() if number < len(array)}
    return rows


def _tps(path: Path, array: np.ndarray) -> list[int]:
    flat = array.reshape(len(array), -1)
    if (
        flat.dtype.kind not in "iuf"
        or flat.shape[1] != 1
        or (flat < 1).any()
        or (flat != np.rint(flat)).any()
    ):
        raise ForeignProfileError(f"{path}: tp: must be one whole number of at least 1 in each row")
    return [int(value) for value in flat[:, 0]]


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise ForeignProfileError(f"{path}: no such file")
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {key: np.asarray(archive[key]) for key in archive}
    except (*UNREADABLE, AttributeError) as error:
        raise ForeignProfileError(
            f"{path}: not a readable npz file ({' '.join(str(error).split())})"
        ) from error
    single = all(array.ndim <= 1 for array in found.values())
    return {key: array.reshape(1, -1) if single else np.atleast_1d(array) for key, array in found.items()}
