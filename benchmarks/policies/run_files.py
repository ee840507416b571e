"""Runs on disk: one JSON file per contender and cell, so that no run is made twice.

    OUTPUT/<contender>/<cell>.json      positions of the knobs → figures
    OUTPUT/static/<base>.json           prefill and decode replicas → figures
    OUTPUT/bases/<base>.json            requests, what is attainable, first fleets, the best static fleet

Whoever changes a policy removes its folder, and the next run makes that policy's runs anew.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.policies.loaded_base import Figures
from benchmarks.policies.search import Fleet, Knobs

MOST_FACTOR = 8
"""A pool may grow to so many times what the best static fleet and the first fleets have of it."""

BUDGET_FACTOR = 1.25
"""`max_gpu_budget` over the best static fleet's GPUs: with no more than those, whoever moves falls short."""


class RunFile:
    """The runs in one file; each new one is written at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        held = json.loads(path.read_text()) if path.is_file() else {}
        self.runs = {_knobs(key): Figures.of(document) for key, document in held.items()}

    def figures(self, knobs: Knobs, measure: Callable[[Knobs], Figures]) -> Figures:
        """From the file, or measured now."""
        if knobs not in self.runs:
            self.runs[knobs] = measure(knobs)
            write(self._path, {_key(known): asdict(run) for known, run in sorted(self.runs.items())})
        return self.runs[knobs]

    def cheapest(self) -> tuple[Knobs, Figures] | None:
        """The cheapest run that holds."""
        held = [(knobs, run) for knobs, run in self.runs.items() if run.held]
        return min(held, key=lambda pair: pair[1].gpu_hours, default=None)


def _key(knobs: Knobs) -> str:
    return ",".join(str(position) for position in knobs)


def _knobs(key: str) -> Knobs:
    return tuple(int(position) for position in key.split(","))


def write(path: Path, document: Mapping[str, Any]) -> None:
    """As JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1))
    part.replace(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFacts:
    """Facts that hold for all cells of a base.

    `initial` is the first fleet of each rotation. `static` and `static_figures` are the cheapest fixed fleet
    in hindsight and what it does; None where none holds the goal.
    """

    requests: int
    attainable: int
    gpus: Fleet
    initial: tuple[Fleet, ...]
    static: Fleet | None
    static_figures: Figures | None

    @property
    def most(self) -> Fleet:
        """Each pool's `max_replicas`: no policy is let run away."""
        widest = [max(counts) for counts in zip(*self.initial, self.static or (1, 1), strict=True)]
        return MOST_FACTOR * widest[0], MOST_FACTOR * widest[1]

    @property
    def budget(self) -> int | None:
        """A fourth more GPUs than the static fleet has."""
        if self.static is None:
            return None
        return ceil(BUDGET_FACTOR * (self.static[0] * self.gpus[0] + self.static[1] * self.gpus[1]))

    def save(self, path: Path) -> None:
        write(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> "BaseFacts":
        document = json.loads(path.read_text())
        figures = document["static_figures"]
        return cls(
            **{
                **document,
                "gpus": tuple(document["gpus"]),
                "initial": tuple(tuple(fleet) for fleet in document["initial"]),
                "static": document["static"] and tuple(document["static"]),
                "static_figures": figures and Figures.of(figures),
            }
        )
