"""Single requests from the gateway to the planner's observation: those of the interval, or none at all."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from math import isnan, nan
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Counter, Gauge, generate_latest

from actors.collector.assembling import assemble
from actors.collector.interval import Health, HealthStatus, Increase, Measured, Quantity
from actors.collector.request_list import (
    ARRIVAL,
    LOST,
    REPEAT,
    ROW,
    UNKNOWN,
    RequestList,
    classes_within,
    clock_shift_s,
    decode,
    encode,
    shifted,
    traffic_within,
)
from actors.planning.tick import observe
from serve_apps.gateway.request_log import RequestLog
from tests.actors.collector_cases import collecting, serving
from tests.clocks import Clock
from tests.exporter import MODEL, Exporter

pytestmark = pytest.mark.anyio


PLAIN = (UNKNOWN, nan, nan, 0, nan, nan, nan)


def told(*rows: tuple[float, ...], now_s: float = 100.0, whole_since_s: float = 0.0) -> RequestList:
    whole = [(*row, *PLAIN[len(row) - 3 :]) for row in rows]
    return RequestList(now_s, whole_since_s, np.array(whole, ROW))


# --- what a gateway tells


def test_what_is_told_arrives_as_it_was():
    said = told((99.5, 10, ARRIVAL), (99.75, 4_000_000_000, 2_000_000_000), whole_since_s=3.25)
    heard = decode(encode(said).decode())
    assert heard[:2] == said[:2]
    assert heard.rows.tobytes() == said.rows.tobytes()


@pytest.mark.parametrize(
    "body",
    [
        "",
        "# HELP headway_requests_total x\n",
        "[]",
        "null",
        "{}",
        '{"now_s": 1, "whole_since_s": 0}',
        '{"now_s": 1, "whole_since_s": 0, "rows": "?"}',
        '{"now_s": 1, "whole_since_s": 0, "rows": 5}',
        '{"now_s": null, "whole_since_s": 0, "rows": ""}',
        json.dumps({"now_s": 1, "whole_since_s": 0, "rows": base64.b64encode(b"123").decode()}),
        encode(RequestList(1.0, 0.0, np.zeros(1, ROW))).decode().replace("took_s", "taken_s"),
    ],
)
def test_anything_else_is_refused(body):
    with pytest.raises(ValueError, match="no list of requests"):
        decode(body)


def test_the_interval_begins_after_its_start_and_ends_with_its_end():
    said = told(
        *((at_s, tokens, out) for at_s in (10.0, 15.0, 20.0) for tokens, out in ((1, ARRIVAL), (2, 7)))
    )
    traffic = traffic_within(said, 10.0, 15.0)
    assert traffic is not None
    assert traffic.arrival_s.tolist() == [15.0]
    assert (traffic.completed_input_tokens.tolist(), traffic.completed_output_tokens.tolist()) == ([2], [7])


def test_cached_tokens_and_promises_of_single_requests_come_along():
    said = told(
        (11.0, 500, ARRIVAL, UNKNOWN, 0.5, 0.02, 2),
        (12.0, 900, ARRIVAL),
        (13.0, 500, 20, 320),
        (14.0, 900, 30),
    )
    traffic = traffic_within(said, 10.0, 15.0)
    assert traffic.completed_cached_tokens[0] == 320.0
    assert isnan(traffic.completed_cached_tokens[1])
    assert (traffic.slo_ttft_s[0], traffic.slo_itl_s[0]) == pytest.approx((0.5, 0.02))
    assert traffic.slo_class.tolist() == [2.0, 0.0]
    assert isnan(traffic.slo_ttft_s[1])
    plain = traffic_within(said, 11.5, 12.5)
    assert plain.completed_cached_tokens is plain.slo_ttft_s is plain.slo_itl_s is plain.slo_class is None


def test_what_a_request_took_comes_along():
    took = (3.0, 0.25, 0.01)
    theirs = told((13.0, 500, 20, 320, 0.5, 0.02, 2, *took), (14.0, 9, 1))
    traffic = traffic_within(shifted(theirs, 0.5), 10.0, 15.0)
    assert traffic.completed_arrival_s[0] == 10.5
    assert (traffic.completed_ttft_s[0], traffic.completed_itl_s[0]) == pytest.approx((0.25, 0.01))
    assert (traffic.completed_slo_ttft_s[0], traffic.completed_slo_itl_s[0]) == pytest.approx((0.5, 0.02))
    assert isnan(traffic.completed_arrival_s[1])
    assert isnan(traffic.completed_slo_ttft_s[1])


def test_an_interval_by_class():
    slo = (UNKNOWN, 0.5, 0.02)
    said = told(
        (9.0, 1, ARRIVAL, *slo, 2),
        (11.0, 1, ARRIVAL, *slo, 2),
        (11.5, 1, ARRIVAL, *slo, 2),
        (12.0, 500, 20, *slo, 2, 1.0, 0.4, 0.01),
        (12.5, 500, 20, *slo, 2, 1.0, 0.6, 0.01),
        (13.0, 500, 1, *slo, 2, 1.0, 0.2, nan),
        (14.0, 0, LOST, *slo, 2),
        (14.5, 900, 30),
    )
    found = classes_within(said, (10.0, 15.0), ("batch", "chat"))
    assert list(found) == ["batch", "chat"]
    chat = found["chat"]
    assert (chat.requests, chat.judged, chat.attainment) == (2.0, 4.0, 0.5)
    assert (chat.ttft_s.p50, chat.ttft_s.count, chat.itl_s.count) == (pytest.approx(0.4), 3.0, 2.0)
    assert isnan(found["batch"].attainment)
    assert (found["batch"].requests, found["batch"].ttft_s.count) == (0.0, 0.0)
    traffic = traffic_within(said, 10.0, 15.0)
    assert len(traffic.completed_input_tokens) == 4


@given(
    times=st.lists(st.floats(0, 100), max_size=50),
    borders=st.lists(st.floats(0, 100), min_size=1, max_size=5),
)
def test_intervals_tile(times, borders):
    said = told(*((at_s, number, ARRIVAL) for number, at_s in enumerate(sorted(times))), whole_since_s=-1.0)
    ends = [-1.0, *sorted(borders), 100.0]
    parts = [traffic_within(said, *ends_of_one) for ends_of_one in pairwise(ends)]
    assert np.concatenate([part.input_tokens for part in parts]).tolist() == list(range(len(times)))


def test_rows_that_are_gone_leave_none_and_a_quiet_interval_is_empty():
    assert traffic_within(told(whole_since_s=10.5), 10.0, 20.0) is None
    assert traffic_within(shifted(told(whole_since_s=10.0), 0.5), 10.0, 20.0) is None
    quiet = traffic_within(told(whole_since_s=10.0), 10.0, 20.0)
    assert quiet is not None
    assert len(quiet.arrival_s) == len(quiet.completed_input_tokens) == 0


def test_arrivals_are_in_order_though_the_gateways_clock_was_set_back():
    said = told((50.0, 1, ARRIVAL), (49.0, 2, ARRIVAL), (49.5, 9, 3), (49.5, 3, ARRIVAL))
    traffic = traffic_within(said, 10.0, 60.0)
    assert traffic is not None
    assert (traffic.arrival_s.tolist(), traffic.input_tokens.tolist()) == ([49.0, 49.5, 50.0], [2, 3, 1])


@pytest.mark.parametrize(
    ("gateway_s", "shift_s"), [(100.0, 0.0), (100.1, 0.0), (100.2, 0.0), (90.0, 10.0), (160.2, -60.0)]
)
def test_clocks_that_may_agree_do(gateway_s, shift_s):
    assert clock_shift_s(told(now_s=gateway_s), 100.0, 100.2) == pytest.approx(shift_s)


# --- the collector


class Gateway:
    """An exporter's metrics and a gateway's log on one port; `log` may be None or text."""

    def __init__(self, exporter: Exporter, clock: Clock) -> None:
        self.exporter = exporter
        self.log: RequestLog | str | int = RequestLog(clock)
        self.asked: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if request.path == "/metrics":
            return web.Response(body=generate_latest(self.exporter.registry))
        if isinstance(self.log, int):
            return web.Response(status=self.log)
        if isinstance(self.log, str):
            return web.Response(text=self.log)
        return web.Response(body=encode(self.log.recent(float(request.query["seconds"]))))

    def serve(self, input_tokens: int, output_tokens: int) -> None:
        assert isinstance(self.log, RequestLog)
        self.exporter.serve([0.1], isl=float(input_tokens), osl=output_tokens)
        self.log.arrived(input_tokens)
        self.log.completed(input_tokens, output_tokens)

    def serve_again(self, input_tokens: int, output_tokens: int) -> None:
        """A request that failed before."""
        assert isinstance(self.log, RequestLog)
        self.exporter.arrive_again(float(input_tokens))
        self.exporter.end(0.1, [0.01] * (output_tokens - 1))
        self.log.repeated(self.log.arrived(input_tokens))
        self.log.completed(input_tokens, output_tokens)


@asynccontextmanager
async def world(
    clock: Clock, gateway_clock: Clock | None = None, model: str = MODEL, **metrics: Any
) -> AsyncIterator[Any]:
    """A gateway that was read once, and its collector."""
    exporter = Exporter()
    gateway = Gateway(exporter, gateway_clock or clock)
    async with (
        serving(gateway.answer) as gateway.url,
        collecting("gateway", gateway.url, clock=clock, model=model, **metrics) as collector,
    ):
        await collector.ready()
        yield gateway, collector
    exporter.stop()


@pytest.mark.parametrize("off_s", [0.0, 40.0, -40.0])
async def test_the_requests_of_each_interval_whatever_the_gateways_clock_says(off_s):
    clock, theirs = Clock(), Clock(1_000.0 + off_s)
    async with world(clock, theirs) as (gateway, collector):
        seen = []
        for count in (2, 0, 3):
            for number in range(count):
                for each in (clock, theirs):
                    each.now_s += 1.0
                gateway.serve(100 + number, 7 + number)
            for each in (clock, theirs):
                each.now_s += 10.0 - count
            seen.append(await collector.collect(10.0))
    assert [len(measured.traffic.arrival_s) for measured in seen] == [2, 0, 3]
    assert seen[0].traffic.arrival_s == pytest.approx([1_001.0, 1_002.0])
    assert seen[2].traffic.input_tokens.tolist() == [100, 101, 102]
    assert seen[2].traffic.completed_output_tokens.tolist() == [7, 8, 9]
    assert [measured.requests for measured in seen] == [2, 0, 3]


@pytest.mark.parametrize(
    ("log", "why"), [(404, "404"), (500, "500"), ("# HELP x y\n", "no list"), ("{}", "no list")]
)
async def test_a_gateway_without_a_log_is_measured_all_the_same(log, why):
    clock = Clock()
    async with world(clock) as (gateway, collector):
        gateway.serve(100, 7)
        gateway.log = log
        clock.now_s += 10.0
        measured = await collector.collect(10.0)
        assert (measured.health, measured.requests) == (Health(status=HealthStatus.OK), 1.0)
        assert measured.traffic is None
        status = await collector.status()
        assert why in status["no_traffic"]
        assert status["failures"] == 0


async def test_an_interval_in_which_requests_were_lost_has_no_traffic_and_the_next_one_has():
    clock = Clock()
    async with world(clock) as (gateway, collector):
        clock.now_s += 4.0
        gateway.log = RequestLog(clock)
        gateway.serve(100, 7)
        clock.now_s += 6.0
        assert (await collector.collect(10.0)).traffic is None
        assert "not kept" in (await collector.status())["no_traffic"]
        clock.now_s += 10.0
        assert (await collector.collect(10.0)).traffic is not None
        assert (await collector.status())["no_traffic"] == ""


async def test_only_our_own_gateway_is_asked():
    clock = Clock()
    async with world(clock, preset="dynamo") as (gateway, collector):
        labels, registry = ("model", "status"), gateway.exporter.registry
        ended = Counter("dynamo_frontend_requests", "x", labels, registry=registry)
        Gauge("dynamo_frontend_inflight_requests", "x", ("model",), registry=registry).labels(MODEL).set(0)
        await collector.ready()
        ended.labels(MODEL, "success").inc(3)
        clock.now_s += 10.0
        measured = await collector.collect(10.0)
        assert (measured.requests, measured.traffic) == (3.0, None)
        assert set(gateway.asked) == {"/metrics"}


async def test_nothing_is_asked_of_an_interval_that_was_not_measured():
    clock = Clock()
    async with world(clock, model="absent") as (gateway, collector):
        clock.now_s += 10.0
        measured = await collector.collect(10.0)
        assert (measured.health.status, measured.traffic) == (HealthStatus.STARTING, None)
        assert set(gateway.asked) == {"/metrics"}


async def test_repeats_are_left_out_of_the_plan_and_counted():
    clock = Clock()
    async with world(clock) as (gateway, collector):
        for number in range(4):
            clock.now_s += 1.0
            gateway.serve(100, 7)
            if number < 3:
                gateway.serve_again(4_000, 9)
        clock.now_s += 6.0
        found = await collector.collect(10.0)
    seen = observe(found, {}, 10.0)
    assert (found.health.status, found.completed, found.ended) == (HealthStatus.OK, 7.0, 7.0)
    assert (seen.requests, seen.repeats, seen.isl_tokens) == (4.0, 3.0, 100.0)
    assert seen.traffic is not None
    assert seen.traffic.input_tokens.tolist() == [100.0] * 4
    # What they were answered is work that was done.
    assert sorted(seen.traffic.completed_output_tokens.tolist()) == [7.0] * 4 + [9.0] * 3


def test_what_was_cached_is_of_all_prompts_repeats_too():
    seen = {
        Quantity.REQUESTS: Increase(count=4.0),
        Quantity.ISL: Increase(count=4.0, total=400.0),
        Quantity.REPEATS: Increase(count=3.0, total=300.0),
        Quantity.CACHED: Increase(count=200.0),
    }
    found = assemble(0.0, 10.0, seen, {}, {}, knows_attainment=False)
    assert (found.requests, found.isl_tokens, found.cached_tokens) == (1.0, 100.0, 50.0)


def test_what_is_known_as_a_repeat_later_is_one_as_long_as_its_row_is_there():
    clock = Clock()
    log = RequestLog(clock, 4)
    numbers = [log.arrived(tokens) for tokens in (1, 2)]
    log.repeated(numbers[0])
    assert log.recent(9.0).rows["output_tokens"].tolist() == [REPEAT, ARRIVAL]
    for tokens in (3, 4, 5):
        log.arrived(tokens)
    log.repeated(numbers[0])
    log.repeated(numbers[1])
    assert log.recent(9.0).rows["output_tokens"].tolist() == [REPEAT, ARRIVAL, ARRIVAL, ARRIVAL]


def test_repeats_are_arrivals_of_their_class():
    said = told(*((at_s, 1, kind, UNKNOWN, 0.5, 0.02, 1) for at_s, kind in ((1.0, ARRIVAL), (2.0, REPEAT))))
    found = classes_within(said, (0.0, 5.0), ("chat",))["chat"]
    assert (found.requests, found.judged) == (2.0, 0.0)


# --- the planner's observation


def measured(status: HealthStatus) -> Measured:
    traffic = traffic_within(told((95.0, 10, ARRIVAL), (96.0, 10, 5)), 90.0, 100.0)
    health = Health(status=status)
    return Measured(start_s=90.0, end_s=100.0, health=health, requests=1.0, traffic=traffic)


def test_the_policy_sees_the_traffic_of_usable_measurements_only():
    for status in HealthStatus:
        seen = observe(measured(status), {}, 10.0)
        assert (seen.traffic is not None) == (status in {HealthStatus.OK, HealthStatus.PARTIAL}), status
    assert observe(replace(measured(HealthStatus.OK), traffic=None), {}, 10.0).traffic is None
