"""Prometheus' text format → samples.

One line that is not in the format makes the whole answer unreadable: half an answer must not pass for
counters that were reset.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from actors.collector.presets import Labels

LE = "le"
"""Label with the upper bound of a histogram's bucket."""

INSTANCE, ROLE = "instance", "role"
"""Labels with the engine that a sample was read from, and its role, where several are read."""

MOST = 2.0**53
"""Beyond it a double does not count any more: no counter of a running process is there."""
MOST_HEADS = 100_000

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{.*\})?\s*\S+(?:\s+-?\d+)?\s*(?:#.*)?")


class SourceDownError(Exception):
    """The source cannot be read: no answer, too late, an HTTP error, or another format.

    The text names what failed and where, without credentials.
    """


class SeriesId(NamedTuple):
    """Name and sorted labels of one series."""

    name: str
    labels: Labels


Samples = Mapping[SeriesId, float]


def can_be(value: float) -> bool:
    """False for what no counter and no gauge of requests shows: NaN, negative, infinite, beyond counting."""
    return 0 <= value <= MOST


def series_id(name: str, labels: Mapping[str, str]) -> SeriesId:
    """A series by its labels in any order."""
    return SeriesId(name, tuple(sorted(labels.items())))


def carries(labels: Labels, where: Labels) -> bool:
    """True if the labels include all of these; a value that begins with `~` is a regular expression."""
    if set(where) <= set(labels):
        return True
    found = dict(labels)
    return all(
        re.fullmatch(value[1:], found.get(name, "")) if value.startswith("~") else found.get(name) == value
        for name, value in where
    )


def metrics_url(address: str, path: str = "/metrics") -> str:
    """The address itself if it ends in /metrics, else the path under it; its query stays."""
    place, mark, query = address.partition("?")
    bare = place.rstrip("/")
    return f"{bare if bare.endswith('/metrics') else bare + path}{mark}{query}"


def redacted(address: str) -> str:
    """Scheme, host, port and path, without credentials."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        return address.rpartition("@")[2]
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def parse(text: str, names: frozenset[str] | None = None) -> dict[SeriesId, float]:
    """The samples, all or those with one of the names. `SourceDownError` for what is not the text format."""
    wanted = []
    for line in (line.strip() for line in text.split("\n")):
        if not line or line.startswith("#"):
            continue
        if (found := _SAMPLE.fullmatch(line)) is None:
            raise _unreadable(line)
        # Only these are parsed: a gateway writes a thousand lines and more.
        if names is None or found.group(1) in names:
            wanted.append(line)
    try:
        return {
            series_id(sample.name, sample.labels): float(sample.value)
            for family in text_string_to_metric_families("\n".join(wanted) + "\n")
            for sample in family.samples
        }
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise _unreadable(str(error)) from None


def spellings(names: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Every spelling of these names → the name: their other names, and `:` written as an underscore."""
    every = [(each, name) for name, others in names.items() for each in (*others, name)]
    return {spelling: name for each, name in every for spelling in (each, each.replace(":", "_"))}


class LineReader:
    """Reads page after page of one source; the text before a line's value is parsed once."""

    def __init__(self, names: Mapping[str, Iterable[str]]) -> None:
        self._names = spellings(names)
        self._heads: dict[str, SeriesId | None] = {}

    def read(self, text: str) -> dict[SeriesId, float]:
        """The samples with one of the names. `SourceDownError` for what is not the text format."""
        if len(self._heads) > MOST_HEADS:
            self._heads.clear()
        samples: dict[SeriesId, float] = {}
        for line in text.split("\n"):
            if not line or line[0] == "#":
                continue
            head, _, value = line.rpartition(" ")
            if head not in self._heads:
                found = self._parsed(line)
                if found is not None and found[1] != _number(value):
                    # A timestamp follows the value: the next read of this line has another head.
                    samples[found[0]] = found[1]
                    continue
                self._heads[head] = None if found is None else found[0]
            if (series := self._heads[head]) is not None:
                samples[series] = _number(value)
        return samples

    def _parsed(self, line: str) -> tuple[SeriesId, float] | None:
        for series, value in parse(line, frozenset(self._names)).items():
            return SeriesId(self._names[series.name], series.labels), value
        return None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _unreadable(text) from None


def _unreadable(why: str) -> SourceDownError:
    return SourceDownError(f"the answer is not Prometheus' text format: {why[:100]!r}")
