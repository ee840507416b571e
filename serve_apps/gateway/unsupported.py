"""Fields that OpenAI defines and this gateway does not serve, with the values that ask for nothing.

A client library may send such a field with its neutral value; anything else is refused by name, because
an answer that silently leaves out what was asked for is worse than none.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from serve_apps.gateway.faults import InvalidRequest

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
