"""The demo's settings and load, calculated from the profile so that the crest needs several replicas.

Engines run at SPEED of the profile: one H100's worth of Llama 3.1 8B becomes slow enough that a few
requests per second need a fleet, and two CPU cores carry it. With the formulas of the policy `reference`
(`headway.planning.sizing`), for OSL o and itl, FULL of the ITL target,

    rate(isl)     = CREST[decode] × best throughput(itl, isl + o / 2) / o          requests/s at the crest
    prefill(isl)  = rate(isl) × isl / throughput(isl)                              replicas that it needs

and the ISL is the one for which prefill(isl) = CREST[prefill]. A decode replica takes one request less than
meets itl, as deployments cap their batches: what comes while a replica is still starting waits a
little for its first token (the TTFT target has room for that) instead of slowing down every stream.

The load is a wave: level at TROUGH of the crest, sin² up and down, level again; arrivals are evenly spread
(one per 1 / rate, at a random moment in it).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log, log1p, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.config import HeadwayConfig, load_config
from headway.engine import engine_profile
from headway.engine.rules import simulated_speeds
from headway.planning import Role
from headway.planning.sizing import Aim, size_decode, size_prefill
from headway.planning.types import LoadForecast
from interp import Profile

Floats = NDArray[np.float64]

SPEED = 0.05
CREST: Mapping[Role, float] = {Role.PREFILL: 2.1, Role.DECODE: 3.1}
"""Replicas that the crest needs, before rounding up."""
TROUGH = 0.2
OUTPUT_TOKENS = 80
VARIATION = 0.2
FULL = 0.8
"""Share of the ITL target that a full batch takes: the rest is for the hiccups of a busy machine."""
LEAD_SHARE, TAIL_SHARE = 0.05, 0.10
"""Shares of the duration before and after the wave."""
ISL_RANGE = (64.0, 4000.0)
STEPS = 20_000
BISECTIONS = 60

SETTINGS = {
    "engine.profile": "llama-3.1-8b_h100_tp1",
    "engine.time_scale": SPEED,
    "engine.start_up_s": 1.0,
    "slo.ttft_ms": 6000.0,
    "slo.itl_ms": 190.0,
    "slo.attainment": 0.95,
    "planner.policy": "headway",
    "planner.adjustment_interval_s": 2.5,
    "planner.headway.loss_budget": 0.01,
    "planner.headway.lead_s": 5.0,
    "planner.headway.hold_s": 15.0,
    "planner.headway.half_life_s": 300.0,
    "pools.prefill.max_replicas": 5,
    "pools.decode.max_replicas": 6,
    "gateway.port": 0,
    "gateway.request_timeout_s": 60.0,
}
"""TTFT and ITL targets are 300 ms and 9.5 ms at the profile's own speed. A day's load passes in minutes, and
so the planner's own times are those of minutes, too. Its loss budget is stricter than the target, as engines,
gateway and replay share this machine's cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """The demo: settings, the scaled profile, and the load in requests per second and tokens."""

    config: HeadwayConfig
    profile: Profile
    crest_rps: float
    input_tokens: int
    output_tokens: int
    duration_s: float
    seed: int = 1

    @property
    def trough_rps(self) -> float:
        """The rate before and after the wave."""
        return TROUGH * self.crest_rps

    def rate(self, time_s: Floats) -> Floats:
        """Requests per second over time."""
        lead_s, tail_s = LEAD_SHARE * self.duration_s, TAIL_SHARE * self.duration_s
        phase = np.clip((time_s - lead_s) / (self.duration_s - lead_s - tail_s), 0.0, 1.0)
        wave: Floats = self.trough_rps + (self.crest_rps - self.trough_rps) * np.sin(np.pi * phase) ** 2
        return wave

    def needs(self, rate_rps: float) -> dict[Role, float]:
        """Replicas that the formulas of `reference` ask for at a steady rate, before rounding."""
        return _needs(self.profile, self.config, rate_rps, float(self.input_tokens))


def make_demo_plan(duration_s: float, engines: Mapping[str, object] | None = None) -> DemoPlan:
    """The demo for a duration of its load, planned by the profile; `engines`: how the real ones differ.

    Slower engines may be as many more.
    """
    uncapped = load_config(None, SETTINGS)
    profile = engine_profile(uncapped)
    isl_tokens = _input_tokens(profile, uncapped)
    best = profile.decode.best_throughput_per_gpu(FULL * uncapped.slo.itl_s, isl_tokens + OUTPUT_TOKENS / 2)
    # One request less than a decode replica can hold within the ITL target.
    batch = int(float(best.throughput_per_gpu) * float(best.itl_s)) - 1
    settings = {**SETTINGS, "engine.max_batch_size": batch, **(engines or {})}
    slowness = simulated_speeds(load_config(None, settings)).slowness(0.0)
    for role, slower in zip(("prefill", "decode"), slowness, strict=True):
        most = f"pools.{role}.max_replicas"
        settings[most] = ceil(max(1.0, slower) * int(str(SETTINGS[most])))
    return DemoPlan(
        config=load_config(None, settings),
        profile=profile,
        crest_rps=_crest_rps(profile, uncapped, isl_tokens),
        input_tokens=round(isl_tokens),
        output_tokens=OUTPUT_TOKENS,
        duration_s=duration_s,
    )


def _needs(profile: Profile, config: HeadwayConfig, rate_rps: float, isl_tokens: float) -> dict[Role, float]:
    load = LoadForecast(requests=rate_rps, isl_tokens=isl_tokens, osl_tokens=OUTPUT_TOKENS)
    aims = (config.slo.ttft_s, FULL * config.slo.itl_s)
    ttft, itl = (Aim(slo_s=slo_s, correction=1.0, gpus_per_replica=1) for slo_s in aims)
    return {
        Role.PREFILL: size_prefill(load, 1.0, ttft, profile.prefill).replicas,
        Role.DECODE: size_decode(load, 1.0, itl, profile.decode).replicas,
    }


def _crest_rps(profile: Profile, config: HeadwayConfig, isl_tokens: float) -> float:
    return CREST[Role.DECODE] / _needs(profile, config, 1.0, isl_tokens)[Role.DECODE]


def _input_tokens(profile: Profile, config: HeadwayConfig) -> float:
    """The ISL at which the crest needs CREST[prefill] replicas, by bisection: the need rises with the ISL."""
    low, high = ISL_RANGE
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        rate_rps = _crest_rps(profile, config, middle)
        if _needs(profile, config, rate_rps, middle)[Role.PREFILL] < CREST[Role.PREFILL]:
            low = middle
        else:
            high = middle
    return low


def write_load(plan: DemoPlan, path: Path) -> int:
    """Write the load as a trace file; the number of requests. The same plan gives the same bytes."""
    time_s = np.linspace(0.0, plan.duration_s, STEPS)
    rate = plan.rate(time_s)
    expected = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2 * np.diff(time_s))])
    count = int(expected[-1])
    generator = np.random.default_rng(plan.seed)
    at_s = np.interp(np.arange(count) + generator.random(count), expected, time_s)
    # Input and output lengths are lognormal about their means.
    variance = log1p(VARIATION**2)
    lengths = []
    for mean in (plan.input_tokens, plan.output_tokens):
        drawn = generator.lognormal(log(mean) - variance / 2, sqrt(variance), count)
        lengths.append(np.maximum(1, np.rint(drawn)).astype(np.int64).tolist())
    rows = zip(at_s.tolist(), *lengths, strict=True)
    text = "".join(f"{moment!r},{isl},{osl}\n" for moment, isl, osl in rows)
    path.write_text("timestamp_s,input_tokens,output_tokens\n" + text, encoding="ascii")
    return count
