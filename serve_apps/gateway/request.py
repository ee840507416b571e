"""What a completion and a chat completion come down to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A valid request. `max_tokens` is None where the client did not say; `prompt` is text or token ids."""

    model: str
    prompt: str | Sequence[int]
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)


class Usage(NamedTuple):
    """Tokens of one request: the gateway's count of the input, the engine's count of the output."""

    input_tokens: int
    output_tokens: int
