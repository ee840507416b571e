"""Loads, deployments and plans of `bursts`.

A load is rates, or bursts of random lengths, sizes and distances, of requests with lognormal lengths. From
STEP_S to BACK_S they may be so many times as long; from STEP_S on the engines may have another speed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

import numpy as np

from benchmarks.mismatch import GOAL, POOLS
from benchmarks.policies.recording import Recording, read
from headway.config import load_config
from headway.engine.rules import EngineSpeeds
from headway.simulation.build import Plan, make_plan
from headway.workload import TraceOptions

DURATION_S, STEP_S, BACK_S = 7200.0, 2400.0, 4800.0
INPUT_TOKENS, CV = 1000.0, 0.7
OFF_S, ON_S = 240.0, 45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A kind of load; `rates` are in low, usual, high and storm requests/s, empty: random bursts.

    `slow` is the share of replicas at half speed.
    """

    kind: str
    rates: str = "steady:rate_rps={usual:g}"
    output_tokens: float = 150.0
    longer: float = 1.0
    speed: float = 1.0
    slow: float = 0.0

    @property
    def speeds(self) -> EngineSpeeds:
        later = {STEP_S: self.speed}
        return EngineSpeeds(prefill=later, decode=later, slow_share=self.slow, slow_speed=0.5)

    def requests(self, low_rps: float, seed: int) -> Recording:
        """Those of a deployment that has `low_rps` between bursts."""
        if self.rates:
            rates = self.rates.format(low=low_rps, usual=4 * low_rps, high=10 * low_rps, storm=12 * low_rps)
            lengths = f"input_tokens={INPUT_TOKENS:g},output_tokens={self.output_tokens:g}"
            spread = f"input_cv={CV:g},output_cv={CV:g}"
            found = read(f"{rates},duration_s={DURATION_S:g},{lengths},{spread},seed={seed}", TraceOptions())
        else:
            found = _random(np.random.default_rng(seed), low_rps, self.output_tokens)
        long = (found.arrival_s >= STEP_S) & (found.arrival_s < BACK_S)
        times = np.where(long, self.longer, 1.0)
        columns = ((each * times).astype(np.int64) for each in (found.input_tokens, found.output_tokens))
        return Recording(found.arrival_s, *columns, found.duration_s)


def _random(rng: np.random.Generator, low_rps: float, output_tokens: float) -> Recording:
    parts, now_s = [], 0.0
    while now_s < DURATION_S:
        for rate_rps, mean_s in ((low_rps, OFF_S), (low_rps * rng.uniform(5.0, 12.0), ON_S)):
            length_s = rng.exponential(mean_s)
            parts.append(now_s + np.sort(rng.random(rng.poisson(rate_rps * length_s))) * length_s)
            now_s += length_s
    arrival_s = np.concatenate(parts)
    arrival_s = arrival_s[arrival_s < DURATION_S]
    variance = log(1.0 + CV**2)
    lengths = (
        np.maximum(1, np.rint(rng.lognormal(log(mean) - variance / 2.0, variance**0.5, len(arrival_s))))
        for mean in (INPUT_TOKENS, output_tokens)
    )
    return Recording(arrival_s, *(each.astype(np.int64) for each in lengths), DURATION_S)


_BURST, _ONOFF = "rate_rps={low:g},peak_rps={high:g}", "onoff:rate_rps={low:g},peak_rps={high:g}"
LOADS: Mapping[str, Load] = {
    "burst of 30 s each 300 s": Load(kind="burst", rates=f"burst:{_BURST},burst_s=30,every_s=300"),
    "burst of 90 s each 600 s": Load(kind="burst", rates=f"burst:{_BURST},burst_s=90,every_s=600"),
    "on/off, 20 s of 200 s": Load(kind="burst", rates=f"{_ONOFF},on_s=20,every_s=200"),
    "on/off, 120 s of 900 s": Load(kind="burst", rates=f"{_ONOFF},on_s=120,every_s=900"),
    "random on/off": Load(kind="random burst", rates=""),
    "flat": Load(kind="flat"),
    "rhythm": Load(kind="rhythm", rates="diurnal:rate_rps={usual:g},amplitude=0.8,period_s=3600"),
    "rise": Load(kind="rise", rates="ramp:rate_rps={low:g},peak_rps={high:g}"),
    "step": Load(kind="step", rates="step:rate_rps={usual:g},peak_rps={high:g},at_s=2400,back_at_s=4800"),
    "lengths × 2 and back": Load(kind="step of length", longer=2.0),
    "speed 1 → 0.7": Load(kind="step of speed", speed=0.7),
    "30 % at half speed": Load(kind="slow replicas", slow=0.3),
    "outputs of 1,500": Load(kind="long outputs", rates="steady:rate_rps={low:g}", output_tokens=1500.0),
    "0.05 requests/s": Load(kind="rare requests", rates="steady:rate_rps=0.05"),
}
STORM = Load(kind="storm", rates="step:rate_rps={usual:g},peak_rps={storm:g},at_s=2400,back_at_s=3600")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Requests/s between bursts, and what is set."""

    low_rps: float
    profile: str
    pools: str
    start_s: float
    ttft_ms: float
    itl_ms: float

    def plan(self) -> Plan:
        settings = {
            "slo": {"ttft_ms": self.ttft_ms, "itl_ms": self.itl_ms, "attainment": GOAL},
            "engine.profile": self.profile,
            "pools": {role: {"max_replicas": 200} for role in POOLS[self.pools]},
            "planner.policy": "headway",
            "simulation.start_up_delay_s": self.start_s,
        }
        return make_plan(load_config(None, settings))


def _small(pools: str, start_s: float) -> Deployment:
    profile = "llama-3.1-8b_h100_tp1"
    return Deployment(low_rps=8.0, profile=profile, pools=pools, start_s=start_s, ttft_ms=500.0, itl_ms=15.0)


DEPLOYMENTS: Mapping[str, Deployment] = {
    "8B, split, 60 s": _small("split", 60.0),
    "8B, mixed, 180 s": _small("mixed", 180.0),
    "70B, mixed, 60 s": Deployment(
        low_rps=4.0,
        profile="llama-3.1-70b_h100_tp4",
        pools="mixed",
        start_s=60.0,
        ttft_ms=1500.0,
        itl_ms=30.0,
    ),
}
STORMY: Mapping[str, Deployment] = {
    **{name: DEPLOYMENTS[name] for name in ("8B, split, 60 s", "8B, mixed, 180 s")},
    "8B, mixed, 60 s": _small("mixed", 60.0),
}
