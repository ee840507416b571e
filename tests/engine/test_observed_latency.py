"""What a replica reports of itself: only what was as a profile measures it."""

import pytest

from headway.engine.observed_latency import (
    LEAST_GAPS,
    MOST_PROMPTS,
    LatencyObserver,
    LatencyReport,
    ObservedRequest,
)
from headway.profiling import Phase


def prompt(meter: LatencyObserver, at_s: float, tokens: int, took_s: float, *, reused: bool = False) -> None:
    request = meter.begin(at_s, tokens, computes=True)
    meter.computed(request, at_s + took_s, reused=reused)
    meter.end(request, at_s + took_s)


def decoding(meter: LatencyObserver, at_s: float, context: int) -> ObservedRequest:
    """A request whose first token has just come."""
    request = meter.begin(at_s - 1.0, context - 1, computes=False)
    meter.produced(request, at_s, 1)
    return request


def step(meter: LatencyObserver, at_s: float, *parts: ObservedRequest, tokens: int = 1) -> None:
    for request in parts:
        meter.produced(request, at_s, tokens)


def test_a_prompt_on_an_idle_replica_is_a_report_and_reports_are_taken_once():
    meter = LatencyObserver()
    prompt(meter, 5.0, 1000, 0.25)
    assert meter.take() == (LatencyReport(Phase.PREFILL, 1000, 0.25),)
    assert meter.take() == ()


def test_prompts_that_wait_in_turn_report_the_mean_of_their_own_times():
    meter = LatencyObserver()
    first = meter.begin(0.0, 1000, computes=True)
    second, third = (meter.begin(0.1, tokens, computes=True) for tokens in (2000, 600))
    for request, at_s in ((first, 0.3), (second, 0.8), (third, 1.0)):
        meter.computed(request, at_s, reused=False)
        meter.end(request, at_s)
    assert meter.take() == (LatencyReport(Phase.PREFILL, 1200.0, pytest.approx(1.0 / 3.0)),)
    assert meter.take() == ()


def test_prompts_that_an_engine_computes_together_report_their_mean():
    meter = LatencyObserver()
    both = [meter.begin(0.0, tokens, computes=True) for tokens in (1000, 3000)]
    for request in both:
        meter.computed(request, 0.5, reused=False)
        meter.end(request, 0.5)
    assert meter.take() == (LatencyReport(Phase.PREFILL, 2000.0, 0.25),)


def test_a_prompt_beside_a_batch_reports_its_time_without_that_of_the_batch():
    meter = LatencyObserver()
    request = decoding(meter, 0.0, 100)
    for number in range(1, 11):
        step(meter, 0.02 * number, request)
    newcomer = meter.begin(0.2, 1000, computes=True)
    for number in range(1, 5):
        step(meter, 0.2 + 0.1 * number, request)
    meter.computed(newcomer, 0.6, reused=False)
    prefill, decode = meter.take()
    # Four iterations of 0.1 s, of which three pay for the batch alone.
    assert prefill == LatencyReport(Phase.PREFILL, 1000.0, pytest.approx(0.4 - 3 * 0.02))
    assert decode.latency_s == pytest.approx(0.02)


def test_a_prompt_beside_a_batch_of_unknown_speed_is_none():
    meter = LatencyObserver()
    request = decoding(meter, 0.0, 100)
    newcomer = meter.begin(0.0, 1000, computes=True)
    step(meter, 0.1, request)
    meter.computed(newcomer, 0.2, reused=False)
    assert meter.take() == ()


def test_a_prompt_after_one_that_was_abandoned_or_partly_cached_is_none():
    meter = LatencyObserver()
    passer_by = meter.begin(1.0, 1000, computes=True)
    meter.end(meter.begin(1.1, 10, computes=True), 1.2)
    meter.computed(passer_by, 1.3, reused=False)
    meter.end(passer_by, 1.3)
    prompt(meter, 2.0, 1000, 0.1, reused=True)
    assert meter.take() == ()


def test_a_prompt_that_ended_without_a_token_is_none_and_leaves_the_replica_idle():
    meter = LatencyObserver()
    meter.end(meter.begin(0.0, 500, computes=True), 9.0)
    prompt(meter, 9.0, 1000, 0.25)
    assert meter.take() == (LatencyReport(Phase.PREFILL, 1000, 0.25),)


def test_of_many_prompts_the_middle_one_of_each_half_octave_speaks():
    meter = LatencyObserver()
    for number, (tokens, took_s) in enumerate(((1040, 0.2), (1030, 99.0), (1050, 0.21), (5000, 1.0))):
        prompt(meter, 1000.0 * number, tokens, took_s)
    assert meter.take() == (
        LatencyReport(Phase.PREFILL, 1050, pytest.approx(0.21)),
        LatencyReport(Phase.PREFILL, 5000, pytest.approx(1.0)),
    )


def test_prompts_between_two_reports_are_bounded_and_the_newest_stay():
    meter = LatencyObserver()
    for number in range(2 * MOST_PROMPTS):
        prompt(meter, float(number), 1000, 0.5 if number < MOST_PROMPTS else 0.125)
    assert meter.take() == (LatencyReport(Phase.PREFILL, 1000, 0.125),)


def test_a_decode_report_is_the_mean_gap_at_the_mean_batch_and_context():
    meter = LatencyObserver()
    short, long = decoding(meter, 0.0, 100), decoding(meter, 0.0, 300)
    for number in range(1, 11):
        step(meter, 0.02 * number, short, long)
    meter.end(short, 0.2)
    (seen,) = meter.take()
    assert seen == LatencyReport(Phase.DECODE, pytest.approx(200 + 4.5), pytest.approx(0.02), 2.0)
    for number in range(1, 11):
        step(meter, 0.2 + 0.01 * number, long)
    assert meter.take() == (LatencyReport(Phase.DECODE, pytest.approx(310 + 4.5), pytest.approx(0.01), 1.0),)


def test_several_tokens_in_one_chunk_share_its_gap():
    meter = LatencyObserver()
    request = decoding(meter, 0.0, 100)
    step(meter, 0.4, request, tokens=LEAST_GAPS)
    (seen,) = meter.take()
    assert seen.latency_s == pytest.approx(0.4 / LEAST_GAPS)


def test_a_few_tokens_are_no_report():
    meter = LatencyObserver()
    step(meter, 0.1, decoding(meter, 0.0, 100), tokens=LEAST_GAPS - 1)
    assert meter.take() == ()


def test_gaps_in_which_a_prompt_was_computed_here_do_not_count():
    meter = LatencyObserver()
    request = decoding(meter, 0.0, 100)
    step(meter, 0.01, request, tokens=10)
    newcomer = meter.begin(0.015, 4000, computes=True)
    step(meter, 0.5, request)
    meter.computed(newcomer, 0.9, reused=False)
    meter.produced(newcomer, 0.9, 1)
    step(meter, 1.0, request)
    for number in range(1, 6):
        step(meter, 1.0 + 0.02 * number, request, newcomer)
    *_, seen = meter.take()
    assert seen.phase is Phase.DECODE
    # Ten gaps of 1 ms; the newcomer's first gap, from 0.9; ten of 20 ms but for that one.
    assert seen.latency_s == pytest.approx((0.01 + 0.12 + 9 * 0.02) / 20)
    assert seen.batch == pytest.approx((10 * 1 + 10 * 2) / 20)


def test_a_prompt_that_leaves_uncomputed_disturbs_no_longer():
    meter = LatencyObserver()
    request = decoding(meter, 0.0, 100)
    meter.end(meter.begin(0.0, 4000, computes=True), 0.5)
    step(meter, 0.6, request)
    step(meter, 0.7, request, tokens=10)
    assert meter.take() == (LatencyReport(Phase.DECODE, 101, pytest.approx(0.01), 1.0),)
