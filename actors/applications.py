"""The applications that the control plane serves: one deployment each, of a model of its own.

`control_plane/applications` in the store has them: their settings, the token of their last start, and where
their actors keep what a restart needs. The first one's lies where that of an only one always did, that of
others under `applications/NAME/`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from actors.store import InternalKvStore, Store
from actors.stored import Kind, put, read

KEY = "control_plane/applications"
KIND = Kind("applications", dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One application: settings as JSON, a checksum of those that its actors cannot change, the token of its
    last start, and the prefix of its keys in the store.
    """

    settings: str
    checksum: str
    token: str
    prefix: str
    model: str


def applications(store: Store) -> Mapping[str, Served]:
    """By name, in the order in which they came."""
    return read(store, KIND, KEY, _served, own=False) or {}


def register(store: Store, served: Mapping[str, Served]) -> None:
    """Have these be the applications that there are."""
    put(store, KIND, KEY, {name: asdict(each) for name, each in served.items()})


def default(served: Mapping[str, Served]) -> str:
    """The one that calls without an application are for; empty where there is none."""
    return next((name for name, each in served.items() if not each.prefix), next(iter(served), ""))


def prefix_of(name: str, served: Mapping[str, Served]) -> str:
    """Where the keys of an application are that may be new."""
    if name in served:
        return served[name].prefix
    return "" if all(each.prefix for each in served.values()) else f"applications/{name}/"


class ApplicationStore(InternalKvStore):
    """The store of an application as its own actors have it, for processes that begin before they do."""

    def __init__(self, application: str) -> None:
        super().__init__()
        self._application, self._whole = application, InternalKvStore()

    def _key(self, key: str) -> str:
        return super()._key(prefix_of(self._application, applications(self._whole)) + key)


def _served(stored: Mapping[str, Any]) -> Mapping[str, Served]:
    return {name: Served(**each) for name, each in stored.items()}
