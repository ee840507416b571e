"""What code keeps in memory, for tests of what is bounded."""

import tracemalloc
from collections.abc import Callable


def grown_bytes(work: Callable[[], object]) -> int:
    """The memory that `work` takes and does not give back."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
