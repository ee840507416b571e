"""What metrics show of a preset: each of its quantities, and what is there instead. Pure, for people."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from actors.collector.exposition import SeriesId, carries
from actors.collector.presets import PRESETS, Preset, Series
from actors.collector.series import HISTOGRAMS, ModelSeries
from headway.engine.nearest import Told

MOST_NAMED = 5
NO_STATS = (
    "no names of any preset: was the engine started with --disable-log-stats (vLLM), or without "
    "--enable-metrics (SGLang) or return_perf_metrics (TRT-LLM)?"
)

Shown = Mapping[tuple[str, str], int]
"""How many series there are, by name and by the model that a label of them names (empty without one)."""


class Inventory(NamedTuple):
    """A line for each quantity, none where all are missing; and what is there where the model is not.

    `told` is what engines say of their model and GPU.
    """

    lines: Sequence[str]
    instead: str
    told: Told = Told()


def shown_of(series: ModelSeries, samples: Iterable[SeriesId]) -> Shown:
    """What pages show."""
    return Counter((each.name, named_model(series, dict(each.labels))) for each in samples)


def values_of(series: ModelSeries, labels: Iterable[Mapping[str, str]]) -> tuple[str, ...]:
    """The values of all labels of engines but that of the model."""
    every = (each.items() for each in labels)
    return tuple(
        sorted({value for each in every for name, value in each if name != series.preset.model_label})
    )


def model_labels(series: ModelSeries) -> Sequence[str]:
    """The labels with a model, that of the preset first."""
    every = (series.preset.model_label, *(preset.model_label for preset in PRESETS.values()))
    return tuple(dict.fromkeys(every))


def named_model(series: ModelSeries, labels: Mapping[str, str]) -> str:
    """The model that a series is of; empty without one."""
    return next((labels[label] for label in model_labels(series) if labels.get(label)), "")


def inventory(series: ModelSeries, shown: Shown, place: str = "") -> Inventory:
    """What is shown of the preset; `place` says where, if that is not where the settings look."""
    every = [(quantity, one) for quantity, one in series.preset.every() if quantity != "alive"]
    found = [f"{quantity}: {_found(series, quantity, one, shown)}" for quantity, one in every]
    if all(line.startswith(f"{quantity}: no ") for (quantity, _), line in zip(every, found, strict=True)):
        found = []
    name, _ = series.alive
    there = _models(series.spelt([name]), shown)
    if not place and any(_is_ours(series, model) for model in there):
        return Inventory(found, "")
    return Inventory(found, f"{_instead(series, name, there, shown)}{place}")


def patterns(series: ModelSeries) -> Sequence[str]:
    """Regular expressions of the names that an inventory looks at."""
    begins = [f"{preset.prefix}.+" for preset in PRESETS.values() if preset.prefix]
    ends = [f"(.+[:_])?{_tail(preset)}" for preset in PRESETS.values()]
    return tuple(dict.fromkeys((*series.names, *begins, *ends)))


def _found(series: ModelSeries, quantity: str, one: Series, shown: Shown) -> str:
    part = "_count" if quantity in {*HISTOGRAMS, "prefill_time"} and not one.per else ""
    for name in (one.name, *one.also):
        models = _models([f"{name}{part}"], shown)
        others = series.shared | series.preset.unlabelled
        count = sum(n for model, n in models.items() if name in others or _is_ours(series, model))
        if count:
            return f"{name}, {count} series"
        if any(models):
            return f"{name}, but {_only(models)}"
    return f"no {one.name}"


def _instead(series: ModelSeries, name: str, there: Mapping[str, int], shown: Shown) -> str:
    if any(_is_ours(series, model) for model in there):
        return series.model
    if any(there):
        return f"no series of the model {series.model}, {_only(there)}"
    missing = f"no `{name}`"
    others = [preset for preset in PRESETS.values() if preset.name != series.preset.name]
    best = max(others, key=lambda preset: _of(preset, shown))
    if count := _of(best, shown):
        models = _models([best.alive.name], shown)
        whose = "" if any(_is_ours(series, model) for model in models) else f" ({_only(models)})"
        named = f"begin with `{best.prefix}`" if best.prefix else "have names without a prefix"
        return f"{missing}; {count} series {named}: preset {best.name}{whose}"
    for preset in PRESETS.values():
        for other, _ in shown:
            if (begin := other.removesuffix(_tail(preset))) != other:
                return f"{missing}; some begin with `{begin}`: preset {preset.name}, metrics.overrides.prefix"
    return f"{missing}; {NO_STATS}" if series.preset.alive.engine else missing


def _of(preset: Preset, shown: Shown) -> int:
    """Series that are named as by this preset, if its sign of life is among them."""
    if not _models([preset.alive.name], shown):
        return 0
    begins = {preset.prefix} if preset.prefix else {one.name for _, one in preset.every()}
    every = tuple(spelling for begin in begins for spelling in _spellings(begin))
    return sum(count for (name, _), count in shown.items() if name.startswith(every))


def _models(names: Iterable[str], shown: Shown) -> dict[str, int]:
    """The models that these series name."""
    every = {spelling for name in names for spelling in _spellings(name)}
    found: Counter[str] = Counter()
    for (name, model), count in shown.items():
        if name in every:
            found[model] += count
    return dict(found)


def _only(models: Mapping[str, int]) -> str:
    named = sorted(filter(None, models))
    more = " and more" if len(named) > MOST_NAMED else ""
    return f"only of {', '.join(named[:MOST_NAMED])}{more}" if named else "without the model's label"


def _is_ours(series: ModelSeries, model: str) -> bool:
    label = series.preset.model_label
    return carries(((label, model),), series.of_model)


def _spellings(name: str) -> set[str]:
    return {name, name.replace(":", "_")}


def _tail(preset: Preset) -> str:
    return preset.alive.name.removeprefix(preset.prefix)
