"""A generated fleet: `fleet:models=30,hours=24` is a file of deployments, each with its engine and its load.

Of n models the k-th has a share of `rate_rps` by a power law, and a rhythm of its own (`generators`):

    r_k = R k^−z / Σ_j j^−z        z is `zipf`

Models below `rare_rps` are rare: they may have no replica, the last one sleeps, and they have ten times the
time to the first token, a lower priority, and clients that come and go for half an hour. Lengths are those of
one KIND each, engines embedded profiles from 8B to 70B. A model's draws depend on the seed and its place, not
on the others.

Sources of the shape, none of which are copied. At Aegaeon's (SOSP 2025) 94 % of the models had 1.35 % of
the requests; here 23 of 30 models have 2 % of them. Arrivals are burstier than Poisson, as gamma, and clients
come and go: ServeGen (arXiv 2505.09999). Whole services swing by 20 to 30 % around the mean of a day and vary
by 6 to 14 % beyond Poisson in a minute (Azure's 2023 trace, Mooncake's, ServeGen's rates), single models by
more. Lengths are near the means of these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from headway.workload.generators import parse_pairs

NAME = "fleet"
HOUR_S = 3600.0

ENGINES = (
    "llama-3.1-8b_h100_tp1",
    "qwen3-30b-a3b_h100_tp1",
    "qwen3-32b_h100_tp2",
    "llama-3.1-70b_h100_tp4",
)

KINDS = (
    "input_tokens=1200,input_cv=1,output_tokens=200,output_cv=0.8",
    "input_tokens=2000,input_cv=1,output_tokens=30,output_cv=1.5",
    "input_tokens=1300,input_cv=1.5,output_tokens=1500,output_cv=1.5",
    "input_tokens=12000,input_cv=1.3,output_tokens=350,output_cv=0.7",
)
"""Chat, code, reasoning, and long prompts, which only rare models get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedFleet:
    """The keys of a specification."""

    models: int = 30
    hours: float = 24.0
    rate_rps: float = 20.0
    zipf: float = 2.5
    rare_rps: float = 0.1
    seed: int = 0

    def settings(self) -> Mapping[str, Any]:
        """What the file holds."""
        weights = np.arange(1, self.models + 1) ** -self.zipf
        rates = self.rate_rps * weights / weights.sum()
        return {
            "slo": {"itl_ms": 50},
            "simulation": {"start_up_delay_s": 60, "seed": self.seed},
            "deployments": {
                f"m{place:03d}": self._deployment(place, float(rate))
                for place, rate in enumerate(rates, start=1)
            },
        }

    def _deployment(self, place: int, rate_rps: float) -> Mapping[str, Any]:
        draw, rare = np.random.default_rng((self.seed, place)), rate_rps < self.rare_rps
        profile, kind = draw.choice(ENGINES), draw.choice(KINDS if rare else KINDS[:-1])
        burst_s, least_cv, most_cv = (1800, 1.5, 3.0) if rare else (300, 0.05, 0.2)
        keys = {
            "rate_rps": f"{rate_rps:.5g}",
            "amplitude": f"{draw.uniform(0.3, 0.9):.2f}",
            "crest_s": f"{draw.normal(14.0, 4.0) % 24.0 * HOUR_S:.0f}",
            "burst_s": burst_s,
            "burst_cv": f"{draw.uniform(least_cv, most_cv):.2f}",
            "duration_s": f"{self.hours * HOUR_S:.10g}",
            "seed": int(draw.integers(2**31)),
        }
        load = ",".join(f"{key}={value}" for key, value in keys.items())
        bounds = {"min_replicas": 0, "sleepers": 1} if rare else {"min_replicas": 1}
        return {
            "model": f"{profile.split('_')[0]}-{place:03d}",
            "engine": {"profile": str(profile)},
            "pools": {"mixed": {"max_replicas": 64, **bounds}},
            "slo": {"ttft_ms": 5000 if rare else 500},
            "share": {"priority": 0 if rare else 1},
            "simulation": {"load": {"trace": f"rhythm:{load},{kind}"}},
        }


def is_fleet_spec(source: str) -> bool:
    """True for `fleet` and `fleet:key=value,…`."""
    return source.partition(":")[0] == NAME


def parse_fleet_spec(spec: str, seed: int) -> GeneratedFleet:
    """The fleet of a specification, `seed` where it names none; raises TraceError."""
    known = {field.name for field in fields(GeneratedFleet)}
    given: dict[str, Any] = {"seed": seed, **parse_pairs(spec, spec.partition(":")[2], known)}
    return GeneratedFleet(**given)
