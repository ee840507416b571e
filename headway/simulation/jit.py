"""A cache of compiled code that never outlives its sources.

numba keeps compiled code on disk and checks only the file of the function itself; an edit of a callee in a
neighbouring file would go unnoticed. `drop_stale_cache` compares whole packages with the cache instead.
"""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import interp
from interp.jit import compiled

__all__ = ["compiled", "drop_older", "drop_stale_cache"]


@cache
def drop_stale_cache() -> bool:
    """Remove the kernel's compiled code if any source is newer; True if compilation is due.

    Looks once a process: what is compiled after that is in memory.
    """
    package = Path(__file__).parent
    return drop_older(package / "__pycache__", (package, Path(interp.__file__).parent))


def drop_older(cache_directory: Path, packages: Sequence[Path]) -> bool:
    """Empty the cache of compiled code if anything in it is older than a source; True if it is empty then.

    Other processes may do the same at the same time: a file that vanishes meanwhile is a file removed.
    """
    newest = max(_modified_s(source) for package in packages for source in package.glob("*.py"))
    cached = list(cache_directory.glob("*.nb[ci]"))
    if not any(_modified_s(entry) < newest for entry in cached) or not os.access(cache_directory, os.W_OK):
        return not cached
    for entry in cached:
        entry.unlink(missing_ok=True)
    return True


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return -1.0
