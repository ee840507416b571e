"""A text file in bounded pieces of whole lines, each knowing its line number.

Gzip is recognised by its magic bytes, whatever the file is called.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

from headway.workload.errors import TraceError, at_line

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


def pieces(path: Path, piece_bytes: int = PIECE_BYTES) -> Iterator[Piece]:
    """Yield the file in order, about `piece_bytes` at a time.

    Raises TraceError for a path that is no readable file, for damaged or cut-off gzip, and for binary data.
    """
    line, tail = 1, b""
    with _open(path) as file:
        while block := _fill(file, piece_bytes, At(path=path, line=line, tail=tail)):
            whole, newline, tail = (tail + block).rpartition(b"\n")
            if b"\0" in block or len(tail) > LONGEST_LINE_BYTES:
                raise at_line(path, line, "text", "binary data or an endless line; is this a text file?")
            if newline:
                yield Piece(data=whole + newline, first_line=line)
                line += whole.count(b"\n") + 1
    if tail:
        yield Piece(data=tail, first_line=line)


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """How far a file has been read: `tail` is the begun line number `line`."""

    path: Path
    line: int
    tail: bytes


def _open(path: Path) -> BufferedIOBase:
    if not path.is_file():
        raise TraceError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    try:
        with path.open("rb") as start:
            compressed = start.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        file = path.open("rb")
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    return _Gunzip(file) if compressed else file


class _Gunzip(gzip.GzipFile):
    """A gzip reader that closes the file it reads from, which GzipFile leaves open."""

    def __init__(self, file: BufferedIOBase) -> None:
        super().__init__(fileobj=file)
        self._source = file

    def close(self) -> None:
        super().close()
        self._source.close()


def _fill(file: BufferedIOBase, wanted: int, at: At) -> bytes:
    """Up to `wanted` bytes (a little more for gzip); empty at the end of the file."""
    held: list[bytes] = []
    size = 0
    try:
        while size < wanted and (block := file.read1(wanted)):
            held.append(block)
            size += len(block)
    except (EOFError, zlib.error, OSError) as error:
        line = at.line + b"".join(held).count(b"\n")
        problem = "gzip data ends early" if isinstance(error, EOFError) else f"cannot be read: {error}"
        raise at_line(at.path, line, "file", problem) from error
    data = b"".join(held)
    return data.removeprefix(UTF8_MARK) if at.line == 1 and not at.tail else data
