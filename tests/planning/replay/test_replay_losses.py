"""Replays against the simulator: the same share of requests lost, on loads of many shapes."""

from dataclasses import replace

import numpy as np
import pytest
from replay_cases import LARGE, engine, load, simulated

from headway.planning.replay import Requests, attainable, decode_losses, mixed_losses, prefill_losses
from headway.planning.types import Role

FEW, PART = 0.005, 0.2
"""Shares may differ by so much, and by that part of themselves: near a cliff a per cent of TPOT matters."""

SPLIT = {
    "poisson": (engine(ttft_s=0.5, itl_s=0.012), load(1, 100, 200, 1000, 200)),
    "bursty": (engine(ttft_s=1.0, itl_s=0.016), load(2, 80, 300, 1000, 200, burstiness=0.5)),
    "long prompts": (engine(ttft_s=2.0, itl_s=0.02), load(3, 8, 500, 8000, 200)),
    "large model": (engine(LARGE, ttft_s=1.5, itl_s=0.035), load(4, 60, 200, 1000, 350, burstiness=0.3)),
    "KV-limited": (engine(LARGE, ttft_s=8.0, itl_s=0.05), load(5, 10, 500, 9000, 500)),
    "batch-limited": (engine(ttft_s=0.6, itl_s=0.04, max_batch_size=24), load(6, 80, 200, 500, 150)),
}
MIXED = {
    "small model": (engine(ttft_s=1.0, itl_s=0.03), load(1, 40, 300, 1000, 200)),
    "bursty": (engine(ttft_s=1.0, itl_s=0.04), load(2, 60, 200, 1000, 200, burstiness=0.5)),
    "large model": (engine(LARGE, ttft_s=3.0, itl_s=0.08), load(3, 20, 300, 1500, 300)),
    "KV-limited": (engine(ttft_s=6.0, itl_s=0.06), load(5, 8, 500, 9000, 500)),
}
POOLS = {"prefill": prefill_losses, "decode": decode_losses, "mixed": mixed_losses}


def assert_alike(curve, counts, missed):
    """`missed(n)` of the simulator's requests at each count, within the tolerance of the curve's."""
    for count in counts:
        share, wanted = curve.at(count) / curve.requests, missed(count) / curve.requests
        assert share == pytest.approx(wanted, abs=FEW + PART * wanted), f"{count} replicas"


def kept_up(curve, most=4):
    """The counts from the first that can keep up to where nothing is lost, at most `most`, well spread."""
    first = int(np.argmax(curve.lost < curve.requests))
    return np.unique(np.linspace(first, len(curve.lost) - 1, most).astype(int)).tolist()


@pytest.mark.parametrize(
    ("case", "chunk_tokens"),
    [*((case, 0) for case in SPLIT), *((case, 1024) for case in ("poisson", "bursty", "long prompts"))],
)
def test_prefill_loses_as_in_the_simulator(case, chunk_tokens):
    of, requests = SPLIT[case]
    of = replace(of, chunk_tokens=chunk_tokens)
    judged = attainable(of, requests)
    curve = prefill_losses(of, requests, 0, 1)
    decodes = 2 * len(decode_losses(of, requests, 0, 1).lost)

    def missed(count):
        fleet = {Role.PREFILL: count, Role.DECODE: decodes}
        return (simulated(of, requests, fleet)[0] & judged).sum()

    assert_alike(curve, kept_up(curve), missed)


@pytest.mark.parametrize("case", SPLIT)
def test_decode_loses_as_in_the_simulator(case):
    of, requests = SPLIT[case]
    judged = attainable(of, requests)
    curve = decode_losses(of, requests, 0, 1)
    fleet = {Role.PREFILL: 3 * len(prefill_losses(of, requests, 0, 1).lost)}

    def missed(count):
        late, slow = simulated(of, requests, {**fleet, Role.DECODE: count})
        return ((late | slow) & judged).sum()

    assert_alike(curve, kept_up(curve), missed)


@pytest.mark.parametrize("case", MIXED)
def test_mixed_replicas_lose_as_in_the_simulator(case):
    of, requests = MIXED[case]
    of = replace(of, chunk_tokens=2048)
    judged = attainable(of, requests, mixed=True)
    curve = mixed_losses(of, requests, 0, 1)

    def missed(count):
        late, slow = simulated(of, requests, {Role.MIXED: count})
        return ((late | slow) & judged).sum()

    assert_alike(curve, kept_up(curve), missed)


@pytest.mark.parametrize("case", ["bursty", "large model"])
def test_losses_of_both_pools_add_up(case):
    of, requests = SPLIT[case]
    curves = [losses(of, requests, 0, 1) for losses in (prefill_losses, decode_losses)]
    prefills, decodes = (int(np.argmax(curve.lost < 0.05 * curve.requests)) for curve in curves)
    late, slow = simulated(of, requests, {Role.PREFILL: prefills, Role.DECODE: decodes})
    missed = ((late | slow) & attainable(of, requests)).mean()
    share = (curves[0].at(prefills) + curves[1].at(decodes)) / len(late)
    assert share == pytest.approx(missed, abs=0.01)


@pytest.mark.parametrize("pool", POOLS)
def test_intervals_with_a_warm_up_add_up_to_the_whole(pool):
    """Batches do not run empty after an interval's last arrival, nor is the fleet idle at its first."""
    of, requests = engine(ttft_s=1.0, itl_s=0.03, chunk_tokens=2048), load(9, 60, 330, 1000, 300, 0.2)
    whole = POOLS[pool](of, requests, int(np.searchsorted(requests.arrival_s, 90.0)), 1)
    curves = []
    for start_s in range(90, 330, 30):
        warm, first, last = np.searchsorted(requests.arrival_s, [start_s - 90, start_s, start_s + 30])
        part = requests.where(slice(warm, last))
        curves.append(POOLS[pool](of, part, int(first - warm), 2))
    assert sum(curve.requests for curve in curves) == whole.requests
    for count in kept_up(whole)[1:]:
        summed = sum(curve.at(count) for curve in curves) / whole.requests
        wanted = whole.at(count) / whole.requests
        assert summed == pytest.approx(wanted, abs=0.004 + 0.1 * wanted), f"{count} replicas"


@pytest.mark.parametrize("pool", POOLS)
def test_a_curve_begins_with_all_and_never_rises(pool):
    of, requests = engine(ttft_s=1.0, itl_s=0.02, chunk_tokens=2048), load(2, 60, 100, 1000, 200, 0.5)
    curve = POOLS[pool](of, requests, 500, 3)
    assert curve.requests == attainable(of, requests, mixed=pool == "mixed")[500:].sum()
    assert curve.lost[0] == curve.at(0) == curve.requests
    assert (np.diff(curve.lost) <= 0).all()
    assert curve.at(10_000) == curve.lost[-1] <= 0.002 * curve.requests
    again = POOLS[pool](of, requests, 500, 3)
    assert again.lost.tolist() == curve.lost.tolist()


@pytest.mark.parametrize("guess", [1, 4, 40, 100])
@pytest.mark.parametrize("pool", POOLS)
def test_a_bad_guess_hardly_costs_accuracy(pool, guess):
    of, requests = engine(ttft_s=1.0, itl_s=0.02, chunk_tokens=2048), load(2, 60, 100, 1000, 200, 0.5)
    good = POOLS[pool](of, requests, 500, 4)
    curve = POOLS[pool](of, requests, 500, guess)
    for count in range(1, 12):
        wanted = good.at(count) / good.requests
        if wanted < 0.3:
            assert curve.at(count) / good.requests == pytest.approx(wanted, abs=0.01 + 0.4 * wanted), count


@pytest.mark.parametrize("pool", POOLS)
def test_without_requests_to_judge_nothing_is_lost(pool):
    of, requests = engine(chunk_tokens=2048), load(1, 5, 20, 500, 50)
    nobody = Requests(np.zeros(0), np.zeros(0), np.zeros(0))
    for curve in (POOLS[pool](of, nobody, 0, 3), POOLS[pool](of, requests, 10_000, 3)):
        assert (curve.requests, curve.lost.tolist(), curve.at(7)) == (0, [0], 0)


@pytest.mark.parametrize("pool", POOLS)
def test_one_request_needs_one_replica(pool):
    alone = Requests(np.array([5.0]), np.array([1000.0]), np.array([100.0]))
    for chunk_tokens in (0, 2048):
        curve = POOLS[pool](engine(chunk_tokens=chunk_tokens), alone, 0, 1)
        assert curve.lost.tolist() == [1, 0]


@pytest.mark.parametrize("pool", POOLS)
def test_unattainable_requests_are_not_judged_and_those_without_room_not_served(pool):
    of = engine(ttft_s=0.5, itl_s=0.02, chunk_tokens=2048)
    slow, huge, short = 60_000.0, of.kv_capacity_tokens, 200.0
    requests = Requests(
        np.array([0.0, 100.0, 200.0, 200.1]), np.array([slow, huge, huge, short]), np.full(4, 9.0)
    )
    curve = POOLS[pool](of, requests, 0, 1)
    assert curve.lost.tolist() == [1, 0]


def test_requests_that_are_not_judged_take_time_all_the_same():
    of = engine(ttft_s=0.5)
    requests = Requests(np.array([0.0, 0.1]), np.array([60_000.0, 500.0]), np.full(2, 9.0))
    assert prefill_losses(of, requests, 0, 1).lost.tolist() == [1, 1, 0]


@pytest.mark.parametrize("pool", POOLS)
def test_replicas_that_cannot_keep_up_lose_everything_however_patient_the_slo(pool):
    of, requests = engine(ttft_s=20.0, itl_s=10.0, chunk_tokens=2048), load(3, 60, 200, 6000, 600)
    curve = POOLS[pool](of, requests, 0, 1)
    first = int(np.argmax(curve.lost < curve.requests))
    assert first > 1
    assert (curve.lost[:first] == curve.requests).all()
