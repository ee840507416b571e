"""What a simulated engine says where a client asks for a form: JSON of a schema, a choice, a pattern, a call.

Values are the least that fit, so they say nothing. Where nothing is found that fits (a schema may ask for
anything) the request is refused: an answer that breaks the promise of its form would be worse. Tokens of
such texts are four characters.

Of a tool that may be called, not must (`auto`), the first is called when a user has spoken, and text answers
a tool's result: so that a client's loop of calls goes round once. A client that wants an exact number of
tokens gets text.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from serve_apps.engines.answering.answers import Plan
from serve_apps.engines.answering.forms import Piece
from serve_apps.engines.answering.prompts import Prompt
from serve_apps.engines.answering.reading import Asked, Form, refusal
from serve_apps.engines.simulated.output import WORDS, SimulatedText
from serve_apps.engines.simulated.patterns import Unfitting, least_match
from serve_apps.engines.simulated.values import least_json

TOKEN_CHARACTERS = 4


def plan(asked: Asked, prompt: Prompt, copy: int) -> Plan:
    """What an output says, see above. Refused where nothing fits."""
    tool = None
    if asked.choice == "required" or (asked.choice == "auto" and not (asked.after_tool or asked.exact)):
        tool = asked.tools[0]
    elif asked.choice not in ("none", "auto"):
        tool = next(each for each in asked.tools if each.name == asked.choice)
    seed = asked.sampling.get("seed")
    own = SimulatedText(prompt, seed if not copy else int(seed or 0) + copy)
    chances = None if asked.logprobs is None else _Chances(asked.logprobs)
    script = None
    if tool is not None:
        script = _tokens(_fitting(least_json, tool.schema or {"type": "object"}, "tools"))
    elif asked.form is not None:
        script = _tokens(_of_form(asked.form))
    return Plan(tool=tool, script=script, tokens=own.each, chances=chances)


class _Chances:
    """Made-up probabilities: the same for the same token, and likelier than all others."""

    def __init__(self, others: int) -> None:
        self._others = others

    def __call__(self, at: int, token: str) -> Piece:
        chance = -0.01 - (hash_of(token) % 100) / 200
        named = [f" {WORDS[(at * 7 + other * 13) % len(WORDS)]}" for other in range(1, self._others)]
        others = [(token, chance)] if self._others else []
        others += [(name, chance - 1.0 - number) for number, name in enumerate(named)]
        return Piece(token, chance, others)


def hash_of(text: str) -> int:
    """A number of a text, the same in every process."""
    return sum((at + 1) * byte for at, byte in enumerate(text.encode()))


def _tokens(text: str) -> Sequence[str]:
    return [text[at : at + TOKEN_CHARACTERS] for at in range(0, len(text), TOKEN_CHARACTERS)] or [""]


def _of_form(form: Form) -> str:
    match form.kind:
        case "choice":
            return str(form.value[0])
        case "regex":
            return _fitting(least_match, str(form.value), form.param)
        case _:
            return _fitting(
                least_json, form.value if form.value is not None else {"type": "object"}, form.param
            )


T = TypeVar("T")


def _fitting(make: Callable[[T], str], wanted: T, param: str) -> str:
    try:
        return make(wanted)
    except Unfitting as error:
        text = f"Invalid {param!r}: a simulated engine makes nothing that fits: {error}"
        raise refusal(text, param) from error
