"""Files that appear whole or stay as they were: written beside their place, then moved there.

Links are followed, so that what they point to is what changes. What exists and is no regular file (a pipe, a
device) cannot be replaced and is written directly.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write, in place at `path` once the block has ended well; raises OSError."""
    if path.exists() and not path.is_file():
        with path.open("wb") as direct:
            yield direct
        return
    place = Path(os.path.realpath(path))
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)
