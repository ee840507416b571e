"""The times of one request, and the latencies that follow. Every time is in seconds of one clock.

    lag   = sent − intended                     how late the sender was
    TTFT  = first token − intended              E2E = last token − intended
    TPOT  = (E2E − TTFT) / (tokens − 1)         for two tokens or more
    gaps    between chunks that carry text: k tokens in a chunk, g seconds after the one before, are k gaps
            of g / k

A chunk's k is what its `usage` says (servers with continuous usage). Without that, the tokens that the
final `usage` counts are spread evenly: k = (tokens − 1) / (chunks − 1) for each chunk after the first.
Without any usage each chunk is one token.
"""

from dataclasses import dataclass
from enum import StrEnum

from headway.planning.types import Slo

TOLERANCE = 1.0 + 1e-9
"""As in the simulator: a latency equal to its target meets it, whatever the last bit says."""


class RequestOutcome(StrEnum):
    """The end of a request."""

    OK = "ok"
    SHED = "shed"
    """Status 429."""
    HTTP = "http"
    """Any other status but 200."""
    ERROR_EVENT = "error event"
    """An error within the stream."""
    INCOMPLETE = "incomplete"
    """The stream ended early, without any token, or was no event stream."""
    CONNECTION = "connection"
    TIMEOUT = "timeout"
    CLIENT_OVERLOAD = "client overload"
    """Not sent: too many were in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request that ended; times are seconds after the replay began.

    `output_tokens` are those received: as `usage` counts them, or the chunks. `gaps` are pairs (seconds,
    how many tokens had that gap), where a number of tokens may be a fraction.
    """

    index: int
    intended_s: float
    sent_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    ended_s: float
    input_tokens: int
    requested_tokens: int
    output_tokens: int
    chunks: int
    outcome: RequestOutcome
    status: int | None = None
    detail: str = ""
    served_input_tokens: int | None = None
    gaps: tuple[tuple[float, float], ...] = ()

    @property
    def lag_s(self) -> float | None:
        """Delay of the sending."""
        return None if self.sent_s is None else self.sent_s - self.intended_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.intended_s

    @property
    def e2e_s(self) -> float | None:
        """Time to the last token."""
        return None if self.last_token_s is None else self.last_token_s - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None with fewer than two tokens."""
        if self.first_token_s is None or self.last_token_s is None or self.output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)

    def met(self, slo: Slo) -> bool:
        """Completed, with TTFT and, for two tokens or more, TPOT within the targets."""
        if self.outcome is not RequestOutcome.OK or self.ttft_s is None:
            return False
        tpot_s = self.tpot_s
        return self.ttft_s <= slo.ttft_s * TOLERANCE and (tpot_s is None or tpot_s <= slo.itl_s * TOLERANCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a request, as the client saw it."""

    outcome: RequestOutcome
    status: int | None = None
    detail: str = ""
    output_tokens: int | None = None
    """What the final `usage` says."""
    input_tokens: int | None = None


class StreamTimer:
    """Takes the times of one request as they happen."""

    def __init__(self, *, index: int, intended_s: float, input_tokens: int, requested_tokens: int) -> None:
        self.index = index
        self.intended_s = intended_s
        self.input_tokens = input_tokens
        self.requested_tokens = requested_tokens
        self._sent_s: float | None = None
        self._times: list[float] = []
        self._tokens: list[int | None] = []

    def sent(self, now_s: float) -> None:
        """The request is being written."""
        self._sent_s = now_s

    def chunk(self, now_s: float, tokens: int | None = None) -> None:
        """Text arrived, of so many tokens if the server says."""
        self._times.append(now_s)
        self._tokens.append(tokens)

    def end(self, now_s: float, ending: Ending) -> RequestRecord:
        """The record of the request."""
        counts = self._counts(ending.output_tokens)
        return RequestRecord(
            index=self.index,
            intended_s=self.intended_s,
            sent_s=self._sent_s,
            first_token_s=self._times[0] if self._times else None,
            last_token_s=self._times[-1] if self._times else None,
            ended_s=now_s,
            input_tokens=self.input_tokens,
            requested_tokens=self.requested_tokens,
            output_tokens=ending.output_tokens if ending.output_tokens is not None else round(sum(counts)),
            chunks=len(self._times),
            outcome=ending.outcome,
            status=ending.status,
            detail=ending.detail,
            served_input_tokens=ending.input_tokens,
            gaps=tuple(
                ((after - before) / count, count)
                for before, after, count in zip(self._times, self._times[1:], counts[1:], strict=False)
            ),
        )

    def _counts(self, total: int | None) -> list[float]:
        """Tokens per chunk: as said, else spread evenly over the chunks after the first."""
        unsaid = [place for place, tokens in enumerate(self._tokens) if tokens is None]
        said = sum(tokens for tokens in self._tokens if tokens is not None)
        later = [place for place in unsaid if place > 0]
        share = 1.0
        if total is not None and later:
            first = 1 if 0 in unsaid else 0
            share = max((total - said - first) / len(later), 1e-3)
        return [
            float(max(tokens, 1)) if tokens is not None else (share if place > 0 else 1.0)
            for place, tokens in enumerate(self._tokens)
        ]
