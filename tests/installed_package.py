"""A package with entry points, as if it were installed beside headway."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway import extensions
from headway.config import json_schema


@contextmanager
def installed_package(directory: Path, module: str, code: str, entry_points: str) -> Iterator[Path]:
    """`module` with this code, and with the text of its `entry_points.txt`; the directory that has that."""
    (directory / f"{module}.py").write_text(code)
    info = directory / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    sys.path.insert(0, str(directory))
    _forget()
    try:
        yield info
    finally:
        sys.path.remove(str(directory))
        sys.modules.pop(module, None)
        _forget()


def _forget() -> None:
    """Installed packages and the schema that names them are read once a process."""
    extensions.installed.cache_clear()
    json_schema.cache_clear()
