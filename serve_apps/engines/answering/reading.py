"""From a body to what is asked of a model; what is wrong is said with the field's name.

For engines that make text. A field that asks for what no answer here could hold is refused by name: an answer
that silently leaves it out is worse than none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from serve_apps.engines.answering.fields import (
    PATHS,
    Api,
    ChatFields,
    CompletionFields,
    GenerationFields,
    ResponseFormat,
    ResponsesFields,
    StructuredOutputs,
)
from serve_apps.engines.answering.prompts import Prompt, body_fields, prompts_of
from serve_apps.engines.protocol import ClientCall, Refused, error_body


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


BEYOND: Mapping[str, Sequence[Any]] = {
    "audio": (None,),
    "background": (None, False),
    "best_of": (None, 1),
    "chat_template": (None,),
    "function_call": (None, "none"),
    "functions": (None, []),
    "include": (None, []),
    "modalities": (None, ["text"]),
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
            return _completion(_validated(CompletionFields, said), said)
        case "chat":
            return _chat(_validated(ChatFields, said), said)
        case "responses":
            return _response(_validated(ResponsesFields, said), said)


def _plain(name: str, value: object, allowed: Sequence[Any]) -> None:
    # The types too: in Python 1 equals true, in JSON it does not.
    if not any(type(value) is type(each) and value == each for each in allowed):
        raise refusal(f"Unsupported parameter: {name!r} of this value has no answer here", name)


def _common(asked: GenerationFields) -> dict[str, Any]:
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


def _completion(asked: CompletionFields, said: Mapping[str, Any]) -> Asked:
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


def _chat(asked: ChatFields, said: Mapping[str, Any]) -> Asked:
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


def _response(asked: ResponsesFields, said: Mapping[str, Any]) -> Asked:
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


def _form(wanted: ResponseFormat | None, structured: StructuredOutputs | None) -> Form | None:
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
