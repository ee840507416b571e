"""Traces of one JSON object a line: requests by the keys that a format names.

Prefix blocks. A list of ids names the blocks of a prompt in order; equal ids are equal content. Ids may be
numbers of any size or texts. A block is BLOCK_TOKENS for the rest of Headway, so blocks of another size are
put together or taken apart. The size is the one that the line says, else the power of two that fits the
numbers of ids and tokens. A line without ids has no known prefix, and ids that are no list are ignored.

Sessions. A line with a session is a turn: its prompt is the whole conversation before it and its own input
tokens (as AIPerf sends it). A turn with `delay` instead of a time comes that long after the answer before,
which is placed by `interp.plausibility.service_s`, since nothing in the file says when it came.
"""

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from headway.workload.spool import RECORD, Batch
from headway.workload.text import (
    BLOCK_ID_LIMIT,
    BLOCK_TOKENS,
    BadValueError,
    Piece,
    at_line,
    json_number,
    number,
    seconds,
    tokens,
)
from interp.plausibility import service_s

SIZES = [2**power for power in range(17)]
"""Tokens of a block that engines and traces have."""

ANY_OBJECT = 0.01
"""Match of a JSON object with none of the keys: its format is then named by the errors of its lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLinesFormat:
    """A JSON-lines trace format by its keys; `a.b` is the key b of the object at a.

    `units_per_s` is 1 for times in seconds and 1000 for milliseconds; `unit_in_doubt` where the keys are
    written with either. `blocks` is the key of prefix block ids, `block_tokens` that of their size, `session`
    and `delay` those of turns, if there are such. `only` is a key and its value on the lines that are
    requests, `mark` a text on the first line that no other format has, `of` the format in words. Rows may be
    out of order by `reorder_window_s` at least.
    """

    time: str
    input_tokens: str
    output_tokens: str
    blocks: str | None = None
    block_tokens: str | None = None
    units_per_s: float = 1.0
    unit_in_doubt: bool = False
    session: str | None = None
    delay: str | None = None
    only: tuple[str, str] | None = None
    mark: str | None = None
    of: str = "JSON lines"
    reorder_window_s: float = 0.0
    has_header: ClassVar[bool] = False

    def match(self, first_line: str) -> float:
        """The share of the keys that a line names."""
        if not first_line.startswith("{"):
            return 0.0
        if self.mark is not None:
            return float(self.mark in first_line)
        keys = (self.time, self.input_tokens, self.output_tokens)
        return max(ANY_OBJECT, sum(json.dumps(key) in first_line for key in keys) / len(keys))

    def says(self, key: str) -> str:
        """What nothing but the value at a key says."""
        if key == self.output_tokens:
            return "how long a request decodes, which simulations and plans need"
        return "how long its prompt is" if key == self.input_tokens else "when it comes"

    def reader(self, path: Path, line: int, first_line: str) -> "JsonLinesReader":
        """The reader of any such file: the first line is one like the others."""
        del line, first_line
        return JsonLinesReader(path, self)


Block = int | str


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    time_s: float
    input_tokens: int
    output_tokens: int
    ids: Sequence[Block]


@dataclass(frozen=True, slots=True)
class _Session:
    """A conversation so far: when its last answer ended, its tokens, the blocks of its prompts."""

    ended_s: float
    tokens: int
    ids: Sequence[Block]


class JsonLinesReader:
    """Parses the pieces of one file in order; raises TraceError with the line of the first faulty row."""

    def __init__(self, path: Path, trace_format: JsonLinesFormat) -> None:
        self.time_field = trace_format.time
        self.reorder_window_s = trace_format.reorder_window_s
        self._path = path
        self._format = trace_format
        self._count = self._delayed = self._no_list = 0
        self._blocks = _Blocks()
        self._sessions: dict[str, _Session] = {}

    def parse(self, piece: Piece) -> Batch:
        """The rows of a piece, and their prefix blocks."""
        rows = list(self._rows(piece))
        records: list[tuple[float, int, int, int, int, int]] = []
        blocks: list[int] = []
        for row in rows:
            ids = self._blocks.numbers(row.ids)
            start = self._count + len(blocks)
            records.append((row.time_s, row.input_tokens, row.output_tokens, start, len(ids), 0))
            blocks.extend(ids)
        self._count += len(blocks)
        return Batch(
            records=np.array(records, RECORD),
            lines=np.array([row.line for row in rows], np.int64),
            blocks=np.array(blocks, np.int64),
        )

    def notes(self) -> Iterator[str]:
        """What was not read as it stands, a line each."""
        keys = self._format
        if self._delayed:
            yield (
                f"{self._delayed:,} turns have a {keys.delay} after an answer instead of a {keys.time}: "
                "answers are taken to come as fast as those of a usual engine"
            )
        if self._no_list:
            yield f"{keys.blocks} of {self._no_list:,} rows are no lists of numbers or texts: ignored"
        if self._blocks.size == 0:
            yield f"{keys.blocks} fit no size of a block: taken as {BLOCK_TOKENS} tokens each"

    def _rows(self, piece: Piece) -> Iterator[_Row]:
        only = self._format.only
        for line, text in piece.lines():
            value = self._object(line, text)
            if only is None or value.get(only[0]) == only[1]:
                yield self._row(line, value)

    def _object(self, line: int, text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise at_line(self._path, line, "JSON", f"broken: {error}") from error
        if not isinstance(value, dict):
            raise at_line(self._path, line, "JSON", "is not an object")
        return value

    def _row(self, line: int, value: dict[str, Any]) -> _Row:
        keys = self._format
        name = str(value.get(keys.session, "")) if keys.session else ""
        session = self._sessions.get(name)
        inputs = int(self._number(line, value, keys.input_tokens, tokens))
        outputs = int(self._number(line, value, keys.output_tokens, tokens))
        if session and keys.delay in value and keys.time not in value:
            time_s = session.ended_s + self._number(line, value, keys.delay, seconds) / keys.units_per_s
            self._delayed, self.reorder_window_s = self._delayed + 1, inf
        else:
            time_s = self._number(line, value, keys.time, seconds) / keys.units_per_s
        ids = self._ids(value, inputs)
        if name:
            before = session or _Session(0.0, 0, ())
            inputs, ids = before.tokens + inputs, (*before.ids, *ids)
            self._sessions[name] = _Session(time_s + service_s(inputs, outputs), inputs + outputs, ids)
        return _Row(line, time_s, inputs, outputs, ids)

    def _number(self, line: int, value: dict[str, Any], key: str, check: Callable[[float], float]) -> float:
        try:
            found = _at(value, key)
            if isinstance(found, str) and key == self._format.time:
                found = number(found)
            return check(json_number(found))
        except BadValueError as bad:
            problem = str(bad)
        if problem == "missing":
            of, says = self._format.of, self._format.says(key)
            problem = f"missing; read as a trace of {of}, in which nothing else says {says}"
        raise at_line(self._path, line, key, problem)

    def _ids(self, value: dict[str, Any], input_tokens: int) -> Sequence[Block]:
        ids = _at(value, self._format.blocks) if self._format.blocks else None
        if ids is None:
            return ()
        if not isinstance(ids, list) or not all(type(each) in (int, str) for each in ids):
            self._no_list += 1
            return ()
        said = _at(value, self._format.block_tokens) if self._format.block_tokens else None
        self._blocks.seen(len(ids), input_tokens, said)
        return ids


class _Blocks:
    """Numbers of blocks of BLOCK_TOKENS for the ids of a file, of whatever form and size of a block."""

    def __init__(self) -> None:
        self.size: int | None = None
        self._least, self._most = 0.0, inf
        self._known: dict[Hashable, int] = {}

    def seen(self, ids: int, input_tokens: int, said: object) -> None:
        """A prompt has so many ids, of `said` tokens each if that is a number.

        The last may stand for a whole block or for a part of one, or be left out.
        """
        if isinstance(said, int) and said > 0:
            self._least = self._most = said
        else:
            self._least = max(self._least, input_tokens / (ids + 1))
            self._most = min(self._most, input_tokens / (ids - 1) if ids > 1 else inf)

    def numbers(self, ids: Sequence[Block]) -> list[int]:
        """The blocks that `ids` are, each below 2**40, so that a copy's number fits above it."""
        if ids and self.size is None:
            fitting = [size for size in SIZES if self._least <= size <= self._most]
            self.size = BLOCK_TOKENS if BLOCK_TOKENS in fitting else max(fitting, default=0)
        size = self.size or BLOCK_TOKENS
        parts, together = max(1, size // BLOCK_TOKENS), max(1, BLOCK_TOKENS // size)
        if parts > 1:
            return [self._of((each, part)) for each in ids for part in range(parts)]
        if together > 1:
            return [self._of(tuple(ids[at : at + together])) for at in range(0, len(ids), together)]
        return [self._of(each) for each in ids]

    def _of(self, block: Hashable) -> int:
        if isinstance(block, int) and 0 <= block < BLOCK_ID_LIMIT:
            return block
        return self._known.setdefault(block, BLOCK_ID_LIMIT - 1 - len(self._known))


def _at(value: dict[str, Any], key: str) -> object:
    """The value at a key, or at `a.b.c` below it; None where there is none."""
    found: object = value
    for name in key.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found
