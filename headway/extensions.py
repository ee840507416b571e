"""Extension points: implementations by name, built in or brought by another installed package.

Each extension point has a table of built-in names, kept by the package that owns the interface, and a group
of Python entry points for everybody else. Both map a name to `module:attribute`:

    BUILTIN = {"static": "headway.planning.baselines:STATIC"}       one line in the table, or

    [project.entry-points."headway.policies"]                       one line in the pyproject.toml of
    cheapest = "my_package.policies:CHEAPEST"                       any package installed beside headway

Nothing is imported before its name is used. Names of built-in implementations cannot be taken over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any


class ExtensionError(LookupError):
    """No implementation of that name, or one that cannot be imported; one line for people."""


@dataclass(frozen=True, slots=True)
class ExtensionPoint:
    """A named set of implementations. `what` is the noun of error messages, such as "policy"."""

    group: str
    """The entry point group, such as `headway.policies`."""
    what: str
    builtin: Mapping[str, str]
    """Name → `module:attribute` of what this code base brings."""

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted({*self.builtin, *installed(self.group)}))

    def __contains__(self, name: str) -> bool:
        return name in self.builtin or name in installed(self.group)

    def load(self, name: str) -> Any:  # noqa: ANN401 - the owner of the extension point knows the type
        """The implementation of that name; ExtensionError names the known ones, or why it cannot be had."""
        if (target := self.builtin.get(name)) is not None:
            module, _, attribute = target.partition(":")
            return getattr(import_module(module), attribute)
        found = installed(self.group).get(name)
        if found is None:
            raise ExtensionError(f"unknown {self.what} {name!r}; known: {', '.join(self.names())}")
        entry, *others = found
        if others:
            rivals = " and ".join(each.value for each in found)
            raise ExtensionError(f"{self.what} {name!r} is declared twice, by {rivals}; rename or remove one")
        try:
            return entry.load()
        except Exception as error:
            raise ExtensionError(
                f"{self.what} {name!r} of {entry.value} cannot be loaded: {fault_line(error)}"
            ) from error

    def ignored(self) -> tuple[str, ...]:
        """A line for each installed implementation that has a built-in name, and so is never used."""
        taken = [entry for name in self.builtin for entry in installed(self.group).get(name, ())]
        return tuple(
            f"{self.what} {entry.name!r} of {entry.value} is ignored: the name is built in" for entry in taken
        )


def fault_line(error: Exception) -> str:
    """An exception in one line, with file and line of the code that was called.

    It is for the `except` directly around the call: the place is the deepest one in the package called,
    not in the libraries that this calls in turn. A call that did not reach its code has no place.
    """
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    frames = [
        (frame, line)
        for frame, line in walk_tb(error.__traceback__ and error.__traceback__.tb_next)
        if _package(frame) != "importlib" and not frame.f_code.co_filename.startswith("<")
    ]
    if not frames:
        return text
    called = _package(frames[0][0])
    frame, line = [each for each in frames if _package(each[0]) == called][-1]
    return f"{text} ({_file(frame)}:{line})"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _file(frame: FrameType) -> str:
    """The file of a frame, from its package's folder on."""
    path, name = Path(frame.f_code.co_filename), str(frame.f_globals.get("__name__", ""))
    depth = name.count(".") + 1 + (path.name == "__init__.py")
    return "/".join(path.parts[-depth:])


@cache
def installed(group: str) -> Mapping[str, Sequence[EntryPoint]]:
    """Entry points of that group by name, read once a process: the installed packages do not change.

    One for each target: more than one where packages disagree about a name.
    """
    found: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=group):
        found.setdefault(entry.name, {})[entry.value] = entry
    return {name: tuple(by_target.values()) for name, by_target in found.items()}
