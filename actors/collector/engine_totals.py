"""What engines have counted of their own work, engine by engine: for `headway.engine.observed_metrics`. Pure.

Quantities of an interval are sums over a fleet; these are not. Latencies follow from totals alone, which are
as good at any spacing of the reads; gauges show an engine's limits (`headway.engine.observed_limits`). Of
prefill engines' gaps and decode engines' prompts nothing is taken: the one decodes a token, the other fetches
its prompts.
"""

from collections import Counter
from collections.abc import Mapping
from math import isnan, nan, prod
from types import MappingProxyType

from actors.collector.exposition import ROLE, Samples, SeriesId, can_be, carries
from actors.collector.presets import Labels, Preset, Series
from actors.collector.series import engine_of, role_of
from headway.engine.nearest import gpu_of
from headway.engine.observed_metrics import EngineLoad, EngineTotals
from headway.planning import Role

Engine = tuple[str, Role | None, str]  # name, role, GPU
APART: Mapping[str, str] = MappingProxyType({})


class EngineTotalsReader:
    """Samples → the totals and the load of each engine that serves a model."""

    def __init__(self, preset: Preset, model: str) -> None:
        self._where = ((preset.model_label, preset.model(model)),)
        self._load, self._shown, self._replicated = preset.load, preset.teaching, preset.replicated
        load, shown = self._load, self._shown
        every = (load.running, load.waiting, load.kv_usage, shown.kv_tokens) if load and shown else ()
        self._gauges = tuple(one for one in every if one)
        self._names = preset.totals - {one.name for one in self._gauges}
        self._iterations = shown.iterations.name if shown and shown.iterations else ""
        self._engines: dict[SeriesId, Engine | None] = {}

    def read(self, samples: Samples, joint: Mapping[str, str] = APART) -> dict[str, EngineTotals]:
        """The totals by engine, or by the replica in `joint`; one of which one cannot be is left out."""
        found: dict[tuple[str, Role | None], dict[str, float]] = {}
        ranks: Counter[str] = Counter()
        for series, value in samples.items():
            if series.name in self._names and (engine := self._engine(series, self._where)) is not None:
                name = joint.get(engine[0], engine[0])
                sums = found.setdefault((name, engine[1]), {})
                sums[series.name] = sums.get(series.name, 0.0) + (value if can_be(value) else nan)
                ranks[name] += series.name == self._iterations
        shown = self._shown
        if shown is None:
            return {}
        totals = {engine: _totals(shown, sums, role) for (engine, role), sums in found.items()}
        return {
            # Ranks iterate beside each other.
            engine: each._replace(iterations=each.iterations / max(1, ranks[engine]))
            for engine, each in totals.items()
            if not any(map(isnan, each))
        }

    def loads(self, samples: Samples, joint: Mapping[str, str] = APART) -> dict[str, EngineLoad]:
        """The gauges by engine; NaN for what does not show. Ranks with figures of their own add up."""
        found: dict[str, dict[str, dict[Labels, float]]] = {}
        gauges, gpus = {one.name: one for one in self._gauges}, dict[str, str]()
        for series, value in samples.items():
            if (one := gauges.get(series.name)) is None:
                continue
            if (engine := self._engine(series, () if one.labels else self._where)) is not None:
                ranks = tuple(label for label in series.labels if label[0] not in self._replicated)
                name = joint.get(engine[0], engine[0])
                shown = found.setdefault(name, {}).setdefault(one.name, {})
                shown[ranks], gpus[name] = _value(one, series, value), engine[2]
        return {engine: self._load_of(values, gpus[engine]) for engine, values in found.items()}

    def _load_of(self, values: Mapping[str, Mapping[Labels, float]], gpu: str) -> EngineLoad:
        figures = [sum(each.values()) if (each := values.get(one.name)) else nan for one in self._gauges]
        running, waiting, usages, *capacity = figures
        ranks = len(values.get(self._gauges[2].name, ())) or 1
        return EngineLoad(running, waiting, usages / ranks, capacity[0] if capacity else nan, gpu)

    def _engine(self, series: SeriesId, where: Labels) -> Engine | None:
        """The engine of a series; None for another model's."""
        if series not in self._engines:
            labels, told = series.labels, dict(series.labels).get(ROLE)
            role = Role(told) if told else role_of(self._load, labels) if self._load else None
            named = engine_of(labels)
            ours = named is not None and carries(labels, where)
            gpus = (gpu_of(value) for name, value in labels if name != self._where[0][0])
            self._engines[series] = (str(named), role, next(filter(None, gpus), "")) if ours else None
        return self._engines[series]


def _value(one: Series, series: SeriesId, value: float) -> float:
    """The value of a gauge: that of the sample, or the product of labels."""
    if one.labels:
        labels = dict(series.labels)
        try:
            value = prod(float(labels[name]) for name in one.labels)
        except (KeyError, ValueError):
            return nan
    return value * one.scale if can_be(value) else nan


def _totals(names: Preset, sums: Mapping[str, float], role: Role | None) -> EngineTotals:
    def both(one: Series | None) -> tuple[float, float]:
        total, count = one.parts if one else ("", "")
        return (sums.get(total, 0.0) * one.scale, sums.get(count, 0.0)) if one else (0.0, 0.0)

    def of(one: Series | None) -> float:
        return sums.get(one.name, 0.0) if one else 0.0

    gap_s, gaps = both(names.itl)
    decoded = EngineTotals(
        gaps=gaps,
        gap_s=gap_s,
        gap_tokens=max(0.0, of(names.generated) - both(names.ttft)[1]),
        preemptions=of(names.preemptions),
        iterations=of(names.iterations),
    )
    if role is Role.DECODE:
        return decoded
    (first_s, first_tokens), (prefill_s, prefills) = both(names.ttft), both(names.prefill_time)
    if names.prefill_time is None:
        prefills, prefill_s = first_tokens, first_s - both(names.queue)[0]
    prompt_tokens, prompts = both(names.isl)
    return (EngineTotals() if role is Role.PREFILL else decoded)._replace(
        first_tokens=first_tokens,
        asked_tokens=of(names.prompts),
        cached_tokens=of(names.cached),
        prompts=prompts,
        prompt_tokens=prompt_tokens,
        prefills=prefills,
        prefill_s=prefill_s,
    )
