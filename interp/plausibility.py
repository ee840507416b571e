"""What is plausible of any engine and any traffic: the one place in which units are judged.

A reading takes the numbers of a field in one unit. It implies quantities whose usual ranges hold for any
engine and any traffic. The strangeness of a reading is the product of the factors by which its quantities
leave their ranges, 1 where all are usual. A reading is plainly best if it is FACTOR times less strange than
every other: a unit that is wrong is wrong by 1000 (ms for s) or 100 (percent for a share). Without a plainly
best reading nobody can tell, and whoever asks has to ask the user.

| quantity      | usual           | source                                                                   |
|---------------|-----------------|--------------------------------------------------------------------------|
| `prefill_s`   | 3 ms .. 5 s     | the shortest prompt alone; embedded profiles have 4 to 60 ms             |
| `prefill_tps` | 50 .. 500,000   | prompt tokens/s of an engine; 2 FLOP a parameter and token, on 8 GPUs    |
| `itl_s`       | 2 ms .. 0.5 s   | the smallest batch: reading the weights once; embedded 2.5 to 46 ms      |
| `gpus`        | 0.5 .. 128      | of one engine: its tokens/s by Little's law over the tokens/s of a GPU   |
| `busy`        | 1 .. 300        | requests under way, by Little's law and `service_s`; published 1 to 90   |
| `span_s`      | 60 s .. 31 days | recorded traffic; published traces have 1 hour to 61 days                |

Published traces: Azure 2023, Mooncake, BurstGPT, ServeGen, Bailian. `service_s` takes the middle of the
embedded profiles: 20,000 prompt tokens/s, and 20 ms between tokens.
"""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import NamedTuple

import numpy as np

from interp.arrays import FloatArray
from interp.samples import DecodeSamples, PrefillSamples

FACTOR = 50.0

USUAL: Mapping[str, tuple[float, float]] = {
    "prefill_s": (0.003, 5.0),
    "itl_s": (0.002, 0.5),
    "prefill_tps": (50.0, 500_000.0),
    "gpus": (0.5, 128.0),
    "busy": (1.0, 300.0),
    "span_s": (60.0, 31 * 86_400.0),
}

PREFILL_TPS, ITL_S = 20_000.0, 0.02


def service_s(input_tokens: float, output_tokens: float) -> float:
    """About how long an engine takes for a request, for want of anything better."""
    return input_tokens / PREFILL_TPS + output_tokens * ITL_S


def strangeness(**quantities: float) -> float:
    """The product of the factors by which quantities leave their usual ranges; at least 1."""
    product = 1.0
    for name, value in quantities.items():
        low, high = USUAL[name]
        product *= max(low / value, value / high, 1.0) if isfinite(value) and value > 0 else FACTOR
    return product


def plainly_best(readings: Mapping[str, float]) -> str | None:
    """The reading that is FACTOR times less strange than every other; None if there is none."""
    first, *others = sorted(readings, key=lambda name: readings[name])
    if others and readings[others[0]] < FACTOR * readings[first]:
        return None
    return first


class Doubt(NamedTuple):
    """A field of a profile whose values are implausible, why, and the reading that makes them plausible."""

    field: str
    problem: str
    reading: str


def doubts_of(prefill: PrefillSamples, decode: DecodeSamples) -> Iterator[Doubt]:
    """What is implausible in a profile, as its files say it in ms."""
    rate = prefill.isl_tokens / prefill.ttft_s
    prefill_gpus = float(np.median(rate / prefill.throughput_per_gpu))
    engine = decode.batch_size / decode.itl_s
    decode_gpus = float(np.median(engine / decode.throughput_per_gpu))
    prompts = {"prefill_s": float(prefill.ttft_s.min()), "prefill_tps": float(np.median(rate))}
    times = (
        *_times("prefill_ttft", prefill.ttft_s, prefill_gpus, prompts),
        *_times("z_itl", decode.itl_s, decode_gpus, {"itl_s": float(decode.itl_s.min())}),
    )
    yield from times
    for field, gpus, whole, one in (
        ("prefill_thpt_per_gpu", prefill_gpus, rate, prefill.throughput_per_gpu),
        ("z_thpt_per_gpu", decode_gpus, engine, decode.throughput_per_gpu),
    ):
        if gpus < USUAL["gpus"][0] and not times:
            problem = (
                f"{np.median(one):,.0f} tokens/s per GPU in the median, and a whole engine makes "
                f"{np.median(whole):,.0f} by its times: that of {1 / gpus:.3g} engines"
            )
            yield Doubt(field, problem, "throughput")
    order = np.argsort(prefill.isl_tokens, kind="stable")
    first, last = prefill.ttft_s[order[[0, -1]]]
    if last < first / 2:
        yield Doubt(
            "prefill_ttft",
            f"falls from {first * 1e3:,.4g} ms at the shortest prompt to {last * 1e3:,.4g} at the longest; "
            "the other way round it rises, as on every engine",
            "reversed",
        )


TIMES = {"ms": ("ms", 1.0), "s": ("seconds", 1e3), "us": ("microseconds", 1e-3)}
"""Units of times under names in ms: in words, and in ms."""


def _times(field: str, times_s: FloatArray, gpus: float, quantities: Mapping[str, float]) -> Iterator[Doubt]:
    def strange(factor: float) -> float:
        powers = {name: -1 if name == "prefill_tps" else 1 for name in quantities}
        read = {name: value * factor ** powers[name] for name, value in quantities.items()}
        # The throughput is right in itself, or follows from times that are as wrong.
        return strangeness(**read) * min(strangeness(gpus=gpus / factor), strangeness(gpus=gpus))

    best = plainly_best({unit: strange(factor) for unit, (_, factor) in TIMES.items()})
    if best is not None and best != "ms":
        low, high = times_s.min() * 1e3, times_s.max() * 1e3
        yield Doubt(
            field,
            f"{low:.3g} to {high:.3g} ms, which no engine takes, and plausible in {TIMES[best][0]}",
            f"{field}={best}",
        )
