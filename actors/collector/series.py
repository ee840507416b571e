"""The series of one model in one kind of system, and what each of its samples feeds. Pure.

A quantity is a figure that an interval is asked for (`requests`, `ttft`, ...). A channel is one of the series
behind it: the count, the sum or the buckets. Where engines are told apart by role, their samples carry the
label ROLE, whatever source read them.

Load of pools are gauges of replicas, per role:

    running, waiting   summed over the replicas of the role, averaged over time: requests in the pool
    kv_usage           averaged over the replicas, averaged over time

Their totals are an integral over time (`sum`, value x seconds) and the seconds (`count`). A read's value
stands for the time since the read before.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isnan
from typing import NamedTuple

from actors.collector.exposition import INSTANCE, LE, ROLE, Samples, SeriesId, can_be, carries
from actors.collector.interval import NOTHING, Increase, PoolLoad, Quantity
from actors.collector.presets import Labels, Load, Preset, Series
from headway.planning import Role
from headway.words import first_few

MOST_SERIES = 500_000
ENGINE = (INSTANCE, "pod", "ReplicaId")
"""Labels that tell engines apart; the last is Ray Serve LLM's, whose engines share the page of their node."""
GROUP = "leaderworkerset_sigs_k8s_io_group_key"
"""Label of the pods of a LeaderWorkerSet's group, as a Prometheus spells it."""


class Part(StrEnum):
    """The part of a quantity that a series carries."""

    COUNT = "count"
    SUM = "sum"
    BUCKET = "bucket"


class Group(NamedTuple):
    """The series that are reset together: a counter, or the parts of one histogram."""

    quantity: Quantity
    name: str
    labels: Labels
    engine: str | None = None
    """The engine that shows it; None where one address shows all there is."""

    def __str__(self) -> str:
        labels = ",".join(f'{key}="{value}"' for key, value in self.labels)
        return f"{self.name}{{{labels}}}"


Parts = Mapping[str, float]
"""The values of a group: `count`, `sum`, and by upper bound those of the buckets."""

Key = tuple[str, str]
"""A quantity and its part: where samples of several series add up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """Samples called `name` with the labels `where` feed `part` of `quantity`.

    `role` is that of the engines that show it, None where they are not told apart. The change of a gauge may
    be negative; a counter that falls was reset.
    """

    quantity: Quantity
    part: Part
    name: str
    where: Labels
    role: Role | None = None
    gauge: bool = False
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """Samples of one figure of the load of pools; replicas add up (`running`, `waiting`) or average."""

    figure: str
    name: str
    where: Labels
    role: Role | None = None
    """The role of its engines; None where a label has it."""
    scale: float = 1.0

    @property
    def averaged(self) -> bool:
        """True if the figure is a mean over replicas rather than a sum."""
        return self.figure == "kv_usage"


HISTOGRAMS = (
    Quantity.ISL,
    Quantity.OSL,
    Quantity.DURATION,
    Quantity.TTFT,
    Quantity.ITL,
    Quantity.QUEUE,
    Quantity.REPEATS,
)
WITH_BUCKETS = frozenset({Quantity.TTFT, Quantity.ITL, Quantity.ISL, Quantity.OSL})

OF_PREFILL = frozenset({Quantity.TTFT, Quantity.QUEUE, Quantity.CACHED})
"""Read from prefill engines, where there are separate ones; the rest from decode engines."""


class _Feed(NamedTuple):
    """One part of a group, or a gauge of requests in flight."""

    group: Group
    part: str
    gauge: bool
    scale: float


class Refused(NamedTuple):
    """A sample that cannot be, by what it feeds, and a line on it."""

    quantity: Quantity
    gauge: bool
    line: str


class ModelSeries:
    """The channels and gauges of a model; `roles` are those that engines are told apart by."""

    def __init__(self, preset: Preset, model: str, roles: Iterable[Role] = ()) -> None:
        self.preset, self.model, self.roles = preset, model, tuple(roles)
        self.of_model: Labels = ((preset.model_label, preset.model(model)),)
        self.split = Role.PREFILL in self.roles and Role.DECODE in self.roles
        """True if a request passes from one engine to another."""
        self.alive = SeriesId(preset.alive.name, self._where(preset.alive))
        self.channels = tuple(self._channels())
        self.gauges = tuple(self._gauges(preset.load)) if preset.load else ()
        shown = [self.alive.name, *(each.name for each in self.channels)]
        shown += [gauge.name for gauge in self.gauges]
        self.names: Mapping[str, tuple[str, ...]] = _spelt(preset, (*preset.totals, *shown))
        self.in_flight_names = frozenset(c.name for c in self.channels if c.gauge)
        self._counter_names = frozenset(c.name for c in self.channels if not c.gauge)
        self._load_names = frozenset(gauge.name for gauge in self.gauges)
        # What all gateways of a fleet show alike: its replicas.
        by_gateways = preset.load is not None and not preset.load.by_model
        self.shared = frozenset(gauge.name for gauge in self.gauges) if by_gateways else frozenset()
        self._fed: dict[SeriesId, tuple[_Feed, ...]] = {}
        self._loads: dict[SeriesId, tuple[tuple[Role, Gauge, Labels], ...]] = {}

    def is_gauge(self, name: str) -> bool:
        """True for requests in flight and load of pools."""
        return name in self.in_flight_names or name in self._load_names

    def shows(self, samples: Samples) -> bool:
        """True if the samples have what every running system of this kind shows."""
        return any(map(self.is_alive, samples))

    def replicas(self, samples: Iterable[SeriesId]) -> dict[str, str]:
        """Engine → the replica that it is or is a part of, as a target counts them: the names of its engines.

        A LeaderWorkerSet's group or else a pod is a replica. Without them a replica has each rank once.
        """
        parts: dict[object, set[str]] = {}
        ranks: dict[str, set[tuple[str, str]]] = {}
        for series in filter(self.is_alive, samples):
            labels, engine = dict(series.labels), engine_of(series.labels)
            if engine and (pod := labels.get(GROUP) or labels.get("pod")):
                parts.setdefault((pod, labels.get("namespace"), labels.get("ReplicaId")), set()).add(engine)
            elif engine:
                ranks.setdefault(engine, set()).add((labels.get(ROLE, ""), labels.get(self.preset.rank, "")))
        taken: Counter[tuple[str, str]] = Counter()
        for engine, own in sorted(ranks.items()):
            place = 1 + max(taken[rank] for rank in own)
            taken |= Counter(dict.fromkeys(own, place))
            parts.setdefault((place, min(own)[0]), set()).add(engine)
        return {engine: "+".join(sorted(each)) for each in parts.values() for engine in each}

    def named(self, before: Samples, now: Samples) -> Counter[str]:
        """The requests between two reads by the model's label, of engines and gateways of this model."""
        found: Counter[str] = Counter()
        ours = {engine_of(series.labels) for series in filter(self.is_alive, now.keys() & before.keys())}
        counters = [each for each in self.channels if each.quantity is Quantity.REQUESTS and not each.gauge]
        where = {each.name: tuple({*each.where} - {*self.of_model}) for each in counters}
        for (name, labels), value in now.items():
            if name in where and engine_of(labels) in ours and carries(labels, where[name]):
                model = dict(labels).get(self.preset.model_label, "")
                found[model] += max(0, round(value - before.get(SeriesId(name, labels), 0.0)))
        return found

    def not_counted(self, named: Mapping[str, float]) -> str:
        """A line on requests that came under other names than the model's; mostly none."""
        label, of_model = self.preset.model_label, self.of_model
        others = {
            name: n for name, n in named.items() if n >= 0.5 and not carries(((label, name),), of_model)
        }
        if not others:
            return ""
        return (
            f"{sum(others.values()):.0f} of {sum(named.values()):.0f} requests carry other names "
            f"({first_few(sorted(others))}) and are not counted (metrics.overrides.model)"
        )

    def is_alive(self, series: SeriesId) -> bool:
        """True for the sign of life of this model."""
        name, where = self.alive
        return series.name == name and carries(series.labels, where)

    def spelt(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names with their other spellings."""
        return tuple(dict.fromkeys(each for name in names for each in self.names.get(name, (name,))))

    def counters(self, samples: Samples) -> dict[Group, dict[str, float]]:
        """The counters, by what is reset together."""
        groups: dict[Group, dict[str, float]] = {}
        for series, value in samples.items():
            if series.name in self._counter_names:
                for group, part, _, scale in self._feeds(series):
                    parts = groups.setdefault(group, {})
                    parts[part] = max(value * scale, parts.get(part, 0.0))
        return groups

    def in_flight(self, samples: Samples) -> dict[Group, float]:
        """The requests in flight, gauge by gauge."""
        found: dict[Group, float] = {}
        for series, value in samples.items():
            for group, _, _, scale in self._feeds(series) if series.name in self.in_flight_names else ():
                found[group] = max(value * scale, found.get(group, 0.0))
        return found

    def refused(self, samples: Samples) -> list[Refused]:
        """The samples that cannot be."""
        return [
            Refused(group.quantity, gauge, f"{group.name} of {group.engine or 'all'} is {value:g}")
            for series, value in samples.items()
            if not can_be(value)
            for group, _, gauge, _ in self._feeds(series)
        ]

    def load(self, samples: Samples, elapsed_s: float) -> dict[Key, float]:
        """The integrals that one read adds to the load of pools; nothing for a role without replicas."""
        if not elapsed_s > 0:
            return {}
        found: dict[tuple[Role, Gauge], dict[Labels, float]] = {}
        for series, value in samples.items():
            for role, gauge, labels in self._load_of(series) if series.name in self._load_names else ():
                values = found.setdefault((role, gauge), {})
                values[labels] = max(value * gauge.scale, values.get(labels, 0.0))
        gained: dict[Key, float] = {}
        for (role, gauge), values in found.items():
            value = sum(values.values()) / (len(values) if gauge.averaged else 1)
            gained[_load_key(role, gauge.figure), "sum"] = value * elapsed_s
            gained[_load_key(role, gauge.figure), "count"] = elapsed_s
        return gained

    def _feeds(self, series: SeriesId) -> tuple[_Feed, ...]:
        """What a series feeds; found once, as pages show the same series each time."""
        if (found := self._fed.get(series)) is None:
            if len(self._fed) > MOST_SERIES:
                self._fed.clear()
            found = self._fed[series] = tuple(
                self._feed(channel, series)
                for channel in self.channels
                if channel.name == series.name and carries(series.labels, channel.where)
            )
        return found

    def _feed(self, channel: Channel, series: SeriesId) -> _Feed:
        labels, part, scale = self._of_engine(series.labels), channel.part.value, channel.scale
        if channel.part is Part.BUCKET:
            part, scale = dict(series.labels).get(LE, ""), 1.0
            part = part if channel.scale == 1.0 else f"{float(part) * channel.scale:.9g}"
        name = channel.name.removesuffix(f"_{channel.part}")
        return _Feed(Group(channel.quantity, name, labels, engine_of(labels)), part, channel.gauge, scale)

    def _of_engine(self, labels: Labels) -> Labels:
        """The labels without a bucket's bound, and without those of ranks that all show the same."""
        return tuple(label for label in labels if label[0] != LE and label[0] not in self.preset.replicated)

    def _load_of(self, series: SeriesId) -> tuple[tuple[Role, Gauge, Labels], ...]:
        if (found := self._loads.get(series)) is None:
            if len(self._loads) > MOST_SERIES:
                self._loads.clear()
            load = self.preset.load
            found = self._loads[series] = tuple(
                (role, gauge, self._of_engine(series.labels))
                for gauge in self.gauges
                if load is not None
                and gauge.name == series.name
                and carries(series.labels, gauge.where)
                and (role := gauge.role or role_of(load, series.labels)) is not None
            )
        return found

    def _channels(self) -> Iterable[Channel]:
        preset = self.preset
        counters = [(Quantity.REQUESTS, series, False) for series in preset.requests]
        counters += [(Quantity.REQUESTS, series, True) for series in preset.in_flight]
        ended = {
            Quantity.COMPLETED: preset.completed,
            Quantity.MET: preset.met,
            Quantity.MISSED: preset.missed,
            Quantity.CACHED: preset.cached,
        }
        counters += [(quantity, series, False) for quantity, series in ended.items() if series is not None]
        table = [(quantity, Part.COUNT, series, series.name, gauge) for quantity, series, gauge in counters]
        for quantity in HISTOGRAMS:
            histogram: Series | None = getattr(preset, quantity.value)
            if histogram is None:
                continue
            if histogram.per:
                names = {Part.COUNT: histogram.per, Part.SUM: histogram.name}
                table += [(quantity, part, histogram, name, False) for part, name in names.items()]
                continue
            parts = Part if quantity in WITH_BUCKETS else (Part.COUNT, Part.SUM)
            table += [(quantity, part, histogram, f"{histogram.name}_{part}", False) for part in parts]
        for quantity, part, series, name, gauge in table:
            for role in self._roles_read(quantity, gauge=gauge) if series.engine else (None,):
                yield Channel(
                    quantity=quantity,
                    part=part,
                    name=name,
                    where=self._where(series, role),
                    role=role,
                    gauge=gauge,
                    scale=1.0 if part is Part.COUNT else series.scale,
                )

    def _gauges(self, load: Load) -> Iterable[Gauge]:
        figures = {"running": load.running, "waiting": load.waiting, "kv_usage": load.kv_usage}
        for figure, series in figures.items():
            for role in self.roles or (None,) if series.engine else (None,):
                where = self._where(series, role) if load.by_model else series.where
                yield Gauge(figure=figure, name=series.name, where=where, role=role, scale=series.scale)

    def _where(self, series: Series, role: Role | None = None) -> Labels:
        """The labels that this model's samples of the series carry."""
        labels = {**dict(series.where), **dict(self.of_model)}
        return tuple(sorted({**labels, **({ROLE: role.value} if role else {})}.items()))

    def _roles_read(self, quantity: Quantity, *, gauge: bool) -> Sequence[Role | None]:
        """The roles whose engines show this quantity."""
        if not self.roles:
            return (None,)
        if gauge or not self.split:
            return self.roles
        return (Role.PREFILL,) if quantity in OF_PREFILL else (Role.DECODE,)


def engine_of(labels: Labels) -> str | None:
    """The engine that shows a series; None where one address shows all there is."""
    return "/".join([value for name, value in labels if name in ENGINE]) or None


def role_of(load: Load, labels: Labels) -> Role | None:
    """The role that a series' labels give its replicas; None if none that is known."""
    if load.role_label is None:
        return Role.MIXED
    return load.roles.get(dict(labels).get(load.role_label, ""))


def pool_loads(added: Mapping[str, Increase]) -> dict[Role, PoolLoad]:
    """Mean load by role, for the roles that had replicas in the interval."""
    loads: dict[Role, PoolLoad] = {}
    for role in Role:
        means = {
            figure: added.get(_load_key(role, figure), NOTHING).mean
            for figure in ("running", "waiting", "kv_usage")
        }
        if not all(isnan(mean) for mean in means.values()):
            loads[role] = PoolLoad(**means)
    return loads


def _spelt(preset: Preset, shown: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The names of what is shown, each with its other names: a part of a histogram has its part of each."""
    every = [*preset.every(), *(preset.teaching.every() if preset.teaching else ())]
    others = {
        f"{series.name}{part}": tuple(f"{other}{part}" for other in series.also)
        for _, series in every
        if series.also
        for part in ("", *(f"_{each.value}" for each in Part))
    }
    return {name: (name, *others.get(name, ())) for name in shown}


def _load_key(role: Role, figure: str) -> str:
    return f"load.{role}.{figure}"
