"""From a body to a valid request; what is wrong with it is said with the field's name.

Types are strict (no "1" for 1), ranges are those of OpenAI, unknown fields are errors. Fields that OpenAI
defines and this gateway does not serve may come with a value that asks for nothing, as client libraries send
them; any other value is refused by name, because an answer that silently leaves out what was asked for is
worse than none. Accepted and without effect are `user`, `metadata`, `safety_identifier` and
`prompt_cache_key`.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, from_json

from serve_apps.gateway.backend import InvalidRequest
from serve_apps.gateway.request import GenerationRequest, Message

Neutral = Mapping[str, Sequence[Any]]

COMPLETION: Neutral = {
    "n": (None, 1),
    "best_of": (None, 1),
    "logprobs": (None,),
    "echo": (None, False),
    "suffix": (None, ""),
    "logit_bias": (None, {}),
}

CHAT: Neutral = {
    "n": (None, 1),
    "logprobs": (None, False),
    "top_logprobs": (None,),
    "logit_bias": (None, {}),
    "tools": (None,),
    "tool_choice": (None, "none"),
    "parallel_tool_calls": (None,),
    "functions": (None,),
    "function_call": (None, "none"),
    "response_format": (None, {"type": "text"}),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "reasoning_effort": (None, "none"),
    "verbosity": (None,),
    "store": (None, False),
    "service_tier": (None, "auto", "default"),
    "prompt_cache_options": (None,),
    "prompt_cache_retention": (None,),
}

MESSAGE: Neutral = {
    "tool_calls": (None, []),
    "tool_call_id": (None,),
    "function_call": (None,),
    "audio": (None,),
    "refusal": (None,),
    "annotations": (None, []),
}


def without_unsupported(fields: Mapping[str, Any], neutral: Neutral, where: str = "") -> dict[str, Any]:
    """The other fields. InvalidRequest names the first unsupported one whose value asks for something."""
    for name in fields.keys() & neutral.keys():
        value = fields[name]
        # The types too: in Python 1 equals true, in JSON it does not.
        if not any(type(value) is type(allowed) and value == allowed for allowed in neutral[name]):
            raise InvalidRequest(_refusal(where + name, neutral[name]), param=where + name)
    return {name: value for name, value in fields.items() if name not in neutral}


def _refusal(name: str, allowed: Sequence[Any]) -> str:
    said = [str(value).lower() if isinstance(value, bool) else repr(value) for value in allowed[1:]]
    only = f" other than {' or '.join(said)}" if said else ""
    return f"Unsupported parameter: {name!r}{only} is not supported here"


MOST_MESSAGES = 10_000
"""Each is looked at by itself: hundreds of thousands would take seconds."""


def check_count(messages: Sequence[object]) -> None:
    """InvalidRequest where there are too many to look at."""
    if len(messages) > MOST_MESSAGES:
        text = f"Invalid 'messages': it holds {len(messages)}, and at most {MOST_MESSAGES} are read"
        raise InvalidRequest(text, param="messages")


def plain_messages(messages: object) -> object:
    """Messages without fields that ask for nothing. InvalidRequest names what is not supported."""
    if not isinstance(messages, list):
        return messages
    check_count(messages)
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


MOST_STOPS = 4
MOST_STOP_CHARACTERS = 1024
MOST_TOKEN_ID = 2**31 - 1
PROMPT = "should be a string, an array of token ids, or an array with exactly one of these"
SAMPLING = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")


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
    """Text or token ids; the one prompt of an array of prompts."""
    if isinstance(value, list) and value and not isinstance(value[0], int):
        if len(value) > 1:
            raise ValueError(
                f"holds {len(value)} prompts, several prompts are not supported here; it {PROMPT}"
            )
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value or not all(type(token) is int for token in value):
        raise ValueError(PROMPT)
    if min(value) < 0 or max(value) > MOST_TOKEN_ID:
        raise ValueError(f"should hold token ids from 0 to {MOST_TOKEN_ID}")
    return value


MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
TokenCount = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _Generation(_Strict):
    """The fields of both endpoints."""

    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: TokenCount | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(_stops)] = ()
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    user: str | None = None

    def request(
        self, max_tokens: int | None, *, prompt: str | list[int] = "", messages: Sequence[Message] = ()
    ) -> GenerationRequest:
        """The request without what only validation needed."""
        if self.stream_options is not None and not self.stream:
            text = "'stream_options' is only allowed when 'stream' is true"
            raise InvalidRequest(text, param="stream_options")
        said = ((name, getattr(self, name)) for name in SAMPLING)
        return GenerationRequest(
            model=self.model,
            prompt=prompt,
            messages=messages,
            max_tokens=max_tokens,
            stop=self.stop,
            stream=bool(self.stream),
            include_usage=bool(self.stream_options and self.stream_options.include_usage),
            sampling={name: value for name, value in said if value is not None},
        )


class _Completion(_Generation):
    prompt: Annotated[str | list[int], BeforeValidator(_prompt)]


class _Chat(_Generation):
    messages: Annotated[list[Message], BeforeValidator(plain_messages), Field(min_length=1)]
    max_completion_tokens: TokenCount | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


Model = TypeVar("Model", bound=_Generation)


def read_completion(body: bytes) -> GenerationRequest:
    """The request of `/v1/completions`; InvalidRequest."""
    asked = _validated(_Completion, _fields(body, COMPLETION))
    return asked.request(asked.max_tokens, prompt=asked.prompt)


def read_chat(body: bytes) -> GenerationRequest:
    """The request of `/v1/chat/completions`; InvalidRequest."""
    asked = _validated(_Chat, _fields(body, CHAT))
    if asked.max_tokens is not None and asked.max_completion_tokens is not None:
        text = "'max_tokens' and 'max_completion_tokens' can't both be set"
        raise InvalidRequest(text, param="max_tokens")
    return asked.request(asked.max_completion_tokens or asked.max_tokens, messages=asked.messages)


def json_object(body: bytes) -> dict[str, Any]:
    """The fields of a body. InvalidRequest."""
    try:
        fields = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidRequest("The body should be a JSON object")
    return fields


def _fields(body: bytes, neutral: Neutral) -> dict[str, Any]:
    return without_unsupported(json_object(body), neutral)


def _validated(model: type[Model], fields: Mapping[str, Any]) -> Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _invalid(error.errors(include_url=False, include_input=False)[0]) from error


def _invalid(error: ErrorDetails) -> InvalidRequest:
    """The first error in one line, with the field as OpenAI writes it: `messages[0].content`."""
    param = _param(error["loc"])
    match error["type"]:
        case "extra_forbidden":
            text = f"Unrecognized request argument supplied: {param}"
        case "missing":
            text = f"Missing required parameter: {param!r}"
        case "value_error":
            text = f"Invalid {param!r}: it {error['ctx']['error']}"
        case _:
            text = f"Invalid {param!r}: {error['msg'][:1].lower()}{error['msg'][1:]}"
    return InvalidRequest(text, param=param)


def _param(location: tuple[int | str, ...]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".")
