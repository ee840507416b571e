"""The applications that the control plane serves: one deployment each, of a model of its own.

Each has a key `control_plane/applications/NAME` in the store: its settings, the token of its last start, and
where its actors keep what a restart needs. That of the first lies where that of an only one always did
(`control_plane/first` names it), that of others under `applications/NAME/`. Several may start at once.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from actors.store import InternalKvStore, Store
from actors.stored import Kind, put, read
from headway.config import HeadwayConfig

KEYS, FIRST = "control_plane/applications/", "control_plane/first"
KIND = Kind("application", dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One application: settings as JSON, a checksum of those that its actors cannot change, the token of its
    last start, its model, and the prefix of its keys in the store.
    """

    settings: str
    checksum: str
    token: str
    prefix: str
    model: str


def applications(store: Store) -> Mapping[str, Served]:
    """By name."""
    names = [key.removeprefix(KEYS) for key in store.keys(KEYS)]
    return {name: found for name in names if (found := served(store, name)) is not None}


def served(store: Store, name: str) -> Served | None:
    """One of them, None where there is none of that name."""
    return read(store, KIND, KEYS + name, lambda stored: Served(**stored), own=False)


def members_of(store: Store, fleet: str) -> Mapping[str, HeadwayConfig]:
    """The settings of the deployments that the gateway of this application serves, by name."""
    known = applications(store).items()
    found = {name: HeadwayConfig.model_validate_json(each.settings) for name, each in known}
    return {name: config for name, config in found.items() if config.fleet.application == fleet}


def host_of(name: str, served: Served) -> str:
    """The Serve application with which it lives: that of its engines, or, where others run those, the
    control plane's."""
    # Whole settings would take a second of a hundred applications.
    settings = json.loads(served.settings)
    return (settings["engine"]["kind"] == "external" and settings["fleet"]["application"]) or name


def register(store: Store, name: str, served: Served) -> None:
    """Have this be one of them."""
    put(store, KIND, KEYS + name, asdict(served))


def forget(store: Store, name: str, *, comes_again: bool = False) -> None:
    """Have it be none any more; one that comes again keeps its place."""
    store.delete(KEYS + name)
    if not comes_again and store.get(FIRST) == name.encode():
        store.delete(FIRST)


def first(store: Store) -> str:
    """The one that calls without an application are for; empty where there is none."""
    return (store.get(FIRST) or b"").decode()


def place_of(store: InternalKvStore, name: str) -> str:
    """The prefix of an application that starts: none where it is the first, or becomes it."""
    whose = store.claim(FIRST, name.encode())
    return "" if whose == name.encode() else f"applications/{name}/"


def store_of(name: str) -> InternalKvStore:
    """The store of an application as its actors have it."""
    found = served(InternalKvStore(), name)
    return InternalKvStore("" if found is None else found.prefix)


class ApplicationStore(InternalKvStore):
    """The same for processes that may begin before its actors do: it looks again each time."""

    def __init__(self, application: str) -> None:
        super().__init__()
        self._application, self._whole = application, InternalKvStore()

    def _key(self, key: str) -> str:
        first, name = self._whole.get(FIRST), self._application
        return super()._key(key if first in (None, name.encode()) else f"applications/{name}/{key}")
