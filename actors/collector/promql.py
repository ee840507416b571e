"""The queries to a Prometheus: raw samples of a model's series, what they cover, and the engines there are.

No increase is computed by PromQL: the samples go to the one law of increases (`raw_samples`, `increase`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from actors.collector.presets import Labels, Load
from actors.collector.series import GROUP, ModelSeries
from headway.planning import Role

WHAT = "what"
"""Label under which the parts of a combined answer come back."""

ENGINE_OF, SHARED = "engine_of", ("namespace", "ReplicaId")
"""Label with the pod or instance of an engine; labels that tell apart those that share its value."""
RANK = "rank_of"
"""Label with the data-parallel rank of an engine that is no pod."""

HISTORY_S = 6 * 3600.0
"""How far back a series is looked for before it counts as new."""

BEFORE_S = 300.0
"""Least time before an interval whose samples show how fast counters rise, and contradictions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The series that the settings choose: labels that all of them carry, and by role those of its engines.

    A label whose value begins with `~` is a regular expression to Prometheus.
    """

    labels: Mapping[str, str]
    roles: Mapping[Role, Mapping[str, str]]

    def where(self, labels: Labels, role: Role | None = None) -> Labels:
        """These labels with the chosen ones."""
        of_role = {} if role is None else self.roles[role]
        return tuple(sorted({**self.labels, **dict(labels), **of_role}.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleQuery:
    """A query for samples from `before_s` before an interval to its end, and the role of what it finds."""

    selector: str
    before_s: float
    role: Role | None

    def text(self, interval_s: float) -> str:
        """The query, to be evaluated at the interval's end."""
        return f"{self.selector}[{duration(interval_s + self.before_s)}]"


def sample_queries(
    series: ModelSeries, chosen: Chosen, interval_s: float, fresh_s: float
) -> list[SampleQuery]:
    """The queries for all samples of an interval.

    Buckets are most of the data, and nothing is judged by them: they are asked for since `fresh_s` before the
    interval only, which holds the sample that it begins with.
    """
    names: dict[tuple[Role | None, bool, bool], set[str]] = {}
    preset = series.preset
    shown = [(each.name, each.role) for each in series.channels]
    shown += [(each.name, each.role) for each in series.gauges if each.name not in series.shared]
    shown += [(name, role) for name in preset.totals for role in series.roles or (None,)]
    for name, role in shown:
        names.setdefault((role, name.endswith("_bucket"), name in preset.unlabelled), set()).add(name)
    if series.alive.name not in (name for name, _ in shown):
        names.setdefault((None, False, False), set()).add(series.alive.name)
    before_s = max(interval_s, fresh_s, BEFORE_S)
    queries = [
        SampleQuery(
            selector=selector(series.spelt(found), chosen.where(() if anyone else series.of_model, role)),
            before_s=fresh_s if buckets else before_s,
            role=role,
        )
        for (role, buckets, anyone), found in names.items()
    ]
    if series.shared:
        shared = selector(series.shared, chosen.where(()))
        queries.append(SampleQuery(selector=shared, before_s=fresh_s, role=None))
    return queries


def duration(seconds: float) -> str:
    """PromQL's spelling, to the millisecond."""
    return f"{max(1, round(seconds * 1000))}ms"


def anything(names: Iterable[str], by: Iterable[str], where: Labels) -> str:
    """One query that counts all series with such names (regular expressions), by name and by these labels."""
    spelt = "|".join(name.replace(":", "[:_]") if "[" not in name else name for name in names)
    return f'count by (__name__, {", ".join(by)}) ({{__name__=~"{spelt}"{_matchers(where)}}})'


def selector(names: Iterable[str], where: Labels) -> str:
    """Names and labels.

    A colon in a name may have become an underscore: prometheus_client does that to some Prometheus versions
    (client_python issue 1177), and so `vllm:` and `sglang:` names come in two spellings.
    """
    spelt = "|".join(name.replace(":", "[:_]") for name in sorted(names))
    return f'{{__name__=~"{spelt}"{_matchers(where)}}}'


def _matchers(where: Labels) -> str:
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    return "".join(
        f',{label}{"=~" if value.startswith("~") else "="}"{value.removeprefix("~").translate(escapes)}"'
        for label, value in where
    )


AHEAD_S = 300.0
"""How far ahead of our clock samples are looked for."""


def ahead(alive: str) -> str:
    """Unix seconds of the newest sample, also of those that are not yet by our clock."""
    return f"max(timestamp({alive} offset -{duration(AHEAD_S)}))"


class Watched(NamedTuple):
    """Selectors of what every running system shows, of a counter of requests, of the same one with any model,
    and of `up`; and the labels of the model and of ranks, the latter empty where there are none."""

    alive: str
    counter: str
    any_model: str
    up: str
    model_label: str
    rank: str


def coverage(watched: Watched, interval_s: float, fresh_s: float) -> str:
    """What covers the interval:

    newest     Unix seconds of the newest sample of `alive`
    known      its series in the last hours
    scraping   series of `up`, or of the first, at the interval's start: whether Prometheus was scraping then
    resumed    series of the counter that go on from a sample too old to be the one the interval begins with
    unread     targets that had samples of the counter a moment ago and cannot be scraped now, one series each
    there      replicas of those that can, as `engines` counts them
    named      requests in the interval by the model's label, of all that serve this model

    A series counts as new only if Prometheus was scraping at the start and it continues no earlier sample.
    """
    alive, counter, any_model, up, label, rank = watched
    start, reach = f"offset {duration(interval_s)}", duration(max(interval_s, fresh_s))
    last = f"(last_over_time({counter}[{reach}]) > 0)"
    base = f"last_over_time({counter}[{duration(fresh_s)}] {start})"
    sampled = f"on (job, instance) last_over_time({counter}[{reach}])"
    here = f"on (instance) last_over_time({counter}[{reach}])"
    earlier = f"last_over_time({counter}[{duration(HISTORY_S)}] {start})"
    table = {
        "newest": f"max(timestamp({alive}))",
        "known": f"count(last_over_time({alive}[{duration(HISTORY_S)}]))",
        "scraping": " or ".join(
            f"count(last_over_time({each}[{duration(fresh_s)}] {start}))" for each in (up, alive)
        ),
        "resumed": f"count(({last} >= {earlier}) unless {base})",
        "unread": f"(({up} == 0) and {sampled}) unless on (instance) (({up} == 1) and {sampled})",
        "there": _engines_by_rank(f"({up} == 1) and {sampled}", rank),
        "named": f"sum by ({label}) (increase({any_model}[{duration(interval_s)}]) and {here})",
    }
    return " or ".join(_labelled(expression, what) for what, expression in table.items())


def engines(running: Mapping[Role | None, str], load: Load, rank: str, fresh_s: float) -> str:
    """One query for the engines with a fresh sample of a gauge that each of them has (its selector by role).

    The answer is labelled with the role, or with the role's label, and with ranks (`replicas`).
    """
    parts = []
    for role, gauge in running.items():
        label = (load.role_label,) if load.role_label and role is None else ()
        fresh = f"timestamp({gauge}) > time() - {fresh_s:g}"
        parts.append(_labelled(_engines_by_rank(fresh, rank, label), f"engines:{role or ''}"))
    return " or ".join(parts)


def replicas(engines_by_rank: Iterable[tuple[str, float]]) -> int:
    """Replicas of engines counted by rank: each has every rank once; engines without one are one each."""
    counts = dict(engines_by_rank)
    return int(counts.pop("", 0.0) + max(counts.values(), default=0.0))


def _engines_by_rank(found: str, rank: str, labels: Iterable[str] = ()) -> str:
    """Counts the engines of which something is found, by rank (a label; empty: there are none).

    A LeaderWorkerSet's group or else a pod is one engine, whatever ports and ranks it has, without a rank.
    Else an instance is one.
    """
    named = [(ENGINE_OF, "$1", "instance"), (ENGINE_OF, "$1", "pod"), (ENGINE_OF, "$1", GROUP)]
    ranked = [(RANK, "$1", rank), (RANK, "", "pod"), (RANK, "", GROUP)] if rank else []
    for label, value, source in (*named, *ranked):
        found = f'label_replace({found}, "{label}", "{value}", "{source}", "(.+)")'
    each = f"count by ({', '.join((ENGINE_OF, *SHARED, RANK, *labels))}) ({found})"
    return f"count by ({', '.join((RANK, *labels))}) ({each})"


def _labelled(expression: str, what: str) -> str:
    return f'label_replace({expression}, "{WHAT}", "{what}", "", "")'
