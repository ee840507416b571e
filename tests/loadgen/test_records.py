"""What the times of one request mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.loadgen.records import Ending, RequestOutcome, RequestRecord, StreamTimer
from headway.planning import Slo

SLO = Slo(ttft_s=0.5, itl_s=0.1)


def record(
    *times: float,
    tokens: tuple[int | None, ...] | None = None,
    intended_s: float = 10.0,
    sent_s: float = 10.0,
    outcome: RequestOutcome = RequestOutcome.OK,
    total: int | None = None,
) -> RequestRecord:
    timer = StreamTimer(index=0, intended_s=intended_s, input_tokens=100, requested_tokens=5)
    timer.sent(sent_s)
    for place, time_s in enumerate(times):
        timer.chunk(time_s, tokens[place] if tokens else None)
    return timer.end(times[-1] if times else 99.0, Ending(outcome=outcome, output_tokens=total))


def test_latency_counts_from_the_intended_time_not_from_sending() -> None:
    late = record(11.0, 11.2, sent_s=10.7)
    assert late.lag_s == pytest.approx(0.7)
    assert late.ttft_s == pytest.approx(1.0)
    assert late.e2e_s == pytest.approx(1.2)


def test_each_chunk_is_a_token_without_usage() -> None:
    ended = record(10.1, 10.2, 10.4)
    assert ended.output_tokens == 3
    assert ended.gaps == (pytest.approx((0.1, 1.0)), pytest.approx((0.2, 1.0)))
    assert ended.tpot_s == pytest.approx(0.15)


def test_tokens_of_one_chunk_share_its_gap() -> None:
    ended = record(10.1, 10.4, 10.5, tokens=(1, 3, 1))
    assert ended.output_tokens == 5
    assert ended.gaps == (pytest.approx((0.1, 3.0)), pytest.approx((0.1, 1.0)))
    assert ended.tpot_s == pytest.approx(0.1)


def test_tokens_that_only_the_last_usage_counts_are_spread() -> None:
    ended = record(10.1, 10.5, 10.9, total=9)
    assert ended.output_tokens == 9
    assert ended.gaps == (pytest.approx((0.1, 4.0)), pytest.approx((0.1, 4.0)))
    assert ended.tpot_s == pytest.approx(0.1)


@given(
    st.lists(st.floats(0.001, 2.0), min_size=1, max_size=20),
    st.integers(1, 400),
)
def test_gaps_always_add_up_to_the_time_between_first_and_last_token(gaps: list[float], more: int) -> None:
    times = [10.0]
    for gap_s in gaps:
        times.append(times[-1] + gap_s)
    ended = record(*times, total=len(times) + more)
    assert sum(gap_s * tokens for gap_s, tokens in ended.gaps) == pytest.approx(times[-1] - times[0])
    assert sum(tokens for _, tokens in ended.gaps) == pytest.approx(ended.output_tokens - 1)


def test_one_token_has_no_tpot_and_meets_the_slo_by_ttft_alone() -> None:
    assert record(10.4).tpot_s is None
    assert record(10.4).met(SLO)
    assert not record(10.6).met(SLO)


def test_both_targets_must_hold() -> None:
    assert record(10.5, 10.6).met(SLO)
    assert not record(10.5, 10.7).met(SLO)
    assert not record(10.6, 10.7).met(SLO)


@pytest.mark.parametrize("outcome", [item for item in RequestOutcome if item is not RequestOutcome.OK])
def test_what_did_not_complete_has_missed(outcome: RequestOutcome) -> None:
    assert not record(10.1, 10.2, outcome=outcome).met(SLO)


def test_a_request_without_tokens() -> None:
    ended = record(outcome=RequestOutcome.CONNECTION)
    assert (ended.ttft_s, ended.tpot_s, ended.e2e_s, ended.output_tokens) == (None, None, None, 0)
