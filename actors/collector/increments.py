"""What was added between two reads of the same exposition, series by series, then summed.

    counter, seen before      new - old; if it fell, the process began anew: new
    counter, new              new, as it began at 0 after the read before
    gauge                     new - old, 0 where there is none

The series of one histogram (count, sum, buckets) are reset together. A sample that is NaN keeps its last good
value until it says something again; its quantity is broken meanwhile.
"""

from collections.abc import Iterable, Mapping
from math import isnan
from typing import NamedTuple

from actors.collector.channels import Channel, Part, Quantity
from actors.collector.exposition import Samples, SeriesId, carries
from actors.collector.presets import Labels

LE = "le"

Key = tuple[str, str]
"""A quantity and, of it, `count`, `sum` or the upper bound of a bucket."""


class Slot(NamedTuple):
    """One series in its use: the quantity it feeds, its labels without the bucket, and what of it."""

    quantity: Quantity
    name: str
    labels: Labels
    part: str
    gauge: bool

    @property
    def key(self) -> Key:
        """Where it adds up with others."""
        return self.quantity.value, self.part


def slots(samples: Samples, channels: Iterable[Channel]) -> dict[Slot, float]:
    """The samples in their uses; one sample may have several."""
    by_name: dict[str, list[Channel]] = {}
    for channel in channels:
        by_name.setdefault(channel.name, []).append(channel)
    return {
        _slot(series, channel): value
        for series, value in samples.items()
        for channel in by_name.get(series.name, ())
        if carries(series.labels, channel.where)
    }


def increments(old: Mapping[Slot, float], new: Mapping[Slot, float]) -> dict[Key, float]:
    """What each quantity gained; a quantity without any series has no keys."""
    reset = {_process(slot) for slot, value in new.items() if not slot.gauge and value < old.get(slot, 0.0)}
    gained: dict[Key, float] = {}
    for slot, value in new.items():
        before = 0.0 if not slot.gauge and _process(slot) in reset else old.get(slot, 0.0)
        gained[slot.key] = gained.get(slot.key, 0.0) + value - before
    for slot, value in old.items():
        if slot.gauge and slot not in new:
            gained[slot.key] = gained.get(slot.key, 0.0) - value
    return gained


def settled(old: Samples, new: Samples) -> dict[SeriesId, float]:
    """The new samples, NaN replaced by the last good value, or left out where there is none."""
    good = {series: old.get(series) if isnan(value) else value for series, value in new.items()}
    return {series: value for series, value in good.items() if value is not None}


def broken(samples: Samples, channels: Iterable[Channel]) -> frozenset[Quantity]:
    """Quantities of which a sample is NaN."""
    return frozenset(slot.quantity for slot, value in slots(samples, channels).items() if isnan(value))


def _slot(series: SeriesId, channel: Channel) -> Slot:
    labels = tuple(label for label in series.labels if label[0] != LE)
    part = dict(series.labels).get(LE, "") if channel.part is Part.BUCKET else channel.part.value
    return Slot(channel.quantity, channel.name.removesuffix(f"_{channel.part}"), labels, part, channel.gauge)


def _process(slot: Slot) -> tuple[str, str, Labels]:
    """What is reset together."""
    return slot.quantity, slot.name, slot.labels
