"""Compiled code that is older than what it was compiled from is removed before it is used.

numba looks only at the file of a function, not at those it takes functions and constants from: a row added to
`columns` would go unnoticed by what reads the table. The simulator does the same for its kernel.
"""

import os
from functools import cache
from pathlib import Path

import interp

COMPILED = ("columns", "books", "surfaces", "forecast", "headroom")
"""Modules with compiled functions, and those that these take constants from."""


@cache
def drop_stale_cache() -> bool:
    """Empty the cache of this package's compiled code if it is older than a source; whether it is empty then.

    Looks once a process. Other processes may do the same at the same time.
    """
    package = Path(__file__).parent
    sources = [package / f"{name}.py" for name in COMPILED]
    sources += Path(interp.__file__).parent.glob("*.py")
    return _drop_older(package / "__pycache__", max(map(_modified_s, sources)))


def _drop_older(directory: Path, newest_s: float) -> bool:
    cached = [entry for name in COMPILED for entry in directory.glob(f"{name}.*.nb[ci]")]
    if not any(_modified_s(entry) < newest_s for entry in cached) or not os.access(directory, os.W_OK):
        return not cached
    for entry in cached:
        entry.unlink(missing_ok=True)
    return True


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return -1.0
