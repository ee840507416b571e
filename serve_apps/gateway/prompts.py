"""The prompt of a request, its length in tokens, and its prefix blocks.

    PlainPrompts   text as it is, chats as lines `role: content`; lengths counted or estimated
    ModelPrompts   token ids by the model's own tokenizer and chat template: what counts is what is computed

Token ids pass as they are.

    estimate(text) = max(1, ceil(bytes in UTF-8 / 4))

Four bytes a token is the rule of thumb that OpenAI gives for English text with its own tokenizers ("one token
is about four characters"). Other languages and code deviate from it, so responses say whether a count is
exact or estimated.

    key(i) = blake2b(key(i − 1), block i),  key(−1) = (empty for text, else b"ids") + adapter's name;  63 bits

Equal keys of prefix blocks mean equal prompts up to there, in every process. A block is `block_tokens` token
ids, or of text four times as many bytes. Only whole blocks count.

Chat templates are given a conversation in the form in which vLLM's server gives it:

    content    text; parts of text are joined by line ends, and where there is nothing the text is empty
    calls      arguments are objects, and not JSON in a string
    input      of /v1/responses: instructions are a system's message, a text is a user's, items are messages;
               a call belongs to the message of the assistant before it

Contents with other parts, such as images, stay as they are. Items that are no messages, such as reasoning:
ValueError; what is no conversation raises whatever comes of it.
"""

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from headway.config import ConfigError, HeadwayConfig
from headway.engine.kinds import engine_kind
from serve_apps.engines.answering.fields import Prompt, prompts_of, separate
from serve_apps.gateway.reading import LONG_BYTES, GenerationRequest

if TYPE_CHECKING:
    from tokenizers import Tokenizer


BYTES_PER_TOKEN = 4
LONG_FOR_TOKENIZERS = 16_384
"""Bytes of a body from which a tokenizer works beside the event loop, which would stand still meanwhile."""
Accuracy = Literal["exact", "estimated"]


def estimated_tokens(text: str) -> int:
    """A quarter of the bytes, at least 1."""
    return max(1, -(-len(text.encode()) // BYTES_PER_TOKEN))


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


class Read(NamedTuple):
    """A prompt; its tokens; `certain` where the engine counts as many."""

    prompt: Prompt
    tokens: int
    certain: bool

    @property
    def exact(self) -> bool:
        """Whether these are token ids, so that nothing is estimated."""
        return not isinstance(self.prompt, str)


def _estimated(asked: GenerationRequest) -> Read:
    """The body in place of the prompt: nearly all of a long one is its prompt."""
    body = asked.calls[0].body
    return Read(body.decode(errors="replace"), max(1, -(-len(body) // BYTES_PER_TOKEN)), certain=False)


class PlainPrompts:
    """Text stays text, and engines go by this count; `count` gives the tokens of a text."""

    max_tokens: int | None = None

    def __init__(
        self, count: Callable[[str], int] = estimated_tokens, accuracy: Accuracy = "estimated"
    ) -> None:
        self.count, self.accuracy = count, accuracy
        self.long_bytes = LONG_BYTES if accuracy == "estimated" else LONG_FOR_TOKENIZERS

    def read(self, asked: GenerationRequest) -> Read:
        """The prompt, and its tokens as counted or estimated; what is none is the engine's to refuse."""
        try:
            (prompt,) = prompts_of(asked.fields)
            if isinstance(prompt, str):
                return Read(prompt, self.count(prompt), certain=True)
            ids = list(array("I", prompt))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return _estimated(asked)
        return Read(ids, len(ids), certain=True)


TEXTS = ("text", "input_text", "output_text")
Message = Mapping[str, Any]


def messages_of(fields: Mapping[str, Any]) -> Sequence[Message]:
    """The messages of a chat's or a response's fields."""
    return [_message(each) for each in fields.get("messages") or _of_response(fields)]


def tools_of(fields: Mapping[str, Any]) -> Sequence[Message] | None:
    """The tools as chats have them; those of responses lack a level."""
    tools = fields.get("tools")
    if tools is None or "messages" in fields:
        return tools
    names = ("name", "description", "parameters")
    return [
        {"type": "function", "function": {name: tool[name] for name in names if name in tool}}
        for tool in tools
        if tool["type"] == "function"
    ]


def _of_response(fields: Mapping[str, Any]) -> Sequence[Message]:
    before, given = fields.get("instructions"), fields["input"]
    found: list[dict[str, Any]] = [{"role": "system", "content": before}] if before else []
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    for item in given:
        match item.get("type", "message"):
            case "message":
                found.append({"role": item["role"], "content": item["content"]})
            case "function_call":
                if not found or found[-1]["role"] != "assistant":
                    found.append({"role": "assistant"})
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                found[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output":
                found.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
            case other:
                raise ValueError(f"{other} is no message")
    return found


def _message(message: Message) -> Message:
    made = {**message, "content": _text(message.get("content"))}
    if calls := made.pop("tool_calls", None):
        made["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _arguments(call["function"])}}
            for call in calls
        ]
    return made


def _text(content: object) -> object:
    if content is None:
        return ""
    if not isinstance(content, list) or any(part.get("type") not in TEXTS for part in content):
        return content
    return "\n".join(part["text"] for part in content)


def _arguments(function: Mapping[str, Any]) -> object:
    """An object; of text that is none an empty one, as there."""
    given = function.get("arguments") or {}
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return {}


class ModelPrompts:
    """As the model reads it. `max_tokens`: what it was made for, None where it doesn't say."""

    accuracy: Accuracy = "exact"
    long_bytes = LONG_FOR_TOKENIZERS

    def __init__(self, tokenizer: Any, max_tokens: int | None) -> None:  # noqa: ANN401 - transformers has no types
        self._tokenizer = tokenizer
        self.max_tokens = max_tokens

    def read(self, asked: GenerationRequest) -> Read:
        """Token ids; text and an estimate where this reader doesn't know how.

        What the engine will refuse is no concern here, nor how.
        """
        try:
            ids = self._ids(asked.fields)
        except Exception:  # noqa: BLE001 - of templates, which are programs, on whatever the client sent
            return _estimated(asked)
        return Read(ids, len(ids), certain=True) if ids else _estimated(asked)

    def _ids(self, fields: Mapping[str, Any]) -> Sequence[int]:
        """Of a conversation by the model's template, of text, or as they came."""
        if "messages" in fields or fields.get("prompt") is None:
            given = fields.get("chat_template_kwargs") or {}
            # Switches such as enable_thinking; a template of the client's is no program to run here.
            switches = {name: value for name, value in given.items() if isinstance(value, bool)}
            text = self._tokenizer.apply_chat_template(
                messages_of(fields),
                tools=tools_of(fields),
                add_generation_prompt=True,
                tokenize=False,
                **switches,
            )
            # vLLM's server begins a response twice: what the tokenizer puts first is in the template, too.
            ids: Sequence[int] = self._tokenizer.encode(text, add_special_tokens="messages" not in fields)
            return ids
        (prompt,) = separate(fields["prompt"])
        return self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt


Prompts = PlainPrompts | ModelPrompts


def make_prompts(config: HeadwayConfig) -> Prompts:
    """The reader of the model that is served. ConfigError, one line."""
    model = engine_kind(config).model(config)
    return plain_prompts(config.gateway.tokenizer) if model is None else _model_prompts(config, model)


def plain_prompts(tokenizer: str | None) -> PlainPrompts:
    """For `gateway.tokenizer`: a tokenizer.json, a directory with one, or null. ConfigError."""
    if tokenizer is None:
        return PlainPrompts()
    file = Path(tokenizer) / "tokenizer.json" if Path(tokenizer).is_dir() else Path(tokenizer)
    loaded = _load(file)
    return PlainPrompts(lambda text: max(1, len(loaded.encode(text).ids)), "exact")


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


def prefix_blocks(prompt: str | Sequence[int], block_tokens: int, adapter: str = "") -> tuple[int, ...]:
    """The keys of the whole blocks of a prompt for the model, or an adapter of it, in order."""
    if isinstance(prompt, str):
        data, size, digest = prompt.encode(), BYTES_PER_TOKEN * block_tokens, b""
    else:
        data, size, digest = array("I", prompt).tobytes(), ID_BYTES * block_tokens, b"ids"
    digest += adapter.encode()
    keys = []
    for start in range(0, len(data) - size + 1, size):
        digest = blake2b(digest + data[start : start + size], digest_size=8).digest()
        keys.append(int.from_bytes(digest, "little") >> 1)
    return tuple(keys)
