"""A short text that a regular expression matches, made from its parts and never searched for.

A pattern comes from a client, and a matcher can be kept busy for ever by one. So there is none here: what
looks at text without taking it, but for the ends of the whole, is refused.
"""

import re
from collections.abc import Callable, Mapping
from re import _constants as parts  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any


class Unfitting(Exception):
    """Nothing that fits can be made here; the text says why."""


LONGEST = 10_000
"""Characters of a pattern, and of a text."""

ENDS = {parts.AT_BEGINNING, parts.AT_BEGINNING_STRING}, {parts.AT_END, parts.AT_END_STRING}


def least_match(pattern: str) -> str:
    """The text. Unfitting."""
    if len(pattern) > LONGEST:
        raise Unfitting(f"the pattern is longer than {LONGEST} characters")
    try:
        found = list(parser.parse(pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise Unfitting(f"the pattern can't be read: {error}") from error
    if found and found[0][0] is parts.AT and found[0][1] in ENDS[0]:
        del found[0]
    if found and found[-1][0] is parts.AT and found[-1][1] in ENDS[1]:
        del found[-1]
    return _least(found, {})


def _least(pattern: Any, groups: dict[int, str]) -> str:  # noqa: ANN401 - the parser's
    said: list[str] = []
    for kind, value in pattern:
        if kind in REPEATS:
            text = _repeated(value, groups)
        elif kind is parts.SUBPATTERN:
            text = _least(value[3], groups)
            groups[value[0]] = text
        elif kind is parts.BRANCH:
            text = _least(value[1][0], groups)
        elif kind is parts.ATOMIC_GROUP:
            text = _least(value, groups)
        elif kind is parts.GROUPREF:
            text = groups.get(value, "")
        else:
            text = _character(kind, value)
        said.append(text)
    return "".join(said)


REPEATS = (parts.MAX_REPEAT, parts.MIN_REPEAT, parts.POSSESSIVE_REPEAT)


def _repeated(value: Any, groups: dict[int, str]) -> str:  # noqa: ANN401 - the parser's
    least, _, inner = value
    text = _least(inner, groups) if least else ""
    if len(text) * least > LONGEST:
        raise Unfitting(f"what matches is longer than {LONGEST} characters")
    return text * int(least)


def _character(kind: Any, value: Any) -> str:  # noqa: ANN401 - the parser's
    """One that fits a part that takes one."""
    if kind is parts.LITERAL:
        return chr(value)
    if kind is parts.ANY:
        return "a"
    if kind is parts.NOT_LITERAL:
        members = [(parts.NEGATE, None), (parts.LITERAL, value)]
    elif kind is parts.IN:
        members = value
    else:
        raise Unfitting(f"{str(kind).lower()} is not read here")
    negated = members[0][0] is parts.NEGATE
    named = [chr(value if kind is parts.LITERAL else value[0]) for kind, value in members if kind in NAMING]
    for each in [*named, *SAMPLES]:
        if any(_is_one(each, *member) for member in members) != negated:
            return each
    raise Unfitting("no character is in one of its sets")


NAMING = (parts.LITERAL, parts.RANGE)
SAMPLES = ["a", "A", "0", "_", " ", "-", *map(chr, range(33, 127)), "é"]


def _is_one(character: str, kind: Any, value: Any) -> bool:  # noqa: ANN401 - the parser's
    """Whether it is of a member of a set."""
    if kind is parts.LITERAL:
        return bool(ord(character) == value)
    if kind is parts.RANGE:
        return bool(value[0] <= ord(character) <= value[1])
    if kind is parts.CATEGORY:
        return CATEGORIES[value](character) != str(value).startswith("CATEGORY_NOT")
    return False


CATEGORIES: Mapping[Any, Callable[[str], bool]] = {
    parts.CATEGORY_DIGIT: str.isdecimal,
    parts.CATEGORY_NOT_DIGIT: str.isdecimal,
    parts.CATEGORY_SPACE: str.isspace,
    parts.CATEGORY_NOT_SPACE: str.isspace,
    parts.CATEGORY_WORD: lambda each: each.isalnum() or each == "_",
    parts.CATEGORY_NOT_WORD: lambda each: each.isalnum() or each == "_",
}
