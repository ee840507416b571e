"""Profile directories: read, checked and written. The only place of milliseconds.

    DIR/selected_prefill_interpolation/raw_data.npz    prefill_isl, prefill_ttft (ms), prefill_thpt_per_gpu
    DIR/selected_decode_interpolation/raw_data.npz     max_kv_tokens, x_kv_usage, y_context_length,
                                                       z_itl (ms), z_thpt_per_gpu
    DIR/meta.json                                      optional: a JSON object, free but for the keys
                                                       that `interp.profile` reads

Files are untrusted: no pickled objects are loaded, and every fault is one line that names the file and the
key.
"""

import json
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import ArrayLike

from interp.arrays import FloatArray, ProfileError
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


def load_profile(directory: str | Path) -> Profile:
    """The profile in `directory`. Raises ProfileError, one line naming the file and the key."""
    root = Path(directory)
    if not root.is_dir():
        raise ProfileError(f"{root}: no such profile directory")
    prefill, decode, meta = _read_prefill(root), _read_decode(root), _read_meta(root)
    try:
        return build_profile(prefill, decode, meta)
    except ProfileError as error:
        raise ProfileError(f"{root}/{error}") from error


def _read_prefill(root: Path) -> PrefillSamples:
    path = root / PREFILL_FILE
    arrays = _read_arrays(path, tuple(PREFILL_KEYS))
    checked = {key: check(f"{path}: {key}", arrays[key]) for key, check in PREFILL_KEYS.items()}
    _same_length(path, checked, at_least=2)
    two_different(f"{path}: prefill_isl", checked["prefill_isl"])
    return PrefillSamples(
        isl_tokens=checked["prefill_isl"],
        ttft_s=checked["prefill_ttft"] / MS_PER_S,
        throughput_per_gpu=checked["prefill_thpt_per_gpu"],
    )


def _read_decode(root: Path) -> DecodeSamples:
    path = root / DECODE_FILE
    arrays = _read_arrays(path, ("max_kv_tokens", *DECODE_KEYS))
    checked = {key: check(f"{path}: {key}", arrays[key]) for key, check in DECODE_KEYS.items()}
    _same_length(path, checked, at_least=1)
    return DecodeSamples(
        max_kv_tokens=cache_size(f"{path}: max_kv_tokens", arrays["max_kv_tokens"]),
        kv_usage=checked["x_kv_usage"],
        context_tokens=checked["y_context_length"],
        itl_s=checked["z_itl"] / MS_PER_S,
        throughput_per_gpu=checked["z_thpt_per_gpu"],
    )


def _read_arrays(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    if not path.is_file():
        raise ProfileError(f"{path}: no such file")
    try:
        file = path.open("rb")
    except OSError as error:
        raise ProfileError(f"{path}: cannot be opened ({_one_line(error)})") from error
    with file, _archive(path, file) as archive:
        return {key: _read_key(path, archive, key) for key in keys}


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
        raise ProfileError(f"{path}: {key}: not readable ({_one_line(error)})") from error


def _same_length(path: Path, arrays: Mapping[str, FloatArray], at_least: int) -> None:
    try:
        length_of_all(arrays, at_least=at_least)
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from error


def _read_meta(root: Path) -> dict[str, Any]:
    path = root / META_FILE
    if not path.exists():
        return {}
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ProfileError(f"{path}: not readable JSON ({_one_line(error)})") from error
    if not isinstance(meta, dict):
        raise ProfileError(f"{path}: must hold a JSON object, holds {type(meta).__name__}")
    return meta


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
