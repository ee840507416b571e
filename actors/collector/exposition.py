"""Prometheus' text format → the samples that a preset asks for.

An exposition is read whole: one line that is none makes all of it unreadable, since half an answer must not
pass for counters that were reset. Only the lines that are asked for are parsed, as a gateway writes a
thousand and more. NaN is a sample that is there and says nothing.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from actors.collector.channels import Channel, Gauge
from actors.collector.errors import SourceDownError
from actors.collector.presets import Labels

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{.*\})?\s*\S+(?:\s+-?\d+)?\s*(?:#.*)?")


class SeriesId(NamedTuple):
    """Name and sorted labels of one series."""

    name: str
    labels: Labels


Samples = Mapping[SeriesId, float]


def parse(text: str, names: frozenset[str]) -> dict[SeriesId, float]:
    """The samples with one of these names. `SourceDownError` for what is not the text format."""
    wanted = [line for line in _sample_lines(text) if _name(line) in names]
    try:
        return {
            SeriesId(sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
            for family in text_string_to_metric_families("\n".join(wanted) + "\n")
            for sample in family.samples
        }
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise _unreadable(str(error)) from None


def names_of(channels: Iterable[Channel], gauges: Iterable[Gauge]) -> frozenset[str]:
    """All sample names that are asked for."""
    return frozenset(channel.name for channel in channels) | frozenset(gauge.name for gauge in gauges)


def carries(labels: Labels, where: Labels) -> bool:
    """Whether the labels include all of these."""
    return set(where) <= set(labels)


def _sample_lines(text: str) -> Iterable[str]:
    for line in text.split("\n"):
        if line.strip() and not line.startswith("#"):
            yield line.strip()


def _name(line: str) -> str:
    found = _SAMPLE.fullmatch(line)
    if found is None:
        raise _unreadable(line)
    return found.group(1)


def _unreadable(why: str) -> SourceDownError:
    return SourceDownError(f"the answer is not Prometheus' text format: {why[:100]!r}")
