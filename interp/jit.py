"""How loops are compiled: one typed decorator for this package and for the simulator's kernel."""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """`function` compiled on first use, the machine code cached beside its file or in the user's cache.

    Where neither can be written (a read-only image), it is compiled anew in each process. Division by zero
    gives infinity or NaN, as in numpy.
    """
    try:
        return cast("Function", numba.njit(cache=True, error_model="numpy")(function))
    except RuntimeError:
        return cast("Function", numba.njit(error_model="numpy")(function))
