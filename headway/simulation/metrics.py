"""Simulated engines as their own metrics show them: totals, scraped every so many seconds."""

from collections.abc import Mapping

from headway.engine.kernel import layout, lifecycle
from headway.engine.observed_metrics import EngineTotals
from headway.simulation.fleet import Fleet

COLUMNS = {
    "first_tokens": "first_tokens",
    "asked_tokens": "computed_tokens",
    "prompts": "prompts",
    "prompt_tokens": "shown_tokens",
    "prefills": "prompts",
    "prefill_s": "prefill_s",
    "gaps": "gaps",
    "gap_s": "gap_s",
    "iterations": "iteration",
}
"""Totals, by the replicas' columns that count them: tokens there are without cached ones."""


def engine_totals(fleet: Fleet) -> Mapping[str, EngineTotals]:
    """What the engines that serve have counted by now, by serial."""
    lifecycle.catch_up_all(fleet.handle)
    units = fleet.arrays.replicas
    up = units[(units["state"] == layout.SERVING) | (units["state"] == layout.DRAINING)]
    return {
        str(unit["serial"]): EngineTotals(**{name: float(unit[column]) for name, column in COLUMNS.items()})
        for unit in up
    }
