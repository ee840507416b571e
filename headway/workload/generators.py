"""Generated load: `NAME:key=value,…` wherever a trace file is accepted, as in `steady:rate_rps=20,seed=1`.

Arrivals are a Poisson process of rate λ(t), by thinning (Lewis and Shedler 1979): draw a homogeneous
process at the highest rate, keep an arrival at t with probability λ(t) / highest. Lengths are lognormal
with mean m and coefficient of variation c: σ² = ln(1 + c²), μ = ln m − σ²/2, rounded, at least 1 token; c =
0 makes them constant. Arrivals, inputs and outputs draw from separate streams of one seed: changing the
lengths leaves the arrivals alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from math import inf, log, log1p, sqrt
from sys import float_info
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from headway.workload.batch import Columns, to_records
from headway.workload.errors import TraceError
from headway.workload.ingest import Counts, Ingested
from headway.workload.shapes import SHAPES, Shape
from headway.workload.spool import SpoolWriter
from headway.workload.values import MAX_TOKENS

DRAWS = 65536
POSITIVE = frozenset({"duration_s", "input_tokens", "output_tokens", "period_s", "every_s"})
HIGHEST: Mapping[str, float] = MappingProxyType(
    {
        "amplitude": 1.0,
        "input_tokens": MAX_TOKENS,
        "output_tokens": MAX_TOKENS,
        "input_cv": 10.0,
        "output_cv": 10.0,
        "back_at_s": inf,
    }
)
MAX_REQUESTS = 1_000_000_000
"""Draws at the highest rate over the whole duration; more would not end in a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What all shapes share: duration, mean lengths and their coefficients of variation."""

    duration_s: float = 3600.0
    input_tokens: float = 1000.0
    output_tokens: float = 200.0
    input_cv: float = 0.5
    output_cv: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """A shape, its load, and the seed of all draws."""

    shape: Shape
    load: Load
    seed: int


def known_generators() -> tuple[str, ...]:
    """The names that a specification may begin with."""
    return tuple(SHAPES)


def looks_generated(source: str) -> bool:
    """Whether `source` reads as a specification rather than a path: a known name, or `NAME:…=…`."""
    name, colon, rest = source.partition(":")
    return name in SHAPES or (bool(colon) and "=" in rest and name.isidentifier())


def parse_generator(spec: str, seed: int) -> Generator:
    """The generator that `NAME:key=value,…` describes, `seed` where it names none; raises TraceError."""
    name, _, rest = spec.partition(":")
    if name not in SHAPES:
        raise TraceError(f"{spec}: unknown generator {name!r}; known: {', '.join(known_generators())}")
    kind = SHAPES[name]
    own, common = ({field.name for field in fields(part)} for part in (kind, Load))
    given = _parse_pairs(spec, rest, own | common | {"seed"})
    generator = Generator(
        shape=kind(**{key: value for key, value in given.items() if key in own}),
        load=Load(**{key: value for key, value in given.items() if key in common}),
        seed=int(given.get("seed", seed)),
    )
    _check_size(spec, generator)
    return generator


def _check_size(spec: str, generator: Generator) -> None:
    """Refuse load that would never be drawn to its end, naming the key of the highest rate."""
    shape, highest, duration_s = generator.shape, generator.shape.highest(), generator.load.duration_s
    if highest * duration_s <= MAX_REQUESTS:
        return
    rates = [name for name in ("rate_rps", "peak_rps") if hasattr(shape, name)]
    key = max(rates, key=lambda name: float(getattr(shape, name)))
    raise TraceError(
        f"{spec}: {key}: {highest:g} requests/s for {duration_s:g} s (duration_s) are too many, "
        f"at most {MAX_REQUESTS:,} requests"
    )


def _parse_pairs(spec: str, pairs: str, known: set[str]) -> dict[str, float]:
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


def generate(spec: str, generator: Generator) -> Ingested:
    """Draw the requests into a spool, piece by piece; raises TraceError when none arrives."""
    load = generator.load
    arrivals, inputs, outputs = (
        np.random.default_rng(stream) for stream in np.random.SeedSequence(generator.seed).spawn(3)
    )
    rows = 0
    with SpoolWriter() as writer:
        for times in _arrivals(generator, arrivals):
            columns = Columns(
                times=times,
                input_tokens=_lengths(inputs, load.input_tokens, load.input_cv, len(times)),
                output_tokens=_lengths(outputs, load.output_tokens, load.output_cv, len(times)),
            )
            writer.append(to_records(columns))
            rows += len(times)
        if not rows:
            raise TraceError(f"{spec}: empty trace: no request arrives in {load.duration_s:g} s")
        return Ingested(spool=writer.finish(), span_s=load.duration_s, counts=Counts(rows_read=rows))


def _arrivals(generator: Generator, rng: np.random.Generator) -> Iterator[npt.NDArray[np.float64]]:
    highest, duration_s = generator.shape.highest(), generator.load.duration_s
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
        value = int(text) if key == "seed" else float(text)
    except ValueError:
        wanted = "a whole number" if key == "seed" else "a number"
        raise TraceError(f"{spec}: {key}: {text!r} is not {wanted}") from None
    lowest, highest = float_info.min if key in POSITIVE else 0.0, HIGHEST.get(key, float_info.max)
    if not lowest <= value <= highest:
        bounds = f"{'above' if key in POSITIVE else 'at least'} 0 and at most {highest:g}"
        raise TraceError(f"{spec}: {key}: must be {bounds}, got {text}")
    return value
