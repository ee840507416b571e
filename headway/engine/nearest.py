"""The nearest estimate of engines of which nobody gave a profile: an embedded one, scaled.

Two things are sought in what engines and settings say: a model's size, and a GPU.

    parameters     in the model's name: `70b`, `30b-a3b` (all and active), `8x7b`; a few names are known
    weights        parameters × bytes each, by the name: fp8, awq, …; else 2
    GPU            a known name in `engine.gpu_type` or in any label of the engines' metrics
    GPUs           `gpus_per_replica`, else the fewest of 1, 2, 4, … that hold the weights ROOM times

Of the embedded profiles that is taken whose engine is nearest in ln(weights that a token reads) and
ln(bandwidth of all its GPUs), and its times are scaled, as far as they are proportional to

    prefill    active parameters / FLOP/s of all GPUs
    decode     active weights / bandwidth of all GPUs

Its KV cache is what its GPUs leave free, at the estimate's bytes a token, until engines say their own. The
rest of the shape is the estimate's. Embedded profiles are wrong by up to a factor of 2 for the engine that
they are meant for; what is not known makes a guess wilder. Traffic corrects it (`refinement`).

GPU figures are the vendors' data sheets: memory and bandwidth of one GPU, dense 16-bit FLOP/s.
"""

import re
from collections.abc import Iterator, Mapping
from math import hypot, log
from typing import Any, NamedTuple

import numpy as np

from headway.config import HeadwayConfig, embedded_profiles, resolve_profile
from headway.config.engine import DEFAULT_KV_BYTES_PER_TOKEN
from headway.engine.observed_limits import with_kv_tokens
from headway.words import percent
from interp import DecodeSamples, PrefillSamples, Profile, build_profile, load_profile


class Gpu(NamedTuple):
    """Memory in GB, bandwidth in TB/s, TFLOP/s."""

    memory_gb: float
    bandwidth: float
    flops: float


GPUS = {
    "a10": Gpu(24, 0.60, 125),
    "a10g": Gpu(24, 0.60, 125),
    "a100": Gpu(80, 2.04, 312),
    "a6000": Gpu(48, 0.77, 155),
    "b200": Gpu(180, 8.0, 2250),
    "gb200": Gpu(186, 8.0, 2500),
    "h100": Gpu(80, 3.35, 989),
    "h20": Gpu(96, 4.0, 148),
    "h200": Gpu(141, 4.8, 989),
    "l20": Gpu(48, 0.86, 120),
    "l4": Gpu(24, 0.30, 121),
    "l40s": Gpu(48, 0.86, 362),
    "mi300x": Gpu(192, 5.3, 1307),
    "t4": Gpu(16, 0.32, 65),
    "v100": Gpu(32, 0.90, 112),
}
KNOWN = {
    "deepseek-r1-distill": None,
    "deepseek-r1": (671.0, 37.0),
    "deepseek-v3": (671.0, 37.0),
    "gpt-oss-120b": (117.0, 5.1),
    "gpt-oss-20b": (21.0, 3.6),
}
"""Billions of parameters, all and active, of models whose names do not say both; None: it does."""
BYTES = ((("awq", "gptq", "int4", "4bit", "fp4", "w4a16"), 0.5), (("fp8", "int8", "w8a8"), 1.0))
ROOM, USED = 1.25, 0.9
SIZE = re.compile(r"(?<![0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?:-a(\d+(?:\.\d+)?)b)?(?![a-z0-9])")
GPU = re.compile(rf"(?<![a-z0-9])({'|'.join(GPUS)})(?![a-z0-9])")
SOME_GPU = "h100"
SOME_MODELS = {1: "llama-3.1-8b", 2: "qwen3-32b"}
"""The model of an unknown size, by the GPUs of an engine; of more it is 70B."""
SURE, UNSURE = 2.0, 10.0
"""Factors within which a guess is: by what is known of model and GPU, and where one of them is not known."""


class Told(NamedTuple):
    """What engines say: names of their model, the likeliest first, and values of labels of their metrics."""

    models: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


class Model(NamedTuple):
    """Billions of parameters, all and those that a token uses, and the bytes of each."""

    parameters: float
    active: float
    each: float


def model_of(name: str) -> Model | None:
    """The size of a model as far as its name says it."""
    low = name.lower().replace("_", "-")
    each = next((size for words, size in BYTES if any(word in low for word in words)), 2.0)
    known = next((sizes for begin, sizes in KNOWN.items() if begin in low), None)
    if known is not None:
        return Model(*known, 0.5 if "gpt-oss" in low else each)
    if (found := SIZE.search(low)) is None:
        return None
    experts, number, unit, active = found.groups()
    size = float(number) * (1.0 if unit == "b" else 1e-3)
    billions = size * float(experts or 1)
    return Model(billions, float(active or (2.0 * size if experts else billions)), each)


def gpu_of(text: str) -> str | None:
    """The GPU that a text names."""
    found = GPU.search(text.lower())
    return found[1] if found else None


class _Engine(NamedTuple):
    model: Model
    gpu: Gpu
    gpus: int

    @classmethod
    def of(cls, model: Model, gpu: Gpu, gpus: int | None = None) -> "_Engine":
        weights_gb = model.parameters * model.each
        fitting = (count for count in (1, 2, 4, 8, 16) if ROOM * weights_gb <= USED * count * gpu.memory_gb)
        return cls(model, gpu, gpus or next(fitting, 16))

    @property
    def prefill(self) -> float:
        return self.model.active / (self.gpu.flops * self.gpus)

    @property
    def decode(self) -> float:
        return self.model.active * self.model.each / (self.gpu.bandwidth * self.gpus)

    @property
    def free_bytes(self) -> float:
        left = USED * self.gpus * self.gpu.memory_gb - self.model.parameters * self.model.each
        return 1e9 * max(left, (1.0 - USED) * self.gpus * self.gpu.memory_gb)


def _embedded() -> Iterator[tuple[str, _Engine]]:
    for name in embedded_profiles():
        model, gpu, count = name.rsplit("_", 2)
        if (size := model_of(model)) is not None:
            yield name, _Engine.of(size, GPUS[gpu], int(count.removeprefix("tp")))


def nearest_profile(config: HeadwayConfig, told: Told = Told()) -> Profile:  # noqa: B008 - a value
    """The estimate for engines of which settings and engines say this. Its `meta` has `guessed`."""
    models = [(name, size) for name in (*told.models, config.model) if (size := model_of(name))]
    gpus = [gpu for text in (config.engine.gpu_type or "", *told.labels) if (gpu := gpu_of(text))]
    pools = [pool.gpus_per_replica for pool in config.pools.values()]
    count, gpu = max(filter(None, pools), default=None), gpus[0] if gpus else SOME_GPU
    named, size = models[0] if models else ("", model_of(SOME_MODELS.get(count or 1, "llama-3.1-70b")))
    assert size is not None
    wanted = _Engine.of(size, GPUS[gpu], count)

    def distance(of: tuple[str, _Engine]) -> tuple[float, str]:
        reads = log(of[1].model.active * of[1].model.each / (size.active * size.each))
        speed = log(of[1].gpu.bandwidth * of[1].gpus / (wanted.gpu.bandwidth * wanted.gpus))
        return hypot(reads, speed, 0.5 * log(of[1].model.parameters / size.parameters)), of[0]

    name, base = min(_embedded(), key=distance)
    guessed = {
        "from": name,
        "model": f"{named}, {size.parameters:g}B" if models else "",
        "gpu": f"{wanted.gpus} {gpu.upper()}" if gpus else "",
        "prefill": wanted.prefill / base.prefill,
        "decode": wanted.decode / base.decode,
        "within": SURE if models and gpus else UNSURE,
    }
    return _scaled(load_profile(resolve_profile(name)), base, wanted, guessed)


def _scaled(profile: Profile, base: _Engine, wanted: _Engine, guessed: dict[str, Any]) -> Profile:
    prefill, decode = profile.prefill.samples, profile.decode.samples
    kv_bytes = float(profile.meta.get("kv_bytes_per_token", DEFAULT_KV_BYTES_PER_TOKEN))
    same = (wanted.model, wanted.gpu, wanted.gpus) == (base.model, base.gpu, base.gpus)
    made = build_profile(
        PrefillSamples.timed(prefill.isl_tokens, prefill.ttft_s * guessed["prefill"], wanted.gpus),
        DecodeSamples.timed(
            np.asarray(decode.batch_size),
            decode.context_tokens,
            decode.itl_s * guessed["decode"],
            max_kv_tokens=decode.max_kv_tokens,
            gpus=wanted.gpus,
        ),
        {**profile.meta, "gpus_per_engine": wanted.gpus, "tp": wanted.gpus, "guessed": guessed},
    )
    return made if same else with_kv_tokens(made, wanted.free_bytes / kv_bytes)


def guess_text(meta: Mapping[str, Any]) -> str:
    """What a profile was guessed from, and how unsure it still is, by phase; "" for one that was given."""
    if (guessed := meta.get("guessed")) is None:
        return ""
    model = guessed["model"] or "a model of unknown size"
    gpu = guessed["gpu"] or "GPUs of unknown type (engine.gpu_type)"
    pace = f"prefill × {guessed['prefill']:.2g}, decode × {guessed['decode']:.2g}"
    text = f"none given, estimated for {model} on {gpu} by {guessed['from']} ({pace})"
    seen = meta.get("refined", {}).get("seen", {})
    parts = []
    for phase in ("prefill", "decode"):
        if (found := seen.get(phase)) is None:
            parts.append(f"{phase} is a guess, within a factor of {guessed['within']:g}")
            continue
        least, most = found["tokens"]
        where = f"for {least:,.0f} to {most:,.0f} tokens"
        if phase == "decode":
            where = f"up to {percent(round(found['kv_usage'], 2))} of the KV cache"
        parts.append(f"{phase} learnt within {percent(round(found['within'], 2))} {where}")
    return f"{text}; {', '.join(parts)}"
