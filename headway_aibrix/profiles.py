"""Capacity from a GPU profile of AIBrix (`headway.profiling.foreign_profiles` has the file's format).

    Capacity = RPS × E2E      log2(Capacity) is linear in log2(tokens) between the points of the grid; lengths
                              beyond the grid are its edge's

Points with RPS 0 have no capacity to go on from: whether a request fits at all is what the grid point says
that is nearest in log2(tokens) (AIBrix's own rule), of equally near ones the longer; and among the others
around it only those with a rate count.

E2E is `e2e`; else ttft + (output tokens − 1) tpot; else the bound of the profile's own SLO, `slos.e2e`, which
overstates the capacity. A file with none of them is an error. A point with RPS 0 has capacity 0, any other at
least 1. The request's own SLO plays no part, the role mixed alone is known, and prompts are charged in full
where a part of them is cached: the tables do not tell a prompt's work from the KV that it holds.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, log2
from pathlib import Path
from typing import ClassVar

from headway.config import Role
from headway.profiling import ForeignProfileError
from headway.profiling.foreign_profiles import AibrixTables, ProfileReader, Table, content_of, read_tables
from headway.routing.fleet.table import FleetRow, FloatArray, SlotArray
from headway.routing.types import RoutingError
from headway_aibrix.capacity import Candidates, LoadQuery
from interp.jit import compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class AibrixProfile:
    """Capacities of one GPU type: `requests[output][input]`, concurrent, at the grid's token counts."""

    serves: ClassVar[str] = "AIBrix capacity of mixed replicas, no latency prediction"

    gpu: str
    cost: float
    output_tokens: tuple[float, ...]
    input_tokens: tuple[float, ...]
    requests: Table
    slos: Mapping[str, float]

    def fill(self, asked: LoadQuery, among: Candidates, out: FloatArray) -> None:
        """The same load for all candidates of this type; nothing for roles but mixed."""
        if asked.role is not Role.MIXED:
            return
        capacity = self.capacity(asked.input_tokens, asked.output_tokens)
        fill_kind(among.table, among.slots, among.kind, 1.0 / capacity if capacity > 0.0 else inf, out)

    def capacity(self, input_tokens: float, output_tokens: float) -> float:
        """Concurrent requests; 0 where the profile's SLO is kept at no rate."""
        row, next_row, down = _between(self.output_tokens, output_tokens)
        column, next_column, along = _between(self.input_tokens, input_tokens)
        nearest = self.requests[next_row if down >= 0.5 else row][next_column if along >= 0.5 else column]
        if nearest == 0.0:
            return 0.0
        total = weights = 0.0
        for line, part in ((row, 1.0 - down), (next_row, down)):
            for place, share in ((column, 1.0 - along), (next_column, along)):
                if (requests := self.requests[line][place]) > 0.0:
                    total += part * share * log2(requests)
                    weights += part * share
        return float(2.0 ** (total / weights))


def load_aibrix_profile(path: Path) -> AibrixProfile:
    """The profile in a file. Raises RoutingError, one line: file, key and fault."""
    try:
        return parse_aibrix_profile(content_of(path), str(path))
    except ForeignProfileError as error:
        raise RoutingError(str(error)) from error


def parse_aibrix_profile(content: object, source: str) -> AibrixProfile:
    """The profile in parsed JSON; `source` begins the line of a ForeignProfileError."""
    reader = ProfileReader(source, content)
    tables = read_tables(reader)
    return AibrixProfile(
        gpu=tables.gpu,
        cost=tables.cost,
        output_tokens=tables.output_tokens,
        input_tokens=tables.input_tokens,
        requests=_capacities(reader, tables.rates_rps, _stays(reader, tables)),
        slos=tables.slos,
    )


def _stays(reader: ProfileReader, tables: AibrixTables) -> Table:
    """Seconds from arrival to the last token, [output][input]."""
    if tables.e2e_s is not None:
        return tables.e2e_s
    if tables.ttft_s is not None and tables.tpot_s is not None:
        return tuple(
            tuple(first + (tokens - 1.0) * each for first, each in zip(firsts, eachs, strict=True))
            for tokens, firsts, eachs in zip(tables.output_tokens, tables.ttft_s, tables.tpot_s, strict=True)
        )
    if "e2e" in tables.slos:
        return ((tables.slos["e2e"],) * len(tables.input_tokens),) * len(tables.output_tokens)
    raise reader.fault("e2e", "missing, and neither ttft with tpot nor slos.e2e stands in for it")


def _capacities(reader: ProfileReader, rates: Table, stays: Table) -> Table:
    for row, (of_row, stays_of_row) in enumerate(zip(rates, stays, strict=True)):
        for column, (rate, stay) in enumerate(zip(of_row, stays_of_row, strict=True)):
            if rate > 0.0 and stay <= 0.0:
                raise reader.fault(f"e2e[{row}][{column}]", f"must be positive at {rate:g} RPS, is {stay:g}")
    return tuple(
        tuple(max(1.0, rate * stay) if rate > 0.0 else 0.0 for rate, stay in zip(*rows, strict=True))
        for rows in zip(rates, stays, strict=True)
    )


def _between(grid: tuple[float, ...], tokens: float) -> tuple[int, int, float]:
    """The two places of an ascending grid around `tokens`, and how far it is to the second in log2."""
    after = bisect_right(grid, tokens)
    if after == 0 or after == len(grid):
        edge = max(0, after - 1)
        return edge, edge, 0.0
    low = log2(grid[after - 1])
    return after - 1, after, (log2(tokens) - low) / (log2(grid[after]) - low)


@compiled
def fill_kind(table: FloatArray, slots: SlotArray, kind: int, load: float, out: FloatArray) -> None:
    """`load` into `out` f8[C] for each of `slots` of that kind."""
    for place in range(len(slots)):
        if table[FleetRow.KIND, slots[place]] == kind:
            out[place] = load
