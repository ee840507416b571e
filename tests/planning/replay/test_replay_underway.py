"""Replays that begin in the middle of traffic: what is decoding by then is there."""

import numpy as np
import pytest
from replay_cases import engine, load

from headway.planning.replay import Requests, decode_losses, mixed_losses, prefill_losses
from headway.planning.replay.engine import busy_iteration_s, may_last, prompt_s, under_way


def of_arrays(*columns):
    return Requests(*(np.array(column, np.float64) for column in columns))


def test_what_is_under_way_has_the_tokens_of_its_age_and_the_rest_to_come():
    of, requests = engine(), of_arrays([0.0, 99.0, 101.0], [1000, 1000, 1000], [50_000, 2000, 2000])
    found, left = under_way(of, requests, 100.0)
    pace_s = busy_iteration_s(of, requests)
    ages_s = 100.0 - requests.arrival_s[:2] - prompt_s(of, requests)[:2]
    assert left.all()
    assert found.arrival_s.tolist() == [100.0, 100.0, 101.0]
    assert found.input_tokens[:2] - 1000 == pytest.approx(np.floor(ages_s / pace_s))
    assert found.input_tokens[2] == 1000
    assert (found.input_tokens + found.output_tokens).tolist() == [51_000, 3000, 3000]


def test_what_would_have_ended_is_left_out():
    requests = of_arrays([0.0, 0.0, 101.0], [500, 500, 500], [10, 1_000_000, 10])
    found, left = under_way(engine(), requests, 100.0)
    assert left.tolist() == [False, True, True]
    assert len(found.arrival_s) == 2


def test_without_a_beginning_all_come_as_they_are():
    requests = of_arrays([1.0, 2.0], [500, 500], [10, 10])
    found, left = under_way(engine(), requests, -np.inf)
    assert found is requests
    assert left.all()


def test_what_may_last_is_what_could_decode_so_long():
    requests = of_arrays([0.0, 0.0, 60.0], [9, 9, 9], [999, 1001, 1])
    assert may_last(engine(itl_s=0.005), requests, 5.0).tolist() == [False, True, True]


def test_a_patient_slo_does_not_keep_requests_for_ever():
    requests = of_arrays([0.0, 9000.0], [500, 500], [1000, 1000])
    assert may_last(engine(itl_s=1000.0), requests, 8999.0).tolist() == [False, True]
    assert may_last(engine(), of_arrays([], [], []), 1.0).tolist() == []


def test_whatever_is_under_way_is_among_what_may_last():
    of, requests = engine(itl_s=0.02), load(8, 20, 400, 800, 900)
    _, left = under_way(of, requests, 300.0)
    assert not (left & ~may_last(of, requests, 300.0)).any()


@pytest.mark.parametrize("losses", [decode_losses, mixed_losses])
@pytest.mark.parametrize("osl", [1000, 4000])
def test_a_replay_that_begins_late_loses_what_one_from_the_start_does(losses, osl):
    """Outputs of 4000 tokens decode for minutes; the replay from the start has seen all of them come."""
    of = engine(ttft_s=2.0, itl_s=0.02, chunk_tokens=2048)
    requests = load(5, 40_000 / osl, 900, 500, osl)
    judged = int(np.searchsorted(requests.arrival_s, 870.0))
    whole = losses(of, requests, judged, 1)
    since_s = 750.0
    lasting = may_last(of, requests, since_s)
    late = losses(of, requests.where(lasting), int(lasting[:judged].sum()), 1, since_s)
    enough = [int(np.argmax(curve.lost <= 0.05 * curve.requests)) for curve in (whole, late)]
    assert late.requests == whole.requests
    assert enough[0] > 2
    assert abs(enough[0] - enough[1]) <= max(1, 0.15 * enough[0])


def test_prompts_before_the_beginning_are_no_part_of_a_prefill_replay():
    of, requests = engine(), load(3, 40, 100, 1000, 10)
    judged = int(np.searchsorted(requests.arrival_s, 80.0))
    recent = requests.where(requests.arrival_s > 50.0)
    skipped = len(requests.arrival_s) - len(recent.arrival_s)
    late, alone = (
        prefill_losses(of, requests, judged, 2, 50.0),
        prefill_losses(of, recent, judged - skipped, 2),
    )
    assert late.lost.tolist() == alone.lost.tolist()
