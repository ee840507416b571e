"""What a simulated engine answers: words, the simplest text where a client asks for a form, made-up vectors.

Where no text is found that fits (a schema may ask for anything) the request is refused: an answer that breaks
the promise of its form would be worse. A script's tokens are four characters.

Of tools that may be called, not must (`auto`), the first is called when a user has spoken, and text answers a
tool's result, so that a client's loop of calls goes round once. A client that wants an exact number of tokens
gets text.

A vector is made of a hash, of length 1: the same for the same text, unlike those of other texts, and nothing
more. Token ids are up to four bytes of text each, so that they can be made text again.
"""

import base64
import json
import zlib
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from serve_apps.engines.answering.answers import Plan
from serve_apps.engines.answering.fields import Prompt, ids_of_text, prompts_of, separate, text_of_ids
from serve_apps.engines.answering.forms import TokenLogprob
from serve_apps.engines.answering.reading import OutputFormat, ParsedRequest, Tool, json_object, refusal
from serve_apps.engines.protocol import AuxiliaryAnswer, AuxiliaryCall, Refused
from serve_apps.engines.simulated.values import Unfitting, simplest_json, simplest_match

TOKEN_CHARACTERS = 4
FIRST = " [simulated]"
WORDS = (
    *("alfa", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliett", "kilo"),
    *("lima", "mike", "november", "oscar", "papa", "quebec", "romeo", "sierra", "tango", "uniform", "victor"),
    *("whiskey", "xray", "yankee", "zulu"),
)
LOGPROB = -0.1
"""Of every token; those of other tokens in its place are lower."""


def words(start: int, stop: int) -> str:
    """The text of tokens `start` to `stop`, the latter left out: the same in every output."""
    return "".join(f" {WORDS[at % len(WORDS)]}" if at else FIRST for at in range(start, stop))


def plan(request: ParsedRequest) -> Plan:
    """The text of the choices of a request, see above. Refused where nothing fits."""
    tool, choice = None, request.tool_choice
    if choice == "required" or (choice == "auto" and not (request.after_tool or request.exact)):
        tool = request.tools[0]
    elif choice not in ("none", "auto"):
        tool = next(each for each in request.tools if each.name == choice)
    text, alternatives = _scripted(tool, request.format), request.logprobs
    return Plan(
        tool=tool,
        script=None if text is None else _tokens(text),
        logprobs=None if alternatives is None else lambda tokens: _logprobs(tokens, alternatives),
    )


def _scripted(tool: Tool | None, wanted: OutputFormat | None) -> str | None:
    if tool is not None:
        wanted = OutputFormat("tools", "json", tool.schema)
    if wanted is None:
        return None
    try:
        match wanted.kind:
            case "choice":
                return str(wanted.value[0])
            case "regex":
                return simplest_match(wanted.value)
            case "json":
                return simplest_json(wanted.value or {"type": "object"})
    except Unfitting as error:
        text = f"Invalid {wanted.param!r}: a simulated engine makes nothing that fits: {error}"
        raise refusal(text, wanted.param) from error


def _tokens(text: str) -> Sequence[str]:
    return [text[at : at + TOKEN_CHARACTERS] for at in range(0, len(text), TOKEN_CHARACTERS)] or [""]


def _logprobs(tokens: str | Sequence[str], alternatives: int) -> Sequence[TokenLogprob]:
    """Made-up probabilities of words or of a script's tokens, each with so many of the likeliest there."""
    texts = [f" {word}" for word in tokens.split()] if isinstance(tokens, str) else tokens
    made = []
    for text in texts:
        others = [f" {word}" for word in WORDS if f" {word}" != text][: max(0, alternatives - 1)]
        likeliest = [text, *others][:alternatives]
        made.append(TokenLogprob(text, LOGPROB, [(each, LOGPROB - at) for at, each in enumerate(likeliest)]))
    return made


DIMENSIONS = 64
MOST_DIMENSIONS = 8192
MOST_INPUTS = 2048


def answer_auxiliary(question: AuxiliaryCall, names: Sequence[str], longest_tokens: int) -> AuxiliaryAnswer:
    """An HTTP status and JSON, as vLLM's server has them."""
    try:
        if question.path == "/version":
            document: dict[str, Any] = {"version": version("headway"), "simulated": True}
        else:
            document = _answer(question.path, json_object(question.body), names, longest_tokens)
    except Refused as refused:
        return AuxiliaryAnswer(refused.status, refused.body)
    return AuxiliaryAnswer(200, json.dumps(document).encode())


def _answer(path: str, body: dict[str, Any], names: Sequence[str], longest_tokens: int) -> dict[str, Any]:
    model = names[0]
    if (name := body.get("model")) not in (None, *names):
        raise refusal(f"The model {name!r} does not exist here; {model!r} does", "model")
    match path:
        case "/tokenize":
            return _tokenize(body, longest_tokens)
        case "/detokenize":
            ids = body.get("tokens")
            if not isinstance(ids, list) or not all(type(each) is int and 0 <= each < 2**32 for each in ids):
                raise refusal("Invalid 'tokens': it should be an array of token ids", "tokens")
            return {"prompt": text_of_ids(ids)}
        case _:
            return _embed(body, model)


def _prompts(body: dict[str, Any], name: str) -> list[Prompt]:
    try:
        found = list(prompts_of(body) if name != "input" else separate(body["input"]))
        for each in found:
            if not isinstance(each, str):
                text_of_ids(each)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise refusal(f"Invalid {name!r}: it should be text or token ids", name) from error
    if not all(found) and found != [""]:
        raise refusal(f"Invalid {name!r}: one of it is empty", name)
    return found


def _tokenize(body: dict[str, Any], longest_tokens: int) -> dict[str, Any]:
    (prompt, *_) = _prompts(body, "messages" if "messages" in body else "prompt")
    ids = ids_of_text(prompt) if isinstance(prompt, str) else list(prompt)
    strings = [text_of_ids([each]) for each in ids] if body.get("return_token_strs") else None
    return {"count": len(ids), "max_model_len": longest_tokens, "tokens": ids, "token_strs": strings}


def _embed(body: dict[str, Any], model: str) -> dict[str, Any]:
    dimensions, encoding = body.get("dimensions", DIMENSIONS), body.get("encoding_format", "float")
    if type(dimensions) is not int or not 1 <= dimensions <= MOST_DIMENSIONS:
        raise refusal(f"Invalid 'dimensions': it should be from 1 to {MOST_DIMENSIONS}", "dimensions")
    if encoding not in ("float", "base64"):
        raise refusal("Invalid 'encoding_format': it should be float or base64", "encoding_format")
    prompts = _prompts(body, "input")
    if not prompts or len(prompts) > MOST_INPUTS:
        raise refusal(f"Invalid 'input': it should hold 1 to {MOST_INPUTS} texts", "input")
    tokens = sum(len(ids_of_text(each)) if isinstance(each, str) else len(each) for each in prompts)
    vectors = [_vector(each, dimensions) for each in prompts]
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(each.tobytes()).decode() if encoding == "base64" else each.tolist(),
        }
        for index, each in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _vector(prompt: Prompt, dimensions: int) -> "np.ndarray[Any, np.dtype[np.float32]]":
    text = (prompt if isinstance(prompt, str) else " ".join(map(str, prompt))).encode(errors="surrogatepass")
    vector = np.random.default_rng(zlib.crc32(text)).standard_normal(dimensions)
    return (vector / np.linalg.norm(vector)).astype("<f4")
