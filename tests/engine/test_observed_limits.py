"""Limits that engines show: a full batch, a KV cache, and what only looks like a full batch."""

import json
from collections.abc import Iterable

import numpy as np
import pytest

from headway.engine import EngineRules
from headway.engine.observed_limits import LEAST_FULL, EngineLimits, with_kv_tokens
from headway.engine.observed_metrics import EngineLoad, EngineReading, EngineReadings, EngineTotals
from headway.engine.refinement import Refinement, corrections, moved, refined
from headway.planning.types import Role
from headway.simulation.observing import engine_loads, engine_totals
from headway.simulation.simulate import SimulationRun, Watchers
from tests.simulation.worlds import Schedule, poisson_trace, roofline_profile, scenario

PROFILE = roofline_profile()
DECODED = EngineTotals(gaps=6000.0, gap_s=120.0, iterations=750.0)


def full(running: float, waiting: float = 9.0, kv_usage: float = 0.5, **gained: float) -> EngineReading:
    load = EngineLoad(running, waiting, kv_usage, 80_000.0)
    return EngineReading("a", 0.0, 15.0, DECODED._replace(**gained), load)


def limits(readings: Iterable[EngineReading], known: EngineLimits | None = None) -> EngineLimits:
    return (known or EngineLimits()).with_readings(readings, 2048, 100_000.0)


def learnt(fleet: dict[Role, int], rules: EngineRules, rate_rps: float) -> EngineLimits:
    """What a simulated fleet shows in six minutes, read every 5 s."""
    setting = scenario(PROFILE, fleet, engine=rules)
    trace = poisson_trace(3, int(360 * rate_rps), rate_rps)
    driven = SimulationRun(setting, trace, Schedule([fleet], interval_s=5.0), None, Watchers())
    readings = EngineReadings()
    while (observation := driven.advance()) is not None and observation.now_s < trace.duration_s:
        readings.add(engine_totals(driven.fleet), observation.now_s, engine_loads(driven.fleet))
        driven.act(observation, driven.policy.plan(observation, 0))
    return EngineLimits().with_readings(readings.take(), rules.chunk_tokens, 50_000.0)


@pytest.mark.parametrize("fleet", [{Role.PREFILL: 2, Role.DECODE: 1}, {Role.MIXED: 1}])
def test_the_largest_batch_of_saturated_engines_is_learnt(fleet: dict[Role, int]) -> None:
    rules = EngineRules(max_batch_size=12, chunk_tokens=1024 * (Role.MIXED in fleet))
    found = learnt(fleet, rules, 14.0)
    assert (found.batch, found.kv_tokens) == (12, 100_000.0)


@pytest.mark.parametrize(
    ("fleet", "rate_rps"), [({Role.PREFILL: 2, Role.DECODE: 1}, 8.0), ({Role.MIXED: 1}, 4.0)]
)
def test_engines_with_room_show_no_limit(fleet: dict[Role, int], rate_rps: float) -> None:
    rules = EngineRules(max_batch_size=256, chunk_tokens=1024 * (Role.MIXED in fleet))
    assert learnt(fleet, rules, rate_rps).batch is None


def test_prompts_and_a_full_kv_cache_are_no_full_batch() -> None:
    """18 of 24 requests wait for the token budget, for KV, or because one came in mid-iteration."""
    prompts = {"first_tokens": 700.0, "asked_tokens": 1_400_000.0}
    for reading in (full(24.0, **prompts), full(24.0, kv_usage=0.97), full(24.0, waiting=1.0)):
        assert limits([reading] * 40).batch is None
    assert limits([full(24.0, gaps=0.0)] * 40).recent == ()


def test_waiting_at_many_sizes_is_no_limit() -> None:
    sizes = np.random.default_rng(1).integers(10, 24, 200)
    assert limits(full(float(size)) for size in sizes).batch is None


def test_a_limit_lasts_until_an_engine_runs_more() -> None:
    known = limits([full(24.0)] * (LEAST_FULL - 1))
    assert known.batch is None
    known = limits([full(24.0)], known)
    assert known.batch == 24
    known = limits([full(5.0, waiting=0.0)] * 1000, known)
    assert known.batch == 24
    known = limits([full(25.0, waiting=0.0)], known)
    assert known.batch is None


def test_starts_that_differ_a_little_have_one_kv_cache() -> None:
    known = limits([full(1.0)])
    a_little = [full(1.0)._replace(load=EngineLoad(1.0, 0.0, 0.1, 81_000.0))]
    assert limits(a_little, known).kv_tokens == 80_000.0
    as_profiled = [full(1.0)._replace(load=EngineLoad(1.0, 0.0, 0.1, 101_000.0))]
    assert limits(as_profiled).kv_tokens is None
    half = [full(1.0)._replace(load=EngineLoad(1.0, 0.0, 0.1, 40_000.0))]
    assert limits(half, known).kv_tokens == 40_000.0


def test_limits_are_restored() -> None:
    known = Refinement(limits=limits([full(24.0)] * LEAST_FULL))
    again = Refinement.restored(json.loads(json.dumps(known.document())))
    assert again.limits.known == known.limits.known == {"batch": 24, "kv_tokens": 80_000.0}
    older = {key: value for key, value in known.document().items() if key != "limits"}
    assert Refinement.restored(older).limits.known == {}


@pytest.mark.parametrize("kv_tokens", [20_000.0, 400_000.0])
def test_another_kv_cache_keeps_the_times_by_tokens_and_batch(kv_tokens: float) -> None:
    other = with_kv_tokens(PROFILE, kv_tokens)
    assert float(other.decode.table.max_kv_tokens) == kv_tokens
    for batch, context in ((4.0, 1024.0), (16.0, 256.0)):
        tokens = batch * context
        before = PROFILE.decode.itl_s(tokens / 100_000.0, context)
        assert other.decode.itl_s(tokens / kv_tokens, context) == pytest.approx(before, rel=0.02)
    # Beyond what was sampled the roofline goes on.
    if kv_tokens > 100_000.0:
        assert other.decode.itl_s(0.5, 1024.0) == pytest.approx(
            0.008 + 4e-8 * 2e5 + 6e-5 * 2e5 / 1024.0, rel=0.05
        )


def test_a_limit_is_in_the_profile_that_is_served() -> None:
    known = Refinement(limits=limits([full(24.0)] * LEAST_FULL))
    served = refined(PROFILE, known)
    assert served.decode.largest_batch == 24.0
    assert served.meta["refined"]["limits"] == {"kv_tokens": 80_000.0, "batch": 24}
    assert moved(corrections(PROFILE, Refinement()), corrections(PROFILE, known))
