"""Names of profiles → directories: a directory of the user's, or a profile that Headway ships."""

from pathlib import Path

from headway.config.errors import ConfigError

EMBEDDED = Path(__file__).parent.parent / "profiles"
_MARK = "selected_prefill_interpolation"


def embedded_profiles(root: Path = EMBEDDED) -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return tuple(sorted(path.parent.name for path in root.glob(f"*/{_MARK}")))


def resolve_profile(name: str, root: Path = EMBEDDED, key: str = "engine.profile") -> Path:
    """The directory of a profile: an existing directory wins, then a shipped profile of that name.

    A leading `profiles/` is accepted before a shipped name. ConfigError begins with `key`, and
    lists the shipped names.
    """
    if name and Path(name).is_dir():
        return Path(name)
    known = embedded_profiles(root)
    bare = name.removeprefix("profiles/").rstrip("/")
    if bare in known:
        return root / bare
    shipped = ", ".join(known) or "none"
    raise ConfigError(f"{key}: {name!r} is neither a directory nor a shipped profile ({shipped})")
