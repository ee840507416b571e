"""A cache of compiled code that never outlives its sources.

numba keeps compiled code on disk and checks only the file of the function itself; an edit of a callee in a
neighbouring file would go unnoticed. `drop_stale_cache` compares whole packages with the cache instead.
"""

import os
from pathlib import Path

import interp
from interp.jit import compiled

__all__ = ["compiled", "drop_stale_cache"]


def drop_stale_cache() -> bool:
    """Remove the kernel's compiled code if any source is newer; True if compilation is due."""
    package = Path(__file__).parent
    sources = (*package.glob("*.py"), *Path(interp.__file__).parent.glob("*.py"))
    newest = max(source.stat().st_mtime for source in sources)
    cached = list((package / "__pycache__").glob("*.nb[ci]"))
    stale = [entry for entry in cached if entry.stat().st_mtime < newest]
    if stale and os.access(package, os.W_OK):
        for entry in cached:
            entry.unlink(missing_ok=True)
        return True
    return not cached
