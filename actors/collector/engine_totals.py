"""What engines have counted of their own work, engine by engine: for `headway.engine.observed_metrics`. Pure.

Quantities of an interval are sums over a fleet; these are not, and only totals: no gauge is read, so that
they are as good at any spacing of the reads. Of prefill engines' gaps and decode engines' prompts nothing is
taken: the one decodes a token, the other fetches its prompts.
"""

from collections.abc import Mapping
from math import isnan, nan

from actors.collector.exposition import ROLE, Samples, SeriesId, can_be, carries
from actors.collector.presets import EngineNames, Preset, engine_names
from actors.collector.series import engine_of, role_of
from headway.engine.observed_metrics import EngineTotals
from headway.planning import Role


class EngineTotalsReader:
    """Samples → the totals of each engine that serves a model."""

    def __init__(self, preset: Preset, model: str) -> None:
        self._where = ((preset.model_label, preset.model(model)),)
        self._load, self._shown = preset.load, engine_names(preset)
        self._names = self._shown.series if self._shown else frozenset()
        self._engines: dict[SeriesId, tuple[str, Role | None] | None] = {}

    def read(self, samples: Samples) -> dict[str, EngineTotals]:
        """By engine; an engine of which a total cannot be is left out."""
        found: dict[tuple[str, Role | None], dict[str, float]] = {}
        for series, value in samples.items():
            if series.name in self._names and (engine := self._engine(series)) is not None:
                sums = found.setdefault(engine, {})
                sums[series.name] = sums.get(series.name, 0.0) + (value if can_be(value) else nan)
        shown = self._shown
        if shown is None:
            return {}
        totals = {engine: _totals(shown, sums, role) for (engine, role), sums in found.items()}
        return {engine: each for engine, each in totals.items() if not any(map(isnan, each))}

    def _engine(self, series: SeriesId) -> tuple[str, Role | None] | None:
        """The engine of a series and its role; None for another model's."""
        if series not in self._engines:
            labels, told = series.labels, dict(series.labels).get(ROLE)
            role = Role(told) if told else role_of(self._load, labels) if self._load else None
            named = engine_of(labels)
            ours = named is not None and carries(labels, self._where)
            self._engines[series] = (str(named), role) if ours else None
        return self._engines[series]


def _totals(names: EngineNames, sums: Mapping[str, float], role: Role | None) -> EngineTotals:
    def of(name: str, part: str = "") -> float:
        return sums.get(f"{name}_{part}" if part else name, 0.0)

    gaps = EngineTotals(
        gaps=of(names.gap, "count"),
        gap_s=of(names.gap, "sum"),
        preemptions=of(names.preemptions),
        iterations=of(names.iterations),
    )
    if role is Role.DECODE:
        return gaps
    first_tokens, prefills = of(names.first_token, "count"), of(names.prefill, "count")
    prefill_s = of(names.prefill, "sum")
    if not names.prefill:
        prefills, prefill_s = first_tokens, of(names.first_token, "sum") - of(names.queue, "sum")
    return (EngineTotals() if role is Role.PREFILL else gaps)._replace(
        first_tokens=first_tokens,
        asked_tokens=of(names.prompts),
        cached_tokens=of(names.cached),
        prompts=of(names.lengths, "count"),
        prompt_tokens=of(names.lengths, "sum"),
        prefills=prefills,
        prefill_s=prefill_s,
    )
