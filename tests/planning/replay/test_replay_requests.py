"""Requests of a replay with cached prefixes and SLOs of their own."""

from dataclasses import replace

import numpy as np
import pytest
from replay_cases import engine, load

from headway.planning.replay import (
    Requests,
    attainable,
    decode_losses,
    mixed_losses,
    mixed_seconds,
    prefill_losses,
    prefill_seconds,
)
from headway.planning.replay.engine import busy_iteration_s, largest_fleets, targets
from headway.planning.types import Slo

ANY = np.inf


def cached(requests, share, within=ANY):
    tokens = np.floor(share * requests.input_tokens)
    return requests._replace(cached_tokens=tokens, cached_within=np.full(len(tokens), within))


@pytest.mark.parametrize("chunk_tokens", [0, 512])
def test_only_uncached_tokens_are_work(chunk_tokens):
    of, requests = engine(chunk_tokens=chunk_tokens), load(1, 20, 30, 4000, 100)
    half = cached(requests, 0.5)
    shorter = requests._replace(input_tokens=half.uncached_tokens)
    assert prefill_seconds(of, half).tolist() == prefill_seconds(of, shorter).tolist()
    assert prefill_seconds(of, half).sum() < 0.6 * prefill_seconds(of, requests).sum()
    assert mixed_seconds(of, half).sum() < 0.9 * mixed_seconds(of, requests).sum()


@pytest.mark.parametrize("chunk_tokens", [0, 512])
def test_a_prompt_can_keep_its_slo_by_what_is_cached_of_it(chunk_tokens):
    of = engine(chunk_tokens=chunk_tokens)
    requests = Requests(np.zeros(1), np.array([50_000.0]), np.array([2.0]))
    assert not attainable(of, requests).any()
    assert attainable(of, cached(requests, 0.95)).all()


@pytest.mark.parametrize(
    ("losses", "chunk_tokens"), [(prefill_losses, 0), (prefill_losses, 512), (mixed_losses, 512)]
)
def test_cached_prefixes_save_replicas_as_far_as_fleets_find_them(losses, chunk_tokens):
    of, requests = engine(chunk_tokens=chunk_tokens), load(2, 40, 60, 4000, 20)
    requests = requests.where(requests.input_tokens < 12_000)  # attainable without a cache, too
    whole, half, one = (
        losses(of, each, 0, 4) for each in (requests, cached(requests, 0.5), cached(requests, 0.5, 1))
    )
    enough = [int(np.argmax(curve.lost <= 0.01 * curve.requests)) for curve in (whole, half, one)]
    assert enough[1] < 0.75 * enough[0]
    assert enough[2] == enough[0]


def test_nothing_cached_is_the_replay_without():
    of, requests = engine(chunk_tokens=512), load(3, 20, 60, 2000, 50)
    none = cached(requests, 0.0)
    for losses in (prefill_losses, decode_losses, mixed_losses):
        plain, other = losses(of, requests, 100, 2), losses(of, none, 100, 2)
        assert plain.lost.tolist() == other.lost.tolist()


def test_hits_get_fewer_with_replicas_and_not_more_with_fewer():
    rank = (np.arange(10_000) + 0.5) / 10_000
    fleets = largest_fleets(np.full(10_000, 0.4), 4, rank)
    assert fleets.min() >= 4.0
    for replicas in (4, 5, 8, 40):
        found = 0.4 * np.mean(fleets >= replicas)
        assert found == pytest.approx(1.0 - 0.6 ** (4 / replicas), abs=1e-3)
    assert np.isinf(largest_fleets(np.array([0.4]), 4, np.zeros(1)))[0]


def test_requests_are_judged_by_an_slo_of_their_own():
    of, requests = engine(ttft_s=0.5), load(4, 30, 60, 2000, 50)
    patient = requests._replace(ttft_s=np.where(np.arange(len(requests.arrival_s)) % 2, 5.0, np.nan))
    assert set(targets(of, patient).ttft_s) == {0.5, 5.0}
    strict, mild = (prefill_losses(of, each, 0, 2) for each in (requests, patient))
    assert mild.at(strict.lost.argmin() - 1) < 0.7 * strict.at(strict.lost.argmin() - 1)
    all_patient = prefill_losses(replace(of, slo=Slo(ttft_s=5.0, itl_s=of.slo.itl_s)), requests, 0, 2)
    told = requests._replace(ttft_s=np.full(len(requests.arrival_s), 5.0))
    assert prefill_losses(of, told, 0, 2).lost.tolist() == all_patient.lost.tolist()


def test_batches_are_as_fast_as_the_tightest_itl_that_more_than_a_few_ask_for():
    of, requests = engine(itl_s=0.02), load(5, 30, 60, 500, 100)
    count = len(requests.arrival_s)
    few = requests._replace(itl_s=np.where(np.arange(count) < 0.02 * count, 0.008, np.nan))
    many = requests._replace(itl_s=np.where(np.arange(count) < 0.2 * count, 0.008, np.nan))
    hopeless = requests._replace(itl_s=np.full(count, 1e-6))
    plain = busy_iteration_s(of, requests)
    assert busy_iteration_s(of, few) == plain > 0.008
    assert busy_iteration_s(of, many) == 0.008
    assert busy_iteration_s(of, hopeless) == plain
    assert decode_losses(of, many, 0, 2).requests <= count


def test_columns_travel_together():
    one, other = load(6, 5, 20, 500, 50), load(7, 5, 20, 500, 50)
    both = cached(one, 0.5, 3.0).followed_by(other._replace(slo_class=np.ones(len(other.arrival_s))))
    first = len(one.arrival_s)
    assert (both.cached_tokens[first:] == 0).all()
    assert np.isinf(both.cached_within[first:]).all()
    assert both.slo_class.tolist() == [0.0] * first + [1.0] * len(other.arrival_s)
    assert both.ttft_s is None
    part = both.where(slice(first, None))
    assert part.output_tokens.tolist() == other.output_tokens.tolist()
    assert both.on(4).cached_tokens.sum() == 0
    assert both.on(3) is both


@pytest.mark.parametrize(
    ("losses", "chunk_tokens"), [(prefill_losses, 0), (decode_losses, 0), (mixed_losses, 512)]
)
def test_each_class_has_a_curve_and_they_add_up(losses, chunk_tokens):
    of, requests = engine(chunk_tokens=chunk_tokens, ttft_s=0.3), load(8, 40, 60, 2000, 200)
    count = len(requests.arrival_s)
    urgent = np.arange(count) % 5 == 0
    classed = requests._replace(slo_class=np.where(urgent, 2.0, 0.0), ttft_s=np.where(urgent, np.nan, 3.0))
    curve = losses(of, classed, 100, 3)
    plain, none, tight = curve.classes
    assert none.requests == 0
    assert plain.requests + tight.requests == curve.requests
    assert (plain.lost + none.lost + tight.lost).tolist() == curve.lost.tolist()
    assert plain.lost[0] == plain.requests
    assert (np.diff(tight.lost) <= 0).all()
    shares = plain.lost / plain.requests, tight.lost / tight.requests
    assert (shares[0] <= shares[1] + 0.02).all()
    twice = curve.times(2.0)
    assert twice.classes[2].requests == 2 * tight.requests
    alone = losses(of, requests._replace(ttft_s=classed.ttft_s), 100, 3)
    assert abs(alone.at(len(curve.lost)) - curve.at(len(curve.lost))) <= 0.01 * curve.requests
