"""What a simulated engine answers: words, and the simplest text where a client asks for a form.

Where no text is found that fits (a schema may ask for anything) the request is refused: an answer that breaks
the promise of its form would be worse. A script's tokens are four characters.

Of tools that may be called, not must (`auto`), the first is called when a user has spoken, and text answers a
tool's result, so that a client's loop of calls goes round once. A client that wants an exact number of tokens
gets text.
"""

from collections.abc import Sequence

from serve_apps.engines.answering.answers import Plan
from serve_apps.engines.answering.forms import TokenLogprob
from serve_apps.engines.answering.reading import OutputFormat, ParsedRequest, Tool, refusal
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
    """What the choices of a request say, see above. Refused where nothing fits."""
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
