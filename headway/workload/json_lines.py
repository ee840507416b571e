"""Traces of one JSON object a line: a format names its keys.

Mooncake's `hash_ids` names the 512-token prefix blocks of the prompt, in order; equal ids are equal content.
A line without them has no known prefix.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from headway.workload.spool import RECORD, Batch
from headway.workload.text import BadValueError, Piece, at_line, block_ids, json_number, seconds, tokens

ANY_OBJECT = 0.01
"""Match of a JSON object with none of the keys: its format is then named by the errors of its lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLinesFormat:
    """A JSON-lines trace format by its keys; `blocks` is the key of prefix block ids, if there is one.

    `units_per_s` is 1 for times in seconds and 1000 for milliseconds.
    """

    time: str
    input_tokens: str
    output_tokens: str
    blocks: str | None = None
    units_per_s: float = 1.0
    has_header: ClassVar[bool] = False

    def match(self, first_line: str) -> float:
        """The share of the keys that a line names."""
        if not first_line.startswith("{"):
            return 0.0
        keys = (self.time, self.input_tokens, self.output_tokens)
        return max(ANY_OBJECT, sum(json.dumps(key) in first_line for key in keys) / len(keys))

    def reader(self, path: Path, line: int, first_line: str) -> "JsonLinesReader":
        """The reader of any such file: the first line is one like the others."""
        del line, first_line
        return JsonLinesReader(path, self)


MOONCAKE = JsonLinesFormat(
    time="timestamp",
    input_tokens="input_length",
    output_tokens="output_length",
    blocks="hash_ids",
    units_per_s=1000.0,
)


class JsonLinesReader:
    """Parses the pieces of one file in order; raises TraceError with the line of the first faulty row."""

    def __init__(self, path: Path, trace_format: JsonLinesFormat) -> None:
        self.time_field = trace_format.time
        self._path = path
        self._format = trace_format
        self._blocks = 0

    def parse(self, piece: Piece) -> Batch:
        """The rows of a piece, and their prefix blocks."""
        rows: list[tuple[float, int, int, int, int, int]] = []
        lines: list[int] = []
        blocks: list[int] = []
        for line, text in piece.lines():
            time_s, inputs, outputs, ids = self._row(line, self._object(line, text))
            rows.append((time_s, inputs, outputs, self._blocks + len(blocks), len(ids), 0))
            lines.append(line)
            blocks.extend(ids)
        self._blocks += len(blocks)
        return Batch(
            records=np.array(rows, RECORD), lines=np.array(lines, np.int64), blocks=np.array(blocks, np.int64)
        )

    def _object(self, line: int, text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise at_line(self._path, line, "JSON", f"broken: {error}") from error
        if not isinstance(value, dict):
            raise at_line(self._path, line, "JSON", "is not an object")
        return value

    def _row(self, line: int, value: dict[str, Any]) -> tuple[float, int, int, list[int]]:
        keys, field = self._format, ""
        try:
            time_s = seconds(json_number(value.get(field := keys.time))) / keys.units_per_s
            inputs = tokens(json_number(value.get(field := keys.input_tokens)))
            outputs = tokens(json_number(value.get(field := keys.output_tokens)))
            ids = block_ids(value.get(field := keys.blocks)) if keys.blocks else []
        except BadValueError as bad:
            raise at_line(self._path, line, field, str(bad)) from None
        return time_s, inputs, outputs, ids
