"""A cache of compiled code that never outlives its sources (`interp.jit`): whole packages are compared."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import interp
import interp.jit
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
    """Empty the cache of compiled code if anything in it is older than a source; True if it is empty then."""
    sources = (source for package in packages for source in package.glob("*.py"))
    return interp.jit.drop_older(cache_directory.glob("*.nb[ci]"), sources)
