"""The decorator that compiles loops, for this package, the engine model, the simulator and the router.

numba keeps compiled code on disk and checks only the file of the function itself; an edit of a callee or a
constant in a neighbouring file would go unnoticed. `drop_older` compares the cache with all of its sources.
"""

import os
from collections.abc import Callable, Iterable
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
    try:
        return cast("Function", numba.njit(cache=True, error_model="numpy", **options)(function))
    except RuntimeError:
        return cast("Function", numba.njit(error_model="numpy", **options)(function))


def drop_older(cached: Iterable[Path], sources: Iterable[Path]) -> bool:
    """Remove all `cached` files if one of them is older than a source; True if none is left then.

    Other processes may do the same at the same time: a file that vanishes meanwhile is a file removed. Files
    in a directory that cannot be written stay.
    """
    newest_s, cached = max(map(_modified_s, sources)), list(cached)
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
