"""Mooncake's JSON lines to records: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.

`hash_ids` names the 512-token prefix blocks of the prompt, in order; equal ids are equal content. A line
without `hash_ids` has no known prefix.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from headway.workload.batch import Batch
from headway.workload.errors import at_line
from headway.workload.spool import RECORD
from headway.workload.text import Piece
from headway.workload.values import BadValueError, block_ids, json_number, seconds, tokens

MILLISECONDS = 1000.0


class JsonLinesReader:
    """Parses the pieces of one file in order; raises TraceError with the line of the first faulty row."""

    time_field = "timestamp"

    def __init__(self, path: Path) -> None:
        self._path = path
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
        field = ""
        try:
            time_s = seconds(json_number(value.get(field := "timestamp"))) / MILLISECONDS
            inputs = tokens(json_number(value.get(field := "input_length")))
            outputs = tokens(json_number(value.get(field := "output_length")))
            return time_s, inputs, outputs, block_ids(value.get(field := "hash_ids"))
        except BadValueError as bad:
            raise at_line(self._path, line, field, str(bad)) from None
