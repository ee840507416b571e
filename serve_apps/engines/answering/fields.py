"""The fields of bodies that are read, with their types and ranges: pydantic models, and their JSON schemas.

Types are strict (no "1" for 1), ranges are those of OpenAI and, for its own fields, of vLLM's server. As
there, an unknown field is passed over.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from serve_apps.engines.answering.prompts import content_text

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
