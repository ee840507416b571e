"""Generated load: `NAME:key=value,…` wherever a trace file is accepted, as in `steady:rate_rps=20,seed=1`.

A shape is an arrival rate λ(t) in requests/s; r is `rate_rps`, p `peak_rps`, a `amplitude`:

    steady    λ = r
    ramp      λ = r + (p − r) · t / duration
    step      λ = p while at ≤ t < back_at, else r
    diurnal   λ = r · (1 − a · cos(2π t / period))              starts at the trough
    burst     λ = p in the last burst_s of every every_s, else r
    rhythm    λ = r · (1 + a · cos(2π (t − crest) / period)) · G_k
    onoff     λ = p for on_s in the k-th every_s, from (k + (k φ mod 1) (1 − on / every)) every on, else r

The golden ratio φ spreads the beginnings evenly, without a period that a planner could learn. G_k is drawn
for the k-th burst_s: a gamma variable of coefficient of variation `burst_cv`, over the mean of all of them.

Arrivals are a Poisson process of rate λ(t), by thinning (Lewis and Shedler 1979). Lengths are lognormal with
mean m and coefficient of variation c: σ² = ln(1 + c²), μ = ln m − σ²/2, rounded, at least 1 token. Arrivals,
inputs and outputs draw from separate streams of one seed: changing the lengths leaves the arrivals alone.

Prompts share what the load says (`prompts`); without its keys they share nothing, and have no prefix blocks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from math import ceil, inf, log, log1p, sqrt
from sys import float_info
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headway.workload.ingest import Ingested, RowCounts
from headway.workload.prompts import PromptSettings, SharedPrompts
from headway.workload.spool import SpoolWriter, to_records
from headway.workload.text import MAX_TOKENS, TraceError

Array = npt.NDArray[np.float64]
GOLDEN = 0.6180339887498949
STREAMS = 4
"""Those of a seed that every load draws from; a shape that draws has one more."""
MOST_BURSTS = 1_000_000


class Shape(Protocol):
    """An arrival rate over time."""

    def rate(self, time_s: Array, duration_s: float) -> Array:
        """Requests per second at each time, in a load that lasts `duration_s`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """A constant rate."""

    rate_rps: float = 10.0

    def rate(self, time_s: Array, duration_s: float) -> Array:
        """The rate, everywhere."""
        return np.full(len(time_s), self.rate_rps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """A straight line from one rate to another over the whole duration."""

    rate_rps: float = 1.0
    peak_rps: float = 20.0

    def rate(self, time_s: Array, duration_s: float) -> Array:
        """Linear in time."""
        return self.rate_rps + (self.peak_rps - self.rate_rps) * time_s / duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A jump to another rate, and back if `back_at_s` is given."""

    rate_rps: float = 5.0
    peak_rps: float = 20.0
    at_s: float = 600.0
    back_at_s: float = inf

    def rate(self, time_s: Array, duration_s: float) -> Array:
        """The peak from `at_s` to before `back_at_s`."""
        return np.where((time_s >= self.at_s) & (time_s < self.back_at_s), self.peak_rps, self.rate_rps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diurnal:
    """A day's sine around a mean rate; `amplitude` is its share of the mean."""

    rate_rps: float = 10.0
    amplitude: float = 0.5
    period_s: float = 86400.0

    def rate(self, time_s: Array, duration_s: float) -> Array:
        """Lowest at the start, highest half a period later."""
        return self.rate_rps * (1 - self.amplitude * np.cos(2 * np.pi * time_s / self.period_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """A day's sine around a mean rate, its crest anywhere, times what its clients do in each `burst_s`."""

    rate_rps: float = 10.0
    amplitude: float = 0.5
    crest_s: float = 43200.0
    period_s: float = 86400.0
    burst_s: float = 300.0
    burst_cv: float = 0.3
    seed: int = 0

    def bursts(self, duration_s: float) -> Array:
        """The G_k."""
        count, variance = ceil(duration_s / self.burst_s), self.burst_cv**2
        if not variance:
            return np.ones(count)
        stream = np.random.SeedSequence(self.seed).spawn(STREAMS + 1)[STREAMS]
        drawn = np.random.default_rng(stream).gamma(1.0 / variance, variance, count)
        bursts: Array = drawn / drawn.mean()
        return bursts

    def rate(self, time_s: Array, duration_s: float) -> Array:
        """The sine times the burst of the time."""
        bursts = self.bursts(duration_s)
        within = bursts[np.minimum((time_s / self.burst_s).astype(np.int64), len(bursts) - 1)]
        sine = np.cos(2 * np.pi * (time_s - self.crest_s) / self.period_s)
        return self.rate_rps * (1 + self.amplitude * sine) * within


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Bursts of `burst_s` at `peak_rps`, one at the end of every `every_s`."""

    rate_rps: float = 5.0
    peak_rps: float = 50.0
    burst_s: float = 30.0
    every_s: float = 600.0

    def rate(self, time_s: Array, duration_s: float) -> Array:
        """The peak within bursts."""
        return np.where(time_s % self.every_s >= self.every_s - self.burst_s, self.peak_rps, self.rate_rps)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnOff:
    """Near silence, and `on_s` at `peak_rps` once in every `every_s`, each time at another moment of it."""

    rate_rps: float = 0.5
    peak_rps: float = 50.0
    on_s: float = 10.0
    every_s: float = 240.0

    def rate(self, time_s: Array, duration_s: float) -> Array:
        """The peak while it is on."""
        turn = np.floor(time_s / self.every_s)
        begun_s = turn * self.every_s + (turn * GOLDEN) % 1.0 * max(0.0, self.every_s - self.on_s)
        is_on = (time_s >= begun_s) & (time_s < begun_s + self.on_s)
        return np.where(is_on, self.peak_rps, self.rate_rps)


SHAPES: Mapping[str, type[Steady | Ramp | Step | Diurnal | Rhythm | Burst | OnOff]] = MappingProxyType(
    {
        "steady": Steady,
        "ramp": Ramp,
        "step": Step,
        "diurnal": Diurnal,
        "rhythm": Rhythm,
        "burst": Burst,
        "onoff": OnOff,
    }
)


def highest_rps(shape: Shape, duration_s: float) -> float:
    """The rate that a shape reaches at most in so long a load."""
    if isinstance(shape, Rhythm):
        return shape.rate_rps * (1 + shape.amplitude) * float(shape.bursts(duration_s).max())
    if isinstance(shape, Diurnal):
        return shape.rate_rps * (1 + shape.amplitude)
    return max(float(getattr(shape, key, 0.0)) for key in ("rate_rps", "peak_rps"))


DRAWS = 65536
POSITIVE = frozenset(
    {
        "duration_s",
        "input_tokens",
        "output_tokens",
        "period_s",
        "every_s",
        "burst_s",
        "turns",
        "models",
        "hours",
    }
)
WHOLE = frozenset({"seed", "prefixes", "prefix_tokens", "turns", "models"})
HIGHEST: Mapping[str, float] = MappingProxyType(
    {
        "amplitude": 1.0,
        "input_tokens": MAX_TOKENS,
        "output_tokens": MAX_TOKENS,
        "models": 1000,
        "burst_cv": 10.0,
        "input_cv": 10.0,
        "output_cv": 10.0,
        "back_at_s": inf,
        "prefixes": 1_000_000,
        "prefix_tokens": 1_000_000,
        "prefix_zipf": 10.0,
        "turns": 1000,
    }
)
MAX_REQUESTS = 1_000_000_000
"""Draws at the highest rate over the whole duration; more would not end in a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSize:
    """Keys of all shapes: duration, mean lengths and their coefficients of variation."""

    duration_s: float = 3600.0
    input_tokens: float = 1000.0
    output_tokens: float = 200.0
    input_cv: float = 0.5
    output_cv: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """A shape, its load, what its prompts share, and the seed of all draws."""

    shape: Shape
    load: LoadSize
    prompts: PromptSettings
    seed: int


def known_generators() -> tuple[str, ...]:
    """The names that a specification may begin with."""
    return tuple(SHAPES)


def looks_generated(source: str) -> bool:
    """True if `source` reads as a specification rather than a path: a known name, or `NAME:…=…`."""
    name, colon, rest = source.partition(":")
    return name in SHAPES or (bool(colon) and "=" in rest and name.isidentifier())


def parse_generator(spec: str, seed: int) -> Generator:
    """The generator that `NAME:key=value,…` describes, `seed` where it names none; raises TraceError."""
    name, _, rest = spec.partition(":")
    if name not in SHAPES:
        raise TraceError(f"{spec}: unknown generator {name!r}; known: {', '.join(known_generators())}")
    kind = SHAPES[name]
    parts = (kind, LoadSize, PromptSettings)
    own, common, shared = ({field.name for field in fields(part)} for part in parts)
    given: dict[str, Any] = {"seed": seed, **parse_pairs(spec, rest, own | common | shared | {"seed"})}
    generator = Generator(
        shape=kind(**{key: value for key, value in given.items() if key in own}),
        load=LoadSize(**{key: value for key, value in given.items() if key in common}),
        prompts=PromptSettings(**{key: value for key, value in given.items() if key in shared}),
        seed=int(given["seed"]),
    )
    _check_size(spec, generator)
    return generator


def _check_size(spec: str, generator: Generator) -> None:
    """Refuse load that would never be drawn to its end, naming the key of the highest rate."""
    shape, duration_s = generator.shape, generator.load.duration_s
    if isinstance(shape, Rhythm) and duration_s > shape.burst_s * MOST_BURSTS:
        raise TraceError(
            f"{spec}: burst_s: {shape.burst_s:g} s are too short for {duration_s:g} s (duration_s), "
            f"at most {MOST_BURSTS:,} of them"
        )
    highest = highest_rps(shape, duration_s)
    if highest * duration_s <= MAX_REQUESTS:
        return
    rates = [name for name in ("rate_rps", "peak_rps") if hasattr(shape, name)]
    key = max(rates, key=lambda name: float(getattr(shape, name)))
    raise TraceError(
        f"{spec}: {key}: {highest:g} requests/s for {duration_s:g} s (duration_s) are too many, "
        f"at most {MAX_REQUESTS:,} requests"
    )


def parse_pairs(spec: str, pairs: str, known: set[str]) -> dict[str, float]:
    """The numbers of `key=value,…`; TraceError for unknown keys, and values out of their bounds."""
    given: dict[str, float] = {}
    for pair in filter(None, (part.strip() for part in pairs.split(","))):
        key, _, text = (part.strip() for part in pair.partition("="))
        if key not in known:
            name = spec.partition(":")[0]
            raise TraceError(f"{spec}: unknown key {key!r} of {name}; known: {', '.join(sorted(known))}")
        if key in given:
            raise TraceError(f"{spec}: {key}: given twice")
        given[key] = _value(spec, key, text)
    return given


def generate(generator: Generator) -> Ingested:
    """Draw the requests into a spool, piece by piece; there may be none."""
    load = generator.load
    arrivals, inputs, outputs, chosen = (
        np.random.default_rng(stream) for stream in np.random.SeedSequence(generator.seed).spawn(STREAMS)
    )
    prompts = SharedPrompts(generator.prompts, chosen)
    rows = 0
    with SpoolWriter() as writer:
        for times in _arrivals(generator, arrivals):
            isl = _lengths(inputs, load.input_tokens, load.input_cv, len(times))
            osl = _lengths(outputs, load.output_tokens, load.output_cv, len(times))
            records, blocks = prompts.complete(to_records(times, isl, osl))
            writer.append(records)
            writer.append_blocks(blocks)
            rows += len(times)
        return Ingested(
            spool=writer.finish(),
            span_s=load.duration_s,
            counts=RowCounts(rows_read=rows),
            shared_blocks=generator.prompts.prefix_blocks if generator.prompts.shares else 1,
        )


def _arrivals(generator: Generator, rng: np.random.Generator) -> Iterator[npt.NDArray[np.float64]]:
    duration_s = generator.load.duration_s
    highest = highest_rps(generator.shape, duration_s)
    now_s = 0.0 if highest > 0 else duration_s
    while now_s < duration_s:
        times = now_s + np.cumsum(rng.exponential(1 / highest, DRAWS))
        kept = rng.random(DRAWS) * highest < generator.shape.rate(times, duration_s)
        now_s = float(times[-1])
        yield times[kept & (times < duration_s)]


def _lengths(rng: np.random.Generator, mean: float, variation: float, count: int) -> npt.NDArray[np.int64]:
    variance = log1p(variation**2)
    drawn = rng.lognormal(log(mean) - variance / 2, sqrt(variance), count)
    return np.clip(np.rint(drawn), 1, MAX_TOKENS).astype(np.int64)


def _value(spec: str, key: str, text: str) -> float:
    try:
        value = int(text) if key in WHOLE else float(text)
    except ValueError:
        wanted = "a whole number" if key in WHOLE else "a number"
        raise TraceError(f"{spec}: {key}: {text!r} is not {wanted}") from None
    # The least normal float stands for "above 0".
    lowest, highest = float_info.min if key in POSITIVE else 0.0, HIGHEST.get(key, float_info.max)
    if not lowest <= value <= highest:
        bounds = f"{'above' if key in POSITIVE else 'at least'} 0 and at most {highest:g}"
        raise TraceError(f"{spec}: {key}: must be {bounds}, got {text}")
    return value
