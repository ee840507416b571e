"""W3C's trace context: the place of a request in a trace, by its headers, and whether it is recorded.

    traceparent = version 00 - trace id, 32 hexadecimal digits - span id, 16 - flags, 2 (01: sampled)

By https://www.w3.org/TR/trace-context/. A caller's decision to sample counts; without one, `ratio` of all
trace ids do, and the same ones everywhere. `tracestate` is passed on as it came. Nothing of OpenTelemetry in
here.
"""

import re
from collections.abc import Iterable
from random import getrandbits
from typing import NamedTuple

TRACEPARENT, TRACESTATE = b"traceparent", b"tracestate"
Headers = Iterable[tuple[bytes, bytes]]
_FORM = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
SAMPLED = 1


class TraceContext(NamedTuple):
    """One span's place: its trace, itself, and the span above it, "" for none."""

    trace_id: str
    span_id: str
    sampled: bool
    parent_id: str = ""
    state: bytes = b""

    def child(self) -> "TraceContext":
        """The place of a span below."""
        return self._replace(span_id=_span_id(), parent_id=self.span_id)

    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Headers that make this the span above the receiver's."""
        parent = f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}".encode()
        return ((TRACEPARENT, parent), *(((TRACESTATE, self.state),) if self.state else ()))


def read(headers: Headers) -> TraceContext | None:
    """The caller's span; None where the headers name none that is valid."""
    parent = state = b""
    for name, value in headers:
        if name == TRACEPARENT:
            parent = value
        elif name == TRACESTATE:
            state = value
    if (found := _FORM.fullmatch(parent)) is None:
        return None
    trace_id, span_id, flags = (part.decode() for part in found.groups())
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & SAMPLED), state=state)


def begin(headers: Headers, ratio: float) -> TraceContext:
    """The place of a span of ours for a request with these headers."""
    above = read(headers)
    if above is not None:
        return above.child()
    drawn = getrandbits(128)
    # As the SDK's sampler by ratio does it, so that both choose the same traces.
    return TraceContext(f"{drawn:032x}", _span_id(), drawn & (2**64 - 1) < round(ratio * 2**64))


def _span_id() -> str:
    return f"{getrandbits(64):016x}"
