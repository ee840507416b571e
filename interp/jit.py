"""The decorator that compiles loops, for all that is compiled.

numba keeps compiled code on disk and checks only the file of the function itself; an edit of a callee or a
constant in a neighbouring file would go unnoticed. `drop_stale_cache` compares the cache with all sources.
"""

import os
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """`function` compiled on first use, the machine code cached beside its file or in the user's cache.

    Where neither can be written (a read-only image), it is compiled anew in each process. Division by zero
    gives infinity or NaN, as in numpy.
    """
    return _compiled(function)


def compiled_in_place(function: Function) -> Function:
    """The same for a function that allocates nothing: references to its arrays are then not counted.

    Where many arrays are passed on together, counting takes several times as long as short loops themselves.
    """
    return _compiled(function, _nrt=False)


def _compiled(function: Function, **options: bool) -> Function:
    # Inlined: many arrays are passed on together, so a call would cost as much as a short function does.
    make = partial(numba.njit, error_model="numpy", forceinline=True, **options)
    try:
        return cast("Function", make(cache=True)(function))
    except RuntimeError:
        return cast("Function", make()(function))


@cache
def drop_stale_cache(*packages: str) -> bool:
    """Remove compiled code that is older than a source it may come from; True if the first has none left.

    Each of `packages` (modules may be named, too) is built on those that are named after it. Looks once a
    process: what is compiled after that is in memory.
    """
    newest_s, is_empty = -1.0, True
    for name in reversed(packages):
        directory, stem = _place_of(name)
        newest_s = max(newest_s, *map(_modified_s, directory.glob(f"{stem}.py")))
        is_empty = _drop_older(list(directory.glob(f"__pycache__/{stem}.*.nb[ci]")), newest_s)
    return is_empty


def _place_of(name: str) -> tuple[Path, str]:
    """The directory of a package, whose sources are all in it (`*`), or of a module, and its file's stem."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(name)
    source = Path(spec.origin)
    return source.parent, source.stem if spec.submodule_search_locations is None else "*"


def _drop_older(cached: Iterable[Path], newest_s: float) -> bool:
    """Remove all `cached` files if one of them is older than `newest_s`; True if none is left then.

    Other processes may do the same at the same time: a file that vanishes meanwhile is a file removed. Files
    in a directory that cannot be written stay.
    """
    cached = list(cached)
    older = any(_modified_s(entry) < newest_s for entry in cached)
    if not older or not all(os.access(entry.parent, os.W_OK) for entry in cached):
        return not cached
    for entry in cached:
        entry.unlink(missing_ok=True)
    return True


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return -1.0
