"""Answers of /v1/responses: one item, a message or a call of a function, and the events that build it."""

import json
from collections.abc import Sequence
from typing import Any

from serve_apps.engines.answering.forms import Head, Output, Piece, Usage, event
from serve_apps.engines.answering.reading import Asked


class ResponseForm:
    """One response; it has one output, item and part."""

    def __init__(self, asked: Asked, head: Head) -> None:
        self._asked, self._head, self._events, self._begun = asked, head, 0, False

    def begin(self) -> bytes:
        """The response exists."""
        empty = self._document((), None, "in_progress")
        return self._event("response.created", response=empty) + self._event(
            "response.in_progress", response=empty
        )

    def step(self, output: Output, text: str, _pieces: Sequence[Piece], _usage: Usage) -> bytes:
        """Some text, or some of a call's arguments; then, where it ends, that the item is done."""
        said, place = self._item_begins(output), self._place(output)
        kind = "output_text" if output.tool is None else "function_call_arguments"
        if text:
            logprobs: dict[str, Any] = {"logprobs": []} if output.tool is None else {}
            said += self._event(f"response.{kind}.delta", **place, delta=text, **logprobs)
        if output.reason is None:
            return said
        whole = Output(0, output.tool, output.text + text)
        if output.tool is None:
            said += self._event("response.output_text.done", **place, text=whole.text, logprobs=[])
            said += self._event("response.content_part.done", **place, part=_text_part(whole.text))
        else:
            done = {**place, "arguments": whole.text, "name": output.tool.name}
            said += self._event("response.function_call_arguments.done", **done)
        item = self._item(whole, "completed")
        return said + self._event("response.output_item.done", output_index=0, item=item)

    def finish(self, outputs: Sequence[Output], usage: Usage) -> bytes:
        """The response is done."""
        status = self._status(outputs)
        return self._event(f"response.{status}", response=self._document(outputs, usage, status))

    def whole(self, outputs: Sequence[Output], usage: Usage) -> bytes:
        """The document."""
        return json.dumps(self._document(outputs, usage, self._status(outputs))).encode()

    def _item_begins(self, output: Output) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        begun = self._item(Output(0, output.tool), "in_progress")
        said = self._event("response.output_item.added", output_index=0, item=begun)
        if output.tool is None:
            said += self._event("response.content_part.added", **self._place(output), part=_text_part(""))
        return said

    def _place(self, output: Output) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._item_id(output), "output_index": 0}
        if output.tool is None:
            place["content_index"] = 0
        return place

    def _item_id(self, output: Output) -> str:
        return f"{'msg' if output.tool is None else 'fc'}_{self._head.id[-24:]}"

    def _item(self, output: Output, status: str) -> dict[str, Any]:
        if output.tool is not None:
            return {
                "type": "function_call",
                "id": self._item_id(output),
                "call_id": self._head.call_id(0),
                "name": output.tool.name,
                "arguments": output.text,
                "status": status,
            }
        content = [_text_part(output.text)] if status == "completed" else []
        return {
            "type": "message",
            "id": self._item_id(output),
            "role": "assistant",
            "status": status,
            "content": content,
        }

    @staticmethod
    def _status(outputs: Sequence[Output]) -> str:
        return "incomplete" if any(output.reason == "length" for output in outputs) else "completed"

    def _document(self, outputs: Sequence[Output], usage: Usage | None, status: str) -> dict[str, Any]:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._head.id,
            "object": "response",
            "created_at": self._head.created,
            "model": self._head.model,
            "status": status,
            "incomplete_details": cut,
            "error": None,
            "instructions": None,
            "metadata": {},
            "output": [self._item(output, "completed") for output in outputs],
            "parallel_tool_calls": False,
            "tool_choice": self._asked.choice,
            "tools": [],
            "usage": None if usage is None else _usage(usage),
        }

    def _event(self, name: str, /, **fields: Any) -> bytes:  # noqa: ANN401 - JSON values
        number, self._events = self._events, self._events + 1
        return event({"type": name, "sequence_number": number, **fields}, name)


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
