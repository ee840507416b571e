"""What the gateway reads of a body, which goes to the engine as it came.

It reads the model, whether to stream, the bound on the output, the user and the conversation, and whether two
replicas can share the work; `prompts` reads the prompt. All else is the engine's to judge, and its refusals
reach the client in its own words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from serve_apps.engines.answering.fields import body_fields
from serve_apps.engines.protocol import ClientCall
from serve_apps.faults import InvalidRequest
from serve_apps.gateway.responses import Endpoint, HeaderList

BOUNDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Fields that bound the output; the first that is given counts, as in vLLM."""

COPYING = ("n", "best_of")
"""Fields that ask for several outputs of one prompt."""

MOST_OUTPUTS = 1024
"""Of one request: each takes a place in the engine."""

MOST_MESSAGES = 10_000
"""Each is looked at by itself: hundreds of thousands would take seconds."""

TRACE = (b"traceparent", b"tracestate")
LONGEST_TRACE = 512
"""Characters of a `tracestate` that W3C's recommendation asks everybody to pass on."""

WHOLE_PROMPT = "the prompt's own probabilities are where it was computed"
COPIES = "the KV of a prompt goes to one output"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A body as the gateway reads it: `fields` is all of it. No `max_tokens`: the client sets no bound.

    `user` and `cache_key` (`prompt_cache_key`) are as the client wrote them, of any length.
    """

    model: str | None
    max_tokens: int | None
    call: ClientCall
    fields: Mapping[str, Any]
    user: str | None = None
    cache_key: str | None = None


class CallReader:
    """Reads bodies. `separate`: prefill and decode are pools of their own, so every request is divided."""

    def __init__(self, *, separate: bool) -> None:
        self._separate = separate

    def read(self, endpoint: Endpoint, headers: HeaderList, body: bytes) -> GenerationRequest:
        """The request of a body. InvalidRequest."""
        try:
            fields = body_fields(body)
        except ValueError as error:
            raise InvalidRequest(str(error)) from error
        stream = _typed(fields, "stream", bool)
        bounds = [_typed(fields, name, int) for name in BOUNDS]
        bound = next((each for each in bounds if each is not None), endpoint.own_bound)
        for name in ("messages", "input"):
            if isinstance(fields.get(name), list):
                _check_count(name, fields[name])
        outputs, undivided = _outputs(fields), _undivided(fields)
        if undivided is not None and self._separate:
            name, why = undivided
            text = f"{name!r} of this value is not possible with separate prefill and decode pools: {why}"
            raise InvalidRequest(text, param=name)
        trace = tuple(each for each in headers if each[0] in TRACE and len(each[1]) <= LONGEST_TRACE)
        call = ClientCall(
            endpoint.path,
            body,
            bool(stream),
            bound is not None,
            outputs=outputs,
            divisible=undivided is None,
            trace=trace,
        )
        return GenerationRequest(
            model=_typed(fields, "model", str),
            max_tokens=bound,
            call=call,
            fields=fields,
            user=_typed(fields, "user", str),
            cache_key=_typed(fields, "prompt_cache_key", str),
        )


def _check_count(name: str, messages: Sequence[object]) -> None:
    if len(messages) > MOST_MESSAGES:
        text = f"Invalid {name!r}: it holds {len(messages)}, and at most {MOST_MESSAGES} are read"
        raise InvalidRequest(text, param=name)


Kind = TypeVar("Kind", bool, int, str)


def _typed(fields: Mapping[str, Any], name: str, kind: type[Kind]) -> Kind | None:
    value = fields.get(name)
    if value is None:
        return None
    # Not by isinstance: in Python true is an integer, in JSON it is none.
    if type(value) is not kind:
        raise InvalidRequest(f"Invalid {name!r}: it should be of type {_JSON_NAMES[kind]}", param=name)
    found: Kind = kind(value)
    if isinstance(found, int) and not 0 <= found < 2**31:
        raise InvalidRequest(f"Invalid {name!r}: it should be from 0 to {2**31 - 1}", param=name)
    return found


_JSON_NAMES = {bool: "boolean", int: "integer", str: "string"}


def _outputs(fields: Mapping[str, Any]) -> int:
    """Outputs that are made side by side."""
    prompt = fields.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and _several(prompt) else 1
    copies: list[int] = [_typed(fields, name, int) or 1 for name in COPYING]
    outputs = prompts * max(copies)
    if outputs > MOST_OUTPUTS:
        name = "n" if "n" in fields else "prompt"
        raise InvalidRequest(f"Invalid {name!r}: {outputs} outputs, and at most {MOST_OUTPUTS}", param=name)
    return outputs


def _several(prompt: object) -> bool:
    """Whether these are prompts, and not the ids of one."""
    return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)


def _undivided(fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """The field for which the replica that decodes has to compute the prompt, too, and why."""
    for name in COPYING:
        if (_typed(fields, name, int) or 1) > 1:
            return name, COPIES
    if _several(fields.get("prompt")):
        return "prompt", "each of several prompts would be prefilled elsewhere"
    if fields.get("use_beam_search"):
        return "use_beam_search", COPIES
    if fields.get("prompt_logprobs") is not None:
        return "prompt_logprobs", WHOLE_PROMPT
    if fields.get("echo") and fields.get("logprobs") is not None:
        return "echo", WHOLE_PROMPT
    return None
