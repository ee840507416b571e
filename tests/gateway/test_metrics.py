"""What the gateway counts, exactly, on a clock that the test moves."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from actors.collector.request_list import LOST
from headway.config import HeadwayConfig
from headway.routing.types import RequestSlo
from serve_apps.engines.protocol import EngineRequest, TokenChunk
from serve_apps.faults import Outcome
from serve_apps.gateway.app import GatewayApp, make_app
from serve_apps.gateway.backend import ChunkSink, Overloaded, ReplicaLost, Timeline
from serve_apps.gateway.metrics import GAPS_S, LENGTHS, WAITS_S, Histogram, grid, whole_grid
from serve_apps.gateway.slo_targets import SloTargets
from tests.clocks import Clock
from tests.gateway.doubles import ScriptedBackend
from tests.gateway.serving import asked

CONFIG = HeadwayConfig.model_validate({"model": "m", "slo": {"ttft_ms": 300, "itl_ms": 20}})


class Timed(ScriptedBackend):
    """Takes the script's numbers for seconds on the test's clock."""

    clock: Clock

    async def generate(
        self, request: EngineRequest, timeline: Timeline | None = None, sink: ChunkSink | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        for step in self.script:
            match step:
                case float():
                    self.clock.now_s += step
                case BaseException():
                    raise step
                case TokenChunk():
                    yield step


def gateway(script: Sequence[Any]) -> GatewayApp:
    backend = Timed(script)
    backend.clock = Clock()
    return make_app(CONFIG, backend, clock=backend.clock)


def ask(app: GatewayApp, **fields: Any) -> None:
    asyncio.run(asked(app, {"model": "m", "prompt": [1] * 10, "stream": True} | fields))


def scrape(app: GatewayApp) -> dict[tuple[str, tuple[str, ...]], float]:
    """Samples by name and label values other than the model, as Prometheus reads them."""
    from prometheus_client import generate_latest

    families = text_string_to_metric_families(generate_latest(app.state.registry).decode())
    return {
        (
            sample.name,
            tuple(value for name, value in sorted(sample.labels.items()) if name != "model"),
        ): sample.value
        for family in families
        for sample in family.samples
    }


def token(count: int = 1, reason: str | None = None) -> TokenChunk:
    return TokenChunk(b"x" * count, count, reason)


def test_times_of_a_stream():
    app = gateway([0.2, token(), 0.01, token(), 0.03, token(3, "length")])
    ask(app)
    seen = scrape(app)
    assert seen["headway_time_to_first_token_seconds_sum", ()] == pytest.approx(0.2)
    assert seen["headway_inter_token_latency_seconds_count", ()] == 4
    assert seen["headway_inter_token_latency_seconds_sum", ()] == pytest.approx(0.04)
    assert seen["headway_request_tpot_seconds_sum", ("ok",)] == pytest.approx(0.01)
    assert seen["headway_request_ttft_seconds_sum", ("ok",)] == pytest.approx(0.2)
    assert seen["headway_request_duration_seconds_sum", ("ok",)] == pytest.approx(0.24)
    assert seen["headway_request_output_tokens_sum", ("ok",)] == 5
    assert seen["headway_request_input_tokens_sum", ("ok",)] == 10
    assert seen["headway_arrival_input_tokens_sum", ()] == 10
    assert seen["headway_request_arrivals_total", ()] == 1
    assert seen["headway_output_tokens_total", ()] == 5
    assert seen["headway_requests_in_flight", ()] == 0


def test_gaps_in_a_chunk_are_its_share_of_the_gap():
    app = gateway([token(), 0.03, token(3, "length")])
    ask(app)
    buckets = {
        float(labels[0]): value
        for (name, labels), value in scrape(app).items()
        if name == "headway_inter_token_latency_seconds_bucket"
    }
    assert buckets[0.02] == 3
    assert 0.007 < max(bound for bound, value in buckets.items() if value == 0) < 0.01


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 5)), min_size=1, max_size=20))
def test_gaps_add_up_to_the_time_between_first_and_last_token(steps):
    script = [part for gap_s, count in steps for part in (gap_s, token(count))]
    app = gateway([*script, token(0, "length")])
    ask(app)
    metrics = app.state.metrics
    tokens = sum(count for _, count in steps)
    first = next((at for at, (_, count) in enumerate(steps) if count), None)
    last = max((at for at, (_, count) in enumerate(steps) if count), default=0)
    assert metrics.output_tokens == tokens
    assert metrics.itl.count == max(0, tokens - 1)
    if first is not None:
        assert metrics.itl.total == pytest.approx(sum(gap for gap, _ in steps[first + 1 : last + 1]))


@pytest.mark.parametrize(
    ("script", "met"),
    [
        ([0.29, token(), 0.02, token(1, "length")], True),
        ([0.31, token(), 0.01, token(1, "length")], False),
        ([0.29, token(), 0.03, token(1, "length")], False),
        ([0.29, token(1, "length")], True),
        ([0.29, token(), ReplicaLost("gone")], False),
        ([Overloaded("full")], False),
    ],
)
def test_whether_a_request_met_its_slo(script, met):
    app = gateway(script)
    ask(app)
    assert app.state.metrics.slo_requests == {met: 1, not met: 0}


def test_the_slo_can_be_changed_while_it_runs():
    app = gateway([0.2, token(), 0.03, token(1, "length")])
    ask(app)
    app.state.set_slo(ttft_s=0.21, itl_s=0.04)
    ask(app)
    app.state.set_slo(ttft_s=0.1, itl_s=0.04)
    ask(app)
    assert app.state.metrics.slo_requests == {True: 1, False: 2}
    assert app.state.slo.ttft_s == 0.1


def test_invalid_requests_are_no_arrivals_and_not_judged():
    app = gateway([token(1, "length")])
    ask(app, n=200)
    ask(app, model="other")
    ask(app, prompt=[1] * 10**6)
    assert app.state.metrics.requests["invalid"] == 2
    assert app.state.metrics.requests["too_long"] == 1
    assert app.state.metrics.arrivals == 0
    assert app.state.metrics.slo_requests == {True: 0, False: 0}


def test_requests_of_a_class_that_are_lost_are_listed_with_those_that_end_well():
    metrics = gateway([]).state.metrics
    targets = SloTargets(slo=RequestSlo(ttft_s=0.5), slo_class="urgent", class_place=2)
    for outcome, wished in (("shed", targets), ("aborted", targets), ("shed", SloTargets())):
        metrics.judge(outcome, (None, None), wished)
    (row,) = metrics.log.recent(60.0).rows
    assert (row["output_tokens"], row["slo_class"]) == (LOST, 2)


def test_every_outcome_has_a_count_from_the_start():
    seen = scrape(gateway([]))
    assert {labels[0] for name, labels in seen if name == "headway_requests_total"} == set(get_args(Outcome))
    assert seen["headway_slo_requests_total", ("false",)] == 0
    assert seen["headway_request_duration_seconds_count", ("ok",)] == 0


def test_targets_are_bounds():
    seen = {
        float(labels[0])
        for name, labels in scrape(gateway([]))
        if name.endswith("first_token_seconds_bucket")
    }
    assert 0.3 in seen


def test_neighbouring_bounds_are_close():
    for bounds in (grid(*WAITS_S, (0.3,)), grid(*GAPS_S), whole_grid(*LENGTHS)):
        assert all(low < high <= 1.46 * low for low, high in pairwise(bounds))
    assert grid(*WAITS_S)[-1] >= 160.0
    assert whole_grid(8, 100) == (8, 11, 16, 23, 32, 45, 64, 91, 128)


@given(st.lists(st.floats(0, 1000), max_size=30))
def test_buckets_count_what_is_at_or_below_them(values):
    bounds = grid(1e-3, 600.0, (0.3,))
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    *finite, (last, everything) = histogram.buckets()
    assert [count for _, count in finite] == [sum(value <= bound for value in values) for bound in bounds]
    assert (last, everything) == ("+Inf", len(values))
    assert histogram.total == pytest.approx(sum(values))
