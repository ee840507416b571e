"""The JSON document of `headway queue-sim`: what went in, each policy's figures, and the orders they give.

Waits are seconds, violations and utilisation shares in [0, 1]. Every figure is {mean, half_width} over the
seeds, half_width that of the 95 % interval; null where there is no value (one seed, no requests). The same
input gives the same bytes.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from math import isnan
from operator import attrgetter
from typing import Any

from headway.simulation.queueing import (
    Estimate,
    Experiment,
    Figures,
    PolicyResult,
    RunFigures,
    Setup,
    documented,
    estimate,
    fluid_load,
    order_by,
)

WAIT, VIOLATIONS = "mean_wait_s", "slo_violations"
Results = Sequence[PolicyResult]


def make_document(experiment: Experiment, results: Results) -> dict[str, Any]:
    """Everything about one experiment as JSON-able data, without NaN."""
    setup = experiment.setup
    amount = experiment.amount
    claims = documented(setup)
    return {
        "setup": _describe(setup),
        "seeds": experiment.seeds,
        "amount": {name: getattr(amount, name) for name in amount.__dataclass_fields__},
        "service": experiment.service.value,
        "passing": experiment.policies[0].passing.value,
        "policies": [_row(setup, result) for result in results],
        "orders": {
            WAIT: _orders(results, WAIT, key="queue", label="routing"),
            VIOLATIONS: _orders(results, VIOLATIONS, key="routing", label="queue"),
        },
        "documented": claims and {WAIT: claims.wait, VIOLATIONS: claims.violations},
        "notes": list(_notes(experiment)),
    }


def _describe(setup: Setup) -> dict[str, Any]:
    kinds = Counter(id(consumer) for consumer in setup.consumers)
    first = {id(consumer): consumer for consumer in setup.consumers}
    return {
        "name": setup.name,
        "load": fluid_load(setup),
        "patterns": [_plain(pattern) for pattern in setup.patterns],
        "consumers": [
            {
                "kind": first[key].kind,
                "count": count,
                "profiles": {
                    name: {**_plain(profile), "capacity": profile.capacity}
                    for name, profile in first[key].profiles.items()
                },
            }
            for key, count in kinds.items()
        ],
    }


def _plain(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass of plain values
    return {item.name: getattr(value, item.name) for item in fields(value)}


def _row(setup: Setup, result: PolicyResult) -> dict[str, Any]:
    return {
        "label": result.policy.label,
        "routing": result.policy.routing.value,
        "queue": result.policy.queue.value,
        **_figures(result, attrgetter("total")),
        "utilisation": _shown(result.estimate(attrgetter("utilisation"))),
        "patterns": {
            pattern.name: _figures(result, partial(_of_pattern, index))
            for index, pattern in enumerate(setup.patterns)
        },
    }


def _of_pattern(index: int, run: RunFigures) -> Figures:
    return run.patterns[index]


def _figures(result: PolicyResult, part: Callable[[RunFigures], Figures]) -> dict[str, Any]:
    parts = [part(run) for run in result.runs]
    return {item.name: _shown(estimate(map(attrgetter(item.name), parts))) for item in fields(Figures)}


def _orders(results: Results, metric: str, *, key: str, label: str) -> dict[str, list[dict[str, Any]]]:
    """For each value of one policy part, the others in order."""
    groups: dict[str, list[PolicyResult]] = {}
    for result in results:
        groups.setdefault(getattr(result.policy, key).value, []).append(result)
    return {name: _order(group, metric, label) for name, group in groups.items() if len(group) > 1}


def _order(group: Results, metric: str, label: str) -> list[dict[str, Any]]:
    return [
        {
            "name": getattr(place.result.policy, label).value,
            "relation": place.relation,
            "difference": place.difference and _shown(place.difference),
        }
        for place in order_by(group, attrgetter(f"total.{metric}"))
    ]


def _shown(found: Estimate) -> Mapping[str, float | None]:
    return {
        name: None if isnan(value) else value
        for name, value in (("mean", found.mean), ("half_width", found.half_width))
    }


def _notes(experiment: Experiment) -> Iterator[str]:
    setup = experiment.setup
    load, gpus = fluid_load(setup), len(setup.consumers)
    if load >= 1:
        yield (
            f"load {load:.2f}: the arrivals need {load * gpus:.2f} GPUs, there are {gpus}; "
            "queues grow for as long as requests arrive, and waits with the length of the run"
        )
    if documented(setup) is not None and setup.name == "multi":
        yield "the document's first throughput, 3,774, is taken for 3.774; it gives no number of GPUs"
    if experiment.seeds == 1:
        yield "one seed: no confidence intervals, and no order can be told"
