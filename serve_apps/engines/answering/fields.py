"""The fields of a body that engines which make text read, and the prompts that a model would read of them.

    messages     one line `role: content` a message, tool calls as JSON, then `assistant:`
    input        of /v1/responses: text, or items that become such lines
    prompt       as it is: text, ids, or several of either

Prompts are not judged: of what is no request, ValueError, TypeError or KeyError. Fields are pydantic models,
and their JSON schemas. Types are strict (no "1" for 1), ranges are those of OpenAI and, for its own fields,
of vLLM's server. As there, an unknown field is passed over.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import from_json

Prompt = str | Sequence[int]


def body_fields(body: bytes) -> dict[str, Any]:
    """The fields of a body. ValueError, one line for the client."""
    try:
        fields = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ValueError(f"The body is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError("The body should be a JSON object")
    return fields


def prompts_of(fields: Mapping[str, Any]) -> Sequence[Prompt]:
    """The prompts of a body's fields, in order."""
    if "messages" in fields:
        return [_chat(fields["messages"], fields.get("tools"))]
    if "input" in fields and "instructions" not in fields and not _are_items(fields["input"]):
        given = fields["input"]
    elif "input" in fields:
        before = fields.get("instructions")
        items = fields["input"] if isinstance(fields["input"], list) else [_line("user", fields["input"])]
        return [_chat(([_line("system", before)] if before else []) + items, fields.get("tools"))]
    else:
        given = fields["prompt"]
    return separate(given)


def separate(given: object) -> Sequence[Prompt]:
    """The one prompt of a field, or the several."""
    if isinstance(given, list) and given and not isinstance(given[0], int):
        return given
    if not isinstance(given, str | list):
        raise TypeError("neither text nor token ids")
    return [given]


def content_text(content: object) -> str:
    """Text, or the text of parts; ValueError where a part is something else."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError("should be a string or an array of parts")
    return "".join(_part(index, part) for index, part in enumerate(content))


TEXTS = ("text", "input_text", "output_text", "refusal")


def _part(index: int, part: object) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise ValueError(f"part {index} should be an object with a type")
    if kind not in TEXTS:
        raise ValueError(f"part {index} is of type {kind!r}, and this model reads only text")
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise ValueError(f"part {index} should hold its text as a string")
    return text


def _are_items(given: object) -> bool:
    """Whether these are items of a conversation, and not prompts."""
    return isinstance(given, list) and bool(given) and isinstance(given[0], dict)


def _line(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


def _chat(messages: Sequence[Mapping[str, Any]], tools: object) -> str:
    lines = [f"tools: {json.dumps(tools)}\n"] if tools else []
    for message in messages:
        text = content_text(message.get("content", message.get("output")))
        calls = message.get("tool_calls") or message.get("arguments")
        lines.append(
            f"{message.get('role', message.get('type'))}: {text}{json.dumps(calls) if calls else ''}\n"
        )
    return "".join(lines) + "assistant:"


ID_BYTES = 4
"""UTF-8 bytes of a made-up token id."""


def ids_of_text(text: str) -> list[int]:
    """Made-up token ids of a text, each of up to four bytes: as many as are estimated for it."""
    data = text.encode(errors="surrogatepass")
    return [int.from_bytes(data[at : at + ID_BYTES], "little") for at in range(0, len(data), ID_BYTES)]


def text_of_ids(ids: Sequence[int]) -> str:
    """The text of made-up token ids."""
    data = b"".join(each.to_bytes(ID_BYTES, "little").rstrip(b"\0") for each in ids)
    return data.decode(errors="replace")


Api = Literal["completions", "chat", "responses"]
PATHS: Mapping[str, Api] = {
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
}

MOST_STOPS = 16
MOST_STOP_CHARACTERS = 1024
MOST_LOGPROBS = 20
MOST_TOKEN_ID = 2**32 - 1


def _stops(value: object) -> object:
    """One string or several, as several."""
    given = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not all(isinstance(stop, str) for stop in given):
        raise ValueError(f"should be a string or an array of up to {MOST_STOPS} strings")
    if len(given) > MOST_STOPS:
        raise ValueError(f"should hold at most {MOST_STOPS} strings, not {len(given)}")
    if not all(0 < len(stop) <= MOST_STOP_CHARACTERS for stop in given):
        raise ValueError(f"should hold strings of 1 to {MOST_STOP_CHARACTERS} characters")
    return tuple(given)


def _prompt(value: object) -> object:
    """Text or token ids, one or several."""
    several = isinstance(value, list) and bool(value) and not isinstance(value[0], int)
    for each in value if isinstance(value, list) and several else [value]:
        if isinstance(each, str):
            continue
        if not isinstance(each, list) or not each or not all(type(token) is int for token in each):
            raise ValueError("should be a string, an array of token ids, or an array of either")
        if min(each) < 0 or max(each) > MOST_TOKEN_ID:
            raise ValueError(f"should hold token ids from 0 to {MOST_TOKEN_ID}")
    return value


def _content(value: object) -> object:
    content_text(value)
    return value


def _items(value: object) -> object:
    several = isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)
    if not (isinstance(value, str) or several):
        raise ValueError("should be a string or an array of items")
    return value


_STRING: dict[str, Any] = {"type": "string"}
_STRINGS: dict[str, Any] = {"type": "array", "items": _STRING, "minItems": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MOST_TOKEN_ID}, "minItems": 1}
_PARTS = {"type": "array", "items": {"type": "object", "required": ["type"]}}
STOP = {"oneOf": [_STRING, {**_STRINGS, "maxItems": MOST_STOPS}, {"type": "null"}]}
PROMPT = {"oneOf": [_STRING, _STRINGS, _IDS, {"type": "array", "items": _IDS, "minItems": 1}]}
CONTENT = {"oneOf": [_STRING, _PARTS, {"type": "null"}]}
INPUT = {"oneOf": [_STRING, {"type": "array", "items": {"type": "object"}, "minItems": 1}]}


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class StreamOptions(_Lenient):
    """What a stream has besides its chunks."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Function(_Lenient):
    """A function that the model may call."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatTool(_Lenient):
    """A tool of a chat."""

    type: Literal["function"]
    function: Function


class NamedSchema(_Lenient):
    """A JSON schema as `response_format` holds it."""

    name: str | None = None
    given: dict[str, Any] = Field(alias="schema")


class ResponseFormat(_Lenient):
    """What the output of a chat or completion has to be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class StructuredOutputs(_Lenient):
    """vLLM's own field for what the output has to be."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    json_object: bool | None = None


class Message(_Lenient):
    """One message of a chat."""

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: Annotated[Any, BeforeValidator(_content), WithJsonSchema(CONTENT)] = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class GenerationFields(_Lenient):
    """The fields of all endpoints."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(_stops), WithJsonSchema(STOP)] = ()
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    """The gateway's: engines pass it over."""
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None


class CompletionFields(GenerationFields):
    """The fields of `/v1/completions`."""

    prompt: Annotated[Any, BeforeValidator(_prompt), WithJsonSchema(PROMPT)]
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool | None = None
    response_format: ResponseFormat | None = None


class ChatFields(GenerationFields):
    """The fields of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[ChatTool] | None = None
    tool_choice: str | dict[str, Any] | None = None


class TextFormat(_Lenient):
    """What the output of a response has to be."""

    type: Literal["text", "json_object", "json_schema"]
    given: dict[str, Any] | None = Field(default=None, alias="schema")


class TextOptions(_Lenient):
    """`text` of a response."""

    format: TextFormat | None = None


class ResponseTool(_Lenient):
    """A tool of a response."""

    type: Literal["function"]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    parameters: dict[str, Any] | None = None


class ResponsesFields(GenerationFields):
    """The fields of `/v1/responses`."""

    input: Annotated[Any, BeforeValidator(_items), WithJsonSchema(INPUT)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    text: TextOptions | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | dict[str, Any] | None = None


def body_schema(path: str) -> dict[str, Any]:
    """JSON schema of the bodies of an endpoint."""
    models: Mapping[Api, type[BaseModel]] = {
        "completions": CompletionFields,
        "chat": ChatFields,
        "responses": ResponsesFields,
    }
    return _inlined(models[PATHS[path]].model_json_schema())


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its definitions in place of references to them: none refers to itself."""
    named = schema.pop("$defs", {})

    def inline(part: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(part, list):
            return [inline(each) for each in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return inline(named[part["$ref"].rpartition("/")[2]])
        return {name: inline(each) for name, each in part.items()}

    found: dict[str, Any] = inline(schema)
    return found
