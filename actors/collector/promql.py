"""The PromQL that gives an interval's increases as a load generator would count them.

`increase()` is not used. It stretches the samples inside the range to the range's borders (each interval then
differs from what was counted by up to a scrape), and it never sees the first value of a series that begins
inside the range, so that a gateway's first requests are lost. Here, with start and end of the interval, per
series and summed after:

    last = last_over_time(x[R])                 newest sample at the end;      R = max(interval, fresh)
    base = last_over_time(x[F] offset W)        newest sample at the start;    F = stale_after_s, W = interval
    gained = last - (base or last * 0)          raw difference; a series that is new began at 0

The intervals tile: one's `last` is the next one's `base`, and every count falls into exactly one of them.
`last_over_time` rather than plain `x`, as a target that ended in the interval is marked stale and what it
counted would be lost. Negative or NaN differences are dropped (`>= 0`): NaN is missing data. Where a series
of the quantity was reset (`resets`), the interval is walked in steps of S, each adding x(t) - x(t - S), or
x(t) where that is negative:

    gained = sum_over_time(((y - y') >= 0 or y + 0)[W:S])     y = last_over_time(x[R]), y' = y offset S

which is exact at any number of resets (`+ 0` drops the name, so that both sides of `or` are one series).
Prometheus takes such steps at multiples of S: the interval's ends are moved back to that grid first
(`on_grid`), by at most S.

Seen with Prometheus 2.42 at a scrape a second: `increase()` 58.8 of 60 requests in 8 s, 0 of 20 in a series
that began inside them, 19.2 of 40 in 4 s around a restart; the above 60 of 60 and 40 of 40.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, floor

from actors.collector.presets import Channel, Gauge, Labels, Load, Part, Quantity, Series, former

WHAT = "what"
"""Label under which the parts of a combined answer come back."""

ENGINE = ("instance", "pod", "ReplicaId")
"""Labels that tell engines apart; the last is Ray Serve LLM's, whose engines share the page of their node."""

HISTORY_S = 6 * 3600.0
"""How far back a series is looked for before it counts as new."""

FINEST_STEP_S = 0.1
MOST_STEPS = 600
GAUGE_SAMPLES = 60
BEFORE_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """An interval in PromQL's durations, as the formulas above name them."""

    interval: str
    """W."""
    fresh: str
    """F."""
    reach: str
    """R."""
    step: str
    """S."""
    walk: str
    """The range whose steps are those after the start, up to the end: both lie on the grid of S."""
    sampling: str
    """The time between two looks at a gauge."""
    looked_back: str
    """The range whose samples tell whether a counter contradicts itself."""


def window(interval_s: float, fresh_s: float) -> Window:
    """The window of an interval of that length; a sample counts for `fresh_s` seconds."""
    return Window(
        interval=duration(interval_s),
        fresh=duration(fresh_s),
        reach=duration(max(interval_s, fresh_s)),
        step=duration(step_s(interval_s)),
        walk=duration(interval_s - 1e-3),
        sampling=duration(max(FINEST_STEP_S, interval_s / GAUGE_SAMPLES)),
        looked_back=duration(interval_s + max(interval_s, BEFORE_S)),
    )


def step_s(interval_s: float) -> float:
    """S: a tenth of a second, or as many as keep the steps of an interval few."""
    return FINEST_STEP_S * max(1, ceil(interval_s / MOST_STEPS / FINEST_STEP_S))


def on_grid(start_s: float, end_s: float) -> tuple[float, float]:
    """The interval with both ends moved back to multiples of S, on which Prometheus walks."""
    step = step_s(end_s - start_s)
    first, last = (floor(at_s / step + 1e-6) for at_s in (start_s, end_s))
    return min(first, last - 1) * step, last * step


def duration(seconds: float) -> str:
    """PromQL's spelling, to the millisecond."""
    return f"{max(1, round(seconds * 1000))}ms"


def anything(systems: Iterable[tuple[str, str]]) -> str:
    """One query for all series with one of these names, by name and by the labels beside the names."""
    names, labels = zip(*systems, strict=True)
    spelt = "|".join(name.replace(":", "[:_]") for name in names)
    return f'count by (__name__, {", ".join(dict.fromkeys(labels))}) ({{__name__=~"{spelt}"}})'


def spelt(name: str, found: str) -> bool:
    """True if a name that was found is this one in either spelling."""
    return found.replace(":", "_") == name.replace(":", "_")


def selector(name: str, where: Labels) -> str:
    """Name and labels. A colon in the name may have become an underscore: prometheus_client does that to some
    Prometheus versions (client_python issue 1177), and so `vllm:` and `sglang:` names come in two spellings.
    """
    spelt = f'=~"{name.replace(":", "[:_]")}"' if ":" in name else f'="{name}"'
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    labels = "".join(
        f',{label}{"=~" if value.startswith("~") else "="}"{value.removeprefix("~").translate(escapes)}"'
        for label, value in where
    )
    return f"{{__name__{spelt}{labels}}}"


def gained(channel: Channel, window: Window) -> str:
    """The gain of each series, where none was reset."""
    x = selector(channel.name, channel.where)
    last = f"last_over_time({x}[{window.reach}])"
    base = f"last_over_time({x}[{window.fresh}] offset {window.interval})"
    difference = f"({last} - ({base} or {last} * 0))"
    return difference if channel.gauge else f"({difference} >= 0)"


def gained_through_resets(channel: Channel, window: Window) -> str:
    """The gain of each series, counting from 0 after every fall."""
    x = selector(channel.name, channel.where)
    now = f"last_over_time({x}[{window.reach}])"
    before = f"last_over_time({x}[{window.reach}] offset {window.step})"
    step = f"(({now} - {before}) >= 0) or (({now} >= 0) + 0)"
    return f"sum_over_time(({step})[{window.walk}:{window.step}])"


def resets(channel: Channel, window: Window) -> tuple[str, str]:
    """Series that fell inside the interval, and those that fell before its first sample."""
    x = selector(channel.name, channel.where)
    base = f"last_over_time({x}[{window.fresh}] offset {window.interval})"
    return f"resets({x}[{window.interval}]) > 0", f"min_over_time({x}[{window.interval}]) < {base}"


def increase(channels: tuple[Channel, ...], window: Window, *, through_resets: bool) -> str:
    """One query for one quantity: its parts, by `what` (the part) and `le`, and `resets`."""
    form = gained_through_resets if through_resets else gained
    parts = []
    for index, channel in enumerate(channels):
        measure = gained if channel.gauge else form
        per_series = " or ".join(measure(each, window) for each in _spellings(channel))
        by = "sum by (le) " if channel.part is Part.BUCKET else "sum"
        parts.append(_labelled(f"{by}({per_series})", f"{channel.part}:{index}"))
    counted = [channel for channel in channels if not channel.gauge and channel.part is Part.COUNT]
    named = [each for channel in counted for each in _spellings(channel)]
    fell = [expression for channel in named for expression in resets(channel, window)]
    parts += [_labelled(f"count({expression})", f"resets:{index}") for index, expression in enumerate(fell)]
    return " or ".join(parts)


def samples(channel: Channel, window: Window) -> str:
    """The samples themselves of the interval and of what came before it (BEFORE_S, or as much again)."""
    return f"{selector(channel.name, channel.where)}[{window.looked_back}]"


def load(gauges: tuple[Gauge, ...], settings: Load, window: Window) -> str:
    """One query for the load of pools: means over the interval by figure (and `:role`), or by its label."""
    parts = []
    for gauge in gauges:
        over = "avg" if gauge.averaged else "sum"
        by = f" by ({settings.role_label})" if settings.role_label and gauge.role is None else ""
        each = " or ".join(f"({selector(name, gauge.where)} >= 0)" for name in _names(gauge.name))
        if gauge.gateway is not None:
            # Other models have gateways too, and those of one model may all show the same replicas.
            ours = selector(gauge.gateway.name, gauge.gateway.where)
            each = f"max by (role, replica) (({each}) and on (job, instance) {ours})"
        pool = f"{over}{by} ({each})"
        mean = f"avg_over_time(({pool})[{window.interval}:{window.sampling}])"
        parts.append(_labelled(mean, f"{gauge.figure}:{gauge.role}" if gauge.role else gauge.figure))
    return " or ".join(parts)


def coverage(alive: Series, counter: Series, window: Window) -> str:
    """The coverage of the interval, under these names in `what`:

    newest     Unix seconds of the newest sample of what every running system shows
    known      its series in the last hours
    scraping   series of `up` at the interval's start: whether Prometheus was scraping anything then
    resumed    series of a counter that go on from a sample too old to be the one the interval begins with
    unread     targets that had samples of the counter a moment ago and cannot be scraped now

    A series counts as new only if Prometheus was scraping at the start and it continues no earlier sample.
    """
    x = selector(counter.name, counter.where)
    last = f"(last_over_time({x}[{window.reach}]) > 0)"
    base = f"last_over_time({x}[{window.fresh}] offset {window.interval})"
    earlier = f"last_over_time({x}[{duration(HISTORY_S)}] offset {window.interval})"
    shown = selector(alive.name, alive.where)
    table = {
        "newest": f"max(timestamp({shown}))",
        "known": f"count(last_over_time({shown}[{duration(HISTORY_S)}]))",
        "scraping": f"count(last_over_time(up[{window.fresh}] offset {window.interval}))",
        "resumed": f"count(({last} >= {earlier}) unless {base})",
        "unread": f"count((up == 0) and on (job, instance) last_over_time({x}[{window.reach}]))",
    }
    return " or ".join(_labelled(expression, what) for what, expression in table.items())


def engines(alive: tuple[Gauge, ...], settings: Load, fresh_s: float) -> str:
    """One query for the engines with a fresh sample of a gauge that each of them has, by role or its label.

    The series of one engine, such as those of its data-parallel ranks, share the labels ENGINE.
    """
    parts = []
    for gauge in alive:
        label = (settings.role_label,) if settings.role_label and gauge.role is None else ()
        fresh = f"timestamp({selector(gauge.name, gauge.where)}) > time() - {fresh_s:g}"
        each = f"count by ({', '.join((*ENGINE, *label))}) ({fresh})"
        parts.append(_labelled(f"count by ({', '.join(label)}) ({each})", f"engines:{gauge.role or ''}"))
    return " or ".join(parts)


def quantities(channels: tuple[Channel, ...]) -> dict[Quantity, tuple[Channel, ...]]:
    """The channels by quantity: one query each."""
    return {
        quantity: tuple(channel for channel in channels if channel.quantity is quantity)
        for quantity in dict.fromkeys(channel.quantity for channel in channels)
    }


def _names(name: str) -> tuple[str, ...]:
    """A name and the one before it; `or` takes the latter from engines that do not have the first."""
    before = former(name)
    return (name,) if before is None else (name, before)


def _spellings(channel: Channel) -> list[Channel]:
    return [replace(channel, name=name) for name in _names(channel.name)]


def _labelled(expression: str, what: str) -> str:
    return f'label_replace({expression}, "{WHAT}", "{what}", "", "")'
