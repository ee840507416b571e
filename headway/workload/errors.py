"""What goes wrong with a trace.

    TraceError(Exception)     the input cannot be used; the message is one line naming file, line and field

One class suffices: nobody handles a bad column differently from a bad number, everybody prints the line.
"""

from pathlib import Path


class TraceError(Exception):
    """A trace, its options or a generator specification that cannot be used; one line says where and why."""


def at_line(path: Path, line: int, field: str, problem: str) -> TraceError:
    """The error of one physical line (1-based, the header counts) of a file."""
    return TraceError(f"{path}: line {line}: {field}: {problem}")
