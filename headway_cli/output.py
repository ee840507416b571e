"""Files that are whole or absent: checked before the long work, written beside their place, then moved."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console

from headway.workload import whole_file
from headway_cli.errors import CliError
from headway_cli.flags import option
from headway_cli.terminal import console

if TYPE_CHECKING:
    from headway.routing.offload import OffloadTrace

STDOUT = "-"
TO_STDOUT = "--json"
"""The flag that takes `-`."""


JsonFile = Annotated[str | None, option("FILE", "Write the result; - is standard output.")]
ReportFile = Annotated[str | None, option("FILE", "Write one self-contained HTML page.")]


def deliver(
    json_file: str | None,
    report: str | None,
    document: Callable[[], Mapping[str, Any]],
    page: Callable[[], str],
) -> Console:
    """Write the page and the document that were asked for.

    The console for the tables: standard error where the document has standard output.
    """
    if report is not None:
        write_text(Path(report), page())
    if json_file is not None:
        write_json(json_file, document())
    return console(to_stderr=json_file == STDOUT)


def check_outputs(outputs: Mapping[str, str | None], inputs: Iterable[str | None] = ()) -> None:
    """Raise CliError, naming the flag, unless each path can be written, is no input, and comes once."""
    seen = {os.path.realpath(place): place for place in inputs if place is not None}
    for flag, place in outputs.items():
        if place is None or (place == STDOUT and flag == TO_STDOUT):
            continue
        if place == STDOUT:
            raise CliError(f"{flag}: {STDOUT} is standard output, which only {TO_STDOUT} takes; name a file")
        _check(flag, Path(place))
        other = seen.setdefault(os.path.realpath(place), flag)
        if other != flag:
            raise CliError(f"{flag}: {place} is also used for {other}")


def _check(flag: str, path: Path) -> None:
    if path.is_dir():
        raise CliError(f"{flag}: {path} is a directory")
    if os.path.islink(os.path.realpath(path)):
        raise CliError(f"{flag}: {path} is a link that leads to itself")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise CliError(f"{flag}: {path} cannot be written: permission denied")
        if not path.is_file():
            return
    parent = Path(os.path.realpath(path)).parent
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


@contextmanager
def trace_lines(path: Path) -> Iterator[Callable[["Sequence[OffloadTrace]"], None]]:
    """A writer of offload traces as JSON lines; the file appears whole when the block has ended well."""
    with whole_file(path) as file:
        yield lambda traces: file.writelines(
            json.dumps(trace.breakdown(), allow_nan=False).encode() + b"\n" for trace in traces
        )


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text; a file appears whole or stays as it was. Devices and pipes are written directly."""
    try:
        with whole_file(path) as file:
            file.write(text.encode(errors="replace"))
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror or error}") from error
