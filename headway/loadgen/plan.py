"""What a replay is given besides the trace: where to, as whom, in which form, how fast."""

from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from urllib.parse import urlsplit

from headway.loadgen.errors import LoadError
from headway.planning.types import Slo

MOST_IN_FLIGHT = 1_000_000


class PromptForm(StrEnum):
    """How a prompt of n tokens is written."""

    TOKENS = "tokens"
    """An array of n token ids: the length is exact."""
    TEXT = "text"
    """n short words, for servers that take only text: about n tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """One replay's settings.

    `url` is the server or its `/v1`. `time_scale` k plays trace time k times as fast. A request that would be
    the `max_in_flight` + 1st is not sent and counts as failed; it is never delayed. `timeout_s` counts from
    the intended send time.
    """

    url: str
    model: str
    slo: Slo
    api_key: str | None = field(default=None, repr=False)
    time_scale: float = 1.0
    prompt: PromptForm = PromptForm.TOKENS
    ignore_eos: bool = False
    max_in_flight: int = 4096
    timeout_s: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what has no meaning; raises LoadError naming the setting."""
        base_url(self.url)
        for name, value in (("time-scale", self.time_scale), ("timeout", self.timeout_s)):
            if not isfinite(value) or value <= 0:
                raise LoadError(f"{name} must be above 0 and finite, got {value:g}")
        if not 1 <= self.max_in_flight <= MOST_IN_FLIGHT:
            raise LoadError(f"max-in-flight must be 1 to {MOST_IN_FLIGHT:,}, got {self.max_in_flight}")

    @property
    def completions_url(self) -> str:
        """Where completions are asked for."""
        return f"{base_url(self.url)}/v1/completions"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        return authorisation(self.api_key)


def base_url(url: str) -> str:
    """The address without a path `/v1` and trailing slashes; raises LoadError for what is no HTTP address."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        usable = usable and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise LoadError(f"{url!r} is not an address such as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def authorisation(api_key: str | None) -> dict[str, str]:
    """The header that a key is sent in."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}
