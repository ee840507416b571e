"""Made-up loads, and what the simulator makes of them with a fixed fleet."""

from functools import cache

import numpy as np

from headway.config import resolve_profile
from headway.engine import EngineRules
from headway.engine.kernel.layout import Routing
from headway.planning.replay import ReplayEngine, Requests
from headway.planning.types import Slo
from interp import load_profile
from tests.simulation.worlds import ArrayTrace, run, scenario

SMALL, LARGE = "llama-3.1-8b_h100_tp1", "llama-3.1-70b_h100_tp4"
KV_BYTES, BANDWIDTH = 131_072.0, 25e9


@cache
def profile(name):
    return load_profile(resolve_profile(name))


def engine(name=SMALL, ttft_s=1.0, itl_s=0.02, max_batch_size=256, chunk_tokens=0):
    return ReplayEngine(
        profile=profile(name),
        slo=Slo(ttft_s=ttft_s, itl_s=itl_s),
        max_batch_size=max_batch_size,
        chunk_tokens=chunk_tokens,
        transfer_latency_s=0.005,
        transfer_s_per_token=KV_BYTES / BANDWIDTH,
    )


def load(seed, rate_rps, seconds, isl, osl, burstiness=0.0):
    """Poisson arrivals and lognormal lengths of those means; bursty ones change their rate each 10 s."""
    draw = np.random.default_rng(seed)
    periods = int(seconds / 10)
    rates = draw.gamma(1 / burstiness, burstiness, periods) if burstiness else np.ones(periods)
    counts = draw.poisson(10 * rate_rps * rates)
    arrival_s = np.sort(np.repeat(10.0 * np.arange(periods), counts) + draw.uniform(0, 10, counts.sum()))
    lengths = np.exp(draw.standard_normal((2, len(arrival_s))) - 0.5)
    return Requests(arrival_s, *np.maximum(1.0, np.rint(np.array([[isl], [osl]]) * lengths)))


def simulated(of, requests, fleet):
    """Which requests miss TTFT, and which miss TPOT, bool[N] each, with least-load routing."""
    trace = ArrayTrace(*requests[:3])
    rules = EngineRules(
        max_batch_size=of.max_batch_size,
        chunk_tokens=of.chunk_tokens,
        transfer_latency_s=of.transfer_latency_s,
        transfer_bytes_per_s=BANDWIDTH,
        kv_bytes_per_token=KV_BYTES,
    )
    setting = scenario(of.profile, fleet, slo=of.slo, engine=rules, routing=Routing.LEAST_LOAD)
    _, records = run(setting, trace)
    late = records["first_token_s"] - records["arrival_s"] > of.slo.ttft_s
    decoded = records["output_tokens"] - 1
    slow = records["finished_s"] - records["first_token_s"] > of.slo.itl_s * decoded
    refused = records["outcome"] != 0
    return late | refused, (slow & (decoded > 0)) | refused
