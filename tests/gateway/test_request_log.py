"""The gateway's record of single requests: what is in it, how far back, and who may read it."""

import json
import time

import numpy as np
import pytest

from actors.collector.request_list import ARRIVAL, UNKNOWN, RequestList, decode, encode
from headway.config import MetricsSettings
from headway.routing.types import RequestSlo
from serve_apps.engines.protocol import TokenChunk
from serve_apps.gateway.backend import Overloaded, ReplicaLost
from serve_apps.gateway.request_log import MOST_ROWS, RequestLog
from serve_apps.gateway.slo_targets import SloTargets
from tests.clocks import Clock
from tests.gateway.conftest import Serve
from tests.gateway.doubles import ScriptedBackend, chunks
from tests.gateway.test_http import call, post

ASKED = {"model": "m", "prompt": [7] * 12, "max_tokens": 9}


def filled(requests: int, most_rows: int) -> tuple[RequestLog, Clock]:
    """A request a second, of 1, 2, 3, … tokens."""
    clock = Clock()
    log = RequestLog(clock, most_rows)
    for tokens in range(1, requests + 1):
        clock.now_s += 1.0
        log.arrived(tokens)
    return log, clock


@pytest.mark.parametrize(
    ("seconds", "expected"), [(2.5, [8, 9, 10]), (1.0, [10]), (0.0, []), (float("inf"), range(1, 11))]
)
def test_it_tells_as_far_back_as_it_is_asked(seconds, expected):
    log, _ = filled(10, most_rows=64)
    told = log.recent(seconds)
    assert list(told.rows["input_tokens"]) == list(expected)
    assert (told.now_s, told.whole_since_s) == (1_010.0, 1_000.0)


@pytest.mark.parametrize("requests", [4, 5, 7, 8, 9, 103])
def test_the_oldest_rows_go_and_it_says_since_when_it_is_whole(requests):
    log, clock = filled(requests, most_rows=4)
    told = log.recent(float("inf"))
    assert list(told.rows["input_tokens"]) == list(range(requests - 3, requests + 1))
    assert (np.diff(told.rows["at_s"]) > 0).all()
    assert told.whole_since_s == (1_000.0 if requests == 4 else clock.now_s - 3.0)


def test_arrivals_and_completions_with_their_lengths_at_their_times():
    clock = Clock()
    log = RequestLog(clock)
    log.arrived(12)
    clock.now_s += 2.0
    log.completed(12, 5)
    columns = ["at_s", "input_tokens", "output_tokens", "cached_tokens"]
    assert log.recent(60.0).rows[columns].tolist() == [
        (1_000.0, 12, ARRIVAL, UNKNOWN),
        (1_002.0, 12, 5, UNKNOWN),
    ]


def test_the_slo_and_class_of_an_arrival_and_the_cached_tokens_of_a_completion():
    log = RequestLog(Clock())
    own = RequestSlo(ttft_s=0.5)
    log.arrived(12, SloTargets(slo=own, slo_class="urgent", class_place=2))
    log.completed(12, 5, 8)
    arrived, completed = log.recent(60.0).rows
    assert (arrived["slo_ttft_s"], arrived["slo_itl_s"], arrived["slo_class"]) == (0.5, np.inf, 2)
    assert (completed["cached_tokens"], completed["slo_class"]) == (8, 0)
    assert np.isnan(completed["slo_ttft_s"])
    assert np.isnan([arrived["ttft_s"], completed["took_s"]]).all()


def test_a_completion_with_its_times_and_what_was_promised():
    log = RequestLog(Clock())
    targets = SloTargets(slo=RequestSlo(ttft_s=0.5), slo_class="urgent", class_place=2)
    log.completed(12, 5, took=(3.0, 0.25, 0.02), targets=targets)
    (row,) = log.recent(60.0).rows
    assert (row["took_s"], row["ttft_s"], row["itl_s"]) == pytest.approx((3.0, 0.25, 0.02))
    assert (row["slo_ttft_s"], row["slo_class"]) == (0.5, 2)


def test_what_was_written_before_the_clock_was_set_back_does_not_come_again():
    clock = Clock(10_000.0)
    log = RequestLog(clock)
    log.arrived(1)
    clock.now_s -= 0.3
    log.arrived(2)
    assert log.recent(60.0).rows["input_tokens"].tolist() == [1, 2]
    clock.now_s -= 3600.0
    log.arrived(3)
    assert log.recent(60.0).rows["input_tokens"].tolist() == [3]


def rows(running) -> list[tuple[int, int]]:
    asked_s = time.time()
    status, headers, body = call(running, "GET", "/metrics/requests")
    assert (status, headers["content-type"]) == (200, "application/json")
    told = decode(body.decode())
    assert told.whole_since_s <= asked_s <= told.now_s <= time.time()
    return [(row[1], row[2]) for row in told.rows.tolist()]


def test_all_that_is_kept_fits_what_a_collector_reads():
    log = RequestLog(Clock())
    whole = RequestList(0.0, 0.0, np.resize(log.recent(0.0).rows, MOST_ROWS))
    assert len(encode(whole)) < MetricsSettings().max_answer_mib * 2**20


def test_a_gateway_tells_its_requests(serve: Serve):
    running = serve(chunks("a", "b", "c"))
    assert rows(running) == []
    assert post(running, ASKED)[0] == 200
    assert post(running, ASKED | {"prompt": [7] * 30})[0] == 200
    assert rows(running) == [(12, ARRIVAL), (12, 3), (30, ARRIVAL), (30, 3)]


def test_a_gateway_tells_how_long_its_requests_took(serve: Serve):
    running = serve(chunks("a", "b", "c"))
    assert post(running, ASKED)[0] == 200
    _, _, body = call(running, "GET", "/metrics/requests")
    arrived, completed = decode(body.decode()).rows
    assert 0.0 < completed["ttft_s"] <= completed["took_s"]
    assert 0.0 <= completed["itl_s"] <= completed["took_s"]
    # Its time begins with its body, a moment before it is counted; the two clocks are not one.
    assert completed["at_s"] - completed["took_s"] <= arrived["at_s"] + 0.01
    assert arrived["at_s"] <= completed["at_s"]


@pytest.mark.parametrize(
    ("script", "asked", "expected"),
    [
        ([Overloaded("too much")], ASKED, [(12, ARRIVAL)]),
        ([*chunks("a", "b")[:1], ReplicaLost("gone")], ASKED, [(12, ARRIVAL)]),
        (chunks("a"), ASKED | {"max_tokens": -1}, []),
        (chunks("a"), ASKED | {"model": "other"}, []),
    ],
)
def test_failed_and_shed_requests_arrive_and_never_complete_and_invalid_ones_do_not_arrive(
    serve: Serve, script, asked, expected
):
    running = serve(ScriptedBackend(script))
    assert post(running, asked)[0] >= 400
    assert rows(running) == expected


def test_what_an_engine_had_cached_is_told_and_part_of_the_usage(serve: Serve):
    running = serve([TokenChunk("a", 1), TokenChunk("b", 1, "length", 8)])
    status, _, body = post(running, ASKED)
    assert status == 200
    assert json.loads(body)["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}
    told = decode(call(running, "GET", "/metrics/requests")[2].decode())
    assert told.rows["cached_tokens"].tolist() == [UNKNOWN, 8]


def test_usage_says_nothing_of_caches_where_engines_do_not(serve: Serve):
    _, _, body = post(serve(chunks("a")), ASKED)
    assert "prompt_tokens_details" not in json.loads(body)["usage"]


def test_it_needs_a_key_and_refuses_what_is_no_number(serve: Serve):
    running, key = serve(chunks("a"), api_keys=["secret"]), {"authorization": "Bearer secret"}
    assert call(running, "GET", "/metrics")[0] == 200
    assert call(running, "GET", "/metrics/requests")[0] == 401
    assert call(running, "GET", "/metrics/requests", **key)[0] == 200
    for seconds in ("nan", "ten", ""):
        status, _, body = call(running, "GET", f"/metrics/requests?seconds={seconds}", **key)
        assert status == 400
        assert "seconds" in json.loads(body)["error"]["message"]
