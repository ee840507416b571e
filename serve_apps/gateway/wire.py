"""Responses as bytes: JSON for one answer, server-sent events for a stream.

Everything of an event but its text is the same for the whole stream and is made once; per chunk one string is
quoted and three are joined. Two APIs differ only in the table at the end.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from serve_apps.engines.protocol import FinishReason
from serve_apps.gateway.request import Usage, Wanted
from serve_apps.gateway.validation import read_chat, read_completion

DONE = b"data: [DONE]\n\n"
_TEXT = "\x00"
"""Stands for the text while an event's frame is made; JSON never holds it unescaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """What is special about an endpoint.

    `delta(text, first)` and `whole(text)` are the parts of a choice that hold the text.
    """

    path: str
    id_prefix: str
    stream_object: str
    whole_object: str
    prompt_param: str
    read: Callable[[bytes], Wanted]
    delta: Callable[[str, bool], dict[str, Any]]
    whole: Callable[[str], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What stands on every response of one request."""

    api: Api
    id: str
    created: int
    model: str
    fingerprint: str

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def answer(self, text: str, reason: FinishReason, usage: Usage) -> bytes:
        """The whole answer as JSON."""
        choice = {"index": 0, **self.api.whole(text), "logprobs": None, "finish_reason": reason}
        head = self._head(self.api.whole_object)
        return json.dumps({**head, "choices": [choice], "usage": _usage(usage)}).encode()

    def frame(self, *, first: bool, with_usage: bool) -> tuple[str, str]:
        """What stands before and after the text of an event that does not end the stream."""
        choice = {"index": 0, **self.api.delta(_TEXT, first), "logprobs": None, "finish_reason": None}
        event = _event(self._head(self.api.stream_object) | {"choices": [choice]} | _nothing(with_usage))
        before, _, after = event.rpartition(quoted(_TEXT))
        return before, after

    def usage_event(self, usage: Usage) -> bytes:
        """The event that carries the token counts, before the last."""
        return _event(self._head(self.api.stream_object) | {"choices": [], "usage": _usage(usage)}).encode()


class EventWriter:
    """The events of one stream."""

    __slots__ = ("_after", "_before", "_envelope", "_first", "_with_usage")

    def __init__(self, envelope: Envelope, *, with_usage: bool) -> None:
        self._envelope = envelope
        self._with_usage = with_usage
        self._first: str | None
        self._first, _ = envelope.frame(first=True, with_usage=with_usage)
        self._before, self._after = envelope.frame(first=False, with_usage=with_usage)

    def text(self, text: str) -> bytes:
        """An event with some text."""
        return (self._head() + quoted(text) + self._after).encode()

    def end(self, text: str, reason: FinishReason, usage: Usage) -> bytes:
        """The last text, why it is the last, the usage if wanted, and the end mark."""
        after = self._after.replace('"finish_reason":null', f'"finish_reason":"{reason}"')
        last = (self._head() + quoted(text) + after).encode()
        return last + (self._envelope.usage_event(usage) if self._with_usage else b"") + DONE

    def _head(self) -> str:
        if self._first is None:
            return self._before
        head, self._first = self._first, None
        return head


def error_event(body: bytes) -> bytes:
    """An error in the middle of a stream, which ends with it."""
    return b"data: " + body + b"\n\n"


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"


def _nothing(with_usage: bool) -> dict[str, None]:
    return {"usage": None} if with_usage else {}


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _chat_delta(text: str, first: bool) -> dict[str, Any]:
    return {"delta": {"role": "assistant", "content": text} if first else {"content": text}}


COMPLETIONS = Api(
    path="/v1/completions",
    id_prefix="cmpl-",
    stream_object="text_completion",
    whole_object="text_completion",
    prompt_param="prompt",
    read=read_completion,
    delta=lambda text, _first: {"text": text},
    whole=lambda text: {"text": text},
)

CHAT_COMPLETIONS = Api(
    path="/v1/chat/completions",
    id_prefix="chatcmpl-",
    stream_object="chat.completion.chunk",
    whole_object="chat.completion",
    prompt_param="messages",
    read=read_chat,
    delta=_chat_delta,
    whole=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
)
