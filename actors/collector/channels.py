"""From a preset to the list of series to follow: which samples feed which quantity, and how.

A quantity is what an interval is asked for (`requests`, `ttft`, ...). A channel is one of the series behind
it: the count, the sum or the buckets. Both sources read this one table.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from actors.collector.presets import Labels, Load, Preset, Series
from headway.planning import Role


class Quantity(StrEnum):
    """What is asked of an interval."""

    REQUESTS = "requests"
    COMPLETED = "completed"
    MET = "met"
    MISSED = "missed"
    ISL = "isl"
    OSL = "osl"
    DURATION = "duration"
    TTFT = "ttft"
    ITL = "itl"


class Part(StrEnum):
    """What of a quantity a series carries."""

    COUNT = "count"
    SUM = "sum"
    BUCKET = "bucket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """Samples called `name` with the labels `where` feed `part` of `quantity`.

    The change of a gauge may be negative; a counter that falls was reset.
    """

    quantity: Quantity
    part: Part
    name: str
    where: Labels
    gauge: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """Samples of one figure of the load of pools; replicas add up (`running`, `waiting`) or average."""

    figure: str
    name: str
    where: Labels
    averaged: bool


HISTOGRAMS = (Quantity.ISL, Quantity.OSL, Quantity.DURATION, Quantity.TTFT, Quantity.ITL)
WITH_QUANTILES = frozenset({Quantity.TTFT, Quantity.ITL})


def channels(preset: Preset, model: str) -> tuple[Channel, ...]:
    """All series of one model that carry counts."""
    return (*_counters(preset, model), *_histograms(preset, model))


def gauges(preset: Preset, model: str) -> tuple[Gauge, ...]:
    """All series of the load of pools."""
    load = preset.load
    return () if load is None else tuple(_gauges(load, preset, model))


def matched(series: Series, preset: Preset, model: str) -> Labels:
    """The labels that this model's samples of the series carry."""
    return tuple(sorted({**dict(series.where), preset.model_label: preset.model(model)}.items()))


def role_of(load: Load, label: str | None) -> Role | None:
    """The role that a value of the role's label means; None if it means none."""
    return Role.MIXED if load.role_label is None else load.roles.get(label or "")


def _counters(preset: Preset, model: str) -> Iterator[Channel]:
    table = [(Quantity.REQUESTS, series, False) for series in preset.requests]
    table += [(Quantity.REQUESTS, series, True) for series in preset.in_flight]
    table += [(Quantity.COMPLETED, preset.completed, False)]
    table += [(Quantity.MET, preset.met, False)] if preset.met else []
    table += [(Quantity.MISSED, preset.missed, False)] if preset.missed else []
    for quantity, series, gauge in table:
        where = matched(series, preset, model)
        yield Channel(quantity=quantity, part=Part.COUNT, name=series.name, where=where, gauge=gauge)


def _histograms(preset: Preset, model: str) -> Iterator[Channel]:
    for quantity in HISTOGRAMS:
        series: Series = getattr(preset, quantity.value)
        where = matched(series, preset, model)
        parts = (Part.COUNT, Part.SUM, *((Part.BUCKET,) if quantity in WITH_QUANTILES else ()))
        for part in parts:
            yield Channel(quantity=quantity, part=part, name=f"{series.name}_{part}", where=where)


def _gauges(load: Load, preset: Preset, model: str) -> Iterator[Gauge]:
    figures = (("running", load.running), ("waiting", load.waiting), ("kv_usage", load.kv_usage))
    for figure, series in figures:
        where = matched(series, preset, model) if load.by_model else series.where
        yield Gauge(figure=figure, name=series.name, where=where, averaged=figure == "kv_usage")
