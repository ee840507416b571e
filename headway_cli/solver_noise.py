"""HiGHS prints a line about itself now and then, whatever it is told; it is not to be among our results."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STDOUT, STDERR = 1, 2


@contextmanager
def stdout_of_c_to_stderr() -> Iterator[None]:
    """What compiled code writes to standard output in this block goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, STDOUT)
        os.close(kept)
