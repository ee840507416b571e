"""Answers in the forms of OpenAI's endpoints, whole or as server-sent events.

    begin, step, finish    the events of a stream: before the first text, for some text of one output and why
                           that ends with it, and what closes the stream
    whole                  all of it as one document

What a chat's and a completion's choice look like differs in one function each; /v1/responses has events of
its own (`responses`).
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from serve_apps.engines.answering.reading import Asked, Tool

DONE = b"data: [DONE]\n\n"


class Piece(NamedTuple):
    """A token: its text, its log probability, and those of others in its place, likeliest first."""

    text: str
    logprob: float
    others: Sequence[tuple[str, float]]


class Usage(NamedTuple):
    """Tokens of one request; `cached_tokens` of the prompt were not computed, None where nobody says."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int | None = None


@dataclass(slots=True)
class Output:
    """One of a request's outputs, as far as it has come. With a `tool` its text is the call's arguments."""

    index: int
    tool: Tool | None = None
    text: str = ""
    pieces: list[Piece] = field(default_factory=list)
    tokens: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What all of an answer says: its id, the model, and which engine made it."""

    id: str
    model: str
    engine: str
    created: int = field(default_factory=lambda: int(time.time()))

    def fields(self, kind: str) -> dict[str, Any]:
        """The first fields of a document or an event of chats and completions."""
        fingerprint = f"headway-{self.engine}"
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": fingerprint,
        }

    def call_id(self, index: int) -> str:
        """The id of the tool call of an output."""
        return f"call_{self.id[-24:]}{index}"


class Form(Protocol):
    """The bytes of one answer."""

    def begin(self) -> bytes:
        """Events before any text."""

    def step(self, output: Output, text: str, pieces: Sequence[Piece], usage: Usage) -> bytes:
        """Some text of an output, which does not hold it yet, and its end where it has a reason."""

    def finish(self, outputs: Sequence[Output], usage: Usage) -> bytes:
        """All have ended."""

    def whole(self, outputs: Sequence[Output], usage: Usage) -> bytes:
        """The document."""


def event(value: object, name: str | None = None) -> bytes:
    """One server-sent event."""
    before = "" if name is None else f"event: {name}\n"
    return f"{before}data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


def usage_fields(usage: Usage) -> dict[str, Any]:
    """Token counts as chats and completions have them."""
    counts = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    if usage.cached_tokens is None:
        return counts
    return {**counts, "prompt_tokens_details": {"cached_tokens": usage.cached_tokens}}


class _Choices:
    """What chats and completions have in common: choices, and an event for each change of one."""

    stream_object: str
    whole_object: str

    def __init__(self, asked: Asked, head: Head) -> None:
        self._asked, self._head = asked, head

    def _choice(self, output: Output, text: str, pieces: Sequence[Piece]) -> dict[str, Any]:
        raise NotImplementedError

    def _whole(self, output: Output) -> dict[str, Any]:
        raise NotImplementedError

    def begin(self) -> bytes:
        return b""

    def step(self, output: Output, text: str, pieces: Sequence[Piece], usage: Usage) -> bytes:
        choice = {**self._choice(output, text, pieces), "finish_reason": output.reason}
        said = {**self._head.fields(self.stream_object), "choices": [choice]}
        if self._asked.usage:
            said["usage"] = usage_fields(usage) if self._asked.usage_each else None
        return event(said)

    def finish(self, _: Sequence[Output], usage: Usage) -> bytes:
        if not self._asked.usage:
            return DONE
        fields = self._head.fields(self.stream_object)
        return event({**fields, "choices": [], "usage": usage_fields(usage)}) + DONE

    def whole(self, outputs: Sequence[Output], usage: Usage) -> bytes:
        choices = [{**self._whole(output), "finish_reason": output.reason} for output in outputs]
        fields = self._head.fields(self.whole_object)
        return json.dumps({**fields, "choices": choices, "usage": usage_fields(usage)}).encode()


class CompletionForm(_Choices):
    """/v1/completions."""

    stream_object = whole_object = "text_completion"

    def _choice(self, output: Output, text: str, pieces: Sequence[Piece]) -> dict[str, Any]:
        said = self._logprobs(pieces, len(output.text)) if pieces else None
        return {"index": output.index, "text": text, "logprobs": said}

    def _whole(self, output: Output) -> dict[str, Any]:
        said = None if self._asked.logprobs is None else self._logprobs(output.pieces, 0)
        return {"index": output.index, "text": output.text, "logprobs": said}

    def _logprobs(self, pieces: Sequence[Piece], offset: int) -> dict[str, Any]:
        offsets = []
        for piece in pieces:
            offsets.append(offset)
            offset += len(piece.text)
        return {
            "tokens": [piece.text for piece in pieces],
            "token_logprobs": [piece.logprob for piece in pieces],
            "top_logprobs": [dict([(piece.text, piece.logprob), *piece.others]) for piece in pieces],
            "text_offset": offsets,
        }


class ChatForm(_Choices):
    """/v1/chat/completions."""

    stream_object, whole_object = "chat.completion.chunk", "chat.completion"

    def __init__(self, asked: Asked, head: Head) -> None:
        super().__init__(asked, head)
        self._begun: set[int] = set()

    def _choice(self, output: Output, text: str, pieces: Sequence[Piece]) -> dict[str, Any]:
        first = output.index not in self._begun
        self._begun.add(output.index)
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        if output.tool is None:
            delta["content"] = text
        elif first:
            delta["content"] = None
            delta["tool_calls"] = [{"index": 0, **self._call(output, text)}]
        elif text:
            delta["tool_calls"] = [{"index": 0, "function": {"arguments": text}}]
        said = {"content": _chat_logprobs(pieces)} if pieces else None
        return {"index": output.index, "delta": delta, "logprobs": said}

    def _whole(self, output: Output) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": output.text, "refusal": None}
        if output.tool is not None:
            message |= {"content": None, "tool_calls": [self._call(output, output.text)]}
        said = None if self._asked.logprobs is None else {"content": _chat_logprobs(output.pieces)}
        return {"index": output.index, "message": message, "logprobs": said}

    def _call(self, output: Output, arguments: str) -> dict[str, Any]:
        assert output.tool is not None
        function = {"name": output.tool.name, "arguments": arguments}
        return {"id": self._head.call_id(output.index), "type": "function", "function": function}


def _chat_logprobs(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    def entry(text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    return [
        {**entry(piece.text, piece.logprob), "top_logprobs": [entry(*other) for other in piece.others]}
        for piece in pieces
    ]
