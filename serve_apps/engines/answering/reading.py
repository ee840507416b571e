"""From a body to what it asks of a model; an error names the field.

For engines that make text. A field that asks for what no answer here could hold is refused by name: an answer
that silently leaves it out is worse than none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from serve_apps.engines.answering.fields import (
    PATHS,
    Api,
    ChatFields,
    CompletionFields,
    GenerationFields,
    Prompt,
    ResponseFormat,
    ResponsesFields,
    StructuredOutputs,
    body_fields,
    prompts_of,
)
from serve_apps.engines.protocol import ClientCall, Refused, error_body


class OutputFormat(NamedTuple):
    """What an output has to be: JSON of a schema (None: any), one of several texts, or by a pattern.

    `param` is the field that asks for it.
    """

    param: str
    kind: Literal["json", "choice", "regex"]
    value: Any = None


class Tool(NamedTuple):
    """A function that may be called."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """What a client asks for. `tool_choice` is `none`, `auto`, `required`, or a tool's name.

    `logprobs`: alternatives for each token, None for no probabilities at all. `exact`: the client wants as
    many tokens as it named, whatever the model would do. `after_tool`: its last message is a tool's result.
    """

    api: Api
    prompt: Prompt
    stream: bool = False
    usage: bool = False
    usage_each: bool = False
    stops: Sequence[str] = ()
    keep_stop: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    logprobs: int | None = None
    echo: bool = False
    format: OutputFormat | None = None
    tools: Sequence[Tool] = ()
    tool_choice: str = "none"
    after_tool: bool = False
    exact: bool = False

    @property
    def beyond_text(self) -> str | None:
        """The field that asks for more than an engine's text."""
        if self.format is not None:
            return self.format.param
        if self.tool_choice not in ("none", "auto"):
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


BEYOND: Mapping[str, Sequence[Any]] = {
    "audio": (None,),
    "background": (None, False),
    "best_of": (None, 1),
    "chat_template": (None,),
    "function_call": (None, "none"),
    "functions": (None, []),
    "include": (None, []),
    "modalities": (None, ["text"]),
    "n": (None, 1),
    "previous_response_id": (None,),
    "conversation": (None,),
    "prompt_embeds": (None,),
    "prompt_logprobs": (None,),
    "return_token_ids": (None, False),
    "return_tokens_as_token_ids": (None, False),
    "suffix": (None, ""),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (None, False),
    "web_search_options": (None,),
}
"""Fields that no answer here could honour, and their values that ask for nothing."""

GRAMMARS = ("grammar", "structural_tag")
"""Of `structured_outputs`: languages that only a grammar's own engine reads."""

SAMPLING = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")


def read_call(call: ClientCall) -> ParsedRequest:
    """What the body of a call asks for. Refused."""
    body = json_object(call.body)
    for name in body.keys() & BEYOND.keys():
        _require_default(name, body[name], BEYOND[name])
    if isinstance(given := body.get("structured_outputs"), dict):
        for name in GRAMMARS:
            _require_default(f"structured_outputs.{name}", given.get(name), (None,))
    match PATHS[call.path]:
        case "completions":
            return _completion(_validated(CompletionFields, body), body)
        case "chat":
            return _chat(_validated(ChatFields, body), body)
        case "responses":
            return _response(_validated(ResponsesFields, body), body)


def _require_default(name: str, value: object, allowed: Sequence[Any]) -> None:
    # The types too: in Python 1 equals true, in JSON it does not.
    if not any(type(value) is type(each) and value == each for each in allowed):
        raise refusal(f"Unsupported parameter: {name!r} of this value has no answer here", name)


def _common(fields: GenerationFields) -> dict[str, Any]:
    options = fields.stream_options
    if options is not None and not fields.stream:
        raise refusal("'stream_options' is only allowed when 'stream' is true", "stream_options")
    given = ((name, getattr(fields, name)) for name in SAMPLING)
    return {
        "stream": bool(fields.stream),
        "usage": bool(options and options.include_usage),
        "usage_each": bool(options and options.include_usage and options.continuous_usage_stats),
        "stops": fields.stop,
        "keep_stop": bool(fields.include_stop_str_in_output),
        "sampling": {name: value for name, value in given if value is not None},
        "exact": bool(fields.ignore_eos) or bool(fields.min_tokens),
    }


def _completion(fields: CompletionFields, body: Mapping[str, Any]) -> ParsedRequest:
    if fields.echo and fields.logprobs is not None:
        raise refusal("Unsupported parameter: 'echo' with 'logprobs' has no answer here", "echo")
    prompts = prompts_of(body)
    if len(prompts) > 1:
        raise refusal("Invalid 'prompt': an engine answers one prompt a call", "prompt")
    return ParsedRequest(
        api="completions",
        prompt=prompts[0],
        logprobs=fields.logprobs,
        echo=bool(fields.echo),
        format=_response_format(fields.response_format) or _structured(fields.structured_outputs),
        **_common(fields),
    )


def _chat(fields: ChatFields, body: Mapping[str, Any]) -> ParsedRequest:
    if fields.top_logprobs and not fields.logprobs:
        raise refusal("'top_logprobs' is only allowed when 'logprobs' is true", "top_logprobs")
    tools = [Tool(each.function.name, each.function.parameters or {}) for each in fields.tools or ()]
    return ParsedRequest(
        api="chat",
        prompt=prompts_of(body)[0],
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        format=_response_format(fields.response_format) or _structured(fields.structured_outputs),
        tools=tools,
        tool_choice=_tool_choice(fields.tool_choice, tools),
        after_tool=fields.messages[-1].role in ("tool", "function"),
        **_common(fields),
    )


def _response(fields: ResponsesFields, body: Mapping[str, Any]) -> ParsedRequest:
    tools = [Tool(each.name, each.parameters or {}) for each in fields.tools or ()]
    wanted, text = None, fields.text.format if fields.text is not None else None
    if text is not None and text.type != "text":
        wanted = OutputFormat("text.format", "json", text.given)
    try:
        (prompt,) = prompts_of(body)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise refusal(f"Invalid 'input': {error}", "input") from error
    last = fields.input[-1] if isinstance(fields.input, list) else {}
    return ParsedRequest(
        api="responses",
        prompt=prompt,
        format=wanted or _structured(fields.structured_outputs),
        tools=tools,
        tool_choice=_tool_choice(fields.tool_choice, tools),
        after_tool=last.get("type") == "function_call_output",
        **_common(fields),
    )


def _response_format(wanted: ResponseFormat | None) -> OutputFormat | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_schema" and wanted.json_schema is None:
        raise refusal("Missing required parameter: 'response_format.json_schema'", "response_format")
    schema = None if wanted.json_schema is None else wanted.json_schema.given
    return OutputFormat("response_format", "json", schema)


def _structured(given: StructuredOutputs | None) -> OutputFormat | None:
    name = "structured_outputs"
    if given is None:
        return None
    if given.choice is not None:
        return OutputFormat(name, "choice", given.choice)
    if given.regex is not None:
        return OutputFormat(name, "regex", given.regex)
    if given.json_ is not None:
        schema = json_object(given.json_.encode()) if isinstance(given.json_, str) else given.json_
        return OutputFormat(name, "json", schema)
    return OutputFormat(name, "json") if given.json_object else None


def _tool_choice(given: str | dict[str, Any] | None, tools: Sequence[Tool]) -> str:
    """`none`, `auto`, `required`, or the name of one of the tools."""
    if given is None:
        return "auto" if tools else "none"
    if isinstance(given, dict):
        function = given.get("function", given)
        name = function.get("name") if isinstance(function, dict) else None
        if name not in [tool.name for tool in tools]:
            raise refusal("Invalid 'tool_choice': it names none of the tools", "tool_choice")
        return str(name)
    if given not in ("none", "auto", "required"):
        raise refusal(
            "Invalid 'tool_choice': it should be none, auto, required, or a function", "tool_choice"
        )
    if given != "none" and not tools:
        raise refusal("'tool_choice' is only allowed when 'tools' are specified", "tool_choice")
    return given


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
