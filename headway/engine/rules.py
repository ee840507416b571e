"""Batching rules and speeds of engines: one set for the simulator and simulated engines on the real clock.

Settings come first, then the profile's meta.json, then what was sampled. Only this and the profile that the
settings name belong here: the module stands outside the compiled kernel, so that a replica that imports it
starts fast.

Simulated engines may have another profile and other speeds, while everything else believes `engine.profile`.
A speed of 0.7 makes everything that an engine computes take 1 / 0.7 times as long. Speeds change in steps at
given times of the run; a replica may besides be one of a share of slow ones, for its life.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from pydantic import ValidationError

from headway.config import DEFAULT_KV_BYTES_PER_TOKEN, HeadwayConfig, Role, resolve_profile
from headway.config.base import MILLISECONDS, describe
from headway.config.engine import (
    DEFAULT_TRANSFER_GB_S,
    DEFAULT_TRANSFER_LATENCY_MS,
    MOST_IN_A_BATCH,
    MOST_KV_BYTES_PER_TOKEN,
    KvTransfer,
)
from headway.engine.nearest import Told, nearest_profile
from interp import Profile, ProfileError, load_profile, scaled
from interp.arrays import FloatArray

Tokens = TypeVar("Tokens", float, FloatArray)

MIXED_CHUNK_TOKENS = 2048
"""Prompt tokens per iteration of a mixed replica where settings are silent: whole ones block decodes."""


def kv_transfer_s(latency_s: float, s_per_token: float, tokens: Tokens) -> Tokens:
    """Seconds that the KV of `tokens` tokens travels; for the kernel, which compiles it, and the replay."""
    return latency_s + s_per_token * tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """The batching of an engine, and the cost of moving its KV.

    `max_batch_size` sequences decode together at most. `chunk_tokens` 0 means prefills one at a time, whole;
    above 0 an iteration carries up to that many prompt tokens of several requests. A KV transfer takes
    `transfer_latency_s` plus, for each prompt token, `kv_bytes_per_token` / `transfer_bytes_per_s`.
    `prefix_cache_tokens` is the LRU cache per replica, 0 for none.
    """

    max_batch_size: int = 256
    chunk_tokens: int = 0
    transfer_latency_s: float = 0.005
    transfer_bytes_per_s: float = 25e9
    kv_bytes_per_token: float = 131_072.0
    prefix_cache_tokens: int = 0
    block_tokens: int = 512

    @property
    def transfer_s_per_token(self) -> float:
        """Seconds that each token of a prompt adds to a KV transfer."""
        return self.kv_bytes_per_token / self.transfer_bytes_per_s

    def transfer_s(self, tokens: Tokens) -> Tokens:
        """Seconds that moving the KV of a prompt of `tokens` takes; one number, or an array of them."""
        # The order of these operations is that of every prediction so far, to the last bit.
        return self.transfer_latency_s + tokens * self.kv_bytes_per_token / self.transfer_bytes_per_s


def engine_profile(config: HeadwayConfig, told: Told = Told()) -> Profile:  # noqa: B008 - a value
    """The profile that `config` names, at the speed of `engine.time_scale`.

    Where it names none, the nearest estimate by what engines that others run have `told`. Raises ConfigError
    or ProfileError, each one line.
    """
    if config.engine.profile is None:
        return nearest_profile(config, told)
    profile = load_profile(resolve_profile(config.engine.profile))
    return scaled(profile, config.engine.time_scale)


def engine_rules(config: HeadwayConfig, profile: Profile) -> EngineRules:
    """The rules of a deployment: from the settings, then the profile's meta.json, then what was sampled."""
    engine, transfer, measured = config.engine, config.engine.kv_transfer, profiled_transfer(profile)
    mixed = Role.MIXED.value in config.pools
    latency_ms = measured.latency_ms if transfer.latency_ms is None else transfer.latency_ms
    gigabytes_per_s = transfer.bandwidth_gb_s or measured.bandwidth_gb_s or DEFAULT_TRANSFER_GB_S
    return EngineRules(
        max_batch_size=engine.max_batch_size or _profiled_batch(profile),
        chunk_tokens=engine.chunk_tokens or (MIXED_CHUNK_TOKENS if mixed else 0),
        transfer_latency_s=latency_ms * MILLISECONDS,
        transfer_bytes_per_s=gigabytes_per_s * 1e9,
        kv_bytes_per_token=transfer.bytes_per_token or _profiled_kv_bytes(profile),
        prefix_cache_tokens=engine.prefix_cache_tokens or 0,
    )


class ProfiledTransfer(NamedTuple):
    """A KV transfer as a profile has it; a bandwidth of None is not known, `measured` that it was timed."""

    latency_ms: float
    bandwidth_gb_s: float | None
    measured: bool


def profiled_transfer(profile: Profile) -> ProfiledTransfer:
    """`kv_transfer` of meta.json, as `headway profile` measures it. ProfileError, one line naming the key."""
    said = profile.meta.get("kv_transfer")
    if said is None:
        return ProfiledTransfer(DEFAULT_TRANSFER_LATENCY_MS, None, measured=False)
    try:
        settings = KvTransfer.model_validate(
            {name: said.get(name) for name in ("latency_ms", "bandwidth_gb_s")}
        )
    except (AttributeError, ValidationError) as error:
        fault = (
            ": ".join(describe(error, KvTransfer.model_json_schema()))
            if isinstance(error, ValidationError)
            else "must be a JSON object"
        )
        raise ProfileError(f"meta.json: kv_transfer: {fault}") from error
    latency_ms = DEFAULT_TRANSFER_LATENCY_MS if settings.latency_ms is None else settings.latency_ms
    return ProfiledTransfer(latency_ms, settings.bandwidth_gb_s, measured=True)


def _profiled_batch(profile: Profile) -> int:
    batch = max(1, round(profile.decode.largest_batch))
    if batch > MOST_IN_A_BATCH:
        raise ProfileError(
            f"a batch of {batch} requests was sampled, more than {MOST_IN_A_BATCH}: "
            "meta.json: max_batch_size or engine.max_batch_size must say less"
        )
    return batch


def _profiled_kv_bytes(profile: Profile) -> float:
    value = profile.meta.get("kv_bytes_per_token", DEFAULT_KV_BYTES_PER_TOKEN)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= MOST_KV_BYTES_PER_TOKEN
    ):
        most = f"at most {MOST_KV_BYTES_PER_TOKEN:g}"
        raise ProfileError(
            f"meta.json: kv_bytes_per_token: must be a positive number, {most}, is {value!r:.80}"
        )
    return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeeds:
    """Speeds over the profile's, each by the second from which on it holds; before the first it is 1.

    `slow_share` of the replicas that start are of `slow_speed` besides.
    """

    prefill: Mapping[float, float] = field(default_factory=dict)
    decode: Mapping[float, float] = field(default_factory=dict)
    slow_share: float = 0.0
    slow_speed: float = 1.0

    def slowness(self, time_s: float) -> tuple[float, float]:
        """By how many times longer prefill and decode take at `time_s`, on a replica that is not slow."""
        return 1.0 / _at(self.prefill, time_s), 1.0 / _at(self.decode, time_s)

    @property
    def as_profiled(self) -> bool:
        """True if every engine is always as fast as its profile."""
        slow = {self.slow_speed} if self.slow_share else set()
        return {*self.prefill.values(), *self.decode.values(), *slow} <= {1.0}

    def changes(self) -> Iterator[float]:
        """The times after 0 at which a speed changes, in order."""
        return iter(sorted({time_s for time_s in (*self.prefill, *self.decode) if time_s > 0.0}))

    def draw(self, generator: np.random.Generator) -> float:
        """The slowness of one replica, beside that of all."""
        if self.slow_share == 0.0:
            return 1.0
        return 1.0 / self.slow_speed if generator.random() < self.slow_share else 1.0


def at_start(profile: Profile, speeds: EngineSpeeds) -> Profile:
    """`profile` at the speeds with which a run begins."""
    prefill, decode = speeds.slowness(0.0)
    return scaled(profile, 1.0 / prefill, 1.0 / decode)


def _at(steps: Mapping[float, float], time_s: float) -> float:
    times = sorted(steps)
    place = bisect_right(times, time_s)
    return steps[times[place - 1]] if place else 1.0


def simulated_speeds(config: HeadwayConfig) -> EngineSpeeds:
    """The speeds that `simulation.engine` sets."""
    engine = config.simulation.engine
    slow = engine.slow_replicas
    return EngineSpeeds(
        prefill=_steps(engine.prefill_speed),
        decode=_steps(engine.decode_speed),
        slow_share=slow.share if slow else 0.0,
        slow_speed=slow.speed if slow else 1.0,
    )


def _steps(speed: float | Mapping[float, float]) -> Mapping[float, float]:
    return speed if isinstance(speed, Mapping) else {0.0: speed}


def simulated_profile(config: HeadwayConfig) -> Profile:
    """The profile by which simulated engines run. ConfigError or ProfileError, each one line."""
    name = config.simulation.engine.profile
    if name is None:
        return engine_profile(config)
    return scaled(load_profile(resolve_profile(name)), config.engine.time_scale)
