"""Mean waits against closed forms, within 2 %; what each request waits is that of test_engine.py."""

from math import factorial

import numpy as np
import pytest

from headway.engine import EngineRules
from headway.planning.types import Role, Slo
from tests.simulation.worlds import ArrayTrace, constant_profile, run, scenario

pytestmark = pytest.mark.slow

WITHIN = 0.02
COUNT = 600_000
SERVICE_S = 0.1


def prefill_wait_s(input_tokens: np.ndarray, rate_rps: float, seed: int) -> float:
    generator = np.random.default_rng(seed)
    arrivals = np.cumsum(generator.exponential(1 / rate_rps, len(input_tokens)))
    trace = ArrayTrace(arrivals, input_tokens, np.ones(len(input_tokens), np.int64))
    profile = constant_profile(itl_s=0.001, prefill_s_per_token=1e-6)
    _, records = run(scenario(profile, {Role.PREFILL: 1, Role.DECODE: 1}), trace)
    assert len(records) == len(input_tokens)
    return float((records["prefill_started_s"] - records["arrival_s"]).mean())


def test_m_m_1():
    """W = ρ / (μ − λ)."""
    load = 0.6
    lengths = np.ceil(np.random.default_rng(11).exponential(SERVICE_S * 1e6, COUNT)).astype(np.int64)
    expected_s = load * SERVICE_S / (1 - load)
    assert prefill_wait_s(lengths, load / SERVICE_S, seed=12) == pytest.approx(expected_s, rel=WITHIN)


def test_m_d_1():
    """W = ρ / (2 μ (1 − ρ))."""
    load = 0.7
    lengths = np.full(COUNT, round(SERVICE_S * 1e6), np.int64)
    expected_s = load * SERVICE_S / (2 * (1 - load))
    assert prefill_wait_s(lengths, load / SERVICE_S, seed=13) == pytest.approx(expected_s, rel=WITHIN)


def erlang_c(servers: int, offered: float) -> float:
    """The probability of waiting with `offered` erlangs on `servers` servers."""
    busy = offered**servers / factorial(servers) * servers / (servers - offered)
    return busy / (sum(offered**k / factorial(k) for k in range(servers)) + busy)


def test_m_m_c():
    """W = C(c, λ/μ) / (c μ − λ): a decode batch of c with an ITL that does not depend on it is c servers."""
    servers, load = 4, 0.7
    count, itl_s, mean_tokens = 800_000, 1e-4, 5_000
    generator = np.random.default_rng(17)
    service_s = itl_s * mean_tokens
    rate_rps = load * servers / service_s
    arrivals = np.cumsum(generator.exponential(1 / rate_rps, count))
    decoded = np.maximum(1, np.rint(generator.exponential(mean_tokens, count)).astype(np.int64))
    trace = ArrayTrace(arrivals, np.ones(count, np.int64), decoded)
    profile = constant_profile(itl_s=itl_s, prefill_s_per_token=1e-9)
    engine = EngineRules(max_batch_size=servers, transfer_latency_s=0.0, kv_bytes_per_token=0.0)
    setting = scenario(profile, {Role.PREFILL: 1, Role.DECODE: 1}, engine=engine, slo=Slo(ttft_s=1, itl_s=1))
    _, records = run(setting, trace)
    wait_s = (records["decode_started_s"] - records["decode_ready_s"]).mean()
    expected_s = erlang_c(servers, load * servers) / (servers / service_s - rate_rps)
    assert wait_s == pytest.approx(expected_s, rel=WITHIN)
