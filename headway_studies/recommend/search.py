"""The candidates' least costs, without trying what cannot be cheapest, and the choice among them.

First the least fixed fleet of each candidate, then the policy `headway` on those that have one. A candidate
is left out as soon as its bound is not below the cheapest that meets the SLO so far:

    fixed fleets    bound
    the policy      the larger of bound and least (`trials`)

Simulations run in waves of a fixed size and the bounds are compared between waves, so that the result does
not depend on which process was faster.

The cheapest outcome that meets the SLO is chosen. Costs within TIE of it count as equal; then comes the
policy before a fixed fleet, since it follows the load when that is not as recorded; then what attains more,
what takes fewer GPUs for a replica, and the order of the candidates.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from headway_studies.recommend.candidates import Candidate
from headway_studies.recommend.fleets import Fleet
from headway_studies.recommend.trials import Facts, Outcome

WAVE = 4
TIE = 0.005


Found = tuple[Outcome | None, str | None]
"""A least fixed fleet, or why there is none."""


class Runs(Protocol):
    """The parts of `trials` for several candidates at once, in their order."""

    def facts(self, candidates: Sequence[Candidate]) -> Sequence[Facts]:
        """What can be told without simulating."""

    def fixed(self, candidates: Sequence[tuple[Candidate, Facts]]) -> Sequence[Found]:
        """The least fixed fleets, or why there is none."""

    def followed(self, candidates: Sequence[tuple[Candidate, Facts, Fleet]]) -> Sequence[Outcome]:
        """The policy on candidates with a least fixed fleet."""


@dataclass(slots=True, kw_only=True)
class Row:
    """A candidate and what came of it.

    `problem` says why no fleet meets the SLO. Without one, what is None was left out: `fixed` costs
    `bound` at least, `followed` costs `floor` at least, and something else costs less than that.
    """

    candidate: Candidate
    facts: Facts
    aim: float
    fixed: Outcome | None = None
    followed: Outcome | None = None
    problem: str | None = None

    @property
    def price(self) -> float:
        """The price of a GPU-hour."""
        return self.candidate.engine.price_per_gpu_hour

    @property
    def bound(self) -> float:
        """What any fleet costs at least."""
        return self.facts.bound_gpu_hours * self.price

    @property
    def floor(self) -> float:
        """What a policy costs at least."""
        return max(self.facts.bound_gpu_hours, self.facts.least_gpu_hours) * self.price

    def cost(self, outcome: Outcome) -> float:
        """GPU-hours times price."""
        return outcome.gpu_hours * self.price

    def kept(self) -> Iterator[Outcome]:
        """The outcomes that meet the SLO."""
        for outcome in (self.fixed, self.followed):
            if outcome is not None and outcome.attainment >= self.aim:
                yield outcome

    @property
    def least(self) -> float:
        """The cost of the cheapest outcome that meets the SLO; infinity without one."""
        return min(map(self.cost, self.kept()), default=inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is recommended: the row, and which of its outcomes."""

    row: Row
    outcome: Outcome

    @property
    def is_fixed(self) -> bool:
        """Whether it is a fixed fleet, not the policy."""
        return self.outcome is self.row.fixed

    @property
    def cost(self) -> float:
        """GPU-hours times price."""
        return self.row.cost(self.outcome)


def evaluated(candidates: Sequence[Candidate], aim: float, runs: Runs) -> list[Row]:
    """A row for each candidate, in their order."""
    known = zip(candidates, runs.facts(candidates), strict=True)
    rows = [Row(candidate=each, facts=facts, aim=aim, problem=facts.problem) for each, facts in known]
    for wave in _waves(rows, [row for row in rows if row.problem is None], lambda row: row.bound):
        found = runs.fixed([(row.candidate, row.facts) for row in wave])
        for row, (outcome, problem) in zip(wave, found, strict=True):
            row.fixed, row.problem = outcome, problem
    for wave in _waves(rows, [row for row in rows if row.fixed], lambda row: row.floor):
        fleets = [(row.candidate, row.facts, row.fixed.fleet) for row in wave if row.fixed is not None]
        for row, policy in zip(wave, runs.followed(fleets), strict=True):
            row.followed = policy
    return rows


def _waves(rows: Sequence[Row], waiting: Sequence[Row], bound: Callable[[Row], float]) -> Iterator[list[Row]]:
    """Those whose bound is below the least cost of all rows so far, those that promise most first."""
    order = sorted(waiting, key=lambda row: (row.least, bound(row)))
    for begin in range(0, len(order), WAVE):
        wave = order[begin : begin + WAVE]
        least = min(row.least for row in rows)
        if hopeful := [row for row in wave if bound(row) < least]:
            yield hopeful


def chosen(rows: Sequence[Row]) -> Choice | None:
    """The recommendation, or None where nothing meets the SLO."""
    choices = [Choice(row=row, outcome=outcome) for row in rows for outcome in row.kept()]
    if not choices:
        return None
    least = min(choice.cost for choice in choices)
    return min((choice for choice in choices if choice.cost <= least * (1.0 + TIE)), key=_preference)


def _preference(choice: Choice) -> tuple[bool, float, int]:
    most = max(choice.row.facts.gpus_per_replica.values())
    return choice.is_fixed, -choice.outcome.attainment, most


def cheapest(rows: Sequence[Row]) -> Choice | None:
    """The cheapest outcome of these rows that meets the SLO; the first of equal ones."""
    kept = (Choice(row=row, outcome=outcome) for row in rows for outcome in row.kept())
    return min(kept, key=lambda choice: choice.cost, default=None)


def other_policy(choice: Choice) -> Choice | None:
    """The other outcome of the chosen row, if it meets the SLO."""
    others = [outcome for outcome in choice.row.kept() if outcome is not choice.outcome]
    return Choice(row=choice.row, outcome=others[0]) if others else None
