"""Settings that may change while the planner runs, and how they survive a restart.

A change is a dotted key and a value, as in the file. All changes of one call hold together or not at all: the
whole configuration with them must be valid, and the policy must be able to plan with it. Stored are the
changes, each with the configured value that it covers, and who made it when: when the configuration itself
gets another value, that is newer and wins. They hold for one fleet (`fleet_of`): what may act on one may not
on another that is attached later. A store that ends with its Ray may name a file that does not (`KEPT_IN`):
changes are kept there, too, and the next Ray finds them. The effective SLO is stored beside them
(`planner/settings`, key `slo`): gateways and routers follow it (`follow_slo`).
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from actors.store import Store
from actors.stored import Kind, keep, put, read
from headway.config import ConfigError, HeadwayConfig, SloSettings, load_config
from headway.workload import whole_file

logger = logging.getLogger(__name__)

KEY = "planner/settings"
KIND = Kind("settings", dict[str, Any])
STARTED = "planner/started"
SETTINGS = "planner/configuration"
CONFIGURATION = Kind("configuration", str)
"""The configuration as it was handed over last."""
KEPT_IN = "planner/settings_file"
PLACE = Kind("place", str)
"""The path of a file, where there is one that outlives this store."""
FOLLOW_EVERY_S = 1.0

Tree = Mapping[str, Any]

CHANGEABLE = (
    "slo.ttft_ms",
    "slo.itl_ms",
    "slo.attainment",
    "planner.max_gpu_budget",
    "planner.max_step",
    "planner.dry_run",
    "connector.foreign_edits",
    "connector.yield_s",
    "fleet.gpus",
    "fleet.host_memory",
    "share.priority",
    "share.weight",
    "share.floor_gpus",
    "share.ceiling_gpus",
    "share.lend",
    "pools.ROLE.min_replicas",
    "pools.ROLE.max_replicas",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who changed a setting, empty where that is not known, and when (Unix seconds)."""

    by: str = ""
    at: float | None = None


NOBODY = Author()


class RuntimeSettings:
    """A configuration and the changes made to it since. `version` rises with every change."""

    def __init__(self, config: HeadwayConfig, store: Store) -> None:
        self._base = dump(config)
        self._store = store
        self._changes: dict[str, Any] = {}
        self._authors: dict[str, Author] = {}
        self.config = config
        self.version = 0
        self._restore()
        self._save(self.config, self._changes, self._authors, write=keep)

    @property
    def authors(self) -> Mapping[str, Author]:
        """Who made the changes that are in force, by dotted key."""
        return {key: self._authors.get(key, NOBODY) for key in self._changes}

    @property
    def changes(self) -> dict[str, Any]:
        """The changes that are in force, by dotted key."""
        return dict(self._changes)

    def update(
        self,
        changes: Tree,
        check: Callable[[HeadwayConfig], None] | None = None,
        author: Author = NOBODY,
    ) -> dict[str, Any]:
        """Make changes that `check` does not refuse with a ValueError; all changes in force.

        A value that a setting has already stays the change of who made it. ConfigError, one line, when they
        are refused: then nothing has changed.
        """
        wanted = {**self._changes, **flatten(changes)}
        made = [key for key in wanted if key not in self._changes or wanted[key] != self._changes[key]]
        authors = {**self._authors, **dict.fromkeys(made, author)}
        config = changed(self._base, wanted)
        for role, pool in config.pools.items():
            key = f"pools.{role}.min_replicas"
            if pool.min_replicas == 0 != value_at(self._base, key):
                raise ConfigError(f"{key}: for 0 start with it: gateways hold requests if they did")
        try:
            if check is not None:
                check(config)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        # Stored first: a change that the store refuses is not in force either.
        self._save(config, wanted, authors)
        self._changes, self._authors, self.config = wanted, authors, config
        self.version += 1
        return self.changes

    def rebase(self, config: HeadwayConfig) -> None:
        """Go by another configuration from now on, as a restart with it would: its newer values win."""
        self._base, self._changes, self._authors, self.config = dump(config), {}, {}, config
        self._restore()
        self._save(self.config, self._changes, self._authors)
        self.version += 1

    def _save(
        self,
        config: HeadwayConfig,
        changes: Mapping[str, Any],
        authors: Mapping[str, Author],
        *,
        write: Callable[[Store, Kind, str, object], None] = put,
    ) -> None:
        stored = {
            "slo": config.slo.model_dump(),
            "fleet": fleet_of(config),
            "changes": {
                key: {
                    "value": value,
                    "covers": value_at(self._base, key),
                    **asdict(authors.get(key, NOBODY)),
                }
                for key, value in changes.items()
            },
        }
        write(self._store, KIND, KEY, stored)
        if (path := _named_file(self._store)) is not None:
            try:
                with whole_file(path) as file:
                    file.write(json.dumps(stored).encode())
            except OSError as error:
                logger.warning("changes of settings will not outlive this Ray: %s", error)

    def _restore(self) -> None:
        found, path = kept_in_store(self._store, self.config), _named_file(self._store)
        if found is None and path is not None:
            found = kept_in_file(path, self.config)
        if found is not None:
            self.config, self._changes, self._authors = found


Kept = tuple[HeadwayConfig, dict[str, Any], dict[str, Author]]
"""A configuration with the changes that were kept, these changes, and their authors."""


def kept_in_store(store: Store, config: HeadwayConfig, *, own: bool = True) -> Kept | None:
    """What a store has kept; None where it has nothing. Unless it is our own, it stays as it is."""
    return read(store, KIND, KEY, lambda stored: _kept(config, stored), own=own)


def kept_in_file(path: Path, config: HeadwayConfig) -> Kept | None:
    """The same of a file; None, which is logged, where it cannot be read."""
    try:
        return _kept(config, json.loads(path.read_bytes())) if path.exists() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("changes of settings that %s has kept are dropped: %s", path, error)
        return None


def _named_file(store: Store) -> Path | None:
    return read(store, PLACE, KEPT_IN, Path)


def _kept(config: HeadwayConfig, stored: Mapping[str, Any]) -> Kept:
    """What does not hold any more is dropped, which is logged."""
    base = dump(config)
    listed = stored.get("changes", {}) if stored.get("fleet") in (None, fleet_of(config)) else {}
    kept = {key: item["value"] for key, item in listed.items() if value_at(base, key) == item["covers"]}
    authors = {key: Author(by=item.get("by", ""), at=item.get("at")) for key, item in listed.items()}
    try:
        return changed(base, kept), kept, authors
    except ConfigError as error:
        logger.warning("stored changes of settings are dropped: %s", error)
        return config, {}, {}


def changed(base: Tree, changes: Mapping[str, Any]) -> HeadwayConfig:
    """The configuration `base` with these changes. ConfigError for those that it cannot take."""
    tree = base
    for key, value in changes.items():
        check_key(key, base)
        tree = _with(tree, key.split("."), value)
    return load_config(None, tree)


def fleet_of(config: HeadwayConfig) -> str:
    """A checksum of what is planned for: the model, and the target that is scaled."""
    target = config.connector.model_dump(mode="json", include={"kind", "options", "ray_serve", "kubernetes"})
    return sha256(json.dumps([config.model, target], sort_keys=True).encode()).hexdigest()[:16]


def dump(config: HeadwayConfig) -> dict[str, Any]:
    """A configuration as plain data, without secrets."""
    return config.model_dump(mode="json", exclude={"gateway": {"api_keys"}})


def fixed(config: HeadwayConfig) -> Tree:
    """The settings that running actors cannot take, as plain data; those that they can are left out.

    So are the gateway's: no actor goes by them.
    """
    tree = dump(config)
    del tree["gateway"]
    for key in CHANGEABLE:
        section, _, rest = key.partition(".")
        for part in tree[section].values() if section == "pools" else (tree[section],):
            part.pop(rest.rpartition(".")[2], None)
    return tree


def flatten(changes: Tree, prefix: str = "") -> dict[str, Any]:
    """`{"slo": {"ttft_ms": 200}}` and `{"slo.ttft_ms": 200}` alike as dotted keys. ConfigError otherwise."""
    if not isinstance(changes, Mapping):
        raise ConfigError(f"settings: should hold keys and values, not {type(changes).__name__}")
    flat: dict[str, Any] = {}
    for key, value in changes.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def check_key(key: str, base: Tree) -> None:
    """ConfigError when a key cannot be changed while running, or names a pool that there is not."""
    parts = key.split(".")
    pool = parts[1] if parts[0] == "pools" and len(parts) == 3 else None
    general = key if pool is None else f"pools.ROLE.{parts[2]}"
    if general not in CHANGEABLE:
        raise ConfigError(f"{key}: cannot be changed while running; these can: {', '.join(CHANGEABLE)}")
    if pool is not None and pool not in base["pools"]:
        raise ConfigError(f"{key}: there is no pool {pool}; there are {', '.join(base['pools'])}")


def value_at(tree: Tree, key: str) -> Any:  # noqa: ANN401 - any setting
    """The value of a dotted key, None where there is none."""
    node: Any = tree
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _with(tree: Tree, parts: list[str], value: Any) -> dict[str, Any]:  # noqa: ANN401 - any setting
    head, *rest = parts
    return {**tree, head: _with(tree.get(head, {}), rest, value) if rest else value}


async def follow_slo(
    store: Store, take: Callable[[float, float], None], period_s: float = FOLLOW_EVERY_S
) -> None:
    """Until cancelled, hand TTFT and ITL targets in seconds to `take` whenever they have changed.

    A store that does not answer leaves the targets as they are.
    """
    known: SloSettings | None = None
    while True:
        slo = await asyncio.to_thread(_stored, store)
        if slo is not None and slo != known:
            take(slo.ttft_s, slo.itl_s)
            known = slo
        await asyncio.sleep(period_s)


def _stored(store: Store) -> SloSettings | None:
    try:
        return read(store, KIND, KEY, lambda document: SloSettings.model_validate(document["slo"]), own=False)
    except Exception:  # Ray's client raises what its transport raises; the next look tries again
        logger.warning("the store does not answer, the SLO stays as it is", exc_info=True)
        return None
