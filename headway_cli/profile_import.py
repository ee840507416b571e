"""`headway profile import`: another system's files → profile directories."""

from collections.abc import Sequence
from pathlib import Path

from headway.profiling import OutputExistsError
from headway.profiling.foreign import ForeignProfile, import_aibrix, import_pre_swept, is_pre_swept
from headway_cli.errors import CliError
from interp import save_profile


def import_profiles(
    source: Path, output: Path, max_kv_tokens: int | None, gpus: int, *, overwrite: bool
) -> Sequence[Path]:
    """Write what `source` holds; the directories. CliError and ProfilingError have one line."""
    places = _read(source, output, max_kv_tokens, gpus)
    for place in places:
        refuse_what_exists(place, overwrite=overwrite)
    for place, found in places.items():
        save_profile(place, found.prefill, found.decode, found.meta)
    return list(places)


def refuse_what_exists(place: Path, *, overwrite: bool) -> None:
    """OutputExistsError where a profile would replace something and nobody asked for that."""
    if place.exists() and not overwrite and (not place.is_dir() or any(place.iterdir())):
        raise OutputExistsError(f"--output: {place} exists and is not empty; --overwrite replaces it")


def _read(source: Path, output: Path, max_kv_tokens: int | None, gpus: int) -> dict[Path, ForeignProfile]:
    if source.is_dir():
        if not is_pre_swept(source):
            raise CliError(f"{source}: holds neither prefill.npz nor decode.npz")
        return {output / f"tp{found.tp}": found for found in import_pre_swept(source)}
    if max_kv_tokens is None or max_kv_tokens < 1:
        raise CliError("--max-kv-tokens: needed for an AIBrix profile, which does not say it")
    if gpus < 1:
        raise CliError(f"--tp: expected at least 1, got {gpus}")
    return {output: import_aibrix(source, max_kv_tokens=max_kv_tokens, gpus=gpus)}
