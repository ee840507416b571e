"""A valid request, and its prompt as the engine gets it, with its length in tokens and its prefix blocks.

    PlainPrompts   text as it is, chats as lines `role: content`; lengths counted or estimated
    ModelPrompts   token ids by the model's own tokenizer and chat template: what counts is what is computed

Token ids pass as they are. Simulated engines get a chat as one line a message and the role whose turn it is:
roles and content stay apart, and the length is what is counted.

    estimate(text) = max(1, ceil(bytes in UTF-8 / 4))

Four bytes a token is the rule of thumb that OpenAI gives for English text with its own tokenizers ("one token
is about four characters"). Other languages and code deviate from it, so responses say whether a count is
exact or estimated.

    key(i) = blake2b(key(i − 1), block i),  key(−1) empty for text, else b"ids";  63 bits

Equal keys of prefix blocks mean equal prompts up to there, in every process. A block is `block_tokens` token
ids, or of text four times as many bytes. Only whole blocks count.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, field_validator

from headway.config import ConfigError, HeadwayConfig
from headway.engine.kinds import engine_kind
from serve_apps.engines.protocol import ClientCall
from serve_apps.gateway.backend import InvalidRequest

if TYPE_CHECKING:
    from tokenizers import Tokenizer


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


def prompt_of(messages: Sequence[Message]) -> str:
    """The messages as one text that ends where the assistant goes on."""
    lines = [f"{message.role}: {message.content}\n" for message in messages]
    return "".join(lines) + "assistant:"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A valid request. `max_tokens` is None where the client did not say.

    It asks with a prompt, text or token ids, or with the messages of a chat. With a `call` the engine reads
    the body by itself: `said` is that, parsed, and the prompt is counted as well as it can be.
    """

    model: str | None
    prompt: str | Sequence[int] = ""
    messages: Sequence[Message] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    call: ClientCall | None = None
    said: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Characters or token ids to read."""
        if self.call is not None:
            return len(self.call.body)
        return len(self.prompt) + sum(len(message.content) for message in self.messages)


class Usage(NamedTuple):
    """Tokens of one request: the gateway's count of the input, the engine's count of the output.

    `cached_tokens` of the input were not computed; None where the engine does not say.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int | None = None


BYTES_PER_TOKEN = 4
Accuracy = Literal["exact", "estimated"]


class TokenCounter(Protocol):
    """Counts the tokens of a text."""

    accuracy: Accuracy

    def count(self, text: str) -> int:
        """Tokens of `text`, at least 1."""


class EstimatedTokens:
    """A quarter of the bytes."""

    accuracy: Accuracy = "estimated"

    def count(self, text: str) -> int:
        """Tokens of `text`, at least 1."""
        return max(1, -(-len(text.encode()) // BYTES_PER_TOKEN))


class CountedTokens:
    """As many as the model's tokenizer makes of it, special tokens included."""

    accuracy: Accuracy = "exact"

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """Tokens of `text`, at least 1."""
        return max(1, len(self._tokenizer.encode(text).ids))


def make_counter(path: str | None) -> TokenCounter:
    """The counter for `gateway.tokenizer`: a tokenizer.json, a directory with one, or null. ConfigError."""
    if path is None:
        return EstimatedTokens()
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    return CountedTokens(_load(file))


def _load(file: Path) -> "Tokenizer":
    from tokenizers import Tokenizer

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"gateway.tokenizer: {file}: {_line(error)}") from error
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # bare ones are what the library raises
        raise ConfigError(f"gateway.tokenizer: {file} is no tokenizer: {_line(error)}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())


Read = tuple[str | Sequence[int], int]
"""The prompt of an engine, and its tokens."""


def _estimated(call: ClientCall) -> Read:
    """The body in place of the prompt: nearly all of a long one is its prompt."""
    text = call.body.decode(errors="replace")
    return text, max(1, -(-len(call.body) // BYTES_PER_TOKEN))


class PlainPrompts:
    """Text stays text."""

    max_tokens: int | None = None

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self.accuracy = counter.accuracy

    def read(self, asked: GenerationRequest) -> Read:
        """The prompt, and its tokens as counted or estimated."""
        if asked.call is not None:
            return _estimated(asked.call)
        prompt = prompt_of(asked.messages) if asked.messages else asked.prompt
        return prompt, self._counter.count(prompt) if isinstance(prompt, str) else len(prompt)


class ModelPrompts:
    """As the model reads it. `max_tokens`: what it was made for, None where it doesn't say."""

    accuracy: Accuracy = "exact"

    def __init__(self, tokenizer: Any, max_tokens: int | None) -> None:  # noqa: ANN401 - transformers has no types
        self._tokenizer = tokenizer
        self._known_ids = len(tokenizer)
        self.max_tokens = max_tokens

    def read(self, asked: GenerationRequest) -> Read:
        """Token ids. InvalidRequest for a chat without a template, no tokens at all, or unknown ones.

        Of a call that the engine reads by itself: text and an estimate where this reader doesn't know how.
        """
        if asked.call is not None:
            return self._of_call(asked.call, asked.said)
        if asked.messages:
            ids = self._chat(asked.messages)
        elif isinstance(asked.prompt, str):
            ids = self._tokenizer.encode(asked.prompt)
        else:
            ids = asked.prompt
            if max(ids) >= self._known_ids:
                text = f"Invalid 'prompt': this model has token ids below {self._known_ids}"
                raise InvalidRequest(text, param="prompt")
        if not ids:
            raise InvalidRequest("Invalid 'prompt': for this model it has no tokens", param="prompt")
        return ids, len(ids)

    def _of_call(self, call: ClientCall, said: Mapping[str, Any]) -> Read:
        """What the engine will refuse is no concern here, nor how: it is estimated."""
        try:
            ids = self._ids(said)
        except Exception:  # noqa: BLE001 - of templates, which are programs, on whatever the client sent
            return _estimated(call)
        return (ids, len(ids)) if ids else _estimated(call)

    def _ids(self, said: Mapping[str, Any]) -> Sequence[int]:
        """Of a chat by the model's template, of text, or as they came; several prompts in a row."""
        if "messages" in said:
            given = said.get("chat_template_kwargs") or {}
            # Switches such as enable_thinking; a template of the client's is no program to run here.
            switches = {name: value for name, value in given.items() if isinstance(value, bool)}
            text = self._tokenizer.apply_chat_template(
                said["messages"],
                tools=said.get("tools"),
                add_generation_prompt=True,
                tokenize=False,
                **switches,
            )
            ids: Sequence[int] = self._tokenizer.encode(text, add_special_tokens=False)
            return ids
        prompt: Any = said.get("prompt") or said.get("input")
        several = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
        return [
            token
            for each in several
            for token in (self._tokenizer.encode(each) if isinstance(each, str) else each)
        ]

    def _chat(self, messages: Sequence[Message]) -> Sequence[int]:
        said = [message.model_dump(exclude_none=True) for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # templates are programs of the model's authors
            reason = " ".join(str(error).split())
            text = f"The model's chat template does not take these messages: {reason}"
            raise InvalidRequest(text, param="messages") from error
        ids: Sequence[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


Prompts = PlainPrompts | ModelPrompts


def make_prompts(config: HeadwayConfig) -> Prompts:
    """The reader of the model that is served. ConfigError, one line."""
    model = engine_kind(config).model(config)
    return (
        PlainPrompts(make_counter(config.gateway.tokenizer))
        if model is None
        else _model_prompts(config, model)
    )


def _model_prompts(config: HeadwayConfig, model: str) -> ModelPrompts:
    try:
        from transformers import AutoConfig, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model)
        described = AutoConfig.from_pretrained(model).get_text_config()
    except (ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"engine.{config.engine.kind}.model: {model}: no tokenizer: {reason}") from error
    return ModelPrompts(tokenizer, getattr(described, "max_position_embeddings", None))


ID_BYTES = array("I").itemsize


def prefix_blocks(prompt: str | Sequence[int], block_tokens: int) -> tuple[int, ...]:
    """The keys of the whole blocks of a prompt, in order."""
    if isinstance(prompt, str):
        data, size, digest = prompt.encode(), BYTES_PER_TOKEN * block_tokens, b""
    else:
        data, size, digest = array("I", prompt).tobytes(), ID_BYTES * block_tokens, b"ids"
    keys = []
    for start in range(0, len(data) - size + 1, size):
        digest = blake2b(digest + data[start : start + size], digest_size=8).digest()
        keys.append(int.from_bytes(digest, "little") >> 1)
    return tuple(keys)
