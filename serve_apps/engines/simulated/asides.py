"""What a simulated engine says to questions that make no output: embeddings, token ids, its version.

A vector is made of a hash, of length 1: the same for the same text, unlike those of other texts, and nothing
more. Token ids are up to four bytes of text each, so that they can be made text again.
"""

import base64
import json
from array import array
from hashlib import blake2b
from importlib.metadata import version
from math import sqrt
from typing import Any

from serve_apps.engines.answering.prompts import Prompt, ids_of_text, prompts_of, separate, text_of_ids
from serve_apps.engines.answering.reading import json_object, refusal
from serve_apps.engines.protocol import Aside, AsideAnswer, Refused

DIMENSIONS = 64
MOST_DIMENSIONS = 8192
MOST_INPUTS = 2048


def answer_aside(question: Aside, model: str, longest_tokens: int) -> AsideAnswer:
    """An HTTP status and JSON, as vLLM's server has them."""
    try:
        said = _answer(question, model, longest_tokens)
    except Refused as refused:
        return AsideAnswer(refused.status, refused.body)
    return AsideAnswer(200, json.dumps(said).encode())


def _answer(question: Aside, model: str, longest_tokens: int) -> dict[str, Any]:
    if question.path == "/version":
        return {"version": version("headway"), "simulated": True}
    said = json_object(question.body)
    if (name := said.get("model")) not in (None, model):
        body = f"The model {name!r} does not exist here; {model!r} does"
        raise refusal(body, "model")
    match question.path:
        case "/tokenize":
            return _tokenized(said, longest_tokens)
        case "/detokenize":
            return _detokenized(said)
        case _:
            return _embeddings(said, model)


def _prompts(said: dict[str, Any], name: str) -> list[Prompt]:
    try:
        found = list(prompts_of(said) if name != "input" else separate(said["input"]))
        for each in found:
            if not isinstance(each, str):
                text_of_ids(each)
        if all(found) or found == [""]:
            return found
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise refusal(f"Invalid {name!r}: it should be text or token ids", name) from error
    raise refusal(f"Invalid {name!r}: one of it is empty", name)


def _tokenized(said: dict[str, Any], longest_tokens: int) -> dict[str, Any]:
    name = "messages" if "messages" in said else "prompt"
    (prompt, *_) = _prompts(said, name)
    ids = ids_of_text(prompt) if isinstance(prompt, str) else list(prompt)
    strings = [text_of_ids([each]) for each in ids] if said.get("return_token_strs") else None
    return {"count": len(ids), "max_model_len": longest_tokens, "tokens": ids, "token_strs": strings}


def _detokenized(said: dict[str, Any]) -> dict[str, Any]:
    ids = said.get("tokens")
    if not isinstance(ids, list) or not all(type(each) is int and 0 <= each < 2**32 for each in ids):
        raise refusal("Invalid 'tokens': it should be an array of token ids", "tokens")
    return {"prompt": text_of_ids(ids)}


def _embeddings(said: dict[str, Any], model: str) -> dict[str, Any]:
    dimensions, form = said.get("dimensions", DIMENSIONS), said.get("encoding_format", "float")
    if type(dimensions) is not int or not 1 <= dimensions <= MOST_DIMENSIONS:
        raise refusal(f"Invalid 'dimensions': it should be from 1 to {MOST_DIMENSIONS}", "dimensions")
    if form not in ("float", "base64"):
        raise refusal("Invalid 'encoding_format': it should be float or base64", "encoding_format")
    prompts = _prompts(said, "input")
    if not prompts or len(prompts) > MOST_INPUTS:
        raise refusal(f"Invalid 'input': it should hold 1 to {MOST_INPUTS} texts", "input")
    tokens = sum(len(ids_of_text(each)) if isinstance(each, str) else len(each) for each in prompts)
    data = []
    for index, prompt in enumerate(prompts):
        vector = _vector(prompt, dimensions)
        packed = base64.b64encode(array("f", vector).tobytes()).decode()
        data.append(
            {"object": "embedding", "index": index, "embedding": packed if form == "base64" else vector}
        )
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _vector(prompt: Prompt, dimensions: int) -> list[float]:
    text = (prompt if isinstance(prompt, str) else " ".join(map(str, prompt))).encode(errors="surrogatepass")
    words = (
        blake2b(text, digest_size=64, salt=at.to_bytes(16, "little")).digest()
        for at in range(-(-dimensions // 64))
    )
    values = [byte - 127.5 for word in words for byte in word][:dimensions]
    length = sqrt(sum(value * value for value in values))
    return [value / length for value in values]
