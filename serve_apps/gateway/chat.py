"""Chat messages, and the text that simulated engines get of them.

    system: You are terse.
    user: Why is the sky blue?
    assistant:

One line a message, `role: content`, and the role whose turn it is. A real model has a chat template of its
own (`prompts`); this form only keeps roles and content apart, and its length is what is counted.
"""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from serve_apps.gateway.faults import InvalidRequest
from serve_apps.gateway.unsupported import MESSAGE, without_unsupported

ROLES = ("developer", "system", "user", "assistant")


class Message(BaseModel):
    """One message; `content` is text, or parts that are all text, joined."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    role: Literal["developer", "system", "user", "assistant"]
    content: str
    name: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, content: Any) -> Any:  # noqa: ANN401 - whatever the client sent
        if isinstance(content, list):
            return "".join(_part_text(index, part) for index, part in enumerate(content))
        if not isinstance(content, str):
            raise ValueError("should be a string or an array of text parts")
        return content


def _part_text(index: int, part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise ValueError(f"part {index} should be an object with a type")
    if kind != "text":
        raise ValueError(f"part {index} is of type {kind!r}, which is not supported here: only text")
    if strangers := sorted(part.keys() - {"type", "text"}):
        raise ValueError(f"part {index} has an unknown field {strangers[0]!r}")
    text = part.get("text")
    if not isinstance(text, str):
        raise ValueError(f"part {index} should hold its text as a string")
    return text


def plain_messages(messages: object) -> object:
    """Messages without fields that ask for nothing. InvalidRequest names what is not supported."""
    if not isinstance(messages, list):
        return messages
    return [_plain_message(index, message) for index, message in enumerate(messages)]


def _plain_message(index: int, message: object) -> object:
    if not isinstance(message, dict):
        return message
    where = f"messages[{index}]."
    if message.get("role") in {"tool", "function"}:
        raise InvalidRequest(
            f"Unsupported value: '{where}role' {message['role']!r} is not supported here: no tools",
            param=f"{where}role",
        )
    return without_unsupported(message, MESSAGE, where)


def prompt_of(messages: Sequence[Message]) -> str:
    """The messages as one text that ends where the assistant goes on."""
    lines = [f"{message.role}: {message.content}\n" for message in messages]
    return "".join(lines) + "assistant:"
