"""Latencies that a replica observes of its own engine, and the reports of them to the Interpolator."""

import asyncio

import pytest

from actors.names import ActorGone, TooSlow
from headway.engine import engine_profile
from headway.engine.observed_latency import LatencyObserver
from headway.planning.types import Role
from headway.profiling import Phase
from serve_apps.deployments import LatencyReporter, MeasuredEngine
from serve_apps.engines.protocol import EngineFailed
from serve_apps.engines.simulated import InjectedFault, SimulatedEngine
from tests.engines.engine_cases import collect, config_of, handle, pools_of, request, route
from tests.engines.virtual_loop import on_virtual_time, run


def metered(role: Role, **engine):
    """Engine, meter, and the calls that `used` heard of."""
    config = config_of(pools_of(role), **engine)
    meter, calls = LatencyObserver(), []
    inner = SimulatedEngine(config, role, "e")
    return MeasuredEngine(inner, meter, lambda: calls.append(1)), inner, meter, calls


def profile(**engine):
    return engine_profile(config_of(**engine))


@on_virtual_time
async def test_a_prompt_takes_what_the_profile_says():
    engine, _, meter, calls = metered(Role.PREFILL)
    kv = await engine.prefill(request(input_tokens=3000))
    assert (kv.input_tokens, calls) == (3000, [1])
    (seen,) = meter.take()
    assert seen == (Phase.PREFILL, 3000, pytest.approx(profile().prefill.ttft_s(3000.0), rel=1e-6), 1.0, "")


@pytest.mark.parametrize("time_scale", [1.0, 0.5])
@on_virtual_time
async def test_a_batch_decodes_as_the_profile_says(time_scale):
    engine, _, meter, _ = metered(Role.DECODE, time_scale=time_scale)
    streams = [
        engine.decode(request(f"r{n}", input_tokens=2000, max_tokens=200), handle(f"r{n}", 2000))
        for n in range(16)
    ]
    chunks = await asyncio.gather(*map(collect, streams))
    assert {sum(chunk.tokens for chunk in stream) for stream in chunks} == {200}
    (seen,) = meter.take()
    assert seen.batch == pytest.approx(16.0, rel=0.01)
    assert seen.tokens == pytest.approx(2100.0, rel=0.01)
    decode = profile(time_scale=time_scale).decode
    kv_usage = seen.batch * seen.tokens / float(decode.table.max_kv_tokens)
    assert seen.latency_s == pytest.approx(decode.itl_s(kv_usage, seen.tokens), rel=0.01)


@on_virtual_time
async def test_a_mixed_engine_reports_both_phases_of_one_request():
    engine, _, meter, _ = metered(Role.MIXED)
    await collect(engine.decode(request(input_tokens=1000, max_tokens=50), None))
    prefill, decode = meter.take()
    assert (prefill.phase, prefill.tokens) == (Phase.PREFILL, 1000)
    assert (decode.phase, decode.batch) == (Phase.DECODE, 1.0)


@on_virtual_time
async def test_prompts_that_the_prefix_cache_knows_are_left_out():
    engine, _, meter, _ = metered(Role.PREFILL, prefix_cache_tokens=65_536)
    known = route(input_tokens=2048, blocks=(1, 2, 3, 4), block_tokens=512)
    for number in range(3):
        await engine.prefill(request(f"r{number}", input_tokens=2048, route=known))
    (seen,) = meter.take()
    assert seen.latency_s == pytest.approx(profile().prefill.ttft_s(2048.0), rel=1e-6)


@on_virtual_time
async def test_streams_that_are_closed_and_engines_that_fail_leave_nothing_behind():
    engine, inner, meter, _ = metered(Role.MIXED)
    stream = engine.decode(request("a", input_tokens=100, max_tokens=500), None)
    await anext(stream)
    await stream.aclose()
    assert inner.stats().running == 0
    await collect(engine.decode(request("b", input_tokens=1000, max_tokens=2), None))
    tokens = {seen.tokens for seen in meter.take() if seen.phase is Phase.PREFILL}
    assert tokens == {100, 1000}
    inner.inject(InjectedFault.FAIL)
    with pytest.raises(EngineFailed):
        await engine.prefill(request("c"))
    assert meter.take() == ()


PERIOD_S = 5.0


class Interpolator:
    """Takes reports, or answers with errors first."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.taken: list[tuple[float, str, int]] = []
        self.standing: dict[str, float] = {}

    async def call(self, method, reports, replica, *, timeout_s):
        if self.errors:
            raise self.errors.pop(0)
        assert replica == "p1"
        self.taken.append((asyncio.get_running_loop().time(), method, len(reports)))
        return self.standing


def prompt(meter: LatencyObserver) -> None:
    part = meter.begin(0.0, 1000, computes=True)
    meter.computed(part, 0.1, reused=False)
    meter.end(part, 0.1)


async def reported(actor: Interpolator, prompts: int, gap_s: float) -> list[tuple[float, str, int]]:
    meter = LatencyObserver()
    reporter = LatencyReporter(meter, PERIOD_S, actor, "p1")  # type: ignore[arg-type]
    for _ in range(prompts):
        reporter.start()
        prompt(meter)
        await asyncio.sleep(gap_s)
    await asyncio.sleep(3 * PERIOD_S)
    return actor.taken


def test_there_is_a_report_a_period_while_there_is_something_to_say():
    assert run(reported(Interpolator(), prompts=4, gap_s=2.0)) == [(5.0, "learn", 1), (10.0, "learn", 1)]


@pytest.mark.parametrize("error", [ActorGone("gone"), TooSlow("slow"), ValueError("no profile")])
def test_a_report_that_is_lost_is_not_the_last(error):
    assert run(reported(Interpolator(error), prompts=2, gap_s=6.0)) == [(10.0, "learn", 1)]


@on_virtual_time
async def test_a_replica_that_differs_says_that_it_is_there_until_that_is_over():
    actor, meter = Interpolator(), LatencyObserver()
    reporter = LatencyReporter(meter, PERIOD_S, actor, "p1")  # type: ignore[arg-type]
    actor.standing = {"slowness": 2.0, "idle_requests": 12.0}
    reporter.start()
    prompt(meter)
    await asyncio.sleep(2.5 * PERIOD_S)
    assert reporter.standing["slowness"] == 2.0
    actor.standing = {}
    await asyncio.sleep(4 * PERIOD_S)
    assert reporter.standing == {}
    assert [(at_s, count) for at_s, _, count in actor.taken] == [(5.0, 1), (10.0, 0), (15.0, 0)]
