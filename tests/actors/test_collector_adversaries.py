"""Counters that lie: each is reported, none is zero demand, and none is a peak. Both sources, the same cases.

The process shows the names of our gateway. One source reads its page every 5 s; for Prometheus the same
samples stand as it answers (tests/conformance/test_metric_sources.py has the real one).
"""

from collections.abc import Callable, Sequence
from math import isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.collector.assembling import assemble
from actors.collector.exposition import SeriesId
from actors.collector.increase import Counters, summed
from actors.collector.interval import HealthStatus, Increase, Measured, PoolLoad, Quantity
from actors.collector.presets import PRESETS, Preset
from actors.collector.raw_samples import RawSeries, measured_of
from actors.collector.series import Group, ModelSeries
from headway.planning import Role
from tests.actors.collector_cases import Pages

DYNAMO = PRESETS["dynamo"]
HEADWAY = PRESETS["headway"]
VLLM = PRESETS["vllm"]

SCRAPE_S, INTERVAL_S, READS = 5.0, 60.0, 12
RATE = 5.0
"""Requests per second: 300 in an interval."""
BEGINS_S = 7_200.0
ARRIVALS = Group(Quantity.REQUESTS, "headway_request_arrivals_total", (("model", "tiny"),))

Counts = Sequence[float | None]
"""The counter at each read, 5 s apart; None where the read lacks it. Two intervals."""

HONEST = [12_000.0 + RATE * SCRAPE_S * read for read in range(2 * READS + 1)]


def shown(count: float | None, preset: Preset = HEADWAY, running: float = 3.0) -> str:
    """One exposition."""
    if preset is VLLM:
        text = f'vllm:num_requests_running{{model_name="tiny"}} {running}\n'
        text += 'vllm:num_requests_waiting{model_name="tiny"} 0\n'
        if count is not None:
            text += f'vllm:request_success_total{{model_name="tiny"}} {count}\n'
        return text
    text = f'headway_replica_running_requests{{role="decode",replica="a"}} {running}\n'
    if count is not None:
        text += f'headway_request_arrivals_total{{model="tiny"}} {count}\n'
        text += f'headway_arrival_input_tokens_count{{model="tiny"}} {count}\n'
        text += f'headway_arrival_input_tokens_sum{{model="tiny"}} {count * 100}\n'
    return text


def by_reads(counts: Counts, preset: Preset = HEADWAY) -> list[Measured]:
    """The intervals as own scrapes measure them."""
    pages, found = Pages(preset, scrape_interval_s=SCRAPE_S), []
    for read, count in enumerate(counts):
        at_s = BEGINS_S + read * SCRAPE_S
        pages.read(shown(count, preset), at_s)
        if read and read % READS == 0:
            found.append(pages.measure(at_s - INTERVAL_S, at_s))
    return found


def by_samples(counts: Counts, preset: Preset = HEADWAY) -> list[Measured]:
    """The same by raw samples."""
    series, lines = ModelSeries(preset, "tiny"), Pages(preset).lines
    raw: dict[SeriesId, list[tuple[float, float]]] = {}
    for read, count in enumerate(counts):
        for each, value in lines.read(shown(count, preset)).items():
            raw.setdefault(each, []).append((BEGINS_S + read * SCRAPE_S, value))
    found = []
    for end_s in (BEGINS_S + read * SCRAPE_S for read in range(READS, len(counts), READS)):
        until = {each: [s for s in samples if s[0] <= end_s] for each, samples in raw.items()}
        rows = [RawSeries(("job", "a:1"), each, samples) for each, samples in until.items() if samples]
        found.append(measured_of(series, rows, (end_s - INTERVAL_S, end_s), 30.0, {}))
    return found


WAYS = pytest.mark.parametrize("through", [by_reads, by_samples], ids=lambda way: way.__name__)


def changed(change: Callable[[int, float], float | None]) -> list[float | None]:
    """The honest counter, changed from the middle of the second interval on."""
    return [change(read, count) if read >= 16 else count for read, count in enumerate(HONEST)]


@WAYS
def test_an_honest_counter_is_300_requests(through):
    assert [found.requests for found in through(HONEST)] == [300.0, 300.0]


WENT_BACK = changed(lambda read, count: count - 300.0 if read == 16 else count)
IN_TURNS = changed(lambda read, count: count * (0.6 if read % 2 else 1.0))

LIES = {
    # One interval of 12,386 requests instead of 300 where every fall is taken for a restart.
    "back once and returned": (WENT_BACK, "fell from 12375 to 12100, which no restart explains"),
    "two processes in turns": (IN_TURNS, "two processes answer in turns"),
    "back for good": (changed(lambda _, count: count - 5_000.0), "fell from 12375 to 7400"),
}


@WAYS
@pytest.mark.parametrize(("counts", "said"), LIES.values(), ids=LIES)
def test_a_counter_that_goes_back_is_reported_and_makes_demand_unknown(through, counts, said):
    found = through(counts)[-1]
    assert isnan(found.requests)
    assert found.health.status is HealthStatus.PARTIAL
    assert "headway_request_arrivals_total" in found.health.detail
    if counts is not IN_TURNS:
        assert said in found.health.detail or "went back and returned" in found.health.detail
    assert "(since 02:01:20 UTC)" in found.health.detail or "(since 02:01:25 UTC)" in found.health.detail


def test_two_processes_in_turns_stay_unknown_for_as_long_as_it_lasts():
    honest = [HONEST[0] + RATE * SCRAPE_S * read for read in range(4 * READS + 1)]
    found = by_reads([count * (0.6 if read % 2 else 1.0) for read, count in enumerate(honest)])
    assert [isnan(one.requests) for one in found] == [True] * 4
    assert {one.health.status for one in found} == {HealthStatus.PARTIAL}


@pytest.mark.parametrize("begins", [600.0, 2_000.0, 5_000.0, 12_000.0])
def test_one_read_an_interval_is_enough_to_tell(begins):
    """Two processes in turns, read every 60 s: at most 3 x 300 requests, mostly unknown."""
    pages, found = Pages(scrape_interval_s=INTERVAL_S), []
    for read in range(20):
        count = (begins + 300.0 * read) * (0.6 if read > 6 and read % 2 else 1.0)
        at_s = BEGINS_S + read * INTERVAL_S
        pages.read(shown(count), at_s)
        found.append(pages.measure(at_s - INTERVAL_S, at_s).requests)
    assert all(isnan(count) or count <= 3 * 300.0 + 20.0 for count in found[1:]), found
    assert sum(map(isnan, found[7:])) >= 11


def test_a_doubt_passes_with_its_interval():
    counts = [*WENT_BACK, *(HONEST[-1] + RATE * SCRAPE_S * read for read in range(1, 2 * READS + 1))]
    found = by_reads(counts)
    assert [one.health.status for one in found[2:]] == [HealthStatus.OK] * 2
    assert [one.requests for one in found[2:]] == [300.0, 300.0]


@WAYS
def test_a_restart_is_no_doubt(through):
    restarted = changed(lambda read, _: RATE * SCRAPE_S * (read - 15))
    found = through(restarted)[-1]
    assert (found.requests, found.health.status) == (300.0, HealthStatus.OK)


def test_a_restarted_process_that_passes_its_old_count_is_no_doubt():
    counts = [RATE * SCRAPE_S * read for read in range(READS + 1)]
    counts += [RATE * SCRAPE_S * read for read in range(2 * READS)]
    found = by_reads(counts)
    assert sum(one.requests for one in found) == pytest.approx(RATE * SCRAPE_S * (len(counts) - 2))
    assert {one.health.status for one in found} == {HealthStatus.OK}


@WAYS
@pytest.mark.parametrize("value", [-5.0, nan])
def test_a_negative_counter_is_missing_not_zero(through, value):
    found = through(changed(lambda _, __: value))[-1]
    assert isnan(found.requests)
    assert found.health.status is HealthStatus.PARTIAL
    assert "requests" in found.health.detail


def test_what_was_counted_while_it_could_not_be_read_is_no_peak_afterwards():
    """Unreadable for an interval and a half: the interval that reads it again has its own share."""
    counts = [RATE * SCRAPE_S * read for read in range(4 * READS + 1)]
    hidden = [None if 14 <= read <= 31 else count for read, count in enumerate(counts)]
    found = by_reads(hidden, VLLM)
    assert isnan(found[1].requests)
    assert found[2].requests == pytest.approx(300.0)
    assert found[3].requests == pytest.approx(300.0)


def test_a_counter_that_comes_and_goes_is_read_in_part_and_never_counted_from_zero():
    counts = [None if read in {14, 17, 20} else count for read, count in enumerate(HONEST)]
    assert [found.requests for found in by_reads(counts, VLLM)] == [300.0, 300.0]


@WAYS
@pytest.mark.parametrize("preset", [HEADWAY, VLLM], ids=lambda preset: preset.name)
@pytest.mark.parametrize("stuck", [12_400.0, 0.0], ids=["frozen", "reset at every read"])
def test_a_counter_that_stands_still_while_replicas_run_requests_is_unknown(through, preset, stuck):
    counts = [*HONEST[:1], *[stuck] * (2 * READS)]
    found = through(counts, preset)[-1]
    assert isnan(found.requests)
    assert found.health.status is HealthStatus.PARTIAL
    assert "every counter stands still while replicas run 3.0 requests" in found.health.detail


def whole(**counts: float) -> dict[Quantity, Increase]:
    return {Quantity(name): Increase(count=count, total=0.0) for name, count in counts.items()}


def judged(running: float, **counts: float) -> Measured:
    load = {Role.MIXED: PoolLoad(running=running, waiting=0.0, kv_usage=0.1)}
    return assemble(0.0, 60.0, whole(**counts), load, {}, knows_attainment=False)


def test_standing_still_is_zero_traffic_where_nothing_runs_or_tokens_flow():
    assert (judged(0.0, requests=0.0).requests, judged(0.0, requests=0.0).health.status) == (0.0, "ok")
    assert judged(3.0, requests=0.0, itl=900.0).requests == 0.0
    assert isnan(judged(3.0, requests=0.0, itl=0.0).requests)


def test_a_frontend_that_stands_still_with_requests_in_flight_is_unknown():
    """Dynamo's has no load of pools."""
    pages = Pages(DYNAMO)
    for read in range(READS + 1):
        text = 'dynamo_frontend_inflight_requests{model="tiny"} 7\n'
        text += 'dynamo_frontend_requests_total{model="tiny",status="success"} 40\n'
        pages.read(text, BEGINS_S + read * SCRAPE_S)
    found = pages.measure(BEGINS_S, BEGINS_S + INTERVAL_S)
    assert isnan(found.requests)
    assert "every counter stands still while 7 requests are in flight" in found.health.detail


def test_requests_that_leave_without_being_counted_are_not_taken_from_those_that_came():
    """vLLM 0.32 left its counter of aborts at 0 when clients gave up: arrivals would be fewer than none."""
    pages = Pages(VLLM)
    for read in range(READS + 1):
        waiting = 90 - 20 * read if read < 5 else 0
        text = 'vllm:num_requests_running{model_name="tiny"} 4\n'
        text += f'vllm:num_requests_waiting{{model_name="tiny"}} {waiting}\n'
        text += f'vllm:request_success_total{{model_name="tiny",finished_reason="stop"}} {read}\n'
        pages.read(text, BEGINS_S + read * SCRAPE_S)
    found = pages.measure(BEGINS_S, BEGINS_S + INTERVAL_S)
    assert found.health.status is HealthStatus.PARTIAL
    assert "requests left that no counter shows as ended" in found.health.detail
    assert 0 <= found.requests <= READS


@pytest.mark.parametrize("missing", ["running", "waiting"])
def test_completions_are_never_taken_for_demand(missing):
    """Under backpressure 300 complete and 900 arrive: without what is in flight that cannot be seen."""
    pages = Pages(VLLM)
    for read in range(READS + 1):
        text = shown(300.0 + 25.0 * read, VLLM, running=10.0).replace(
            'waiting{model_name="tiny"} 0', (f'waiting{{model_name="tiny"}} {50 * read}')
        )
        if read == READS:
            text = "".join(line for line in text.splitlines(True) if f"requests_{missing}" not in line)
        pages.read(text, BEGINS_S + read * SCRAPE_S)
    found = pages.measure(BEGINS_S, BEGINS_S + INTERVAL_S)
    assert isnan(found.requests)
    assert found.health.status is not HealthStatus.OK


@given(st.lists(st.tuples(st.booleans(), st.floats(0.1, 0.95)), min_size=3, max_size=40))
def test_whatever_a_counter_does_no_read_gains_more_than_the_allowance(reads):
    """Each read shows the honest count or some share of it: gained at once is never the whole count."""
    counters, honest = Counters(), 50_000.0
    counters.begin({ARRIVALS: {"count": honest}}, 0.0)
    at_s = 0.0
    for _ in range(3):
        honest, at_s = honest + 25.0, at_s + SCRAPE_S
        counters.add({ARRIVALS: {"count": honest}}, at_s)
    for is_honest, share in reads:
        honest, at_s = honest + 25.0, at_s + SCRAPE_S
        value = honest if is_honest else honest * share
        before = counters.values()[ARRIVALS]["count"]
        gained, doubts = counters.add({ARRIVALS: {"count": value}}, at_s)
        if value < before and not doubts:
            assert summed(gained)["requests", "count"] <= 25.0 * 3 + 20.0 + 1e-6


def test_arrivals_that_follow_from_requests_in_flight_have_their_steps_too():
    """100 arrive in one scrape and are served in the next ones: that is one step of 100, and no others."""
    pages = Pages(VLLM)
    for read in range(READS + 1):
        waiting, ended = (
            (0, 500) if read < 3 else (max(0, 100 - 25 * (read - 3)), 500 + min(100, 25 * (read - 3)))
        )
        text = f'vllm:num_requests_running{{model_name="tiny"}} {waiting}\n'
        text += 'vllm:num_requests_waiting{model_name="tiny"} 0\n'
        text += f'vllm:request_success_total{{model_name="tiny"}} {ended}\n'
        for part, value in (("count", ended), ("sum", ended * 70), ('bucket{le="100"', ended)):
            name = f"vllm:request_prompt_tokens_{part}"
            text += f'{name}{"," if "{" in name else "{"}model_name="tiny"}} {value}\n'
        text += f'vllm:request_prompt_tokens_bucket{{le="+Inf",model_name="tiny"}} {ended}\n'
        pages.read(text, BEGINS_S + read * SCRAPE_S)
    counted = pages.measure(BEGINS_S, BEGINS_S + INTERVAL_S).counted
    assert counted is not None
    assert [(at_s - BEGINS_S, gain) for at_s, gain in counted.steps if gain] == [(15.0, 100.0)]
    assert (counted.input_tokens.bounds, counted.input_tokens.counts) == ((100.0,), (100.0, 0.0))
    assert counted.input_tokens.mean == 70.0


def test_a_counter_that_is_first_seen_with_a_past_is_a_doubt_where_nothing_names_its_engine():
    counters = Counters()
    counters.begin({ARRIVALS: {"count": 0.0}}, 0.0)
    counters.add({ARRIVALS: {"count": 25.0}}, SCRAPE_S)
    late = ARRIVALS._replace(name="another")
    gained, doubts = counters.add({ARRIVALS: {"count": 50.0}, late: {"count": 9_000.0}}, 2 * SCRAPE_S)
    assert 'another{model="tiny"} is first seen with 9000' in doubts[Quantity.REQUESTS]
    assert summed(gained)["requests", "count"] == 25.0
