"""Profile surfaces: the time of a million look-ups, and how well they predict samples they have not seen.

Left out are single samples inside their line, and whole context lines inside the sweep. For the lines, the
blend that `interp` uses (linear in 1 / context at fixed KV usage) is compared with others, on the same
continued lines. Errors are |predicted / measured - 1| of ITL; per profile and over all profiles the median of
the medians.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from interp import DecodeSamples, PrefillSamples, Profile, build_profile, load_profile
from interp.arrays import BoolArray, FloatArray
from interp.decode_table import SampledDomain, lines_of
from interp.fit import fit_decode

LOOK_UPS = 1_000_000
TARGET_S = 1.0
TARGET_SCALAR_S = 50e-6

Blend = Callable[[DecodeSamples, FloatArray, float, tuple[float, float]], FloatArray]


def main(data: Path | None) -> int:
    """Print the figures; the surfaces' errors need DATA/profiles."""
    profile = build_profile(*_made_samples())
    print(f"look-ups: {LOOK_UPS:,} at once, and one at a time (on 12 lines of up to 12 decode samples)")
    for name, ask in _questions(profile).items():
        _print_times(name, ask)
    folder = None if data is None else data / "profiles"
    if folder is None or not folder.is_dir():
        print("errors of the surfaces: no directory of measured profiles given (--data), not measured")
        return 0
    _print_errors([(path.name, load_profile(path)) for path in sorted(folder.iterdir()) if path.is_dir()])
    return 0


def _made_samples() -> tuple[PrefillSamples, DecodeSamples]:
    """A full sweep of an invented engine with a wobble, so that no curve is monotone."""
    isl = np.geomspace(64, 32_768, 16)
    ttft = 0.01 + 2e-5 * isl + 1e-9 * isl**2
    context, batch = (
        part.ravel() for part in np.meshgrid(np.geomspace(128, 32_768, 12), np.geomspace(1, 256, 12))
    )
    kv_tokens = context * batch
    keep = kv_tokens <= 1_000_000
    context, batch, kv_tokens = context[keep], batch[keep], kv_tokens[keep]
    itl = (5e-3 + 4e-8 * kv_tokens + 3e-5 * batch) * (1 + 0.05 * np.sin(np.arange(len(batch))))
    return (
        PrefillSamples(isl_tokens=isl, ttft_s=ttft, throughput_per_gpu=isl / ttft),
        DecodeSamples(
            max_kv_tokens=1_000_000.0,
            kv_usage=kv_tokens / 1_000_000,
            context_tokens=context,
            itl_s=itl,
            throughput_per_gpu=batch / itl,
        ),
    )


def _questions(profile: Profile) -> dict[str, Callable[[int | None], object]]:
    """Each function of the surfaces, asked for that many random points, or for one scalar when None."""
    rng = np.random.default_rng(7)
    context, kv = rng.uniform(64, 40_000, LOOK_UPS), rng.random(LOOK_UPS)
    target, isl = rng.uniform(0.001, 0.1, LOOK_UPS), rng.uniform(10, 40_000, LOOK_UPS)
    prefill, decode = profile.prefill, profile.decode

    def of(function: Callable[..., object], *arrays: FloatArray) -> Callable[[int | None], object]:
        scalars = [float(array[0]) for array in arrays]
        return lambda count: function(*(scalars if count is None else [array[:count] for array in arrays]))

    return {
        "prefill.ttft_s": of(prefill.ttft_s, isl),
        "prefill.throughput_per_gpu": of(prefill.throughput_per_gpu, isl),
        "prefill.extrapolated": of(prefill.extrapolated, isl),
        "decode.itl_s": of(decode.itl_s, kv, context),
        "decode.throughput_per_gpu": of(decode.throughput_per_gpu, kv, context),
        "decode.extrapolated": of(decode.extrapolated, kv, context),
        "decode.domain_end_kv": of(decode.domain_end_kv, context),
        "decode.best_throughput_per_gpu": of(decode.best_throughput_per_gpu, target, context),
        "  the same, no point feasible": of(decode.best_throughput_per_gpu, target / 1000, context),
    }


def _print_times(name: str, ask: Callable[[int | None], object]) -> None:
    ask(10)
    many, one = _seconds(lambda: ask(LOOK_UPS), 1), _seconds(lambda: ask(None), 2000)
    met = "ok" if many < TARGET_S and one < TARGET_SCALAR_S else "MISSED"
    print(
        f"  {name:32} {many:7.3f} s (target < {TARGET_S:g})"
        f" {one * 1e6:7.1f} us (target < {TARGET_SCALAR_S * 1e6:g})  {met}"
    )


def _seconds(call: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def _print_errors(profiles: list[tuple[str, Profile]]) -> None:
    print("median error of ITL at samples left out of their line")
    for name, profile in profiles:
        print(f"  {name:42} {_median(_samples_left_out(profile.decode.samples)):8.2%}")
    print("median error of ITL at lines left out of the sweep, by blend")
    _print_blends(profiles, thinned=False)
    print("the same, each neighbour without every other sample, so that the two share few batch sizes")
    _print_blends(profiles, thinned=True)


def left_out(profile: Profile) -> tuple[FloatArray, FloatArray]:
    """Errors of TTFT and ITL: each sample inside its line, asked of the surface through all others."""
    return _prefills_left_out(profile), _samples_left_out(profile.decode.samples)


def _prefills_left_out(profile: Profile) -> FloatArray:
    samples, errors = profile.prefill.samples, []
    for index in range(1, len(samples.isl_tokens) - 1):
        columns = (samples.isl_tokens, samples.ttft_s, samples.throughput_per_gpu)
        isl, ttft, throughput = (np.delete(column, index) for column in columns)
        rest = PrefillSamples(isl_tokens=isl, ttft_s=ttft, throughput_per_gpu=throughput)
        predicted = build_profile(rest, profile.decode.samples).prefill.ttft_s(
            float(samples.isl_tokens[index])
        )
        errors.append(abs(predicted / samples.ttft_s[index] - 1))
    return np.array(errors)


def _print_blends(profiles: list[tuple[str, Profile]], *, thinned: bool) -> None:
    print(f"  {'profile':42} {'points':>8}" + "".join(f"{name:>18}" for name in BLENDS))
    rows = []
    for name, profile in profiles:
        errors = [_lines_left_out(profile.decode.samples, blend, thinned) for blend in BLENDS.values()]
        rows.append([_median(error) for error in errors])
        print(f"  {name:42} {len(errors[0]):8}" + "".join(f"{error:18.2%}" for error in rows[-1]))
    overall = np.nanmedian(np.array(rows), axis=0)
    print(f"  {'median of profiles':42} {'':8}" + "".join(f"{error:18.2%}" for error in overall))


def _median(errors: FloatArray) -> float:
    return float(np.median(errors)) if len(errors) else float("nan")


def _samples_left_out(samples: DecodeSamples) -> FloatArray:
    """The error at each sample that has another before and after it on its line."""
    prefill, _ = _made_samples()
    errors = []
    for index in range(1, len(samples.kv_usage) - 1):
        if samples.context_tokens[index - 1] == samples.context_tokens[index + 1]:
            surface = build_profile(
                prefill, _where(samples, np.arange(len(samples.kv_usage)) != index)
            ).decode
            predicted = surface.itl_s(float(samples.kv_usage[index]), float(samples.context_tokens[index]))
            errors.append(abs(predicted / samples.itl_s[index] - 1))
    return np.array(errors)


def _lines_left_out(samples: DecodeSamples, blend: Blend, thinned: bool) -> FloatArray:
    """The error of `blend` at each sample of each line between two others, where those cover it."""
    errors: list[FloatArray] = []
    for before, left_out, after in _neighbours(np.unique(samples.context_tokens)):
        rest = _where(samples, samples.context_tokens != left_out)
        if thinned:
            rest = _where(
                rest, _thinned(rest.context_tokens, before, 0) & _thinned(rest.context_tokens, after, 1)
            )
        own = samples.context_tokens == left_out
        kv, measured = samples.kv_usage[own], samples.itl_s[own]
        covered = SampledDomain.of(lines_of(rest)).contains(kv, np.full_like(kv, left_out))
        predicted = blend(rest, kv[covered], float(left_out), (float(before), float(after)))
        errors.append(np.abs(predicted / measured[covered] - 1))
    return np.concatenate(errors) if errors else np.array([])


def _thinned(contexts: FloatArray, line: float, phase: int) -> BoolArray:
    """All samples but every other one inside the `line` of that context; its ends stay."""
    keep = np.ones(len(contexts), dtype=np.bool_)
    keep[np.flatnonzero(contexts == line)[1:-1][phase::2]] = False
    return keep


def _neighbours(contexts: FloatArray) -> Iterator[tuple[float, float, float]]:
    return zip(contexts, contexts[1:], contexts[2:], strict=False)


def _where(samples: DecodeSamples, keep: BoolArray) -> DecodeSamples:
    return DecodeSamples(
        max_kv_tokens=samples.max_kv_tokens,
        kv_usage=samples.kv_usage[keep],
        context_tokens=samples.context_tokens[keep],
        itl_s=samples.itl_s[keep],
        throughput_per_gpu=samples.throughput_per_gpu[keep],
    )


def _on_line(samples: DecodeSamples, context: float, kv: FloatArray) -> FloatArray:
    """ITL on the continued line of `context` at each of `kv` (any order, above 1 allowed)."""
    line = next(line for line in lines_of(samples) if line.context_tokens == context)
    return line.itl_along(kv, fit_decode(samples), samples.max_kv_tokens)


def _at_fixed_kv(scale: Callable[[float], float]) -> Blend:
    """Linear in `scale(context)` between two lines at the same KV usage."""

    def blend(rest: DecodeSamples, kv: FloatArray, context: float, pair: tuple[float, float]) -> FloatArray:
        before, after = (_on_line(rest, end, kv) for end in pair)
        part = (scale(context) - scale(pair[0])) / (scale(pair[1]) - scale(pair[0]))
        return before + part * (after - before)

    return blend


def _at_fixed_batch(
    rest: DecodeSamples, kv: FloatArray, context: float, pair: tuple[float, float]
) -> FloatArray:
    """Linear in context between two lines at the same batch size."""
    before, after = (_on_line(rest, end, kv * end / context) for end in pair)
    part = (context - pair[0]) / (pair[1] - pair[0])
    return before + part * (after - before)


BLENDS: dict[str, Blend] = {
    "1/context": _at_fixed_kv(lambda context: 1 / context),
    "context": _at_fixed_kv(lambda context: context),
    "log context": _at_fixed_kv(np.log),
    "fixed batch size": _at_fixed_batch,
}
