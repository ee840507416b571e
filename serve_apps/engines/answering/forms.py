"""Answers in the forms of OpenAI's endpoints, whole or as server-sent events.

begin     the events before any text
step      those of some text of one choice, and of its end
finish    those that close the stream
whole     all of it as one document
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from serve_apps.engines.answering.reading import ParsedRequest, Tool

DONE = b"data: [DONE]\n\n"


class TokenLogprob(NamedTuple):
    """A token, its log probability, and the likeliest tokens in its place with theirs."""

    text: str
    logprob: float
    top: Sequence[tuple[str, float]]


class Usage(NamedTuple):
    """Tokens of one request; `cached_tokens` of the prompt were not computed, None where that is unknown."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int | None = None


@dataclass(slots=True, kw_only=True)
class Choice:
    """One output as far as it has come. With a `tool` its text is the arguments of a call."""

    index: int = 0
    tool: Tool | None = None
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    tokens: int = 0
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The id of an answer, its model, and the kind of engine that made it."""

    id: str
    model: str
    engine: str
    created: int = field(default_factory=lambda: int(time.time()))

    def fields(self, kind: str) -> dict[str, Any]:
        """The first fields of a document or an event of chats and completions."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"headway-{self.engine}",
        }

    def call_id(self, index: int) -> str:
        """The id of a choice's tool call."""
        return f"call_{self.id[-24:]}{index}"


class Form(Protocol):
    """The bytes of one answer."""

    def begin(self) -> bytes:
        """Events before any text."""

    def step(self, choice: Choice, text: str, logprobs: Sequence[TokenLogprob], usage: Usage) -> bytes:
        """Some text of a choice, which does not hold it yet, and its end where it has a reason."""

    def finish(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """All have ended."""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The document."""


def _event(value: object, name: str | None = None) -> bytes:
    before = "" if name is None else f"event: {name}\n"
    return f"{before}data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


class _Choices:
    """What chats and completions share: a list of choices, and an event for each change of one."""

    stream_object: str
    whole_object: str

    def __init__(self, request: ParsedRequest, head: Head) -> None:
        self._request, self._head = request, head

    def _delta(self, choice: Choice, text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        raise NotImplementedError

    def _whole(self, choice: Choice) -> dict[str, Any]:
        raise NotImplementedError

    def begin(self) -> bytes:
        return b""

    def step(self, choice: Choice, text: str, logprobs: Sequence[TokenLogprob], usage: Usage) -> bytes:
        delta = {
            "index": choice.index,
            **self._delta(choice, text, logprobs),
            "finish_reason": choice.finish_reason,
        }
        fields = {**self._head.fields(self.stream_object), "choices": [delta]}
        if self._request.usage:
            fields["usage"] = self._usage(usage) if self._request.usage_each else None
        return _event(fields)

    def finish(self, _: Sequence[Choice], usage: Usage) -> bytes:
        if not self._request.usage:
            return DONE
        fields = self._head.fields(self.stream_object)
        return _event({**fields, "choices": [], "usage": self._usage(usage)}) + DONE

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        documents = [
            {"index": choice.index, **self._whole(choice), "finish_reason": choice.finish_reason}
            for choice in choices
        ]
        fields = self._head.fields(self.whole_object)
        return json.dumps({**fields, "choices": documents, "usage": self._usage(usage)}).encode()

    @staticmethod
    def _usage(usage: Usage) -> dict[str, Any]:
        counts: dict[str, Any] = {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
        }
        if usage.cached_tokens is not None:
            counts["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
        return counts


class CompletionForm(_Choices):
    """/v1/completions."""

    stream_object = whole_object = "text_completion"

    def _delta(self, choice: Choice, text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"text": text, "logprobs": self._logprobs(logprobs, len(choice.text)) if logprobs else None}

    def _whole(self, choice: Choice) -> dict[str, Any]:
        wanted = self._request.logprobs is not None
        return {"text": choice.text, "logprobs": self._logprobs(choice.logprobs, 0) if wanted else None}

    @staticmethod
    def _logprobs(tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token.text)
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [dict([(token.text, token.logprob), *token.top]) for token in tokens],
            "text_offset": offsets,
        }


class ChatForm(_Choices):
    """/v1/chat/completions."""

    stream_object, whole_object = "chat.completion.chunk", "chat.completion"

    def __init__(self, request: ParsedRequest, head: Head) -> None:
        super().__init__(request, head)
        self._begun: set[int] = set()

    def _delta(self, choice: Choice, text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        first = choice.index not in self._begun
        self._begun.add(choice.index)
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        if choice.tool is None:
            delta["content"] = text
        elif first:
            delta |= {"content": None, "tool_calls": [{"index": 0, **self._call(choice, text)}]}
        elif text:
            delta["tool_calls"] = [{"index": 0, "function": {"arguments": text}}]
        return {"delta": delta, "logprobs": self._logprobs(logprobs) if logprobs else None}

    def _whole(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.tool is not None:
            message |= {"content": None, "tool_calls": [self._call(choice, choice.text)]}
        wanted = self._request.logprobs is not None
        return {"message": message, "logprobs": self._logprobs(choice.logprobs) if wanted else None}

    def _call(self, choice: Choice, arguments: str) -> dict[str, Any]:
        assert choice.tool is not None
        function = {"name": choice.tool.name, "arguments": arguments}
        return {"id": self._head.call_id(choice.index), "type": "function", "function": function}

    @staticmethod
    def _logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        def entry(text: str, logprob: float) -> dict[str, Any]:
            return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

        return {
            "content": [
                {**entry(token.text, token.logprob), "top_logprobs": [entry(*other) for other in token.top]}
                for token in tokens
            ]
        }


class ResponseForm:
    """/v1/responses: one item, a message or a call of a function, and the events that build it."""

    def __init__(self, request: ParsedRequest, head: Head) -> None:
        self._request, self._head, self._events, self._begun = request, head, 0, False

    def begin(self) -> bytes:
        """The response exists."""
        empty = self._document((), None, "in_progress")
        return self._event("response.created", response=empty) + self._event(
            "response.in_progress", response=empty
        )

    def step(self, choice: Choice, text: str, _: Sequence[TokenLogprob], _usage: Usage) -> bytes:
        """Some text, or some of a call's arguments; then, where it ends, that the item is done."""
        events, message = self._item_begins(choice), choice.tool is None
        place: dict[str, Any] = {"item_id": self._item_id(choice), "output_index": 0}
        place |= {"content_index": 0} if message else {}
        kind = "output_text" if message else "function_call_arguments"
        logprobs: dict[str, Any] = {"logprobs": []} if message else {}
        if text:
            events += self._event(f"response.{kind}.delta", **place, delta=text, **logprobs)
        if choice.finish_reason is None:
            return events
        whole = Choice(tool=choice.tool, text=choice.text + text)
        if whole.tool is None:
            events += self._event(f"response.{kind}.done", **place, text=whole.text, **logprobs)
            events += self._event("response.content_part.done", **place, part=_text_part(whole.text))
        else:
            done = {**place, "arguments": whole.text, "name": whole.tool.name}
            events += self._event(f"response.{kind}.done", **done)
        item = self._item(whole, "completed")
        return events + self._event("response.output_item.done", output_index=0, item=item)

    def finish(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The response is done."""
        status = self._status(choices)
        return self._event(f"response.{status}", response=self._document(choices, usage, status))

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The document."""
        return json.dumps(self._document(choices, usage, self._status(choices))).encode()

    def _item_begins(self, choice: Choice) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        item = self._item(Choice(tool=choice.tool), "in_progress")
        events = self._event("response.output_item.added", output_index=0, item=item)
        if choice.tool is None:
            place = {"item_id": self._item_id(choice), "output_index": 0, "content_index": 0}
            events += self._event("response.content_part.added", **place, part=_text_part(""))
        return events

    def _item_id(self, choice: Choice) -> str:
        return f"{'msg' if choice.tool is None else 'fc'}_{self._head.id[-24:]}"

    def _item(self, choice: Choice, status: str) -> dict[str, Any]:
        item = {"id": self._item_id(choice), "status": status}
        if choice.tool is None:
            content = [_text_part(choice.text)] if status == "completed" else []
            return {"type": "message", **item, "role": "assistant", "content": content}
        call = {"call_id": self._head.call_id(0), "name": choice.tool.name, "arguments": choice.text}
        return {"type": "function_call", **item, **call}

    @staticmethod
    def _status(choices: Sequence[Choice]) -> str:
        return "incomplete" if any(each.finish_reason == "length" for each in choices) else "completed"

    def _document(self, choices: Sequence[Choice], usage: Usage | None, status: str) -> dict[str, Any]:
        return {
            "id": self._head.id,
            "object": "response",
            "created_at": self._head.created,
            "model": self._head.model,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "error": None,
            "instructions": None,
            "metadata": {},
            "output": [self._item(choice, "completed") for choice in choices],
            "parallel_tool_calls": False,
            "tool_choice": self._request.tool_choice,
            "tools": [],
            "usage": None if usage is None else self._usage(usage),
        }

    @staticmethod
    def _usage(usage: Usage) -> dict[str, Any]:
        return {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        }

    def _event(self, name: str, /, **fields: Any) -> bytes:  # noqa: ANN401 - JSON values
        number, self._events = self._events, self._events + 1
        return _event({"type": name, "sequence_number": number, **fields}, name)


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
