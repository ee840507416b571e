"""Raw samples of a Prometheus → the reads that the same targets would have given. Pure.

    {target, series, (time, value) ...} ──▶ reads in the order of time ──▶ `tracker`, as with own scrapes

The series of a target are sampled together, or a little apart where they are pushed. A read has each of them
at most once: it ends where one is sampled again, so that no sample is passed over and no reset is missed.
Reads also end at the interval's start.

What was counted between two samples belongs to the time between them, evenly: at both ends of the interval a
series is what lies on the line between the samples around, unless its target began anew there. So intervals
are asked for a while later than they end (`Lag`), when every target has been sampled again, and they tile.

    a read                     its time
    the last one up to the     the interval's start: it is what the interval begins with
      interval's start
    the last one               the interval's end
    any other                  the newest of its samples

    a target                   is taken as
    in the read                read: what its samples do not show any more is gone
    not in the read            unread, with its last samples, for `fresh_s`; then gone
    first sampled after the    new, with its counters at 0, or followed from there if they show a past
      interval's start           (`increase`)

Targets are told apart by `instance`; a series without one is a target of its own. Several jobs, or several
servers of one Prometheus, may scrape one target: their samples are those of one series, and the labels that
tell the scrapers apart are left out.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import pairwise
from math import ceil, inf, isfinite
from operator import itemgetter
from statistics import median
from typing import Any, NamedTuple

from actors.collector.exposition import INSTANCE, ROLE, Samples, SeriesId, SourceDownError, carries, series_id
from actors.collector.interval import Measured, Quantity
from actors.collector.series import ModelSeries
from actors.collector.tracker import Tracker
from headway.planning import Role

REPLICA = "replica"

SCRAPERS = ("job", "prometheus", "prometheus_replica", "__replica__")
"""Labels that tell apart who scraped a target."""

MOST_BETWEEN_S = 300.0
"""Longest time between two samples over which a count is spread."""

LAGS, SAME_LAG_S = 8, 2.0
"""Intervals whose lateness is remembered; a lag that differs by less stays as it was."""

Target = str
Spans = Sequence[tuple[float, float]]
"""From one time to another, each."""
Sampling = tuple[float, Target]
"""When a target was sampled, in Unix seconds."""


class RawSeries(NamedTuple):
    """One series of a target, and its samples as (Unix seconds, value) in the order of time."""

    target: Target
    series: SeriesId
    samples: Sequence[tuple[float, float]]


class Read(NamedTuple):
    """The samples of the targets that were read, and those of the targets that stand as they were."""

    at_s: float
    samples: Samples
    unread: Samples


def raw_series(
    answer: Any,  # noqa: ANN401 - whatever JSON holds
    names: Mapping[str, str],
    role: Role | None,
) -> list[RawSeries]:
    """The series of a range vector; `names` are today's by those found. SourceDownError: of another form."""
    try:
        found = []
        for row in answer:
            labels = {str(key): str(value) for key, value in row["metric"].items()}
            name = labels.pop("__name__", "")
            target = labels.get(INSTANCE) or f"{name}{sorted(labels.items())}"
            if role is not None:
                labels[ROLE] = role.value
            samples = [(float(at_s), float(value)) for at_s, value in row["values"]]
            found.append(RawSeries(target, series_id(names.get(name, name), labels), samples))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise not_an_answer(error) from None
    return found


def not_an_answer(error: Exception) -> SourceDownError:
    """The error for JSON that is no answer of Prometheus."""
    return SourceDownError(f"not an answer of Prometheus: {type(error).__name__} {str(error)[:100]}")


def measured_of(
    series: ModelSeries,
    raw: Iterable[RawSeries],
    span_s: tuple[float, float],
    fresh_s: float,
    doubts: Mapping[Quantity, str],
) -> Measured:
    """The interval from the start to the end of `span_s`; `doubts` are the source's own."""
    tracker = Tracker(series, 0.0)
    ours = list(_of_model(series, list(raw)))
    began = _restarts(ours)
    whole = (_bordered(each, began.get(each.target, ()), span_s) for each in ours)
    thin = _without_idle_buckets(whole, began, span_s[0])
    for read in reads(thin, span_s, fresh_s):
        tracker.add(read.samples, read.at_s, unread=read.unread)
        if read.at_s <= span_s[0]:
            tracker.begin_interval()
    return tracker.measure(*span_s, doubts)


class Lag:
    """How long after its end an interval is asked for: what samples are late by, and a scrape more.

    So each end of an interval lies between two samples of every target that goes on.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._late: deque[float] = deque(maxlen=LAGS)
        self._newest_s = self._asked_s = -inf

    def advances(self, newest_s: float, at_s: float) -> bool:
        """True if samples have come, however late, for half of the time since this was asked last."""
        came_s, passed_s = newest_s - self._newest_s, at_s - self._asked_s
        self._newest_s, self._asked_s = newest_s, at_s
        return isfinite(came_s) and came_s >= passed_s / 2

    def known_until_s(self, raw: Sequence[RawSeries], end_s: float, fresh_s: float) -> float:
        """When an interval ends that can be known of these samples, which are those up to `end_s`."""
        times = {each.target: [at_s for at_s, _ in each.samples] for each in raw if each.samples}
        newest_s = max((each[-1] for each in times.values()), default=end_s)
        going = [each for each in times.values() if newest_s - each[-1] <= fresh_s and len(each) > 1]
        scrape_s = max((median(b - a for a, b in pairwise(each)) for each in going), default=0.0)
        self._late.append(max(0.0, end_s - newest_s))
        wanted_s = ceil(min(self._late) + min(scrape_s, fresh_s))
        if not self.seconds or abs(wanted_s - self.seconds) > SAME_LAG_S:
            self.seconds = wanted_s
        return end_s - self.seconds


def without_scrapers(raw: Sequence[RawSeries]) -> tuple[list[RawSeries], list[str]]:
    """Each series of a target once, however many scrape it; and the targets that several do."""
    labels_of: dict[Target, dict[tuple[str, ...], dict[str, set[str]]]] = {}
    for each in raw:
        labels = dict(each.series.labels)
        scraper = labels_of.setdefault(each.target, {}).setdefault(_scraper(labels), {})
        for name, value in labels.items():
            scraper.setdefault(name, set()).add(value)
    several = {target: list(each.values()) for target, each in labels_of.items() if len(each) > 1}
    found: dict[tuple[Target, SeriesId], list[Sequence[tuple[float, float]]]] = {}
    for each in raw:
        series = each.series
        if each.target in several:
            apart = _telling_apart(several[each.target])
            series = SeriesId(series.name, tuple(label for label in series.labels if label[0] not in apart))
        found.setdefault((each.target, series), []).append(each.samples)
    merged = [
        RawSeries(target, series, list(merge(*samples)) if len(samples) > 1 else samples[0])
        for (target, series), samples in found.items()
    ]
    return merged, sorted(several)


def _scraper(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in SCRAPERS)


def _telling_apart(scrapers: Sequence[Mapping[str, set[str]]]) -> set[str]:
    """The labels that each scraper gives all its series, and each another."""
    names = {name for each in scrapers for name in each}
    fixed = {name for name in names if all(len(each.get(name, {""})) == 1 for each in scrapers)}
    return {name for name in fixed if len({min(each.get(name, {""})) for each in scrapers}) > 1} | {*SCRAPERS}


def _restarts(raw: Iterable[RawSeries]) -> Mapping[Target, Spans]:
    """The times between which targets began anew: a counter fell; nothing of those that did not."""
    began: dict[Target, list[tuple[float, float]]] = {}
    for each in raw:
        if each.series.name.endswith(("_total", "_count")):
            for (before_s, before), (after_s, after) in pairwise(each.samples):
                if after < before:
                    began.setdefault(each.target, []).append((before_s, after_s))
    return began


def _bordered(raw: RawSeries, began: Spans, span_s: tuple[float, float]) -> RawSeries:
    """With a sample at each end of the interval, on the line between those around it, and none after it."""
    samples = list(raw.samples)
    for border_s in span_s:
        place = bisect_right(samples, border_s, key=itemgetter(0))
        if not 0 < place < len(samples) or any(a_s <= border_s < b_s for a_s, b_s in began):
            continue
        (before_s, before), (after_s, after) = samples[place - 1 : place + 1]
        if before_s < border_s and after_s - before_s <= MOST_BETWEEN_S and isfinite(after - before):
            value = before + (after - before) * (border_s - before_s) / (after_s - before_s)
            samples.insert(place, (border_s, value))
    return raw._replace(samples=samples[: bisect_right(samples, span_s[1], key=itemgetter(0))])


def reads(raw: Iterable[RawSeries], span_s: tuple[float, float], fresh_s: float) -> Iterator[Read]:
    """The reads up to the end of `span_s`, which is that of the interval and of the samples."""
    start_s, end_s = span_s
    sampled: dict[Sampling, dict[SeriesId, float]] = {}
    for target, series, values in raw:
        for at_s, value in values:
            sampled.setdefault((at_s, target), {})[series] = value
    latest: dict[Target, tuple[float, Samples]] = {}
    order = sorted(sampled)
    before = _grouped(sampled, [key for key in order if key[0] <= start_s], start_s)
    after = _grouped(sampled, [key for key in order if key[0] > start_s], end_s)
    for at_s, keys in (*before, *after):
        found: dict[Target, dict[SeriesId, float]] = {}
        for key in keys:
            found.setdefault(key[1], {}).update(sampled[key])
        latest |= {target: (key_s, found[target]) for key_s, target in keys}
        samples = {series: value for each in found.values() for series, value in each.items()}
        yield Read(at_s, samples, _standing(latest, found.keys(), at_s - fresh_s))


def _standing(
    latest: Mapping[Target, tuple[float, Samples]], read: Collection[Target], oldest_s: float
) -> Samples:
    """The last samples of targets that are not in a read, as long as they are fresh."""
    return {
        series: value
        for target, (at_s, samples) in latest.items()
        if target not in read and at_s >= oldest_s
        for series, value in samples.items()
    }


def _grouped(
    sampled: Mapping[Sampling, Samples], keys: Iterable[Sampling], end_s: float
) -> list[tuple[float, list[Sampling]]]:
    """Samplings as reads that have each series of a target once, with their times; the last is at `end_s`."""
    groups: list[list[Sampling]] = [[]]
    inside: dict[Target, set[SeriesId]] = {}
    for key in keys:
        if not inside.get(key[1], set()).isdisjoint(sampled[key]):
            groups.append([])
            inside = {}
        groups[-1].append(key)
        inside.setdefault(key[1], set()).update(sampled[key])
    return [*((group[-1][0], group) for group in groups[:-1]), (end_s, groups[-1])]


def _without_idle_buckets(
    raw: Iterable[RawSeries], began: Container[Target], start_s: float
) -> Iterator[RawSeries]:
    """Without most samples of buckets, which are most of all samples, where their target did not begin anew.

    The one that the interval begins with and the last one have all that such a bucket gained.
    """
    for each in raw:
        if not each.series.name.endswith("_bucket") or each.target in began:
            yield each
        else:
            first = max(bisect_right(each.samples, start_s, key=itemgetter(0)) - 1, 0)
            yield each._replace(samples=[*each.samples[first : first + 1], *each.samples[first + 1 :][-1:]])


def _of_model(series: ModelSeries, raw: Sequence[RawSeries]) -> Iterator[RawSeries]:
    """Without what others show: replicas that gateways of this model show alike, engines' own figures."""
    name, where = series.alive
    ours = {each.target for each in raw if each.series.name == name and carries(each.series.labels, where)}
    kept = {REPLICA, series.preset.load.role_label} if series.preset.load else set()
    for each in raw:
        if each.series.name in series.preset.unlabelled:
            if each.target in ours:
                yield each
        elif each.series.name not in series.shared:
            yield each
        elif each.target in ours:
            labels = {label: value for label, value in each.series.labels if label in kept}
            yield each._replace(series=series_id(each.series.name, labels))
