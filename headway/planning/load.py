"""What is known of the load: this interval's lengths, and the next interval's requests and lengths.

A count is known when it is finite and not negative, a length or latency when it is finite and above 0.
The constant forecast (the next interval is like this one) stands in for whatever the predictors left open.
"""

from dataclasses import dataclass
from math import isfinite

from headway.planning.types import NAN, LoadForecast, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Mean input and output tokens of a request; NaN where none is known."""

    isl_tokens: float = NAN
    osl_tokens: float = NAN

    @property
    def context_tokens(self) -> float:
        """Mean context while a request decodes: ISL + OSL / 2."""
        return self.isl_tokens + self.osl_tokens / 2


def positive(value: float) -> bool:
    """Whether a latency or a length is known."""
    return isfinite(value) and value > 0


def counted(requests: float) -> bool:
    """Whether a number of requests is known."""
    return isfinite(requests) and requests >= 0


def known_lengths(observation: Observation, last: Lengths) -> Lengths:
    """The observed lengths, each replaced by the last known one where it was not observed."""
    return Lengths(
        isl_tokens=observation.isl_tokens if positive(observation.isl_tokens) else last.isl_tokens,
        osl_tokens=observation.osl_tokens if positive(observation.osl_tokens) else last.osl_tokens,
    )


def resolve_forecast(observation: Observation, lengths: Lengths) -> LoadForecast:
    """The next interval's load, constant where nothing was forecast; lengths stay NaN where none is known."""
    given = observation.forecast or LoadForecast(requests=NAN, isl_tokens=NAN, osl_tokens=NAN)
    is_given = {
        "requests": counted(given.requests),
        "isl_tokens": positive(given.isl_tokens),
        "osl_tokens": positive(given.osl_tokens),
    }
    return LoadForecast(
        requests=given.requests if is_given["requests"] else observation.requests,
        isl_tokens=given.isl_tokens if is_given["isl_tokens"] else lengths.isl_tokens,
        osl_tokens=given.osl_tokens if is_given["osl_tokens"] else lengths.osl_tokens,
        source={
            series: given.source.get(series, "given") if known else "constant (no forecast)"
            for series, known in is_given.items()
        },
    )
