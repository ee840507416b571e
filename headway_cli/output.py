"""Files that are whole or absent: checked before the long work, written beside their place, then moved."""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headway_cli.errors import CliError

STDOUT = "-"


def check_outputs(outputs: Mapping[str, str | None], inputs: Iterable[str | None] = ()) -> None:
    """Raise CliError, naming the flag, unless each path can be written, is no input, and comes once."""
    seen = {os.path.realpath(place): place for place in inputs if place is not None}
    for flag, place in outputs.items():
        if place is None or place == STDOUT:
            continue
        _check(flag, Path(place))
        other = seen.setdefault(os.path.realpath(place), flag)
        if other != flag:
            raise CliError(f"{flag}: {place} is also used for {other}")


def _check(flag: str, path: Path) -> None:
    if path.is_dir():
        raise CliError(f"{flag}: {path} is a directory")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise CliError(f"{flag}: {path} cannot be written: permission denied")
        if not path.is_file():
            return
    parent = path.resolve().parent
    if not parent.is_dir():
        raise CliError(f"{flag}: {path} cannot be written: no directory {path.parent}")
    if not os.access(parent, os.W_OK):
        raise CliError(f"{flag}: {path} cannot be written: permission denied in {path.parent}")


def write_json(place: str, document: Mapping[str, Any]) -> None:
    """Write strict JSON (NaN is an error here) to a path, or to standard output for `-`."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if place == STDOUT:
        sys.stdout.write(text)
    else:
        write_text(Path(place), text)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text; a file appears whole or stays as it was. Devices and pipes are written directly."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        _replace(path.resolve(), text)
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror or error}") from error


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
