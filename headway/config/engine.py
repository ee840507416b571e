"""Settings of the engines and of the pools that run them."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from headway.config.base import (
    MILLISECONDS,
    MOST_REPLICAS,
    MOST_TOKENS,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ReplicaCount,
    Settings,
)
from headway.extensions import ExtensionPoint

ENGINES = ExtensionPoint(
    "headway.engines",
    "engine kind",
    {"simulated": "serve_apps.engines:SIMULATED", "vllm": "serve_apps.engines.vllm:VLLM"},
)
"""All engine kinds: each name is declared by a `headway.engine.kinds.EngineKind`."""

DEFAULT_KV_BYTES_PER_TOKEN = 131_072
"""Where settings and profile are silent: 32 layers x 8 KV heads x 128 x 2 (K, V) x 2 bytes."""

MOST_IN_A_BATCH = 65_536
"""Requests in one batch that a simulated replica keeps places for."""

MOST_KV_BYTES_PER_TOKEN = 1_000_000_000


class KvTransfer(Settings):
    """Moving a KV cache from a prefill to a decode replica: latency + tokens x bytes / bandwidth."""

    latency_ms: NonNegativeFloat = Field(default=5.0, le=1e9)
    bandwidth_gb_s: PositiveFloat = Field(default=25.0, ge=1e-6, le=1e9)
    """Gigabytes (1e9 bytes) per second."""
    bytes_per_token: PositiveInt | None = Field(default=None, le=MOST_KV_BYTES_PER_TOKEN)
    """Null: `kv_bytes_per_token` of the profile's meta.json, or else 131072."""

    @property
    def latency_s(self) -> float:
        """The fixed part, in seconds."""
        return self.latency_ms * MILLISECONDS

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """The bandwidth in bytes per second."""
        return self.bandwidth_gb_s * 1e9


class VllmSettings(Settings):
    """The model of `kind: vllm`. Lengths and batches come from the keys of `engine`, GPUs from the pools."""

    model: str | None = None
    """A directory with the model, or its name on the Hugging Face hub; null: the deployment's `model`."""
    dtype: str = "auto"
    """Of weights and computation, such as bfloat16 or float32; auto: what the model's config.json says."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Auto: cpu where vLLM's CPU build is installed, else cuda."""
    connector: Literal["nixl", "disk"] = "nixl"
    """How the KV cache gets from prefill to decode: NIXL, or files below `storage`."""
    storage: str = "/tmp/headway-kv"
    """Disk connector: a directory that all replicas see. Files stay until somebody deletes them."""
    host: str | None = None
    """Address at which replicas fetch KV from each other; null: the machine's own towards other machines."""
    args: Mapping[str, Any] = {}
    """Further arguments of vLLM's AsyncEngineArgs, by name."""


class RefinementSettings(Settings):
    """Correcting the profile by what traffic shows of the engines."""

    enabled: bool = True
    """Whether replicas report their latencies, and planner and router go by the profile that follows."""
    report_interval_s: PositiveFloat = Field(default=5.0, ge=0.1, le=3600.0)
    """Seconds between two reports of a replica."""


class EngineSettings(Settings):
    """The inference engine of a replica and its performance profile."""

    kind: str = "simulated"
    """A name of `ENGINES`: built in, or of an installed package."""
    vllm: VllmSettings = VllmSettings()
    options: Mapping[str, Any] = {}
    """Settings of an installed kind, checked by the model that it declares; built-in kinds take none."""
    profile: str = "profiles/llama-3.1-8b_h100_tp1"
    """A profile directory, or the name of an embedded profile."""
    refinement: RefinementSettings = RefinementSettings()
    gpu_type: str | None = None
    """What every replica runs on, a key of `routing.gpu_profiles`; null: live, what Ray says of its node."""
    max_batch_size: PositiveInt | None = Field(default=None, le=MOST_IN_A_BATCH)
    """Requests in one decode batch; null: the profile's meta.json, or else the largest batch sampled."""
    chunk_tokens: PositiveInt | None = Field(default=None, le=MOST_TOKENS)
    """Tokens per prefill iteration; null: one request at a time."""
    kv_transfer: KvTransfer = KvTransfer()
    prefix_cache_tokens: NonNegativeInt | None = Field(default=None, le=MOST_TOKENS)
    """Tokens that the prefix cache of one replica holds; null or 0: no prefix cache."""
    time_scale: PositiveFloat = Field(default=1.0, ge=1e-3, le=1e3)
    """Speed of simulated engines over the profile's: 0.1 makes every profiled time ten times as long."""
    start_up_s: NonNegativeFloat = Field(default=0.0, le=1e5)
    """Live and simulated: seconds that an engine takes to start, as loading a model would."""
    max_model_tokens: PositiveInt | None = Field(default=None, le=MOST_TOKENS)
    """Input and output tokens of one request at most; null: what the KV cache of one replica holds."""

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        if kind not in ENGINES:
            *others, last = map(repr, ENGINES.names())
            raise ValueError(f"should be {', '.join(others)} or {last}, not {kind!r}")
        return kind


class PoolSettings(Settings):
    """The bounds of one pool."""

    min_replicas: NonNegativeInt = Field(default=1, le=MOST_REPLICAS)
    """0 lets an idle pool go to none, in simulation; live pools keep one at least."""
    max_replicas: ReplicaCount = 16
    gpus_per_replica: PositiveInt | None = Field(default=None, le=MOST_REPLICAS)
    """GPUs of one replica; null: as profiled."""

    @model_validator(mode="after")
    def _minimum_fits(self) -> "PoolSettings":
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} is above max_replicas {self.max_replicas}")
        return self


class GpuTypeSettings(Settings):
    """A GPU type that `headway gpu-plan` may choose."""

    profile: str
    """A profile directory, or the name of an embedded profile."""
    price_per_gpu_hour: PositiveFloat = Field(le=1e9)
    """In any unit: only ratios matter to the choice."""
    max_gpus: NonNegativeInt | None = Field(default=None, le=MOST_REPLICAS)
    """GPUs of it that there are, for all pools together; null: any number."""
