"""Address → Prometheus' text format → the samples that a preset asks for → what was added between two reads.

Counters are followed by `counters`, series by series; a gauge adds its change, 0 where there is none. The
series of one histogram (count, sum, buckets) are reset together. A sample that is NaN or negative keeps its
last good value until it says something again; its quantity is broken meanwhile.

Load of pools are gauges of replicas, per role:

    running, waiting   summed over the replicas of the role, averaged over time: requests in the pool
    kv_usage           averaged over the replicas, averaged over time

Their totals are an integral over time (`sum`, value x seconds) and the seconds (`count`). A read's value
stands for the time since the read before.

The gateway's requests one by one come as a list of their own (`RequestList`):

    {"now_s": 1700000000.5, "whole_since_s": 1699999000.0, "began_s": 1699990000.0, "rows": "base64 of ROWs"}

`now_s` is the gateway's clock at its answer, `whole_since_s` the time since when no row is missing, `began_s`
that of the process' start. Rows are
in the order of what they say happened. Both clocks are Unix seconds and usually agree; where the answer's
`now_s` is not between question and answer, the gateway's times are shifted by the least that puts it there,
so that intervals tile exactly where clocks agree, and to the time of one exchange where they do not.
"""

import base64
import json
import re
from collections.abc import Collection, Iterable, Mapping
from math import isnan
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from actors.collector.counters import Group
from actors.collector.measured import NOTHING, Increase, PoolLoad
from actors.collector.presets import Channel, Gauge, Labels, Load, Part, Quantity
from headway.planning import Role, Traffic

LE = "le"
"""Label with the upper bound of a histogram's bucket."""

INSTANCE, ROLE = "instance", "role"
"""Labels with the engine that a sample was read from, and its role, where several are read."""

MOST_NAMED = 5

FIGURES = ("running", "waiting", "kv_usage")

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{.*\})?\s*\S+(?:\s+-?\d+)?\s*(?:#.*)?")


class SourceDownError(Exception):
    """The source cannot be read: no answer, too late, an HTTP error, or not what was asked for.

    The text says what and where, without credentials.
    """


class SeriesId(NamedTuple):
    """Name and sorted labels of one series."""

    name: str
    labels: Labels


Samples = Mapping[SeriesId, float]


def metrics_url(address: str) -> str:
    """The address itself if it ends in /metrics, else /metrics under it."""
    bare = address.rstrip("/")
    return bare if bare.endswith("/metrics") else f"{bare}/metrics"


def absent(model: str, shown: Iterable[str]) -> str:
    """A line on a model that metrics do not have, with those that they have."""
    others = sorted(filter(None, shown))
    named = ", ".join(others[:MOST_NAMED]) + (" and more" if len(others) > MOST_NAMED else "")
    return f"no series of the model {model}" + (f", only of {named}" if named else "")


def redacted(address: str) -> str:
    """Scheme, host, port and path, without credentials."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        return address.rpartition("@")[2]
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def parse(text: str, names: frozenset[str]) -> dict[SeriesId, float]:
    """The samples with one of these names. `SourceDownError` for what is not the text format.

    One line that is none makes it all unreadable: half an answer must not pass for counters that were reset.
    """
    wanted = []
    for line in (line.strip() for line in text.split("\n")):
        if not line or line.startswith("#"):
            continue
        if (found := _SAMPLE.fullmatch(line)) is None:
            raise _unreadable(line)
        # Only these are parsed: a gateway writes a thousand lines and more.
        if found.group(1) in names:
            wanted.append(line)
    try:
        return {
            SeriesId(sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
            for family in text_string_to_metric_families("\n".join(wanted) + "\n")
            for sample in family.samples
        }
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise _unreadable(str(error)) from None


def carries(labels: Labels, where: Labels) -> bool:
    """True if the labels include all of these."""
    return set(where) <= set(labels)


def _unreadable(why: str) -> SourceDownError:
    return SourceDownError(f"the answer is not Prometheus' text format: {why[:100]!r}")


Key = tuple[str, str]
"""A quantity and, of it, `count`, `sum` or the upper bound of a bucket."""


class SeriesUse(NamedTuple):
    """A series as it feeds one quantity: its labels without the bucket, and what of it."""

    quantity: Quantity
    name: str
    labels: Labels
    part: str
    gauge: bool

    @property
    def key(self) -> Key:
        """Where it adds up with others."""
        return self.quantity.value, self.part

    @property
    def group(self) -> Group:
        """The series that are reset together with it."""
        return Group(self.quantity, self.name, self.labels)


def series_uses(samples: Samples, channels: Iterable[Channel]) -> dict[SeriesUse, float]:
    """The samples in their uses; one sample may have several."""
    by_name: dict[str, list[Channel]] = {}
    for channel in channels:
        by_name.setdefault(channel.name, []).append(channel)
    uses: dict[SeriesUse, float] = {}
    for series, value in samples.items():
        for channel in by_name.get(series.name, ()):
            if carries(series.labels, channel.where):
                labels = tuple(label for label in series.labels if label[0] != LE)
                part = dict(series.labels).get(LE, "") if channel.part is Part.BUCKET else channel.part.value
                name = channel.name.removesuffix(f"_{channel.part}")
                uses[SeriesUse(channel.quantity, name, labels, part, channel.gauge)] = value
    return uses


def counted(uses: Mapping[SeriesUse, float]) -> dict[Group, dict[str, float]]:
    """The counters among them, by what is reset together."""
    groups: dict[Group, dict[str, float]] = {}
    for use, value in uses.items():
        if not use.gauge:
            groups.setdefault(use.group, {})[use.part] = value
    return groups


def changed(
    old: Mapping[SeriesUse, float], new: Mapping[SeriesUse, float], ended: Collection[str] = ()
) -> dict[Key, float]:
    """The change of the gauges; one that is gone has fallen to 0.

    What engines that `ended` (labels `instance`) had in flight is lost: it came, and is not taken back.
    """
    before = {use: value for use, value in old.items() if instance_of(use.labels) not in ended}
    change: dict[Key, float] = {}
    for use in dict.fromkeys([*new, *before]):
        if use.gauge:
            change[use.key] = change.get(use.key, 0.0) + new.get(use, 0.0) - before.get(use, 0.0)
    return change


def instance_of(labels: Labels) -> str | None:
    """The engine that a series is of; None where one address shows all there is."""
    return next((value for name, value in labels if name == INSTANCE), None)


def last_good(old: Samples, new: Samples) -> dict[SeriesId, float]:
    """The new samples, NaN and negative ones replaced by the last good value, or left out without one."""
    good = {series: value if value >= 0 else old.get(series) for series, value in new.items()}
    return {series: value for series, value in good.items() if value is not None}


def broken(samples: Samples, channels: Iterable[Channel]) -> frozenset[Quantity]:
    """Quantities of which a sample is NaN or negative."""
    return frozenset(use.quantity for use, value in series_uses(samples, channels).items() if not value >= 0)


def role_of(load: Load, label: str | None) -> Role | None:
    """The role that a value of the role's label means; None if it means none."""
    return Role.MIXED if load.role_label is None else load.roles.get(label or "")


def gained_load(
    samples: Samples, gauges: Iterable[Gauge], load: Load | None, elapsed_s: float
) -> dict[Key, float]:
    """The integrals that one read adds; nothing for a role without replicas."""
    gained: dict[Key, float] = {}
    if load is None or not elapsed_s > 0:
        return gained
    for gauge in gauges:
        by_role: dict[Role, list[float]] = {}
        for series, value in samples.items():
            if series.name == gauge.name and carries(series.labels, gauge.where):
                role = gauge.role or role_of(load, dict(series.labels).get(load.role_label or ""))
                if role is not None:
                    by_role.setdefault(role, []).append(value)
        for role, values in by_role.items():
            value = sum(values) / (len(values) if gauge.averaged else 1)
            gained[_load_key(role, gauge.figure), "sum"] = value * elapsed_s
            gained[_load_key(role, gauge.figure), "count"] = elapsed_s
    return gained


def pool_loads(added: Mapping[str, Increase]) -> dict[Role, PoolLoad]:
    """Mean load by role, for the roles that had replicas in the interval."""
    loads: dict[Role, PoolLoad] = {}
    for role in Role:
        means = {figure: added.get(_load_key(role, figure), NOTHING).mean for figure in FIGURES}
        if not all(isnan(mean) for mean in means.values()):
            loads[role] = PoolLoad(**means)
    return loads


def _load_key(role: Role, figure: str) -> str:
    return f"load.{role}.{figure}"


ROW = np.dtype(
    [
        ("at_s", "<f8"),
        ("input_tokens", "<u4"),
        ("output_tokens", "<i4"),
        ("cached_tokens", "<i4"),
        ("slo_ttft_s", "<f4"),
        ("slo_itl_s", "<f4"),
        ("slo_class", "<i2"),
        ("took_s", "<f4"),
        ("ttft_s", "<f4"),
        ("itl_s", "<f4"),
    ]
)
"""A request that arrived (`output_tokens` is ARRIVAL) or completed; of those that name a class also one that
missed its SLO otherwise (LOST).

SLOs of its own, NaN where it has none, and the place of its class, 0 for none. Of one that completed also
`cached_tokens`, which may be UNKNOWN, the seconds since it arrived, its TTFT and the mean ITL, NaN for none.
"""
ARRIVAL = UNKNOWN = -1
LOST = -2


class RequestList(NamedTuple):
    """A gateway's answer; `rows` are of dtype ROW."""

    now_s: float
    whole_since_s: float
    rows: NDArray[Any]
    began_s: float = 0.0
    """When the process began whose list it is; of several the latest."""

    @property
    def whole(self) -> bool:
        """True if nothing is missing since the process began."""
        return self.whole_since_s <= self.began_s


def encode(answer: RequestList) -> bytes:
    """The answer's body."""
    rows = base64.b64encode(answer.rows.tobytes()).decode()
    return json.dumps({**answer._asdict(), "columns": ROW.names, "rows": rows}).encode()


def decode(body: str) -> RequestList:
    """The answer behind a body of `encode`; ValueError for anything else."""
    try:
        answer = json.loads(body)
        if tuple(answer["columns"]) != ROW.names:
            raise ValueError("other columns")
        rows = np.frombuffer(base64.b64decode(answer["rows"], validate=True), ROW)
        times = (float(answer[name]) for name in ("now_s", "whole_since_s", "began_s"))
        now_s, whole_since_s, began_s = times
        return RequestList(now_s, whole_since_s, rows, began_s)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no list of requests: {type(error).__name__}") from None


def merged(answers: Iterable[RequestList], now_s: float) -> RequestList:
    """The lists of several processes on one clock as one, in the order of time."""
    lists = list(answers)
    rows = np.concatenate([each.rows for each in lists])
    return RequestList(
        now_s,
        max(each.whole_since_s for each in lists),
        rows[np.argsort(rows["at_s"], kind="stable")],
        max(each.began_s for each in lists),
    )


def shifted(answer: RequestList, shift_s: float) -> RequestList:
    """The list on a clock that is ahead by `shift_s`."""
    rows = answer.rows.copy()
    rows["at_s"] += shift_s
    return RequestList(answer.now_s + shift_s, answer.whole_since_s + shift_s, rows, answer.began_s + shift_s)


def clock_shift_s(answer: RequestList, asked_s: float, answered_s: float) -> float:
    """Seconds to add to the gateway's times: 0 if it can have been `answer.now_s` when it answered."""
    return min(max(0.0, asked_s - answer.now_s), answered_s - answer.now_s)


def traffic_within(answer: RequestList, shift_s: float, start_s: float, end_s: float) -> Traffic | None:
    """The requests of (start_s, end_s]; None where the gateway has not kept all of them."""
    if answer.whole_since_s + shift_s > start_s:
        return None
    at_s = answer.rows["at_s"] + shift_s
    within = (at_s > start_s) & (at_s <= end_s)
    ended = answer.rows["output_tokens"]
    arrived = ended == ARRIVAL
    arrivals, completions = np.flatnonzero(within & arrived), answer.rows[within & (ended >= 0)]
    # A clock that was set back puts a later arrival before an earlier one.
    arrivals = arrivals[np.argsort(at_s[arrivals], kind="stable")]
    rows = answer.rows[arrivals]
    return Traffic(
        arrival_s=at_s[arrivals],
        input_tokens=rows["input_tokens"],
        completed_input_tokens=completions["input_tokens"],
        completed_output_tokens=completions["output_tokens"],
        completed_cached_tokens=_known(completions["cached_tokens"], completions["cached_tokens"] != UNKNOWN),
        completed_arrival_s=completions["at_s"] + shift_s - completions["took_s"],
        completed_ttft_s=completions["ttft_s"],
        completed_itl_s=completions["itl_s"],
        completed_slo_ttft_s=_known(completions["slo_ttft_s"], ~np.isnan(completions["slo_ttft_s"])),
        completed_slo_itl_s=_known(completions["slo_itl_s"], ~np.isnan(completions["slo_itl_s"])),
        slo_ttft_s=_known(rows["slo_ttft_s"], ~np.isnan(rows["slo_ttft_s"])),
        slo_itl_s=_known(rows["slo_itl_s"], ~np.isnan(rows["slo_itl_s"])),
        slo_class=rows["slo_class"] if rows["slo_class"].any() else None,
    )


def _known(column: NDArray[Any], known: NDArray[np.bool_]) -> NDArray[np.float64] | None:
    """The values, NaN where they are not known; None where none is."""
    return np.where(known, column.astype(np.float64), np.nan) if known.any() else None
