"""Raw samples of a Prometheus → the reads that the same targets would have given. Pure.

    {target, series, (time, value) ...} ──▶ reads in the order of time ──▶ `tracker`, as with own scrapes

The series of a target are sampled together, or a little apart where they are pushed. A read has each of them
at most once: it ends where one is sampled again, so that no sample is passed over and no reset is missed.
Reads also end at the interval's start.

    a read                     its time
    the last one up to the     the interval's start: it is what the interval begins with, and intervals tile
      interval's start
    the last one               the interval's end
    any other                  the newest of its samples

    a target                   is taken as
    in the read                read: what its samples do not show any more is gone
    not in the read            unread, with its last samples, for `fresh_s`; then gone
    first sampled after the    new, with its counters at 0, or followed from there if they show a past
      interval's start           (`increase`)

Targets are told apart by `job` and `instance`; a series without `instance` is a target of its own.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from actors.collector.exposition import INSTANCE, ROLE, Samples, SeriesId, SourceDownError, carries, series_id
from actors.collector.interval import Measured, Quantity
from actors.collector.series import ModelSeries
from actors.collector.tracker import Tracker
from headway.planning import Role

REPLICA = "replica"

Target = tuple[str, str]
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
            target = labels.get("job", ""), labels.get(INSTANCE) or f"{name}{sorted(labels.items())}"
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
    thin = _without_idle_buckets(list(_of_model(series, list(raw))), span_s[0])
    for read in reads(thin, span_s, fresh_s):
        tracker.add(read.samples, read.at_s, unread=read.unread)
        if read.at_s <= span_s[0]:
            tracker.begin_interval()
    return tracker.measure(*span_s, doubts)


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


def _without_idle_buckets(raw: Sequence[RawSeries], start_s: float) -> Iterator[RawSeries]:
    """Without most samples of buckets, which are most of all samples, where no counter of their target fell.

    The one that the interval begins with and the last one have all that such a bucket gained.
    """
    began = {
        each.target
        for each in raw
        if each.series.name.endswith("_count") and any(b < a for (_, a), (_, b) in pairwise(each.samples))
    }
    for each in raw:
        if not each.series.name.endswith("_bucket") or each.target in began:
            yield each
        else:
            first = max(bisect_right(each.samples, start_s, key=itemgetter(0)) - 1, 0)
            yield each._replace(samples=[*each.samples[first : first + 1], *each.samples[first + 1 :][-1:]])


def _of_model(series: ModelSeries, raw: Sequence[RawSeries]) -> Iterator[RawSeries]:
    """Without the replicas that gateways of other models show; those of this one show them alike."""
    name, where = series.alive
    ours = {each.target for each in raw if each.series.name == name and carries(each.series.labels, where)}
    kept = {REPLICA, series.preset.load.role_label} if series.preset.load else set()
    for each in raw:
        if each.series.name not in series.shared:
            yield each
        elif each.target in ours:
            labels = {label: value for label, value in each.series.labels if label in kept}
            yield each._replace(series=series_id(each.series.name, labels))
