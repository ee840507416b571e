"""The meaning of metric names for each kind of system that we can read, and the series that follow from it.

The names are data: `presets.yaml` beside this module, changed by `metrics.overrides`. All sources read them;
`series` has what follows from them for one model.

Where a system counts no arrivals, they follow from conservation: arrivals = requests that ended + change of
the requests in flight, both read in one scrape.

Engines report by themselves. With separate prefill and decode engines each request passes two of them. Where
their series are told apart by role, each quantity is read where it is whole:

    queue, TTFT and cached tokens                       prefill engines
    what ends, lengths, duration and ITL                decode engines
    requests in flight, for arrivals                    both: a request is in one of them at a time

Where they are not, each request counts twice: then read the gateway in front. Roles of pools are known to
headway (label `role`) and SGLang (`engine_type`); else vLLM engines count as mixed; Dynamo's frontend has no
load of pools.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from headway.config import ConfigError
from headway.config.presets import PresetSettings, SeriesSettings
from headway.config.yaml_file import read_yaml
from headway.planning import Role

Labels = tuple[tuple[str, str], ...]

UNITS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "share": 1.0, "percent": 1e-2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A counter, a gauge, or the base name of a histogram, and the labels that its samples must carry."""

    name: str
    where: Labels = ()
    engine: bool = False
    """True if each engine has one."""
    also: tuple[str, ...] = ()
    """Other names of the same samples."""
    per: str = ""
    """The counter of requests that this counter of tokens is divided by; empty for a histogram."""
    labels: tuple[str, ...] = ()
    """The labels whose product is the value; without them it is the sample's own."""
    scale: float = 1.0
    """What a value is multiplied by, for seconds or a share of 1."""

    @property
    def parts(self) -> tuple[str, str]:
        """The names of the sum and of the count of a histogram."""
        return (self.name, self.per) if self.per else (f"{self.name}_sum", f"{self.name}_count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Gauges of the load of pools, and the label with their role (None: all are mixed)."""

    running: Series
    waiting: Series
    kv_usage: Series
    by_model: bool = True
    """False where these gauges lack the model's label: gateways show the replicas that they know."""
    role_label: str | None = None
    roles: Mapping[str, Role] = field(default_factory=lambda: {role.value: role for role in Role})


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Metric names of one kind of system.

    `requests` are counters and `in_flight` gauges; arrivals are the increase of the first plus the change of
    the second. `alive` is there as soon as the system runs.
    """

    name: str
    model_label: str
    alive: Series
    requests: tuple[Series, ...]
    in_flight: tuple[Series, ...] = ()
    completed: Series
    met: Series | None = None
    missed: Series | None = None
    repeats: Series | None = None
    """The prompts of arrivals that are earlier ones tried again, which `requests` and `isl` have too."""
    isl: Series
    osl: Series
    duration: Series
    ttft: Series
    itl: Series
    queue: Series | None = None
    cached: Series | None = None
    """A counter of prompt tokens that were not computed again."""
    prompts: Series | None = None
    """A counter of prompt tokens; where it is named engines teach the performance model."""
    prefill_time: Series | None = None
    """A histogram of what prompts took, queueing apart; None: TTFT less `queue`."""
    preemptions: Series | None = None
    iterations: Series | None = None
    generated: Series | None = None
    """A counter of output tokens, more than its gaps where an engine decodes speculatively."""
    kv_tokens: Series | None = None
    """The tokens that an engine's KV cache holds."""
    engines: str = ""
    """The preset of the engines behind a router; empty: this one."""
    load: Load | None = None
    replicated: tuple[str, ...] = ()
    """Labels of ranks that each show the figures of their whole engine."""
    rank: str = ""
    """Label of data-parallel ranks, of which each replica has each one once; empty: none."""
    prefix: str = ""
    path: str = "/metrics"
    """Where an engine shows its metrics."""
    labelled_model: str = ""
    """The label's value if it is not the model's name."""
    any_case: bool = False

    def model(self, name: str) -> str:
        """The value of the model's label; what begins with `~` is a regular expression."""
        if self.labelled_model or not self.any_case:
            return self.labelled_model or name
        return f"~(?i:{re.escape(name)})"

    def every(self) -> Iterator[tuple[str, Series]]:
        """Each series with its quantity."""
        for quantity in ("requests", "in_flight"):
            yield from ((quantity, series) for series in getattr(self, quantity))
        for quantity in (*SINGLE, "alive"):
            if (series := getattr(self, quantity)) is not None:
                yield quantity, series
        for figure in FIGURES if self.load else ():
            yield figure, getattr(self.load, figure)

    @property
    def teaching(self) -> "Preset | None":
        """The names by which engines count their own work; None where they teach nothing."""
        shown = PRESETS[self.engines] if self.engines else self
        return shown if shown.prompts else None

    @property
    def totals(self) -> frozenset[str]:
        """The names of the samples by which engines count their own work, and of their KV capacity."""
        if (shown := self.teaching) is None:
            return frozenset()
        histograms = (shown.ttft, shown.queue, shown.prefill_time, shown.itl, shown.isl)
        others = (getattr(shown, name) for name in ("cached", "prompts", *OF_ENGINES[2:]))
        parts = [part for one in histograms if one for part in one.parts]
        return frozenset((*parts, *(one.name for one in others if one)))

    @property
    def unlabelled(self) -> frozenset[str]:
        """Those of them whose samples do not carry the model's label."""
        one = self.teaching.kv_tokens if self.teaching else None
        return frozenset({one.name} if one and one.labels else ())


OF_ENGINES = ("prompts", "prefill_time", "preemptions", "iterations", "generated", "kv_tokens")
SINGLE = (
    *("completed", "met", "missed", "repeats", "isl", "osl", "duration", "ttft", "itl", "queue", "cached"),
    *OF_ENGINES,
)
OPTIONAL = frozenset({"met", "missed", "repeats", "queue", "cached", *OF_ENGINES})
FIGURES = ("running", "waiting", "kv_usage")
Tree = dict[str, Any]


def preset(name: str, overrides: PresetSettings | None = None) -> Preset:
    """The preset of that name with these overrides. ConfigError: they leave it without what it needs."""
    tree = _over(_tree(name), {} if overrides is None else overrides.model_dump())
    series: Mapping[str, tuple[Tree, ...]] = tree["series"]
    shown = {key: tuple(_series(tree, key, one) for one in every) for key, every in series.items() if every}
    wanted = {*SINGLE, "requests", "alive"} - OPTIONAL
    wanted |= set(FIGURES) if any(figure in shown for figure in FIGURES) else set()
    nameless = [key for key, every in shown.items() if not all(one.name for one in every)]
    if missing := [*sorted(wanted - shown.keys()), *nameless]:
        raise ConfigError(
            f"metrics.overrides.series: with preset {name} needs a name of {', '.join(missing)}"
        )
    own = ("prefix", "path", "any_case", "replicated", "rank", "engines")
    fields: Tree = {key: tree[key] for key in own if tree.get(key) is not None}
    fields |= {key: shown[key][0] for key in (*SINGLE, "alive") if key in shown}
    if "running" in shown:
        roles = {label: Role(role) for label, role in tree.get("roles", {}).items()}
        load: Tree = {figure: shown[figure][0] for figure in FIGURES} | ({"roles": roles} if roles else {})
        by_model, role_label = tree.get("by_model", True), tree.get("role_label") or None
        fields["load"] = Load(**load, by_model=by_model, role_label=role_label)
    return Preset(
        name=name,
        model_label=tree["model_label"],
        requests=shown["requests"],
        in_flight=shown.get("in_flight", ()),
        labelled_model=tree.get("model", ""),
        **fields,
    )


@cache
def _table() -> Mapping[str, Tree]:
    return read_yaml(Path(__file__).with_name("presets.yaml"))


def _tree(name: str) -> Tree:
    """A preset of the file, with the one that it is like."""
    entry = dict(_table()[name])
    like = entry.pop("like", None)
    given = PresetSettings.model_validate(entry).model_dump()
    return given if like is None else _over(_tree(like), given)


def _over(base: Tree, given: Tree) -> Tree:
    """The base with another prefix, and what is given in place of its own."""
    before: str = base["prefix"]
    prefix: str = given.get("prefix", before)

    def renamed(name: str) -> str:
        return prefix + name.removeprefix(before) if name and name.startswith(before) else name

    series = {
        key: tuple(
            one
            | {each: renamed(one[each]) for each in ("name", "per") if each in one}
            | {"also": tuple(map(renamed, one.get("also", ())))}
            for one in every
        )
        for key, every in base["series"].items()
    }
    for key, every in given.get("series", {}).items():
        known = series.get(key, ())
        alike = len(known) == len(every)
        series[key] = tuple(
            # Another name has no former ones.
            ({} if "name" in one else known[place]) | one if alike else one
            for place, one in enumerate(every)
        )
    return {**base, **given, "series": series}


def _series(tree: Tree, quantity: str, given: Tree) -> Series:
    one = SeriesSettings.model_validate(given)
    return Series(
        name=one.name,
        where=tuple(one.where.items()),
        engine=tree.get("engine", False) and quantity not in tree.get("fleet", ()),
        also=one.also,
        per=one.per,
        labels=one.labels,
        scale=UNITS[one.unit],
    )


class _Presets(Mapping[str, Preset]):
    """The presets by name, read when they are first asked for."""

    def __getitem__(self, name: str) -> Preset:
        if name not in _table():
            raise KeyError(name)
        return _made(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_table())

    def __len__(self) -> int:
        return len(_table())


@cache
def _made(name: str) -> Preset:
    return preset(name)


PRESETS: Mapping[str, Preset] = _Presets()
"""The ways in which we read systems."""
