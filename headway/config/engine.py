"""Settings of the engines and of the pools that run them."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from headway.config.base import (
    MOST_REPLICAS,
    MOST_TOKENS,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ReplicaCount,
    Settings,
    shown,
)
from headway.extensions import ExtensionPoint

ENGINES = ExtensionPoint(
    "headway.engines",
    "engine kind",
    {
        "external": "serve_apps.engines:EXTERNAL",
        "simulated": "serve_apps.engines:SIMULATED",
        "vllm": "serve_apps.engines.vllm:VLLM",
    },
)
"""All engine kinds: each name is declared by a `headway.engine.kinds.EngineKind`."""

DEFAULT_KV_BYTES_PER_TOKEN = 131_072
"""Where settings and profile are silent: 32 layers x 8 KV heads x 128 x 2 (K, V) x 2 bytes."""

DEFAULT_TRANSFER_LATENCY_MS, DEFAULT_TRANSFER_GB_S = 5.0, 25.0
"""Where neither settings nor profile say what moving a KV cache takes."""

DEFAULT_PROFILE = "profiles/llama-3.1-8b_h100_tp1"

MOST_IN_A_BATCH = 65_536
"""Requests in one batch that a simulated replica keeps places for."""

MOST_KV_BYTES_PER_TOKEN = 1_000_000_000

MOST_ADAPTERS = 65_536


class KvTransfer(Settings):
    """Moving a KV cache from a prefill to a decode replica: latency + tokens x bytes / bandwidth."""

    latency_ms: NonNegativeFloat | None = Field(default=None, le=1e9)
    """The fixed part; null: as `headway profile` measured it, or else 5."""
    bandwidth_gb_s: PositiveFloat | None = Field(default=None, ge=1e-6, le=1e9)
    """Gigabytes (1e9 bytes) per second; null: as measured, or else 25."""
    bytes_per_token: PositiveInt | None = Field(default=None, le=MOST_KV_BYTES_PER_TOKEN)
    """Null: the profile's, or else 131072."""


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
    """Disk: a directory that all replicas see. Files stay until they are deleted by hand."""
    host: str | None = None
    """Address at which replicas fetch KV from each other; null: the machine's own towards other machines."""
    kv_events: bool = True
    """Whether replicas that compute prompts say what their prefix caches hold, for the router, by vLLM's KV
    events (docs/vllm.md#known-prefixes); nothing where prefix caching is off, or `args` has a
    `kv_events_config`."""
    args: Mapping[str, Any] = {}
    """Further arguments of vLLM's AsyncEngineArgs, by name; what has a key of its own here, and other
    kinds of parallelism, are refused."""
    adapters: Mapping[str, str] = {}
    """LoRA adapters by the model names that clients ask for: directories, or names on the hub."""
    server: Mapping[str, Any] = {}
    """Arguments of vLLM's OpenAI server, by name, such as tool_call_parser, enable_auto_tool_choice or
    chat_template (docs/vllm.md#clients); those of its network are refused."""


class LoraSettings(Settings):
    """LoRA adapters of an engine (docs/howto/adapters.md)."""

    at_once: PositiveInt | None = Field(default=None, le=MOST_ADAPTERS)
    """Adapters that one batch can use, and that stay loaded: vLLM's `max_loras`; null: all that there are."""
    names: tuple[str, ...] = ()
    """Simulated: the adapters' names, for which clients ask as models; vLLM's are `engine.vllm.adapters`."""
    load_ms: NonNegativeFloat = Field(default=50.0, le=1e6)
    """Simulated: milliseconds that a request waits for an adapter that is not loaded."""


class RefinementSettings(Settings):
    """Correcting the profile by what traffic shows of the engines."""

    enabled: bool = True
    """Replicas report their latencies, and planner and router go by the profile as traffic corrects it
    (docs/profiling.md#refinement-by-traffic)."""
    report_interval_s: PositiveFloat = Field(default=5.0, ge=0.1, le=3600.0)
    """Seconds between two reports of a replica."""


class SleepSettings(Settings):
    """Replicas that sleep instead of going (`pools.NAME.sleepers`, docs/howto/zero.md#asleep)."""

    level: Literal[1, 2] = 1
    """What an engine keeps asleep, as vLLM has it: 1 its weights, in host memory; 2 only its process."""
    per_gpu: PositiveInt = Field(default=2, le=64)
    """Engines of one GPU, of which one is awake at a time. Ray is asked for that part of a GPU for each."""
    memory: PositiveFloat | None = Field(default=None, le=1e15)
    """Bytes of host memory that an engine keeps asleep, counted against `fleet.host_memory`."""
    wake_up_s: NonNegativeFloat = Field(default=3.0, le=1e5)
    """Simulated, live too: seconds that an engine takes to wake."""


class EngineSettings(Settings):
    """The inference engine of a replica and its performance profile."""

    kind: str = "simulated"
    """What replicas run: simulated, vllm (docs/vllm.md), external (others start the engines; what
    `headway attach` sets), or a kind of an installed package (docs/extending.md#an-engine-kind)."""
    vllm: VllmSettings = VllmSettings()
    options: Mapping[str, Any] = {}
    """Settings of an installed kind, checked by the model that it declares; built-in kinds take none."""
    profile: str | None = None
    """A profile directory, or the name of an embedded profile; null: llama-3.1-8b_h100_tp1, but of engines
    that others run an estimate by what they and `model` say (docs/adopting.md#without-a-profile)."""
    refinement: RefinementSettings = RefinementSettings()
    lora: LoraSettings = LoraSettings()
    sleep: SleepSettings = SleepSettings()
    gpu_type: str | None = None
    """What every replica runs on, a key of `routing.gpu_profiles`; null: live, what Ray says of its node."""
    max_batch_size: PositiveInt | None = Field(default=None, le=MOST_IN_A_BATCH)
    """Requests in one decode batch; null: the profile's, or else the largest sampled. vLLM:
    `max_num_seqs`."""
    chunk_tokens: PositiveInt | None = Field(default=None, le=MOST_TOKENS)
    """Prompt tokens per iteration; null: one request at a time (mixed replicas: 2048). vLLM:
    `max_num_batched_tokens`."""
    kv_transfer: KvTransfer = KvTransfer()
    prefix_cache_tokens: NonNegativeInt | None = Field(default=None, le=MOST_TOKENS)
    """Tokens that the prefix cache of one replica holds; 0: no prefix cache; null: none either, but vLLM's is
    its KV cache, as profiled."""
    time_scale: PositiveFloat = Field(default=1.0, ge=1e-3, le=1e3)
    """Speed of simulated engines over the profile's, simulated and live: 0.1 makes every profiled time
    ten times as long; KV transfers keep theirs."""
    start_up_s: NonNegativeFloat = Field(default=0.0, le=1e5)
    """Live and simulated: seconds that an engine takes to start, as loading a model would."""
    ready_within_s: PositiveFloat = Field(default=300.0, le=1e5)
    """Seconds after which `headway up` gives up on replicas that do not serve, and `status --check` fails
    while nothing is planned. A large model takes minutes, and so does a node that has to be rented first."""
    silent_after_s: float = Field(default=6.0, ge=3.0, le=1e5)
    """Seconds without progress on any request after which an engine is named (`status`) and gets nothing new
    while others are there. More, where one prompt takes longer by itself."""
    restart_silent_after_s: float | None = Field(default=None, ge=10.0, le=1e5)
    """Seconds without progress after which Serve replaces the engine, its requests lost; null: never."""
    max_model_tokens: PositiveInt | None = Field(default=None, le=MOST_TOKENS)
    """Input and output tokens of one request at most; null: what the KV cache of one replica holds. vLLM:
    `max_model_len`, null: what the model was made for."""

    @model_validator(mode="after")
    def _engines_of_ours_have_a_profile(self) -> "EngineSettings":
        if self.profile is None and self.kind != "external":
            # Not as if it had been given.
            object.__setattr__(self, "profile", DEFAULT_PROFILE)
        return self

    @model_validator(mode="after")
    def _adapters_have_one_place(self) -> "EngineSettings":
        if self.lora.names and self.kind != "simulated":
            raise ValueError(f"lora.names are those of simulated engines; {self.kind}: engine.vllm.adapters")
        return self

    @property
    def adapters_at_once(self) -> int | None:
        """Adapters that one batch can use; None without any."""
        return (
            self.lora.at_once or len(self.vllm.adapters if self.kind == "vllm" else self.lora.names) or None
        )

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        if kind not in ENGINES:
            *others, last = map(repr, ENGINES.names())
            raise ValueError(f"should be {', '.join(others)} or {last}, not {kind!r}")
        return kind


Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])|(24):(00)")
"""A time of the day, or its end."""


class ScheduleWindow(Settings):
    """Bounds of a pool at some times of the week, by the wall clock of `planner.time_zone`."""

    # Written as `from` and `to`, also when the planner is handed its settings.
    model_config = ConfigDict(serialize_by_alias=True)

    days: tuple[Day, ...] = DAYS
    """The days on which it begins: mon, tue, wed, thu, fri, sat, sun; left out: every day."""
    begins: str = Field(default="00:00", alias="from")
    """The time at which it begins, such as 08:00."""
    ends: str = Field(default="24:00", alias="to")
    """The time at which it ends, on the next day where that is before `from`."""
    min_replicas: NonNegativeInt | None = Field(default=None, le=MOST_REPLICAS)
    """Null: the pool's own. Replicas are started so that they serve when the window begins."""
    max_replicas: ReplicaCount | None = None
    """Null: the pool's own."""

    @field_validator("begins", "ends")
    @classmethod
    def _is_a_time(cls, text: str) -> str:
        if not TIME.fullmatch(text):
            raise ValueError(f"should be a time from 00:00 to 24:00, such as 08:30, not {shown(text)}")
        return text.zfill(5)

    @model_validator(mode="after")
    def _is_some_time(self) -> "ScheduleWindow":
        if not self.days:
            raise ValueError("days is empty; leave it out for every day")
        if self.begins in ("24:00", self.ends):
            raise ValueError(f"from {self.begins} to {self.ends} is no time; a whole day is 00:00 to 24:00")
        if self.min_replicas is None and self.max_replicas is None:
            raise ValueError("needs min_replicas or max_replicas")
        return self


class PoolSettings(Settings):
    """The bounds of one pool."""

    min_replicas: NonNegativeInt = Field(default=1, le=MOST_REPLICAS)
    """0 lets an idle pool go to none with the policy `headway`: in simulation, and live where our gateway
    holds requests until a replica is back (docs/howto/zero.md)."""
    max_replicas: ReplicaCount = 16
    """Replicas of the pool at most."""
    sleepers: NonNegativeInt = Field(default=0, le=MOST_REPLICAS)
    """So many replicas sleep while they are not wanted: without a GPU, but sooner back than new ones
    (docs/howto/zero.md#asleep)."""
    schedule: tuple[ScheduleWindow, ...] = ()
    """Other bounds at some times of the week (docs/planning.md#bounds-by-schedule); of windows that overlap
    the last counts."""
    gpus_per_replica: PositiveInt | None = Field(default=None, le=MOST_REPLICAS)
    """GPUs of one replica; null: as profiled. vLLM splits the model over them
    (docs/vllm.md#tensor-parallelism)."""
    resources: Mapping[str, PositiveFloat] = {}
    """Live: needs of one replica besides GPUs, as Ray names them: `CPU`, `memory` in bytes, or a name of
    your own, such as `decode: 1`, which only nodes that declare it have."""

    @field_validator("resources")
    @classmethod
    def _gpus_are_counted_elsewhere(cls, resources: Mapping[str, float]) -> Mapping[str, float]:
        if "GPU" in resources:
            raise ValueError("replicas take GPUs by gpus_per_replica, not by this")
        return resources

    @model_validator(mode="after")
    def _minimum_fits(self) -> "PoolSettings":
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} is above max_replicas {self.max_replicas}")
        if self.sleepers > self.max_replicas:
            raise ValueError(f"sleepers {self.sleepers} are more than max_replicas {self.max_replicas}")
        return self

    @model_validator(mode="after")
    def _windows_fit(self) -> "PoolSettings":
        for number, window in enumerate(self.schedule):
            least, most = self.bounds_in(window)
            both = None not in (window.min_replicas, window.max_replicas)
            own = "" if both else ", one of them the pool's own"
            if least > most:
                raise ValueError(f"schedule.{number}: min_replicas {least} is above max_replicas {most}{own}")
            if least == 0 < self.min_replicas:
                raise ValueError(f"schedule.{number}: min_replicas 0 needs it to be 0 for the pool, too")
        return self

    def bounds_in(self, window: ScheduleWindow) -> tuple[int, int]:
        """The fewest and the most replicas while a window lasts."""
        least, most = window.min_replicas, window.max_replicas
        return self.min_replicas if least is None else least, self.max_replicas if most is None else most


class GpuTypeSettings(Settings):
    """A GPU type, and what it costs."""

    profile: str
    """The engine on that type: a profile directory, or an embedded profile."""
    price_per_gpu_hour: PositiveFloat = Field(le=1e9)
    """In any unit: only ratios matter to a choice."""
    max_gpus: NonNegativeInt | None = Field(default=None, le=MOST_REPLICAS)
    """GPUs of it that there are, for all pools together; null: any number."""
