"""Profile directories: read, checked and written. The only place of milliseconds.

    DIR/selected_prefill_interpolation/raw_data.npz    prefill_isl, prefill_ttft (ms), prefill_thpt_per_gpu
    DIR/selected_decode_interpolation/raw_data.npz     max_kv_tokens, x_kv_usage, y_context_length,
                                                       z_itl (ms), z_thpt_per_gpu
    DIR/meta.json                                      optional: a JSON object, free but for the keys
                                                       that `interp.profile` reads

In place of the npz files DIR may hold prefill_raw_data.json and decode_raw_data.json, objects with the same
keys, as ConfigMaps of Dynamo's planner have them. Values that are implausible under these names and units
(`interp.plausibility`) are refused, with the reading of READINGS that would make them plausible; that is for
`headway profile import` to choose, and never a guess.

Files are untrusted: no pickled objects are loaded, and every fault is one line that names the file and the
key.
"""

import json
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import ArrayLike

from interp.arrays import FloatArray, ProfileError
from interp.plausibility import TIMES, doubts_of
from interp.profile import MS_PER_S, Profile, build_profile
from interp.samples import (
    DecodeSamples,
    PrefillSamples,
    cache_size,
    length_of_all,
    positive,
    two_different,
    unit_interval,
)

PREFILL_FILE = Path("selected_prefill_interpolation", "raw_data.npz")
DECODE_FILE = Path("selected_decode_interpolation", "raw_data.npz")
META_FILE = Path("meta.json")
JSON_FILES = {
    PREFILL_FILE.parts[0]: "prefill_raw_data.json",
    DECODE_FILE.parts[0]: "decode_raw_data.json",
}
"""In place of the npz files."""
PROFILE_ENTRIES = {PREFILL_FILE.parts[0], DECODE_FILE.parts[0], META_FILE.name}

UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)
"""What numpy and zipfile raise for files that are not what they say."""

Check = Callable[[str, ArrayLike], FloatArray]
PREFILL_KEYS: Mapping[str, Check] = {
    "prefill_isl": positive,
    "prefill_ttft": positive,
    "prefill_thpt_per_gpu": positive,
}
DECODE_KEYS: Mapping[str, Check] = {
    "x_kv_usage": unit_interval,
    "y_context_length": positive,
    "z_itl": positive,
    "z_thpt_per_gpu": positive,
}


READINGS = {
    **{
        f"{field}={unit}": f"{field} is in {TIMES[unit][0]}, not in ms"
        for field in ("prefill_ttft", "z_itl")
        for unit in ("s", "us")
    },
    "percent": "KV usage is in percent, not a share",
    "throughput": "throughput per GPU follows from the times, not from the file",
    "reversed": "TTFTs are in the opposite order of ISLs",
    "drop": "points with a value that is not finite or not positive are left out",
}
"""How the arrays of a file may be meant where they do not mean what their names say."""


def load_profile(directory: str | Path, readings: Collection[str] = (), gpus: int = 1) -> Profile:
    """The profile in `directory`. Raises ProfileError, one line naming the file and the key.

    `readings` are of READINGS; `gpus` of an engine, for throughput that follows from the times.
    """
    root = Path(directory)
    if not root.is_dir():
        raise ProfileError(f"{root}: no such profile directory")
    source = _Source(root=root, readings=readings, gpus=gpus)
    prefill, decode, meta = _read_prefill(source), _read_decode(source), _read_meta(root)
    refuse_implausible(root, prefill, decode)
    try:
        return build_profile(prefill, decode, meta)
    except ProfileError as error:
        raise ProfileError(f"{root}/{error}") from error


def is_profile_directory(place: Path) -> bool:
    """True for a directory with at least half of a profile."""
    return any(
        (place / name).is_file() for name in (PREFILL_FILE, DECODE_FILE, *map(Path, JSON_FILES.values()))
    )


def refuse_implausible(place: Path, prefill: PrefillSamples, decode: DecodeSamples) -> None:
    """Raise ProfileError with what is implausible in a profile that was read from `place`."""
    doubts = list(doubts_of(prefill, decode))
    for doubt in doubts:
        file = PREFILL_FILE if doubt.field in PREFILL_KEYS else DECODE_FILE
        where = place / file if (place / file).is_file() else place
        raise ProfileError(
            f"{where}: {doubt.field}: {doubt.problem}{_advice(place, *(each.reading for each in doubts))}"
        )


def _advice(place: Path, *readings: str) -> str:
    meant = " and ".join(READINGS[each] for each in readings)
    return f"; if {meant}: headway profile import {place} --reading {','.join(readings)} --output NEW"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A directory, and how its arrays are meant."""

    root: Path
    readings: Collection[str]
    gpus: int

    def checked(
        self, file: Path, checks: Mapping[str, Check], single: str = ""
    ) -> tuple[Path, dict[str, Any]]:
        """The arrays of a file as their names say, and the path that they were read from."""
        path = self.root / file
        if not path.is_file() and (as_json := self.root / JSON_FILES[file.parts[0]]).is_file():
            path = as_json
        arrays = _read_arrays(path, (*checks, *filter(None, [single])))
        if "drop" in self.readings:
            arrays = _without_faults(arrays, checks)
        for key, _, unit in (reading.partition("=") for reading in self.readings):
            if unit and key in arrays:
                arrays[key] = np.asarray(arrays[key]) * TIMES[unit][1]
        if "percent" in self.readings and "x_kv_usage" in arrays:
            arrays["x_kv_usage"] = np.asarray(arrays["x_kv_usage"]) / 100.0
        if "reversed" in self.readings and "prefill_ttft" in arrays:
            arrays["prefill_ttft"] = np.asarray(arrays["prefill_ttft"])[::-1]
        if "throughput" in self.readings:
            arrays |= _throughput(arrays, self.gpus)
        try:
            found = {key: check(f"{path}: {key}", arrays[key]) for key, check in checks.items()}
        except ProfileError as error:
            raise ProfileError(f"{error}{self._hint(str(error), arrays)}") from error
        return path, {**found, **({single: arrays[single]} if single else {})}

    def _hint(self, fault: str, arrays: Mapping[str, Any]) -> str:
        if "must be finite" in fault or "must be positive, is 0" in fault:
            return _advice(self.root, "drop")
        if "must lie in [0, 1]" in fault and PERCENT[0] < np.max(arrays["x_kv_usage"]) <= PERCENT[1]:
            return f", up to {np.max(arrays['x_kv_usage']):.4g}{_advice(self.root, 'percent')}"
        return ""


PERCENT = (2.0, 100.0 + 1e-6)
"""Largest KV usages that are percentages; one just above 1 is a slip."""


def _without_faults(arrays: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """The arrays without the points at which one of them is not finite, negative or, usages aside, 0."""
    columns = {key: np.asarray(arrays[key]) for key in checks}
    if len({(each.shape, each.dtype.kind in "iuf") for each in columns.values()}) > 1:
        return dict(arrays)
    kept = np.all([np.isfinite(column) & (column >= 0) for column in columns.values()], axis=0)
    kept &= np.all([column > 0 for key, column in columns.items() if key != "x_kv_usage"], axis=0)
    return {**arrays, **{key: column[kept] for key, column in columns.items()}}


def _throughput(arrays: Mapping[str, Any], gpus: int) -> dict[str, Any]:
    """Throughput per GPU by the times, in ms."""
    read = {key: np.asarray(values, np.float64) for key, values in arrays.items()}
    if "prefill_isl" in read:
        return {"prefill_thpt_per_gpu": read["prefill_isl"] / read["prefill_ttft"] * MS_PER_S / gpus}
    batch = read["x_kv_usage"] * read["max_kv_tokens"] / read["y_context_length"]
    return {"z_thpt_per_gpu": batch / read["z_itl"] * MS_PER_S / gpus}


def _read_prefill(source: _Source) -> PrefillSamples:
    path, checked = source.checked(PREFILL_FILE, PREFILL_KEYS)
    _same_length(path, checked, at_least=2, why=": a curve needs prompts of two lengths")
    two_different(f"{path}: prefill_isl", checked["prefill_isl"])
    return PrefillSamples(
        isl_tokens=checked["prefill_isl"],
        ttft_s=checked["prefill_ttft"] / MS_PER_S,
        throughput_per_gpu=checked["prefill_thpt_per_gpu"],
    )


def _read_decode(source: _Source) -> DecodeSamples:
    path, checked = source.checked(DECODE_FILE, DECODE_KEYS, "max_kv_tokens")
    max_kv_tokens = checked.pop("max_kv_tokens")
    _same_length(path, checked, at_least=1)
    return DecodeSamples(
        max_kv_tokens=cache_size(f"{path}: max_kv_tokens", max_kv_tokens),
        kv_usage=checked["x_kv_usage"],
        context_tokens=checked["y_context_length"],
        itl_s=checked["z_itl"] / MS_PER_S,
        throughput_per_gpu=checked["z_thpt_per_gpu"],
    )


def _read_arrays(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    if not path.is_file():
        raise ProfileError(f"{path}: no such file{_instead(path)}")
    if path.suffix == ".json":
        return _json_arrays(path, keys)
    try:
        file = path.open("rb")
    except OSError as error:
        raise ProfileError(f"{path}: cannot be opened ({_one_line(error)})") from error
    with file, _archive(path, file) as archive:
        return {key: _read_key(path, archive, key) for key in keys}


def _instead(path: Path) -> str:
    """What lies in the directory of a profile whose files are missing, and what reads it."""
    root = path.parents[1]
    strangers = sorted(each.name for each in root.glob("*.*") if each.suffix in {".npz", ".json", ".csv"})
    strangers = [name for name in strangers if name != META_FILE.name and name not in JSON_FILES.values()]
    if not strangers or (root / PREFILL_FILE).exists():
        return ""
    return f"; headway profile import {root / strangers[0]} reads that file, or says what it is"


def _json_arrays(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    content = read_object(path)
    missing = next((key for key in keys if key not in content), None)
    if missing is not None:
        raise ProfileError(f"{path}: {missing}: missing, found {', '.join(sorted(content)) or 'nothing'}")
    try:
        return {key: np.asarray(content[key]) for key in keys}
    except ValueError as error:
        raise ProfileError(f"{path}: not arrays of numbers ({_one_line(error)})") from error


def _archive(path: Path, file: BinaryIO) -> NpzFile:
    try:
        archive = np.load(file, allow_pickle=False)
    except UNREADABLE as error:
        raise ProfileError(f"{path}: not a readable npz file ({_one_line(error)})") from error
    if not isinstance(archive, NpzFile):
        raise ProfileError(f"{path}: not an npz file but a single array")
    return archive


def _read_key(path: Path, archive: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401 - whatever the file holds
    if key not in archive:
        raise ProfileError(f"{path}: {key}: missing, found {', '.join(sorted(archive)) or 'no arrays'}")
    try:
        return archive[key]
    except UNREADABLE as error:
        objects = " and holds Python objects, which may be code: save it with dtype float"
        why = objects if "allow_pickle" in str(error) else f" ({_one_line(error)})"
        raise ProfileError(f"{path}: {key}: not readable{why}") from error


def _same_length(path: Path, arrays: Mapping[str, FloatArray], at_least: int, why: str = "") -> None:
    try:
        length_of_all(arrays, at_least=at_least)
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}{why if 'needed' in str(error) else ''}") from error


def _read_meta(root: Path) -> dict[str, Any]:
    path = root / META_FILE
    return read_object(path) if path.exists() else {}


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises ProfileError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ProfileError(f"{path}: not readable JSON ({_one_line(error)})") from error
    if not isinstance(content, dict):
        raise ProfileError(f"{path}: must hold a JSON object, holds {type(content).__name__}")
    return content


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def save_profile(
    directory: str | Path,
    prefill_samples: PrefillSamples,
    decode_samples: DecodeSamples,
    meta: Mapping[str, Any] | None = None,
) -> None:
    """Write a profile directory, whole or not at all; an existing profile there is replaced.

    It is written beside `directory` and moved into place. Raises ProfileError when the samples and `meta`
    would not load again, when `directory` holds anything that is not a profile's, or when writing fails.
    """
    target = Path(directory)
    build_profile(prefill_samples, decode_samples, meta)
    text = _meta_text(meta)
    _require_replaceable(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as workspace:
            fresh = Path(workspace, "new")
            _write_prefill(fresh, prefill_samples)
            _write_decode(fresh, decode_samples)
            if text is not None:
                (fresh / META_FILE).write_text(text, encoding="utf-8")
            _move_into_place(fresh, target, Path(workspace, "old"))
    except OSError as error:
        raise ProfileError(f"{target}: cannot be written ({_one_line(error)})") from error


def _write_prefill(root: Path, samples: PrefillSamples) -> None:
    arrays = {
        "prefill_isl": samples.isl_tokens,
        "prefill_ttft": samples.ttft_s * MS_PER_S,
        "prefill_thpt_per_gpu": samples.throughput_per_gpu,
    }
    _write_arrays(root / PREFILL_FILE, arrays)


def _write_decode(root: Path, samples: DecodeSamples) -> None:
    arrays = {
        "max_kv_tokens": np.array([samples.max_kv_tokens]),
        "x_kv_usage": samples.kv_usage,
        "y_context_length": samples.context_tokens,
        "z_itl": samples.itl_s * MS_PER_S,
        "z_thpt_per_gpu": samples.throughput_per_gpu,
    }
    _write_arrays(root / DECODE_FILE, arrays)


def _write_arrays(path: Path, arrays: Mapping[str, FloatArray]) -> None:
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **dict(arrays))


def _meta_text(meta: Mapping[str, Any] | None) -> str | None:
    if meta is None:
        return None
    try:
        return json.dumps(dict(meta), indent=2, sort_keys=True, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ProfileError(f"{META_FILE}: not JSON ({_one_line(error)})") from error


def _require_replaceable(target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise ProfileError(f"{target}: exists and is not a directory")
    strangers = sorted({entry.name for entry in target.iterdir()} - PROFILE_ENTRIES)
    if strangers:
        raise ProfileError(f"{target}: not replaced, holds {strangers[0]!r}, which is not a profile's")


def _move_into_place(fresh: Path, target: Path, old: Path) -> None:
    """Swap `fresh` for whatever is at `target`, which ends up at `old`, and is put back if the swap fails."""
    if not target.exists():
        fresh.rename(target)
        return
    # A rename within one file system is atomic: a reader sees the old profile, none, or the new one.
    target.rename(old)
    try:
        fresh.rename(target)
    except OSError:
        old.rename(target)
        raise
