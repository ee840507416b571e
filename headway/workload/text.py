"""Trace files as text: pieces of whole lines, the values in their fields, the error that names both.

A piece knows the number of its first line. Gzip is recognised by its magic bytes, whatever the file is
called. The functions for single values accept a time, a token count or a block id, or raise BadValueError;
the reader adds file, line and field. TraceError is the only exception of this package: no caller handles a
bad column differently from a bad number, all print the line.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path


class TraceError(Exception):
    """A trace, its options or a generator specification that cannot be used; one line says where and why."""


def at_line(path: Path, line: int, field: str, problem: str) -> TraceError:
    """The error of one physical line (1-based, the header counts) of a file."""
    return TraceError(f"{path}: line {line}: {field}: {problem}")


GZIP_MAGIC = b"\x1f\x8b"
UTF8_MARK = b"\xef\xbb\xbf"
PIECE_BYTES = 2 * 2**20
LONGEST_LINE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Consecutive whole lines; `first_line` is the 1-based number of the first of them in the file."""

    data: bytes
    first_line: int

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield (line number, text) of the lines that are not blank; undecodable bytes become U+FFFD."""
        for number, line in enumerate(self.data.split(b"\n"), self.first_line):
            if text := line.decode("utf-8", "replace").strip():
                yield number, text

    def split_header(self) -> tuple[int, str, "Piece"]:
        """The first non-blank line (0 and "" if there is none) and the piece after it."""
        for number, text in self.lines():
            skipped = number - self.first_line + 1
            rest = self.data.split(b"\n", skipped)[skipped:]
            return number, text, Piece(data=b"".join(rest), first_line=number + 1)
        return 0, "", self


def pieces(path: Path) -> Iterator[Piece]:
    """Yield the file in order, about PIECE_BYTES at a time.

    Raises TraceError for a path that is no readable file, for damaged or cut-off gzip, and for binary data.
    """
    if not path.is_file():
        raise TraceError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    line = 1
    try:
        with path.open("rb") as start:
            compressed = start.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        with gzip.open(path) if compressed else path.open("rb") as file:
            while data := file.read(PIECE_BYTES):
                rest = file.readline(LONGEST_LINE_BYTES)
                if b"\0" in data or len(rest) == LONGEST_LINE_BYTES:
                    raise at_line(path, line, "text", "binary data or an endless line; is this a text file?")
                data = data.removeprefix(UTF8_MARK) if line == 1 else data
                yield Piece(data=data + rest, first_line=line)
                line += data.count(b"\n") + rest.count(b"\n")
    except EOFError as error:
        raise TraceError(f"{path}: the gzip data ends early, after line {line - 1}") from error
    except (zlib.error, OSError) as error:
        raise TraceError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


MAX_TOKENS = 2**31 - 1
BLOCK_TOKENS = 512
"""Tokens of one prefix block, as in Mooncake's traces."""
BLOCK_ID_LIMIT = 2**40
"""Ids of blocks are below, so that a copy's number fits above them."""
NANOSECONDS = 1_000_000_000

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity|n/?a|null)?", re.IGNORECASE)
_DATETIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(.*)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BadValueError(Exception):
    """A value that is not what its field asks for; the reader adds file, line and field."""


def number(text: str) -> float:
    """A decimal number; raises BadValueError for anything else, NaN, infinity and empty text included."""
    if _NUMBER.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        raise BadValueError(f"{text or 'empty'} is not a finite number")
    raise BadValueError(f"{text[:40]!r} is not a number")


def seconds(value: float) -> float:
    """A time: finite and not negative."""
    if not isfinite(value):
        raise BadValueError(f"{value} is not a finite number")
    if value < 0:
        raise BadValueError(f"{value} is negative")
    return value


def tokens(value: float) -> int:
    """A token count: whole, 0 to 2**31 - 1."""
    if not isfinite(value):
        raise BadValueError(f"{value} is not a finite number")
    if value < 0:
        raise BadValueError(f"{value:g} is negative")
    if value != int(value):
        raise BadValueError(f"{value:g} is not a whole number of tokens")
    if value > MAX_TOKENS:
        raise BadValueError(f"{value:g} is above {MAX_TOKENS}")
    return int(value)


def datetime_ns(text: str) -> int:
    """Nanoseconds since 1970 of an ISO date and time, up to nine decimals; without an offset it is UTC.

    From 1970 to 2262, so that dates and their differences are 64-bit integers.
    """
    match = _DATETIME.fullmatch(text)
    try:
        if not match:
            raise ValueError
        moment = datetime.fromisoformat(match[1] + match[3].strip())
    except ValueError:
        raise BadValueError(
            f"{text[:40]!r} is not a date and time such as 2023-11-16 18:17:03.9799600"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    nanoseconds = (since.days * 86400 + since.seconds) * NANOSECONDS + int((match[2] or "").ljust(9, "0"))
    if not 0 <= nanoseconds < 2**63:
        raise BadValueError(f"{text[:40]!r} is outside the years 1970 to 2262")
    return nanoseconds


def json_number(value: object) -> float:
    """A JSON number as a float; raises BadValueError for null, text, lists, booleans."""
    if value is None:
        raise BadValueError("missing")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadValueError(f"{str(value)[:40]!r} is not a number")
    return float(value) if abs(value) < 2**63 or isinstance(value, float) else float("inf")
