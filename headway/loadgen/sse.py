"""Server-sent events, and what one event of a completion says. Pure.

An event is its `data:` lines joined by newlines, up to an empty line; comments and other fields are
skipped. The stream of a completion ends with the data `[DONE]`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

DONE = b"[DONE]"
LONGEST_DETAIL = 200


class EventParser:
    """Bytes as they arrive → the data of whole events. Lines may end in LF or CR LF."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> Iterator[bytes]:
        """The events that are complete now."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data = []


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionEvent:
    """One event: whether it is of a choice, carries text, ends it, counts tokens so far, or is an error."""

    has_choice: bool = False
    has_text: bool = False
    finished: bool = False
    output_tokens: int | None = None
    input_tokens: int | None = None
    error: str | None = None


def read_event(data: bytes) -> CompletionEvent:
    """What an event says; data that is no JSON object is an error event."""
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return CompletionEvent(error=f"not a JSON object: {data[:80]!r}")
    if document.get("error") is not None:
        return CompletionEvent(error=error_text(document))
    choices = [choice for choice in document.get("choices") or () if isinstance(choice, dict)]
    usage = document.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return CompletionEvent(
        has_choice=bool(choices),
        has_text=any(choice.get("text") for choice in choices),
        finished=any(choice.get("finish_reason") for choice in choices),
        output_tokens=_count(usage.get("completion_tokens")),
        input_tokens=_count(usage.get("prompt_tokens")),
    )


def error_text(document: Any) -> str:  # noqa: ANN401 - whatever a server sent
    """The message of an error in OpenAI's form, or else the document itself, in one line."""
    error = document.get("error", document) if isinstance(document, dict) else document
    text = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(text).split())[:LONGEST_DETAIL]


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
