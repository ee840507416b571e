"""Which profile directories a name stands for."""

from collections.abc import Mapping
from pathlib import Path

from headway.config import resolve_profile

RECOMMENDED = "recommended"


def profile_places(name: str) -> Mapping[str, Path]:
    """By their names: a profile directory or an embedded profile; of a run, the recommended one and every TP.

    Raises ConfigError.
    """
    place = resolve_profile(name, key="profile")
    if not (place / RECOMMENDED).is_dir():
        return {place.resolve().name: place}
    sizes = sorted((path for path in place.glob("tp*") if path.is_dir()), key=_size)
    return {path.name: path for path in (place / RECOMMENDED, *sizes)}


def _size(path: Path) -> int:
    digits = path.name.removeprefix("tp")
    return int(digits) if digits.isdecimal() else 0
