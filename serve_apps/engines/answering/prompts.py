"""What a model would read of a body: its prompts, as text or token ids.

    messages     one line `role: content` a message, tool calls as JSON, then `assistant:`
    input        of /v1/responses: text, or items that become such lines
    prompt       as it is: text, ids, or several of either

Nothing is judged here: of what is no request, ValueError, TypeError or KeyError.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

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
    if "input" in fields and "instructions" not in fields and not _items(fields["input"]):
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


def _items(given: object) -> bool:
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
