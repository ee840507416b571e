"""Hindsight: forecasts of work times factors against loss curves, the cheapest joint choice, and queues."""

from dataclasses import replace
from math import nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.planning.hindsight.backtest import (
    PEAK,
    SMOOTHINGS,
    STEADY,
    backtest,
    forecasts,
)
from headway.planning.hindsight.choice import choose, front
from headway.planning.hindsight.history import PoolHistory
from headway.planning.hindsight.needs import overdue_prompts, replicas_for_queue
from headway.planning.replay import LossCurve
from headway.planning.types import PoolState, Role

GPUS = {Role.PREFILL: 1, Role.DECODE: 1}
INTERVAL_S = 30.0


def curve(enough, requests=100):
    """Fewer than `enough` replicas lose all, the others nothing."""
    lost = np.full(enough + 1, requests)
    lost[enough] = 0
    return LossCurve(requests=requests, lost=lost)


def past(works, enough, most=960):
    history = PoolHistory()
    for work, need in zip(works, enough, strict=True):
        history = history.add(work, curve(round(need)), most)
    return history


def chosen(history, budget=0.01, lead=1):
    return choose({Role.PREFILL: backtest(history, lead, INTERVAL_S, 240.0)}, GPUS, budget)[Role.PREFILL]


def test_an_interval_that_was_not_measured_asks_for_nothing():
    history = past([1.0, 2.0], [2, 2]).skip(960)
    assert history.work.tolist() == [1.0, 2.0, 2.0]
    assert history.requests.tolist() == [100, 100, 0]
    assert len(PoolHistory().skip(960)) == 0


def test_the_factor_that_steady_traffic_needs_is_found():
    option = chosen(past([2.0] * 200, [3] * 200))
    assert option.replicas == 3
    assert option.lost < 1.0


def test_growth_not_seen_yet_is_reckoned_with_at_first_and_less_later():
    needs = [chosen(past([10.0] * count, [11] * count), lead=6).replicas for count in (10, 400)]
    assert needs[0] > needs[1] >= 11


def test_a_longer_lead_never_makes_steady_traffic_cheaper():
    costs = [chosen(past([10.0] * 100, [11] * 100), lead=lead).replicas for lead in (1, 3, 7)]
    assert costs == sorted(costs)


def test_rare_peaks_within_the_budget_are_let_go_and_others_are_held():
    work = [2.0] * 400
    rare = [9 if tick % 200 == 150 else 3 for tick in range(400)]
    often = [9 if tick % 20 == 15 else 3 for tick in range(400)]
    assert chosen(past(work, rare), budget=0.02).replicas == 3
    assert 9 <= chosen(past(work, often), budget=0.02).replicas <= 10


def test_a_jump_without_precedent_buys_no_margin_and_its_return_does():
    once = [1.0] * 60 + [6.0] * 40
    again = once + [1.0] * 60 + [6.0] * 40

    def need(works):
        return chosen(past(works, [round(work) + 1 for work in works]), lead=4).replicas

    assert 7 <= need(once) <= 14
    assert need(again[:-40]) <= 3
    assert need(again + [1.0] * 60) >= 6


def bursts(works):
    """A past in which requests are in proportion to the work, and as many replicas as it has are enough."""
    return bursts_after(PoolHistory(), works)


def bursts_after(history, works):
    for work in works:
        history = history.add(work, curve(max(1, round(work)), round(100 * work)), 960)
    return history


@pytest.mark.parametrize("lead", [1, 3])
def test_bursts_after_long_silence_are_held_as_soon_as_one_was_seen(lead):
    silence = [0.2] * 19
    works = [*silence, 20.0] * 4 + silence
    assert chosen(bursts(works[:19]), lead=lead).replicas <= 2
    for count in range(20, len(works) + 1):
        option = chosen(bursts(works[:count]), lead=lead)
        assert option.forecast == "peak"
        assert 20 <= option.replicas <= 28


def test_the_queue_of_a_jump_without_precedent_is_held_against_no_forecast():
    """While it drains the forecasts are still those of before the jump."""
    history = bursts([0.2] * 30 + [20.0])
    for _ in range(2):
        history = history.add(0.2, curve(20, 20), 960)
    history = bursts_after(history, [0.2] * 4)
    assert 20 <= chosen(history, lead=3).replicas <= 28


def test_a_jump_that_begins_in_the_last_seconds_of_an_interval_multiplies_nothing():
    """Of that interval a forecast of before knew nothing either, though its mean has hardly risen."""
    history = bursts([0.2] * 30).add(0.3, curve(3, 60), 960)
    history = bursts_after(history, [20.0, *[0.2] * 5])
    assert 20 <= chosen(history, lead=3).replicas <= 28


@pytest.mark.parametrize("sizes", [(12.0, 14.0, 17.0, 20.0), (20.0, 17.0, 14.0, 12.0)])
def test_what_is_held_for_bursts_does_not_depend_on_their_order(sizes):
    """The peak has grown by those that were the largest so far: they raise no factor on top."""
    silence = [0.2] * 19
    works = [work for size in sizes for work in (*silence, size)]
    option = chosen(bursts(works * 3 + silence), lead=3)
    assert option.forecast == "peak"
    assert 20 <= option.replicas <= 22


def test_a_steady_rise_is_not_taken_for_bursts():
    """There the largest is always the next one, which a peak of the past is too small for."""
    work = np.geomspace(4.0, 60.0, 120)
    option = chosen(past(work, np.ceil(work).astype(int)), lead=5)
    assert option.forecast != "peak"
    assert option.replicas >= 60.0 * (60.0 / 4.0) ** (5 / 120)


def test_a_hump_is_one_burst_whose_crest_says_nothing_of_its_slope():
    """While it rose nobody knew how high it would get; of a second one, from calm, the first tells."""
    hump = [4.0] * 20 + [float(work) for work in (*range(8, 31), *range(29, 3, -1))]
    once, twice = (backtest(bursts(hump * times), 5, INTERVAL_S, 1e9) for times in (1, 2))
    held = int(np.argmin(np.abs(once.factors - 1.04)))
    assert once.lost[PEAK, held] > 0.4 * once.requests
    assert twice.lost[PEAK, held] < 0.02 * twice.requests


@pytest.mark.parametrize("times", [2.0, 0.5])
def test_a_past_restated_on_other_engines_is_that_of_other_engines(times):
    work = [2.0, 4.0, 8.0] * 20
    on_others = past([times * each for each in work], [times * each for each in work])
    found, wanted = chosen(past(work, work).restated(times)), chosen(on_others)
    assert found.replicas == wanted.replicas
    assert found.expected == pytest.approx(wanted.expected)


def test_a_burst_before_any_forecast_counts_as_one():
    assert chosen(bursts([20.0, *[0.2] * 30]), lead=1).replicas >= 20


def test_the_share_that_no_past_could_foresee_is_known():
    judged = backtest(past([1.0] * 20 + [9.0] * 5, [2] * 25), 2, INTERVAL_S, 1e9)
    # Two intervals begin before the jump is known.
    assert judged.surprising == pytest.approx(200.0, rel=1e-3)
    assert backtest(past([1.0] * 25, [2] * 25), 2, INTERVAL_S, 1e9).surprising == 0.0


def test_falling_traffic_is_not_suspected_to_grow():
    falling, rising = (np.geomspace(*ends, 200) for ends in ((20.0, 2.0), (2.0, 20.0)))
    fall, rise = (
        backtest(past(work, np.ceil(work).astype(int)), 3, INTERVAL_S, 240.0).growth[STEADY]
        for work in (falling, rising)
    )
    assert fall < 0.01
    assert rise > 0.03


def test_the_loss_budget_goes_where_it_saves_most():
    prefill = past([2.0] * 300, [9 if tick % 50 == 25 else 3 for tick in range(300)])
    decode = past([2.0] * 300, [4 if tick % 50 == 0 else 3 for tick in range(300)])
    judged = {
        role: backtest(each, 1, INTERVAL_S, 240.0)
        for role, each in ((Role.PREFILL, prefill), (Role.DECODE, decode))
    }
    both = choose(judged, GPUS, 0.025)
    assert (both[Role.PREFILL].replicas, both[Role.DECODE].replicas) == (3, 4)


def test_more_loss_allowed_never_costs_more():
    rng = np.random.default_rng(1)
    work = rng.uniform(1.0, 3.0, 200)
    judged = {
        Role.PREFILL: backtest(
            past(work, np.ceil(work * rng.uniform(1.0, 2.0, 200)).astype(int)), 2, INTERVAL_S, 240.0
        )
    }
    costs = [choose(judged, GPUS, budget)[Role.PREFILL].cost for budget in (0.0, 0.001, 0.01, 0.1, 0.5)]
    assert costs == sorted(costs, reverse=True)


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=30))
def test_a_front_is_what_no_other_option_beats(options):
    cost, lost = np.array(options).T
    kept = front(cost, lost)
    assert (np.diff(kept.cost) > 0).all()
    assert (np.diff(kept.lost) < 0).all()
    for each_cost, each_lost in options:
        assert ((kept.cost <= each_cost) & (kept.lost <= each_lost)).any()


def test_of_options_that_the_past_cannot_tell_apart_the_forecast_is_taken_at_its_word():
    alike = np.zeros((2, 3))
    assert front(alike, alike, np.array([2.0, 0.0, 1.0])).position.tolist() == [1]
    judged = backtest(past([0.4] * 12, [1] * 12), 3, INTERVAL_S, 240.0)
    option = choose({Role.PREFILL: judged}, {Role.PREFILL: 1}, 0.01)[Role.PREFILL]
    assert option.factor == pytest.approx(1.0, abs=0.03)


def test_the_typical_need_is_what_half_of_the_intervals_had():
    judged = backtest(
        past([2.0] * 60, [9 if tick % 5 == 0 else 3 for tick in range(60)]), 1, INTERVAL_S, 240.0
    )
    assert judged.typical == 3.0


def test_factors_reach_farther_where_the_work_s_replicas_are_too_slow():
    """With batches that keep a tight ITL a pool needs many times the replicas that the work keeps busy."""
    history = past([2.0] * 12, [40] * 12)
    options = [chosen(each) for each in (history, replace(history, slack=4.0))]
    assert [option.lost > 100 for option in options] == [True, False]
    assert options[0].replicas <= 20
    assert 40 <= options[1].replicas <= 60
    assert options[1].factor == pytest.approx(options[1].replicas / 2.0, rel=0.05)
    assert history.add(2.0, curve(40), 960, 4.0).skip(960).slack == 4.0


def level(work, smoothing):
    return forecasts(np.asarray(work, float))[SMOOTHINGS.index(smoothing)]


def test_levels_follow_by_their_smoothing_and_the_peak_is_the_largest_so_far():
    assert forecasts(np.full(40, 2.5)) == pytest.approx(2.5)
    assert level([1.0, 2.0, 6.0], 0.05) == pytest.approx([1.0, 1.5, 3.0]), "the first values weigh alike"
    assert level([2.0] * 30 + [4.0, 4.0], 0.5)[-2:] == pytest.approx([3.0, 3.5])
    assert forecasts(np.array([1.0, 4.0, 2.0, 5.0, 0.0]))[PEAK].tolist() == [1.0, 4.0, 4.0, 5.0, 5.0]


@given(st.lists(st.floats(0.0, 1e3), min_size=1, max_size=80))
def test_forecasts_stay_within_what_was_seen_and_grow_with_the_work(work):
    said = forecasts(np.array(work))
    assert (said >= min(work) - 1e-9).all()
    assert (said <= max(work) + 1e-9).all()
    assert forecasts(2.0 * np.array(work)) == pytest.approx(2.0 * said)


def pool(waiting, ready=2):
    return PoolState(desired=ready, starting=0, ready=ready, draining=0, running=0.0, waiting=waiting)


@pytest.mark.parametrize(
    ("waiting", "work_s", "needed", "more"),
    [(10.0, 0.1, 4, 0), (2000.0, 0.1, 9, 4), (1e6, 0.1, 3, 3), (nan, 0.1, 3, 0), (50.0, nan, 3, 0)],
    ids=["drains in time", "spread over a minute", "as many again at most", "unmeasured", "unknown work"],
)
def test_replicas_for_a_queue(waiting, work_s, needed, more):
    assert replicas_for_queue(pool(waiting), work_s, ttft_s=2.0, most=needed) == more


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e6))
def test_a_longer_queue_never_adds_fewer(one, other):
    less, more = sorted((one, other))
    assert replicas_for_queue(pool(less), 0.2, 1.0, 50) <= replicas_for_queue(pool(more), 0.2, 1.0, 50)


def test_prompts_beyond_the_harmless_come_to_the_decode_pool():
    # Two replicas clear 20 prompts of 0.1 s within half of the TTFT target.
    assert overdue_prompts(pool(120.0), 0.1, ttft_s=2.0) == 100.0
    assert overdue_prompts(pool(15.0), 0.1, ttft_s=2.0) == 0.0
    assert overdue_prompts(pool(nan), 0.1, 2.0) == overdue_prompts(pool(9.0), nan, 2.0) == 0.0
