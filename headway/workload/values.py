"""What counts as a time, a token count and a block id: one value at a time, with an error that says where."""

import re
from datetime import UTC, datetime
from math import isfinite

MAX_TOKENS = 2**31 - 1
BLOCK_ID_LIMIT = 2**40
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


def block_ids(value: object) -> list[int]:
    """A list of block ids, each below 2**40, so that a copy's number fits above it; None is no blocks."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(type(block) is int for block in value):
        raise BadValueError("is not a list of integers")
    if value and not (min(value) >= 0 and max(value) < BLOCK_ID_LIMIT):
        raise BadValueError(f"has a block id outside 0 to {BLOCK_ID_LIMIT - 1}")
    return value
