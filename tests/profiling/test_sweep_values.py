"""From runs to a latency, and from times of tokens to a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.profiling import UnmeasurableError
from headway.profiling.sweep.measure import Arrival, StreamTimes, decode_run, stagger_tokens
from headway.profiling.sweep.measurements import summarise


def stream(first_s: float, itl_s: float, tokens: int, per_chunk: int = 1) -> StreamTimes:
    places = range(0, tokens, per_chunk)
    arrivals = (Arrival(first_s + place * itl_s, float(min(per_chunk, tokens - place))) for place in places)
    return StreamTimes(sent_s=0.0, arrivals=tuple(arrivals))


def test_one_run_that_went_wrong_is_left_out_and_counted() -> None:
    summary = summarise([1.00, 1.02, 3.0])
    assert (summary.value_s, summary.runs, summary.outliers) == (pytest.approx(1.01), 2, 1)
    assert summary.steady


def test_runs_that_differ_by_a_few_per_cent_are_all_kept() -> None:
    assert summarise([1.0, 1.0, 1.0, 1.04]).outliers == 0


def test_runs_that_disagree_are_not_steady() -> None:
    assert not summarise([1.0, 1.5, 2.0]).steady


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=12))
def test_a_summary_lies_among_the_runs(runs: list[float]) -> None:
    summary = summarise(runs)
    assert min(runs) <= summary.value_s <= max(runs)
    assert summary.runs + summary.outliers == len(runs)
    assert summary.runs > len(runs) // 2 or len(runs) == 1
    assert summary.spread >= 0.0


@given(st.integers(1, 20), st.integers(0, 5), st.floats(1e-3, 1.0), st.integers(1, 4), st.integers(0, 30))
def test_itl_counts_only_while_all_decode(
    requests: int, stagger: int, itl_s: float, per_chunk: int, more: int
) -> None:
    """Before the last request began the engine was slower by its prefills; none of that is in the ITL."""
    tokens = (requests - 1) * stagger * per_chunk + (12 + more) * per_chunk
    streams = [
        stream(place * stagger * per_chunk * itl_s, itl_s, tokens, per_chunk) for place in range(requests)
    ]
    run = decode_run(streams)
    assert run.itl_s == pytest.approx(itl_s)
    assert run.window_tokens >= 4
    assert stagger_tokens(streams) <= ((requests - 1) * stagger + 1) * per_chunk


def test_prefills_before_the_window_do_not_count() -> None:
    slow = [Arrival(place * 1.0, 1.0) for place in range(3)]
    steady = [Arrival(2.0 + place * 0.1, 1.0) for place in range(1, 20)]
    first = StreamTimes(sent_s=0.0, arrivals=(*slow, *steady))
    last = StreamTimes(sent_s=0.0, arrivals=tuple(steady))
    run = decode_run([first, last])
    assert run.itl_s == pytest.approx(0.1)
    assert run.stagger_tokens == 3


def test_requests_that_follow_each_other_are_no_decode_batch() -> None:
    with pytest.raises(UnmeasurableError, match="the 2 requests never all decoded at once"):
        decode_run([stream(0.0, 0.01, 10), stream(1.0, 0.01, 10)])


def test_tokens_that_came_all_at_one_time_say_nothing_of_the_time_between_them() -> None:
    at_once = StreamTimes(sent_s=0.0, arrivals=tuple(Arrival(0.1, 1.0) for _ in range(10)))
    with pytest.raises(UnmeasurableError, match="tokens came all at one time"):
        decode_run([at_once])


def test_ttft_is_from_sending_to_the_first_token() -> None:
    assert StreamTimes(sent_s=2.0, arrivals=(Arrival(2.5, 1.0),)).ttft_s == 0.5
