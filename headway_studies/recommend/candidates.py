"""Candidates: engines × modes × chunk sizes, each one a set of overrides of the same configuration.

An engine is a profile, so a GPU type and a tensor-parallel size; its GPUs per replica are as profiled. Mixed
replicas are tried with several chunk sizes, unless the configuration sets one; in split pools the chunk size
is the configuration's. The other keys of the configuration stay as they are, but for what names a fleet or a
policy, which is what is looked for.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from headway.config import ConfigError, HeadwayConfig, Role, config_tree, load_config, resolve_profile
from interp import load_profile

GPU_KEYS = ("gpu", "gpu_type", "system")
"""Keys of a profile's meta.json that may name its GPU type."""

NOTHING: Mapping[str, Any] = {}


class Mode(StrEnum):
    """The two ways to serve: every replica does both phases, or each phase has a pool."""

    MIXED = "mixed"
    SPLIT = "split"

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of its pools."""
        return (Role.MIXED,) if self is Mode.MIXED else (Role.PREFILL, Role.DECODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """An engine that can be had: its name, `engine.profile`, GPU type, price and stock.

    `max_gpus` is how many GPUs of it there are (None: any number). Without prices all cost 1 per GPU-hour.
    """

    name: str
    profile: str
    gpu: str | None = None
    price_per_gpu_hour: float = 1.0
    max_gpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The configuration that all candidates share: a file, or None for the defaults, and keys over it."""

    file: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def config(self, more: Mapping[str, Any] = NOTHING) -> HeadwayConfig:
        """The configuration with `more` dotted keys. ConfigError as `load_config`."""
        return load_config(self.file, {**self.overrides, **more})

    def tree(self, more: Mapping[str, Any] = NOTHING) -> dict[str, Any]:
        """The same as a file would hold it."""
        return config_tree(self.file, {**self.overrides, **more})

    def having(self, more: Mapping[str, Any]) -> "Base":
        """The same with `more` keys over it."""
        return replace(self, overrides={**self.overrides, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An engine in one mode; `base` has its keys, all but those of fleet and policy."""

    engine: EngineChoice
    mode: Mode
    chunk_tokens: int | None
    base: Base

    @property
    def label(self) -> str:
        """Mode and chunk size, such as `mixed 2048`."""
        chunk = "" if self.chunk_tokens is None else f" {self.chunk_tokens}"
        return f"{self.mode}{chunk}"

    def pools(self, most: Mapping[Role, int]) -> dict[str, Any]:
        """The value of `pools`; `most` are the maximums of pools to which the configuration gives none."""
        given = {str(role): pool for role, pool in self.base.config().pools.items()}
        limits = {
            role: given[role].model_dump(exclude_unset=True, exclude={"gpus_per_replica"})
            for role in self.mode.roles
            if role in given
        }
        return {role.value: {"max_replicas": most[role]} | limits.get(role, {}) for role in self.mode.roles}

    def settings(self, most: Mapping[Role, int], fleet: Mapping[Role, int] | None) -> dict[str, Any]:
        """The overrides of pools and policy: a fixed `fleet`, or None for the policy `headway`."""
        if fleet is None:
            return {"pools": self.pools(most), "planner.policy": "headway"}
        counts = {role.value: count for role, count in fleet.items()}
        return {"pools": self.pools(most), "planner.policy": "static", "planner.static": counts}


def engine_choices(base: Base, profiles: Sequence[str]) -> tuple[EngineChoice, ...]:
    """The engines of profile directories; without any those of `gpu_types`, with their prices.

    Raises ConfigError or ProfileError for one that cannot be read, or is named twice.
    """
    types = base.config().gpu_types
    if not profiles:
        return tuple(
            replace(
                _engine(name, each.profile, f"gpu_types.{name}.profile"),
                gpu=name,
                price_per_gpu_hour=each.price_per_gpu_hour,
                max_gpus=each.max_gpus,
            )
            for name, each in types.items()
        )
    places = [resolve_profile(place, key="--profiles").resolve() for place in profiles]
    if repeated := next((place for place in places if places.count(place) > 1), None):
        raise ConfigError(f"--profiles: {repeated} comes twice")
    alike = Counter(place.name for place in places)
    names = [
        place.name if alike[place.name] == 1 else given for place, given in zip(places, profiles, strict=True)
    ]
    return tuple(_engine(name, given, "--profiles") for name, given in zip(names, profiles, strict=True))


def _engine(name: str, place: str, key: str) -> EngineChoice:
    directory = resolve_profile(place, key=key)
    meta = load_profile(directory).meta
    gpu = next((str(meta[word]) for word in GPU_KEYS if word in meta), None)
    # A shipped profile keeps its name; a directory is written so that the file can be used from anywhere.
    profile = str(directory.resolve()) if Path(place).is_dir() else place
    return EngineChoice(name=name, profile=profile, gpu=gpu)


def priced(engines: Sequence[EngineChoice], prices: Mapping[str, float]) -> tuple[EngineChoice, ...]:
    """The engines with prices per GPU-hour, found by name or GPU type; all of them or none.

    Raises ConfigError for a price of nothing that is tried, and for an engine without one.
    """
    if not prices:
        return tuple(engines)
    known = {word for engine in engines for word in (engine.name, engine.gpu) if word}
    if strangers := sorted(set(prices) - known):
        raise ConfigError(f"--gpu-prices: {strangers[0]} is none of {', '.join(sorted(known))}")
    return tuple(replace(engine, price_per_gpu_hour=_price(engine, prices)) for engine in engines)


def _price(engine: EngineChoice, prices: Mapping[str, float]) -> float:
    for word in (engine.name, engine.gpu):
        if word is not None and word in prices:
            return prices[word]
    also = f", GPU type {engine.gpu}" if engine.gpu else ""
    raise ConfigError(f"--gpu-prices: no price of {engine.name}{also}")


def candidates(
    base: Base, engines: Sequence[EngineChoice], modes: Sequence[Mode], chunks: Sequence[int]
) -> tuple[Candidate, ...]:
    """All candidates; `chunks` are tried in mixed replicas."""
    config = base.config()
    base = base.having(_neutral(config))
    return tuple(
        Candidate(
            engine=engine,
            mode=mode,
            chunk_tokens=chunk,
            base=base.having(_own(config, engine, chunk)),
        )
        for engine in engines
        for mode in modes
        for chunk in (chunks if mode is Mode.MIXED else (config.engine.chunk_tokens,))
    )


def _neutral(config: HeadwayConfig) -> dict[str, Any]:
    """A first fleet by role goes with one mode only, so all begin as sized."""
    named = isinstance(config.simulation.initial, Mapping)
    return {"simulation.initial": "sized"} if named else {}


def _own(config: HeadwayConfig, engine: EngineChoice, chunk: int | None) -> dict[str, Any]:
    budgets = [most for most in (config.planner.max_gpu_budget, engine.max_gpus) if most is not None]
    return {
        "engine.profile": engine.profile,
        "engine.chunk_tokens": chunk,
        "planner.max_gpu_budget": min(budgets, default=None),
    }
