"""Extension points: implementations by name, built in or brought by another installed package.

Each extension point has a table of built-in names, kept by the package that owns the interface, and a group
of Python entry points for everybody else. Both map a name to `module:attribute`:

    BUILTIN = {"static": "headway.planning.static:STATIC"}          one line in the table, or

    [project.entry-points."headway.policies"]                       one line in the pyproject.toml of
    cheapest = "my_package.policies:CHEAPEST"                       any package installed beside headway

Nothing is imported before its name is used. Names of built-in implementations cannot be taken over.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
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
        return tuple(sorted({*self.builtin, *_installed(self.group)}))

    def __contains__(self, name: str) -> bool:
        return name in self.builtin or name in _installed(self.group)

    def load(self, name: str) -> Any:  # noqa: ANN401 - the owner of the extension point knows the type
        """The implementation of that name; ExtensionError names the known ones, or why it cannot be had."""
        if (target := self.builtin.get(name)) is not None:
            module, _, attribute = target.partition(":")
            return getattr(import_module(module), attribute)
        if (entry := _installed(self.group).get(name)) is None:
            raise ExtensionError(f"unknown {self.what} {name!r}; known: {', '.join(self.names())}")
        try:
            return entry.load()
        except Exception as error:
            raise ExtensionError(
                f"{self.what} {name!r} of {entry.value} cannot be loaded: {type(error).__name__}: {error}"
            ) from error


@cache
def _installed(group: str) -> Mapping[str, EntryPoint]:
    """Entry points of that group by name, read once a process: the installed packages do not change."""
    return {entry.name: entry for entry in entry_points(group=group)}
