"""How many tokens a prompt has: counted with the model's tokenizer, or estimated where there is none.

    estimate(text) = max(1, ceil(bytes in UTF-8 / 4))

Four bytes a token is the rule of thumb that OpenAI gives for English text with its own tokenizers ("one token
is about four characters"); other languages and code deviate from it, so responses say whether a count is
exact or estimated. Token ids are counted exactly in any case.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from headway.config import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES_PER_TOKEN = 4

Accuracy = Literal["exact", "estimated"]


class TokenCounter(Protocol):
    """Counts the tokens of a text."""

    accuracy: Accuracy

    def count(self, text: str) -> int:
        """Tokens of `text`, at least 1."""


class EstimatedTokens:
    """A quarter of the bytes."""

    accuracy: Accuracy = "estimated"

    def count(self, text: str) -> int:
        """Tokens of `text`, at least 1."""
        return max(1, -(-len(text.encode()) // BYTES_PER_TOKEN))


class CountedTokens:
    """As many as the model's tokenizer makes of it, special tokens included."""

    accuracy: Accuracy = "exact"

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """Tokens of `text`, at least 1."""
        return max(1, len(self._tokenizer.encode(text).ids))


def make_counter(path: str | None) -> TokenCounter:
    """The counter for `gateway.tokenizer`: a tokenizer.json, a directory with one, or null. ConfigError."""
    if path is None:
        return EstimatedTokens()
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    return CountedTokens(_load(file))


def _load(file: Path) -> "Tokenizer":
    from tokenizers import Tokenizer

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"gateway.tokenizer: {file}: {_line(error)}") from error
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # bare ones are what the library raises
        raise ConfigError(f"gateway.tokenizer: {file} is no tokenizer: {_line(error)}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())
