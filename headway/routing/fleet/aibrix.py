"""Capacity from a GPU profile of AIBrix (JSON), the "GPU profile" of its routing design.

    gpu      name                      indexes  [[output tokens], [input tokens]], ascending
    cost     of a GPU per unit of time tputs    RPS at which the SLO is just kept, 0 if at none
    slos     the SLO it was made for   e2e, ttft, tpot   mean seconds at that rate, optional

Format as written and read by vllm-project/aibrix (gpu_optimizer/optimizer/profiling/gen_profile.py,
pkg/cache/model_gpu_profile.go): tables are [output][input]. Tables that fit only the other way round are
turned, and `indexes` with them stay as documented; square ones are taken as documented.

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

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log2
from pathlib import Path

from headway.config import Role
from headway.routing.fleet.capacity import Candidates, LoadQuery
from headway.routing.fleet.table import FleetRow, FloatArray, SlotArray
from headway.routing.types import RoutingError
from interp.jit import compiled

Table = tuple[tuple[float, ...], ...]

MOST_BYTES = 64 * 1024 * 1024

MOST = 1e12
"""No number of a profile is larger; `created`, which is not read, is a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AibrixProfile:
    """Capacities of one GPU type: `requests[output][input]`, concurrent, at the grid's token counts."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AibrixTables:
    """A file's tables, `[output][input]`: RPS, and seconds where it has them."""

    gpu: str
    cost: float
    output_tokens: tuple[float, ...]
    input_tokens: tuple[float, ...]
    rates_rps: Table
    e2e_s: Table | None
    ttft_s: Table | None
    tpot_s: Table | None
    slos: Mapping[str, float]


def load_aibrix_profile(path: Path) -> AibrixProfile:
    """The profile in a file. Raises RoutingError, one line: file, key and fault."""
    return parse_aibrix_profile(_content(path), str(path))


def load_aibrix_tables(path: Path) -> AibrixTables:
    """The tables in a file. Raises RoutingError, one line: file, key and fault."""
    return _tables(_Reader(str(path), _content(path)))


def _content(path: Path) -> object:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise RoutingError(f"{path}: larger than {MOST_BYTES} bytes")
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RoutingError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise RoutingError(f"{path}: not JSON: {str(error).splitlines()[0][:80]}") from error
    return content


def parse_aibrix_profile(content: object, source: str) -> AibrixProfile:
    """The profile in parsed JSON; `source` begins the line of a RoutingError."""
    reader = _Reader(source, content)
    tables = _tables(reader)
    return AibrixProfile(
        gpu=tables.gpu,
        cost=tables.cost,
        output_tokens=tables.output_tokens,
        input_tokens=tables.input_tokens,
        requests=_capacities(reader, tables.rates_rps, _stays(reader, tables)),
        slos=tables.slos,
    )


def _tables(reader: "_Reader") -> AibrixTables:
    output_tokens, input_tokens = reader.indexes()
    shape = (len(output_tokens), len(input_tokens))
    rates = reader.table("tputs", shape)
    if rates is None:
        raise reader.fault("tputs", "missing")
    return AibrixTables(
        gpu=str(reader.content.get("gpu", "")),
        cost=reader.number("cost", reader.content.get("cost", 0.0)),
        output_tokens=output_tokens,
        input_tokens=input_tokens,
        rates_rps=rates,
        e2e_s=reader.table("e2e", shape),
        ttft_s=reader.table("ttft", shape),
        tpot_s=reader.table("tpot", shape),
        slos=reader.slos(),
    )


def _stays(reader: "_Reader", tables: AibrixTables) -> Table:
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


def _capacities(reader: "_Reader", rates: Table, stays: Table) -> Table:
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


class _Reader:
    """Reads and checks the parts of a profile."""

    def __init__(self, source: str, content: object) -> None:
        if not isinstance(content, dict):
            raise RoutingError(f"{source}: must be an object, is {type(content).__name__}")
        self._source, self.content = source, content

    def fault(self, key: str, what: str) -> RoutingError:
        return RoutingError(f"{self._source}: {key}: {what}")

    def number(self, key: str, value: object) -> float:
        """A finite number of at least 0."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fault(key, f"must be a number, is {value!r:.40}")
        if not 0.0 <= value <= MOST:
            raise self.fault(key, f"must lie in 0 .. {MOST:g}, is {value!r:.40}")
        return float(value)

    def numbers(self, key: str, value: object) -> tuple[float, ...]:
        """A list of numbers, not empty."""
        if not isinstance(value, list) or not value:
            raise self.fault(key, f"must be a list of numbers, is {value!r:.40}")
        return tuple(self.number(f"{key}[{place}]", item) for place, item in enumerate(value))

    def indexes(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Output and input token counts."""
        lists = self.content.get("indexes")
        if not isinstance(lists, list) or len(lists) != 2:
            raise self.fault("indexes", "must be two lists: output tokens, input tokens")
        return self._axis("indexes[0]", lists[0]), self._axis("indexes[1]", lists[1])

    def _axis(self, key: str, value: object) -> tuple[float, ...]:
        axis = self.numbers(key, value)
        if axis[0] < 1.0 or any(low >= high for low, high in pairwise(axis)):
            raise self.fault(key, "must ascend from at least 1")
        return axis

    def table(self, key: str, shape: tuple[int, int]) -> Table | None:
        """A table [output][input], turned if it fits only so; None if the key is not there."""
        value = self.content.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.fault(key, f"must be a list of rows, is {value!r:.40}")
        rows = tuple(self.numbers(f"{key}[{place}]", row) for place, row in enumerate(value))
        if _fits(rows, shape):
            return rows
        if _fits(rows, (shape[1], shape[0])):
            return tuple(zip(*rows, strict=True))
        raise self.fault(key, f"must have {shape[0]} rows (output) of {shape[1]} numbers (input)")

    def slos(self) -> Mapping[str, float]:
        """The SLO that the profile was made for; what is not set is missing."""
        slos = self.content.get("slos", {})
        if not isinstance(slos, dict):
            raise self.fault("slos", f"must be an object, is {slos!r:.40}")
        return {str(key): self.number(f"slos.{key}", value) for key, value in slos.items()}


def _fits(rows: Table, shape: tuple[int, int]) -> bool:
    return len(rows) == shape[0] and all(len(row) == shape[1] for row in rows)
