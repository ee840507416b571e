"""Profiles by their names: directories, and those that are shipped."""

from difflib import SequenceMatcher
from pathlib import Path

from headway.config.base import ConfigError
from headway.config.engine import DEFAULT_PROFILE

NAMES_SHOWN = 4
"""Shipped profiles that an error names: those most like what was asked for."""
EMBEDDED = Path(__file__).parent.parent / "profiles"
_MARK = "selected_prefill_interpolation"


def embedded_profiles(root: Path = EMBEDDED) -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return tuple(sorted(path.parent.name for path in root.glob(f"*/{_MARK}")))


def _likeness(name: str, other: str) -> float:
    return SequenceMatcher(None, name, other).ratio()


def resolve_profile(name: str | None, root: Path = EMBEDDED, key: str = "engine.profile") -> Path:
    """The directory of a profile: an existing directory wins, then a shipped profile of that name.

    None is the default profile.
    A leading `profiles/` is accepted before a shipped name. ConfigError begins with `key`, and
    lists the shipped names that are most like it.
    """
    name = DEFAULT_PROFILE if name is None else name
    if name and Path(name).is_dir():
        return Path(name)
    known = embedded_profiles(root)
    bare = name.removeprefix("profiles/").rstrip("/")
    if bare in known:
        return root / bare
    if Path(name).is_file():
        raise ConfigError(
            f"{key}: {name!r} is a file, and a profile is a directory: "
            f"headway profile import {name} reads it, or says what it is"
        )
    shipped = ", ".join(sorted(known, key=lambda other: -_likeness(bare, other))[:NAMES_SHOWN]) or "none"
    if len(known) > NAMES_SHOWN:
        shipped += f"; `headway profile list` shows all {len(known)}"
    raise ConfigError(f"{key}: {name!r} is neither a directory nor a shipped profile ({shipped})")
