"""From a body to what is asked of a model; what is wrong is said with the field's name.

For engines that make text. Types are strict (no "1" for 1), ranges are those of OpenAI and, for its own
fields, of vLLM's server. As there, a field that nobody knows is passed over. One that asks for what no answer
here could hold is refused by name: an answer that silently leaves it out is worse than none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from serve_apps.engines.answering.prompts import Prompt, body_fields, content_text, prompts_of
from serve_apps.engines.protocol import ClientCall, Refused, error_body

Api = Literal["completions", "chat", "responses"]
PATHS: Mapping[str, Api] = {
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What an output has to be: JSON of a schema (None: any), one of several texts, or by a pattern."""

    param: str
    kind: Literal["json", "choice", "regex"]
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that may be called."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a client asks for. `choice` of a tool is `none`, `auto`, `required`, or a tool's name.

    `logprobs`: alternatives for each token, None for no probabilities at all. `exact`: the client wants as
    many tokens as it said, whatever the model would do.
    """

    api: Api
    model: str | None
    prompts: Sequence[Prompt]
    copies: int = 1
    stream: bool = False
    usage: bool = False
    usage_each: bool = False
    stops: Sequence[str] = ()
    keep_stop: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    logprobs: int | None = None
    echo: bool = False
    form: Form | None = None
    tools: Sequence[Tool] = ()
    choice: str = "none"
    after_tool: bool = False
    exact: bool = False

    @property
    def beyond_text(self) -> str | None:
        """The field that asks for more than an engine's text."""
        if self.form is not None:
            return self.form.param
        if self.tools and self.choice not in ("none", "auto"):
            return "tool_choice"
        return None if self.logprobs is None else "logprobs"


def refusal(message: str, param: str | None) -> Refused:
    """400, in OpenAI's form."""
    return Refused(400, error_body(message, "invalid_request_error", param, None))


def json_object(body: bytes) -> dict[str, Any]:
    """The fields of a body. Refused."""
    try:
        return body_fields(body)
    except ValueError as error:
        raise refusal(str(error), None) from error


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


class _StreamOptions(_Lenient):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Function(_Lenient):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _ChatTool(_Lenient):
    type: Literal["function"]
    function: _Function


class _Schema(_Lenient):
    name: str | None = None
    given: dict[str, Any] = Field(alias="schema")


class _Format(_Lenient):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


class _Structured(_Lenient):
    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    json_object: bool | None = None


class _Message(_Lenient):
    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: Annotated[Any, BeforeValidator(_content), WithJsonSchema(CONTENT)] = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class _Generation(_Lenient):
    """The fields of all endpoints."""

    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(_stops), WithJsonSchema(STOP)] = ()
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: _Structured | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None


class _Completion(_Generation):
    prompt: Annotated[Any, BeforeValidator(_prompt), WithJsonSchema(PROMPT)]
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool | None = None
    response_format: _Format | None = None


class _Chat(_Generation):
    messages: Annotated[list[_Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    response_format: _Format | None = None
    tools: list[_ChatTool] | None = None
    tool_choice: str | dict[str, Any] | None = None


class _TextFormat(_Lenient):
    type: Literal["text", "json_object", "json_schema"]
    given: dict[str, Any] | None = Field(default=None, alias="schema")


class _Text(_Lenient):
    format: _TextFormat | None = None


class _ResponseTool(_Lenient):
    type: Literal["function"]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    parameters: dict[str, Any] | None = None


class _Responses(_Generation):
    input: Annotated[Any, BeforeValidator(_items), WithJsonSchema(INPUT)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    text: _Text | None = None
    tools: list[_ResponseTool] | None = None
    tool_choice: str | dict[str, Any] | None = None


BEYOND: Mapping[str, Sequence[Any]] = {
    "audio": (None,),
    "background": (None, False),
    "best_of": (None, 1),
    "function_call": (None, "none"),
    "functions": (None, []),
    "include": (None, []),
    "modalities": (None, ["text"]),
    "previous_response_id": (None,),
    "conversation": (None,),
    "prompt_logprobs": (None,),
    "suffix": (None, ""),
    "use_beam_search": (None, False),
    "web_search_options": (None,),
}
"""Fields that no answer here could honour, and their values that ask for nothing."""

UNMADE = ("grammar", "structural_tag")
"""Of `structured_outputs`: languages that only a grammar's own engine reads."""

SAMPLING = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")


def read_call(call: ClientCall) -> Asked:
    """What the body of a call asks for. Refused."""
    said = json_object(call.body)
    for name in said.keys() & BEYOND.keys():
        _plain(name, said[name], BEYOND[name])
    if isinstance(given := said.get("structured_outputs"), dict):
        for name in UNMADE:
            _plain(f"structured_outputs.{name}", given.get(name), (None,))
    match PATHS[call.path]:
        case "completions":
            return _completion(_validated(_Completion, said), said)
        case "chat":
            return _chat(_validated(_Chat, said), said)
        case "responses":
            return _response(_validated(_Responses, said), said)


def body_schema(path: str) -> dict[str, Any]:
    """JSON schema of the bodies of an endpoint."""
    models: Mapping[Api, type[BaseModel]] = {
        "completions": _Completion,
        "chat": _Chat,
        "responses": _Responses,
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


def _plain(name: str, value: object, allowed: Sequence[Any]) -> None:
    # The types too: in Python 1 equals true, in JSON it does not.
    if not any(type(value) is type(each) and value == each for each in allowed):
        raise refusal(f"Unsupported parameter: {name!r} of this value has no answer here", name)


def _common(asked: _Generation) -> dict[str, Any]:
    options = asked.stream_options
    if options is not None and not asked.stream:
        raise refusal("'stream_options' is only allowed when 'stream' is true", "stream_options")
    said = ((name, getattr(asked, name)) for name in SAMPLING)
    return {
        "model": asked.model,
        "copies": asked.n or 1,
        "stream": bool(asked.stream),
        "usage": bool(options and options.include_usage),
        "usage_each": bool(options and options.include_usage and options.continuous_usage_stats),
        "stops": asked.stop,
        "keep_stop": bool(asked.include_stop_str_in_output),
        "sampling": {name: value for name, value in said if value is not None},
        "exact": bool(asked.ignore_eos) or bool(asked.min_tokens),
    }


def _completion(asked: _Completion, said: Mapping[str, Any]) -> Asked:
    if asked.echo and asked.logprobs is not None:
        raise refusal("Unsupported parameter: 'echo' with 'logprobs' has no answer here", "echo")
    return Asked(
        api="completions",
        prompts=prompts_of(said),
        logprobs=asked.logprobs,
        echo=bool(asked.echo),
        form=_form(asked.response_format, asked.structured_outputs),
        **_common(asked),
    )


def _chat(asked: _Chat, said: Mapping[str, Any]) -> Asked:
    if asked.top_logprobs and not asked.logprobs:
        raise refusal("'top_logprobs' is only allowed when 'logprobs' is true", "top_logprobs")
    tools = [
        Tool(name=each.function.name, schema=each.function.parameters or {}) for each in asked.tools or ()
    ]
    return Asked(
        api="chat",
        prompts=prompts_of(said),
        logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
        form=_form(asked.response_format, asked.structured_outputs),
        tools=tools,
        choice=_choice(asked.tool_choice, tools),
        after_tool=asked.messages[-1].role in ("tool", "function"),
        **_common(asked),
    )


def _response(asked: _Responses, said: Mapping[str, Any]) -> Asked:
    tools = [Tool(name=each.name, schema=each.parameters or {}) for each in asked.tools or ()]
    form, wanted = None, asked.text.format if asked.text is not None else None
    if wanted is not None and wanted.type != "text":
        form = Form(param="text.format", kind="json", value=wanted.given)
    try:
        prompts = prompts_of(said)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise refusal(f"Invalid 'input': {error}", "input") from error
    last = asked.input[-1] if isinstance(asked.input, list) and asked.input else {}
    return Asked(
        api="responses",
        prompts=prompts,
        form=form or _form(None, asked.structured_outputs),
        tools=tools,
        choice=_choice(asked.tool_choice, tools),
        after_tool=last.get("type") == "function_call_output",
        **_common(asked),
    )


def _form(wanted: _Format | None, structured: _Structured | None) -> Form | None:
    if wanted is not None and wanted.type == "json_schema" and wanted.json_schema is None:
        raise refusal("Missing required parameter: 'response_format.json_schema'", "response_format")
    if wanted is not None and wanted.type != "text":
        schema = None if wanted.json_schema is None else wanted.json_schema.given
        return Form(param="response_format", kind="json", value=schema)
    if structured is None:
        return None
    name = "structured_outputs"
    if structured.choice is not None:
        return Form(param=name, kind="choice", value=structured.choice)
    if structured.regex is not None:
        return Form(param=name, kind="regex", value=structured.regex)
    if structured.json_ is not None:
        given = structured.json_
        return Form(
            param=name, kind="json", value=json_object(given.encode()) if isinstance(given, str) else given
        )
    return Form(param=name, kind="json") if structured.json_object else None


def _choice(said: str | dict[str, Any] | None, tools: Sequence[Tool]) -> str:
    """`none`, `auto`, `required`, or the name of one of the tools."""
    if said is None:
        return "auto" if tools else "none"
    if isinstance(said, dict):
        given = said.get("function", said)
        name = given.get("name") if isinstance(given, dict) else None
        if name not in [tool.name for tool in tools]:
            raise refusal("Invalid 'tool_choice': it names none of the tools", "tool_choice")
        return str(name)
    if said not in ("none", "auto", "required"):
        raise refusal(
            "Invalid 'tool_choice': it should be none, auto, required, or a function", "tool_choice"
        )
    if said != "none" and not tools:
        raise refusal("'tool_choice' is only allowed when 'tools' are specified", "tool_choice")
    return said


Model = TypeVar("Model", bound=BaseModel)


def _validated(model: type[Model], fields: Mapping[str, Any]) -> Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _invalid(error.errors(include_url=False, include_input=False)[0]) from error


def _invalid(error: ErrorDetails) -> Refused:
    """The first error in one line, with the field as OpenAI writes it: `messages[0].content`."""
    param = _param(error["loc"])
    match error["type"]:
        case "missing":
            text = f"Missing required parameter: {param!r}"
        case "value_error":
            text = f"Invalid {param!r}: it {error['ctx']['error']}"
        case _:
            text = f"Invalid {param!r}: {error['msg'][:1].lower()}{error['msg'][1:]}"
    return refusal(text, param)


def _param(location: tuple[int | str, ...]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".")
