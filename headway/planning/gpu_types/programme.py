"""A small mixed-integer linear programme by names, with an answer to "what is in the way?".

    minimise Σ cost · column     each row: low ≤ Σ factor · column ≤ high     0 ≤ column ≤ most

HiGHS solves it by branch and bound (scipy.optimize.milp) with gap 0, so that no better one exists. Which of
several best solutions it returns is not specified, but the same programme gives the same one. Where nothing
is feasible, the rows that are limits are made soft, and the least excess tells which are in the way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf

import numpy as np

from interp.arrays import FloatArray

Key = tuple[str, ...]

TOLERANCE = 1e-6
"""Within which HiGHS keeps rows and whole numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """low ≤ Σ factor · column ≤ high.

    A limit has words, with {most} for what would be enough: `high` and the excess, times `unit`.
    """

    factors: Mapping[Key, float]
    low: float = -inf
    high: float = inf
    words: str = ""
    unit: float = 1.0


@dataclass(frozen=True, slots=True)
class Column:
    """A variable."""

    cost: float = 0.0
    most: float = inf
    whole: bool = False


@dataclass(slots=True)
class Programme:
    """Columns and rows, to be added in a fixed order."""

    columns: dict[Key, Column] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def solve(self, *, whole: bool = True) -> Mapping[Key, float] | None:
        """Values by column, or None where nothing keeps all rows. `whole` False: fractions everywhere."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        if not self.columns:
            return {}
        columns = self.columns.values()
        found = milp(
            np.array([column.cost for column in columns]),
            integrality=np.array([int(whole and column.whole) for column in columns]),
            bounds=Bounds(0.0, np.array([column.most for column in columns])),
            constraints=LinearConstraint(
                self._matrix(), [row.low for row in self.rows], [row.high for row in self.rows]
            ),
            options={"mip_rel_gap": 0.0},
        )
        return None if found.x is None else dict(zip(self.columns, found.x.tolist(), strict=True))

    def _matrix(self) -> FloatArray:
        places = {key: place for place, key in enumerate(self.columns)}
        matrix = np.zeros((len(self.rows), len(places)))
        for number, row in enumerate(self.rows):
            matrix[number, [places[key] for key in row.factors]] = list(row.factors.values())
        return matrix

    def in_the_way(self) -> str:
        """The limits that the least excess over limits exceeds, each in its words; "" if they do not help."""
        soft = Programme({key: replace(column, cost=0.0) for key, column in self.columns.items()})
        for number, row in enumerate(self.rows):
            soft.rows.append(soft.softened(row, ("excess", str(number))) if row.words else row)
        solution = soft.solve() or {}
        excess = [solution.get(("excess", str(number)), 0.0) for number in range(len(self.rows))]
        over = [(row, more) for row, more in zip(self.rows, excess, strict=True) if more > TOLERANCE]
        return "; ".join(
            row.words.format(most=ceil((row.high + more) * row.unit - TOLERANCE)) for row, more in over
        )

    def softened(self, row: Row, excess: Key) -> Row:
        """The row with a column for what exceeds its upper limit, which costs its unit."""
        self.columns[excess] = Column(cost=row.unit)
        return replace(row, factors={**row.factors, excess: -1.0})
