"""How the kernel is compiled: one typed decorator, and a cache that never outlives its sources.

numba keeps compiled code on disk and checks only the file of the function itself; an edit of a callee in a
neighbouring file would go unnoticed. `drop_stale_cache` compares the whole package with the cache instead.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile `function` to machine code at its first call and keep the result on disk."""
    return cast(F, numba.njit(cache=True, error_model="numpy")(function))


def drop_stale_cache() -> bool:
    """Remove compiled code that is older than any source of this package; True if compilation is due."""
    package = Path(__file__).parent
    newest = max(source.stat().st_mtime for source in package.glob("*.py"))
    cached = list((package / "__pycache__").glob("*.nb[ci]"))
    stale = [entry for entry in cached if entry.stat().st_mtime < newest]
    if stale and os.access(package, os.W_OK):
        for entry in cached:
            entry.unlink(missing_ok=True)
        return True
    return not cached
