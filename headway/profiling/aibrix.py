"""AIBrix's GPU profile (JSON) as it stands in the file: tables [output tokens][input tokens] of one GPU type.

    gpu      name                      indexes  [[output tokens], [input tokens]], ascending
    cost     of a GPU per unit of time tputs    RPS at which the SLO is just kept, 0 if at none
    slos     the SLO it was made for   e2e, ttft, tpot   mean seconds at that rate, optional

Format as written and read by vllm-project/aibrix (gpu_optimizer/optimizer/profiling/gen_profile.py,
pkg/cache/model_gpu_profile.go): tables are [output][input]. Tables that fit only the other way round are
turned, and `indexes` with them stay as documented; square ones are taken as documented.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from headway.profiling import ForeignProfileError

Table = tuple[tuple[float, ...], ...]

MOST_BYTES = 64 * 1024 * 1024

MOST = 1e12
"""No number of a profile is larger; `created`, which is not read, is a time."""


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


def load_aibrix_tables(path: Path) -> AibrixTables:
    """The tables in a file. Raises ForeignProfileError, one line: file, key and fault."""
    return read_tables(ProfileReader(str(path), content_of(path)))


def content_of(path: Path) -> object:
    """The parsed JSON of a file. Raises ForeignProfileError, one line."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ForeignProfileError(f"{path}: larger than {MOST_BYTES} bytes")
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ForeignProfileError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ForeignProfileError(f"{path}: not JSON: {str(error).splitlines()[0][:80]}") from error
    return content


def read_tables(reader: "ProfileReader") -> AibrixTables:
    """The tables that `reader` checks."""
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


class ProfileReader:
    """Reads and checks the parts of a profile."""

    def __init__(self, source: str, content: object) -> None:
        if not isinstance(content, dict):
            raise ForeignProfileError(f"{source}: must be an object, is {type(content).__name__}")
        self._source, self.content = source, content

    def fault(self, key: str, what: str) -> ForeignProfileError:
        """The error of one key, a line."""
        return ForeignProfileError(f"{self._source}: {key}: {what}")

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
