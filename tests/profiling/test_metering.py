"""What a replica reports of itself: only what was as a profile measures it."""

import pytest

from headway.profiling.metering import LEAST_GAPS, MOST_PROMPTS, LatencyMeter, Part
from headway.profiling.refinement import Seen
from headway.profiling.sweep import Phase


def prompt(meter: LatencyMeter, at_s: float, tokens: int, took_s: float, *, reused: bool = False) -> None:
    part = meter.begin(at_s, tokens, computes=True)
    meter.computed(part, at_s + took_s, reused=reused)
    meter.end(part, at_s + took_s)


def decoding(meter: LatencyMeter, at_s: float, context: int) -> Part:
    """A request whose first token has just come."""
    part = meter.begin(at_s - 1.0, context - 1, computes=False)
    meter.produced(part, at_s, 1)
    return part


def step(meter: LatencyMeter, at_s: float, *parts: Part, tokens: int = 1) -> None:
    for part in parts:
        meter.produced(part, at_s, tokens)


def test_a_prompt_on_an_idle_replica_is_a_report_and_reports_are_taken_once():
    meter = LatencyMeter()
    prompt(meter, 5.0, 1000, 0.25)
    assert meter.take() == (Seen(Phase.PREFILL, 1000, 0.25),)
    assert meter.take() == ()


def test_a_prompt_that_was_not_alone_all_the_time_or_partly_cached_is_none():
    meter = LatencyMeter()
    first = meter.begin(0.0, 1000, computes=True)
    second = meter.begin(0.1, 1000, computes=True)
    for part, at_s in ((first, 0.3), (second, 0.6)):
        meter.computed(part, at_s, reused=False)
        meter.end(part, at_s)
    passer_by = meter.begin(1.0, 1000, computes=True)
    meter.end(meter.begin(1.1, 10, computes=True), 1.2)
    meter.computed(passer_by, 1.3, reused=False)
    meter.end(passer_by, 1.3)
    prompt(meter, 2.0, 1000, 0.1, reused=True)
    assert meter.take() == ()


def test_a_prompt_that_ended_without_a_token_is_none_and_leaves_the_replica_idle():
    meter = LatencyMeter()
    meter.end(meter.begin(0.0, 500, computes=True), 9.0)
    prompt(meter, 9.0, 1000, 0.25)
    assert meter.take() == (Seen(Phase.PREFILL, 1000, 0.25),)


def test_of_many_prompts_the_middle_one_of_each_half_octave_speaks():
    meter = LatencyMeter()
    for number, (tokens, took_s) in enumerate(((1040, 0.2), (1030, 99.0), (1050, 0.21), (5000, 1.0))):
        prompt(meter, 1000.0 * number, tokens, took_s)
    assert meter.take() == (
        Seen(Phase.PREFILL, 1050, pytest.approx(0.21)),
        Seen(Phase.PREFILL, 5000, pytest.approx(1.0)),
    )


def test_prompts_between_two_reports_are_bounded_and_the_newest_stay():
    meter = LatencyMeter()
    for number in range(2 * MOST_PROMPTS):
        prompt(meter, float(number), 1000, 0.5 if number < MOST_PROMPTS else 0.125)
    assert meter.take() == (Seen(Phase.PREFILL, 1000, 0.125),)


def test_a_decode_report_is_the_mean_gap_at_the_mean_batch_and_context():
    meter = LatencyMeter()
    short, long = decoding(meter, 0.0, 100), decoding(meter, 0.0, 300)
    for number in range(1, 11):
        step(meter, 0.02 * number, short, long)
    meter.end(short, 0.2)
    (seen,) = meter.take()
    assert seen == Seen(Phase.DECODE, pytest.approx(200 + 4.5), pytest.approx(0.02), 2.0)
    for number in range(1, 11):
        step(meter, 0.2 + 0.01 * number, long)
    assert meter.take() == (Seen(Phase.DECODE, pytest.approx(310 + 4.5), pytest.approx(0.01), 1.0),)


def test_several_tokens_in_one_chunk_share_its_gap():
    meter = LatencyMeter()
    part = decoding(meter, 0.0, 100)
    step(meter, 0.4, part, tokens=LEAST_GAPS)
    (seen,) = meter.take()
    assert seen.latency_s == pytest.approx(0.4 / LEAST_GAPS)


def test_a_few_tokens_are_no_report():
    meter = LatencyMeter()
    step(meter, 0.1, decoding(meter, 0.0, 100), tokens=LEAST_GAPS - 1)
    assert meter.take() == ()


def test_gaps_in_which_a_prompt_was_computed_here_do_not_count():
    meter = LatencyMeter()
    part = decoding(meter, 0.0, 100)
    step(meter, 0.01, part, tokens=10)
    newcomer = meter.begin(0.015, 4000, computes=True)
    step(meter, 0.5, part)
    meter.computed(newcomer, 0.9, reused=False)
    meter.produced(newcomer, 0.9, 1)
    step(meter, 1.0, part)
    for number in range(1, 6):
        step(meter, 1.0 + 0.02 * number, part, newcomer)
    (seen,) = meter.take()
    assert seen.phase is Phase.DECODE
    # Ten gaps of 1 ms; the newcomer's first gap, from 0.9; ten of 20 ms but for that one.
    assert seen.latency_s == pytest.approx((0.01 + 0.12 + 9 * 0.02) / 20)
    assert seen.batch == pytest.approx((10 * 1 + 10 * 2) / 20)


def test_a_prompt_that_leaves_uncomputed_disturbs_no_longer():
    meter = LatencyMeter()
    part = decoding(meter, 0.0, 100)
    meter.end(meter.begin(0.0, 4000, computes=True), 0.5)
    step(meter, 0.6, part)
    step(meter, 0.7, part, tokens=10)
    assert meter.take() == (Seen(Phase.DECODE, 101, pytest.approx(0.01), 1.0),)
