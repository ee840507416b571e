"""Profiles of other systems → ours: AIBrix's JSON, and folders of pre-swept NPZ files as Dynamo ships them.

AIBrix's GPU profile (JSON) as it stands in the file has tables [output tokens][input tokens] of one GPU type:

    gpu      name                      indexes  [[output tokens], [input tokens]], ascending
    cost     of a GPU per unit of time tputs    RPS at which the SLO is just kept, 0 if at none
    slos     the SLO it was made for   e2e, ttft, tpot   mean seconds at that rate, optional

Format as written and read by vllm-project/aibrix (gpu_optimizer/optimizer/profiling/gen_profile.py,
pkg/cache/model_gpu_profile.go): tables are [output][input]. Tables that fit only the other way round are
turned, and `indexes` with them stay as documented; square ones are taken as documented.

They hold the highest rate (requests/s) under its SLO, and mean TTFT and TPOT (or E2E) of whole engines at
that rate. `headway.profiling.points` makes tables of them. Rates of 0 say nothing.

Pre-swept results have one row per engine configuration; rows of the two files belong together by `tp`:

    DIR/prefill.npz    prefill_isl, prefill_ttft (ms), prefill_thpt_per_gpu          each [rows, points]
    DIR/decode.npz     max_kv_tokens [rows, 1], x_kv_usage, y_context_length, z_itl (ms), z_thpt_per_gpu
    in both            tp [rows, 1], and what else describes a row: gpu_type, model, framework, …

A one-dimensional array is a single row. Format: ai-dynamo/dynamo, planner/utils/pre_swept_results_utils.py.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from headway.profiling import ForeignProfileError
from headway.profiling.points import ForeignProfile, Point, profile_of
from headway.workload.known_files import AIBRIX
from interp import DecodeSamples, PrefillSamples, ProfileError
from interp.storage import UNREADABLE

Table = tuple[tuple[float, ...], ...]

MOST_BYTES = 64 * 1024 * 1024

MOST = 1e12
"""No number of a profile is larger; `created`, which is not read, is a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AibrixTables:
    """A file's tables, `[output][input]`: RPS, and seconds where it has them."""

    gpu: str
    cost: float
    output_tokens: tuple[float, ...]
    input_tokens: tuple[float, ...]
    rates_rps: Table
    e2e_s: Table | None
    ttft_s: Table | None
    tpot_s: Table | None
    slos: Mapping[str, float]


def load_aibrix_tables(path: Path) -> AibrixTables:
    """The tables in a file. Raises ForeignProfileError, one line: file, key and fault."""
    return read_tables(ProfileReader(str(path), content_of(path)))


def content_of(path: Path) -> object:
    """The parsed JSON of a file. Raises ForeignProfileError, one line."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ForeignProfileError(f"{path}: larger than {MOST_BYTES} bytes")
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ForeignProfileError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ForeignProfileError(f"{path}: not JSON: {str(error).splitlines()[0][:80]}") from error
    return content


def read_tables(reader: "ProfileReader") -> AibrixTables:
    """The tables that `reader` checks."""
    output_tokens, input_tokens = reader.indexes()
    shape = (len(output_tokens), len(input_tokens))
    rates = reader.table("tputs", shape)
    if rates is None:
        raise reader.fault("tputs", "missing")
    return AibrixTables(
        gpu=str(reader.content.get("gpu", "")),
        cost=reader.number("cost", reader.content.get("cost", 0.0)),
        output_tokens=output_tokens,
        input_tokens=input_tokens,
        rates_rps=rates,
        e2e_s=reader.table("e2e", shape),
        ttft_s=reader.table("ttft", shape),
        tpot_s=reader.table("tpot", shape),
        slos=reader.slos(),
    )


class ProfileReader:
    """Reads and checks the parts of a profile."""

    def __init__(self, source: str, content: object) -> None:
        if not isinstance(content, dict):
            raise ForeignProfileError(f"{source}: must be an object, is {type(content).__name__}")
        self._source, self.content = source, content

    def fault(self, key: str, what: str) -> ForeignProfileError:
        """The error of one key, a line."""
        return ForeignProfileError(f"{self._source}: {key}: {what}")

    def number(self, key: str, value: object) -> float:
        """A finite number of at least 0."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fault(key, f"must be a number, is {value!r:.40}")
        if not 0.0 <= value <= MOST:
            raise self.fault(key, f"must lie in 0 .. {MOST:g}, is {value!r:.40}")
        return float(value)

    def numbers(self, key: str, value: object) -> tuple[float, ...]:
        """A list of numbers, not empty."""
        if not isinstance(value, list) or not value:
            raise self.fault(key, f"must be a list of numbers, is {value!r:.40}")
        return tuple(self.number(f"{key}[{place}]", item) for place, item in enumerate(value))

    def indexes(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Output and input token counts."""
        lists = self.content.get("indexes")
        if not isinstance(lists, list) or len(lists) != 2:
            raise self.fault("indexes", "must be two lists: output tokens, input tokens")
        return self._axis("indexes[0]", lists[0]), self._axis("indexes[1]", lists[1])

    def _axis(self, key: str, value: object) -> tuple[float, ...]:
        axis = self.numbers(key, value)
        if axis[0] < 1.0 or any(low >= high for low, high in pairwise(axis)):
            raise self.fault(key, "must ascend from at least 1")
        return axis

    def table(self, key: str, shape: tuple[int, int]) -> Table | None:
        """A table [output][input], turned if it fits only so; None if the key is not there."""
        value = self.content.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.fault(key, f"must be a list of rows, is {value!r:.40}")
        rows = tuple(self.numbers(f"{key}[{place}]", row) for place, row in enumerate(value))
        if _fits(rows, shape):
            return rows
        if _fits(rows, (shape[1], shape[0])):
            return tuple(zip(*rows, strict=True))
        raise self.fault(key, f"must have {shape[0]} rows (output) of {shape[1]} numbers (input)")

    def slos(self) -> Mapping[str, float]:
        """The SLO that the profile was made for; what is not set is missing."""
        slos = self.content.get("slos", {})
        if not isinstance(slos, dict):
            raise self.fault("slos", f"must be an object, is {slos!r:.40}")
        return {str(key): self.number(f"slos.{key}", value) for key, value in slos.items()}


def _fits(rows: Table, shape: tuple[int, int]) -> bool:
    return len(rows) == shape[0] and all(len(row) == shape[1] for row in rows)


def import_aibrix(path: Path, *, max_kv_tokens: int | None, gpus: int) -> ForeignProfile:
    """The profile in a file, of an engine on `gpus` GPUs with a KV cache of `max_kv_tokens`.

    Raises ForeignProfileError, one line: file, key and fault.
    """
    tables = load_aibrix_tables(path)
    if tables.ttft_s is None:
        raise ForeignProfileError(f"{path}: ttft: missing, and nothing else says how long a prefill takes")
    found = profile_of(list(_points(tables, path)), path, AIBRIX, max_kv_tokens=max_kv_tokens, gpus=gpus)
    source = f"AIBrix profile {path.name} of {tables.gpu or 'a GPU'}, at its SLO's rates"
    return replace(found, meta={**found.meta, "source": source, "slos": dict(tables.slos)})


def _points(tables: AibrixTables, path: Path) -> Iterator[Point]:
    """The loads at which the SLO can be kept."""
    for row, rates in enumerate(tables.rates_rps):
        for column, rate_rps in enumerate(rates):
            if rate_rps > 0.0 and tables.ttft_s is not None:
                isl, osl = tables.input_tokens[column], tables.output_tokens[row]
                itl_s = _tpot_s(tables, row, column, path) if osl > 1.0 else 0.0
                yield Point.by_rate(isl, osl, rate_rps, tables.ttft_s[row][column], itl_s)


def _tpot_s(tables: AibrixTables, row: int, column: int, path: Path) -> float:
    if tables.tpot_s is not None:
        tpot_s = tables.tpot_s[row][column]
    elif tables.e2e_s is not None and tables.ttft_s is not None:
        stay_s = tables.e2e_s[row][column] - tables.ttft_s[row][column]
        tpot_s = stay_s / (tables.output_tokens[row] - 1.0)
    else:
        raise ForeignProfileError(f"{path}: tpot: missing, and no e2e to tell it from")
    if tpot_s <= 0.0:
        raise ForeignProfileError(f"{path}: tpot[{row}][{column}]: must be positive, is {tpot_s:g}")
    return tpot_s


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
    """True if the folder looks like pre-swept results."""
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


def npz_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file. Raises ForeignProfileError, one line."""
    if not path.is_file():
        raise ForeignProfileError(f"{path}: no such file")
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {key: np.asarray(archive[key]) for key in archive}
    except (*UNREADABLE, AttributeError) as error:
        raise ForeignProfileError(
            f"{path}: not a readable npz file ({' '.join(str(error).split())})"
        ) from error
    return found


def _arrays(path: Path) -> dict[str, np.ndarray]:
    found = npz_arrays(path)
    single = all(array.ndim <= 1 for array in found.values())
    return {key: array.reshape(1, -1) if single else np.atleast_1d(array) for key, array in found.items()}
