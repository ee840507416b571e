"""Invented engines whose samples the tests know exactly, and strategies that draw sweeps of them."""

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from interp import DecodeSamples, PrefillSamples, Profile, build_profile

MAX_KV_TOKENS = 100_000.0
BASE_S, PER_KV_TOKEN_S, PER_SEQUENCE_S = 0.005, 4e-7, 2e-5

Array = NDArray[np.float64]


def roofline_itl(kv: Array, context: Array) -> Array:
    kv_tokens = kv * MAX_KV_TOKENS
    return BASE_S + PER_KV_TOKEN_S * kv_tokens + PER_SEQUENCE_S * kv_tokens / context


def decode_samples(kv: Array, context: Array, itl: Array, gpus: float = 1.0) -> DecodeSamples:
    """Samples whose throughput is what the arithmetic says, on `gpus` GPUs."""
    kv, context, itl = (np.asarray(part, dtype=float).ravel() for part in (kv, context, itl))
    batch = np.maximum(kv * MAX_KV_TOKENS / context, 1e-3)
    return DecodeSamples(
        max_kv_tokens=MAX_KV_TOKENS,
        kv_usage=kv,
        context_tokens=context,
        itl_s=itl,
        throughput_per_gpu=batch / itl / gpus,
    )


def grid_samples() -> DecodeSamples:
    """The roofline on a full grid of four contexts by five KV usages."""
    context, kv = np.meshgrid([256.0, 1024.0, 4096.0, 8192.0], [0.02, 0.2, 0.4, 0.6, 0.9], indexing="ij")
    return decode_samples(kv, context, roofline_itl(kv, context))


def prefill_samples(gpus: float = 1.0) -> PrefillSamples:
    isl = np.array([128.0, 512.0, 1024.0, 4096.0, 8192.0])
    ttft = 0.01 + 2e-5 * isl + 1e-9 * isl**2
    return PrefillSamples(isl_tokens=isl, ttft_s=ttft, throughput_per_gpu=isl / ttft / gpus)


def grid_profile() -> Profile:
    return build_profile(prefill_samples(), grid_samples())


def build(samples: DecodeSamples) -> Profile:
    return build_profile(prefill_samples(), samples)


def shuffled(samples: DecodeSamples, seed: int) -> DecodeSamples:
    order = np.random.default_rng(seed).permutation(len(samples.kv_usage))
    return DecodeSamples(
        max_kv_tokens=samples.max_kv_tokens,
        kv_usage=samples.kv_usage[order],
        context_tokens=samples.context_tokens[order],
        itl_s=samples.itl_s[order],
        throughput_per_gpu=samples.throughput_per_gpu[order],
    )


itls = st.integers(1, 400).map(lambda tenths: tenths / 4000)
usages = st.integers(0, 200).map(lambda part: part / 200)
contexts = st.sampled_from([1.0, 7.0, 64.0, 100.0, 333.0, 1024.0, 4000.0, 20_000.0])


@st.composite
def sweeps(draw: st.DrawFn, *, rising: bool = False, grid: bool = False) -> DecodeSamples:
    """Samples on 1 to 5 context lines of 1 to 6 KV usages each; the lines rise, or share their usages."""
    lines = draw(st.lists(contexts, min_size=1, max_size=5, unique=True))
    some_usages = st.lists(usages, min_size=1, max_size=6, unique=True)
    shared = draw(some_usages)
    columns: list[tuple[float, float, float]] = []
    for context in lines:
        kv = sorted(shared if grid else draw(some_usages))
        itl = draw(st.lists(itls, min_size=len(kv), max_size=len(kv)))
        columns += zip(kv, [context] * len(kv), sorted(itl) if rising else itl, strict=True)
    kv_usage, context_tokens, itl_s = np.array(columns).T
    noise = draw(st.lists(st.floats(0.5, 2.0), min_size=len(columns), max_size=len(columns)))
    exact = decode_samples(kv_usage, context_tokens, itl_s)
    return DecodeSamples(
        max_kv_tokens=MAX_KV_TOKENS,
        kv_usage=kv_usage,
        context_tokens=context_tokens,
        itl_s=itl_s,
        throughput_per_gpu=exact.throughput_per_gpu * np.array(noise),
    )


def points(count: int = 400, seed: int = 3) -> tuple[Array, Array]:
    """KV usages and contexts all over the surface and beyond it, corners and tiny usages included."""
    rng = np.random.default_rng(seed)
    kv = np.concatenate([rng.random(count), rng.random(count) ** 6, [0.0, 1.0, 0.0, 1.0]])
    context = np.concatenate([np.exp(rng.uniform(0, np.log(60_000), 2 * count)), [1.0, 1.0, 6e4, 6e4]])
    return kv, context
