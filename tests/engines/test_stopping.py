"""Cutting at stop strings: the same as on the whole text, wherever the borders between chunks are."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_apps.engines.answering.answers import StopCutter

letters = st.text("ab", max_size=12)
stops = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4)


def expected(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """Letter by letter: the first end of a stop string, the longest one there."""
    for end in range(len(text) + 1):
        ended = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - max(ended)], "stop"
    return text, "length"


def relayed(chunks: Sequence[str], stops: Sequence[str]) -> tuple[list[str], str | None]:
    cutter, given_out = StopCutter(stops), []
    for at, chunk in enumerate(chunks):
        text, reason = cutter.cut(chunk, "length" if at == len(chunks) - 1 else None)
        given_out.append(text)
        if reason is not None:
            return given_out, reason
    return given_out, None


@given(st.lists(letters, min_size=1, max_size=8), stops)
def test_borders_between_chunks_do_not_matter(chunks, stops):
    given_out, reason = relayed(chunks, stops)
    assert ("".join(given_out), reason) == expected("".join(chunks), stops)


@given(st.lists(letters, min_size=2, max_size=8), stops)
def test_as_much_is_given_out_as_can_be(chunks, stops):
    """What is held back could still become a stop string; everything before has left."""
    cutter, seen, left = StopCutter(stops), "", ""
    for chunk in chunks:
        text, reason = cutter.cut(chunk, None)
        seen, left = seen + chunk, left + text
        if reason is not None:
            break
        held = seen[len(left) :]
        assert seen.startswith(left)
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@pytest.mark.parametrize(
    ("chunks", "stops", "text"),
    [
        (["abc"], ["b"], "a"),
        (["ab", "cd"], ["bc"], "a"),
        (["aab", "x"], ["aabx", "ab"], "a"),
        (["xab"], ["ab", "xab"], ""),
        (["☺", "\n\n", "y"], ["\n\n"], "☺"),
    ],
)
def test_examples(chunks, stops, text):
    given_out, reason = relayed(chunks, stops)
    assert ("".join(given_out), reason) == (text, "stop")
