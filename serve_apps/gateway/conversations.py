"""A conversation in the form in which vLLM's server gives it to the model's chat template.

    content    text; parts of text are joined by line ends, and where there is nothing the text is empty
    calls      arguments are objects, and not JSON in a string
    input      of /v1/responses: instructions are a system's message, a text is a user's, items are messages;
               a call belongs to the message of the assistant before it

Contents with other parts, such as images, stay as they are. Items that are no messages, such as reasoning:
ValueError; what is no conversation raises whatever comes of it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

TEXTS = ("text", "input_text", "output_text")
Message = Mapping[str, Any]


def messages_of(said: Mapping[str, Any]) -> Sequence[Message]:
    """The messages of a chat's or a response's fields."""
    return [_message(each) for each in said.get("messages") or _of_response(said)]


def tools_of(said: Mapping[str, Any]) -> Sequence[Message] | None:
    """The tools as chats have them; those of responses lack a level."""
    tools = said.get("tools")
    if tools is None or "messages" in said:
        return tools
    names = ("name", "description", "parameters")
    return [
        {"type": "function", "function": {name: tool[name] for name in names if name in tool}}
        for tool in tools
        if tool["type"] == "function"
    ]


def _of_response(said: Mapping[str, Any]) -> Sequence[Message]:
    before, given = said.get("instructions"), said["input"]
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
