"""What a completion and a chat completion come down to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from serve_apps.gateway.chat import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A valid request. `max_tokens` is None where the client did not say.

    It asks with a prompt, text or token ids, or with the messages of a chat.
    """

    model: str
    prompt: str | Sequence[int] = ""
    messages: Sequence[Message] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Characters or token ids to read."""
        return len(self.prompt) + sum(len(message.content) for message in self.messages)


class Usage(NamedTuple):
    """Tokens of one request: the gateway's count of the input, the engine's count of the output."""

    input_tokens: int
    output_tokens: int
