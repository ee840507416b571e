"""Compiled code that is older than what it was compiled from is removed before it is used (see `interp.jit`).

A row added to `columns` would otherwise go unnoticed by what reads the table.
"""

from functools import cache
from pathlib import Path

import interp
from interp.jit import drop_older

COMPILED = ("table", "surfaces", "forecast", "plugins/headroom", "plugins/scorers", "plugins/pickers")
"""Modules with compiled functions, and those that these take constants from."""


@cache
def drop_stale_cache() -> bool:
    """Empty the cache of this package's compiled code if it is older than a source; whether it is empty then.

    Looks once a process. Other processes may do the same at the same time.
    """
    package = Path(__file__).parent
    return drop_stale(package, Path(interp.__file__).parent)


def drop_stale(package: Path, interpolation: Path) -> bool:
    """The same for a package that holds the modules COMPILED and what they call in `interpolation`."""
    sources = [package / f"{name}.py" for name in COMPILED]
    places = [package / name for name in COMPILED]
    cached = [entry for each in places for entry in each.parent.glob(f"__pycache__/{each.name}.*.nb[ci]")]
    return drop_older(cached, [*sources, *interpolation.glob("*.py")])
