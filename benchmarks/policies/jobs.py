"""The work that runs in processes: the facts of a base, and a contender on a cell."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.policies.cells import Base, Cell
from benchmarks.policies.contenders import CONTENDERS, Contender, PolicyInputs
from benchmarks.policies.loaded_base import Figures, LoadedBase, gpus_of, load_base
from benchmarks.policies.run_files import BaseFacts, RunFile
from benchmarks.policies.search import Fleet, Knobs, cheapest_fleet, least

Leasts = tuple[int | None, ...]
"""The least position of each knob that holds, all others widest; None where not even the widest does."""

FIRST_S = 300.0
"""The first fleet is the cheapest fixed one that holds the goal in so many seconds, chosen in hindsight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where traces and profiles are, and where results go."""

    data: Path
    output: Path

    def facts(self, base: Base) -> Path:
        return self.output / "bases" / f"{base.name}.json"

    def run_file(self, contender: Contender, cell: Cell) -> Path:
        return self.output / contender.name / f"{cell.name}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseJob:
    """Find the facts of a base."""

    place: Place
    base: Base

    @property
    def name(self) -> str:
        return f"static fleets {self.base.name}"

    def run(self) -> None:
        path = self.place.facts(self.base)
        if path.is_file():
            return
        loaded = load_base(self.place.data, self.base)
        static = _best_static(loaded, RunFile(self.place.output / "static" / f"{self.base.name}.json"))
        BaseFacts(
            requests=sum(known.requests for known in loaded.reaches),
            attainable=loaded.attainable,
            gpus=gpus_of(loaded.plan({}).settings),
            initial=tuple(_first_fleets(loaded)),
            static=static[0] if static else None,
            static_figures=static[1] if static else None,
        ).save(path)


def _static(loaded: LoadedBase, fleet: Fleet) -> Figures:
    prefill, decode = fleet
    plan = loaded.plan({"planner.static.prefill": prefill, "planner.static.decode": decode})
    return loaded.measure(lambda: (plan.policy, None), [fleet] * len(loaded.rotations))


def _best_static(loaded: LoadedBase, run_file: RunFile) -> tuple[Fleet, Figures] | None:
    def figures(knobs: Knobs) -> Figures:
        return _static(loaded, (knobs[0], knobs[1]))

    gpus = gpus_of(loaded.plan({}).settings)
    fleet = cheapest_fleet(lambda fleet: run_file.figures(fleet, figures).held, loaded.guess(), gpus)
    return fleet and (fleet, run_file.runs[fleet])


def _first_fleets(loaded: LoadedBase) -> Sequence[Fleet]:
    """Of each rotation; where no fleet holds, the guess for the mean load."""
    head, gpus = loaded.head(FIRST_S), gpus_of(loaded.plan({}).settings)
    alone = [
        replace(head, rotations=[rotation], reaches=[known])
        for rotation, known in zip(head.rotations, head.reaches, strict=True)
    ]
    return [cheapest_fleet(partial(_holds, each), each.guess(), gpus) or each.guess() for each in alone]


def _holds(loaded: LoadedBase, fleet: Fleet) -> bool:
    return _static(loaded, fleet).held


@dataclass(frozen=True, slots=True, kw_only=True)
class CellJob:
    """Run a contender on a cell: at `positions`, or where none are given search each knob's least.

    `near` is what a cell of the same base needs: the search begins there, unless the contender says where.
    """

    place: Place
    cell: Cell
    contender_name: str
    positions: Knobs = ()
    near: Leasts = ()

    @property
    def contender(self) -> Contender:
        return next(each for each in CONTENDERS if each.name == self.contender_name)

    @property
    def name(self) -> str:
        return f"{self.contender_name} {self.cell.name}"

    def run(self) -> Leasts:
        """The positions found, or `positions`."""
        contender = self.contender
        run_file = RunFile(self.place.run_file(contender, self.cell))
        if self.positions:
            run_file.figures(self.positions, self._measure)
            return self.positions

        def holds(knob: int, position: int) -> bool:
            return run_file.figures(contender.alone(knob, position), self._measure).held

        count = len(contender.grid)
        return tuple(
            least(partial(holds, knob), count, self._guess(knob, run_file)) for knob in range(contender.knobs)
        )

    def _guess(self, knob: int, run_file: RunFile) -> int | None:
        """Where to begin: as the contender says, at what this base, then what a cell nearby needs."""
        contender, top = self.contender, len(self.contender.grid) - 1
        if contender.first is not None:
            return contender.first
        runs = {place: run_file.runs.get(contender.alone(knob, place)) for place in range(top + 1)}
        held = [place for place, run in runs.items() if run and run.held]
        if held or runs[top]:
            return min(held, default=top)
        if not self.near:
            return None
        near = self.near[knob]
        return top if near is None else near

    def _measure(self, knobs: Knobs) -> Figures:
        base, contender = self.cell.base, self.contender
        facts = BaseFacts.load(self.place.facts(base))
        loaded = replace(load_base(self.place.data, base), most=facts.most)
        budget = facts.budget if self.cell.budgeted else None
        inputs = PolicyInputs(loaded=loaded, delay_s=self.cell.delay_s, budget=budget)
        drive = partial(contender.make, inputs, contender.values(knobs))
        return loaded.measure(drive, facts.initial, self.cell.delay_s, budget)
