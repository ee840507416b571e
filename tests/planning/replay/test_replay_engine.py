"""What a request asks of an engine: attainability, and the replica seconds that it takes."""

from dataclasses import replace

import numpy as np
import pytest
from replay_cases import engine, load, simulated

from headway.planning.replay import (
    Requests,
    attainable,
    decode_seconds,
    mixed_seconds,
    mixed_slack,
    prefill_seconds,
)
from headway.planning.types import Role, Slo


def one_after_another(inputs, outputs):
    """Requests so far apart that each is alone."""
    return Requests(60.0 * np.arange(len(inputs)), np.array(inputs, float), np.array(outputs, float))


@pytest.mark.parametrize(("mixed", "chunk_tokens"), [(False, 0), (False, 512), (True, 512)])
def test_attainable_is_what_an_idle_fleet_attains(mixed, chunk_tokens):
    inputs = np.linspace(100, 60_000, 60).round()
    requests = one_after_another(inputs, np.full(60, 200.0))
    of = replace(engine(chunk_tokens=chunk_tokens), slo=Slo(ttft_s=1.2, itl_s=0.0068))
    fleet = {Role.MIXED: 1} if mixed else {Role.PREFILL: 1, Role.DECODE: 1}
    late, slow = simulated(of, requests, fleet)
    met = attainable(of, requests, mixed=mixed)
    assert 0 < met.sum() < 60
    assert np.count_nonzero(met != ~(late | slow)) <= 1  # one may lie within the rounding of the SLO


def test_what_does_not_fit_the_cache_is_not_attainable_and_one_token_has_no_tpot():
    of = engine(ttft_s=1e3, itl_s=1e-6)
    room = of.kv_capacity_tokens
    requests = one_after_another([room - 1, room, 10, 10], [1, 1, 1, 2])
    assert attainable(of, requests).tolist() == [True, False, True, False]


def test_prefill_seconds_are_the_profile_s_and_chunks_pay_for_their_iterations():
    requests = one_after_another([100, 1000, 8000], [1, 1, 1])
    whole = prefill_seconds(engine(), requests)
    assert whole == pytest.approx(engine().profile.prefill.ttft_s(requests.input_tokens))
    chunked = [prefill_seconds(engine(chunk_tokens=tokens), requests) for tokens in (256, 4096)]
    assert (chunked[0] > chunked[1]).all()
    assert chunked[1][0] < whole[0]  # shares its iteration


def test_decode_seconds_are_those_of_a_full_batch():
    of, outputs = engine(max_batch_size=50), np.full(500, 400.0)
    requests = Requests(np.zeros(500), np.full(500, 1000.0), outputs)
    usage = 50 * 1200 / of.kv_capacity_tokens
    assert decode_seconds(of, requests) == pytest.approx(400 * of.profile.decode.itl_s(usage, 1200.0) / 50)
    assert (mixed_seconds(replace(of, chunk_tokens=512), requests) > decode_seconds(of, requests)).all()


def test_a_full_cache_limits_the_batch_of_long_contexts():
    requests = load(1, 5, 100, 20_000, 500)
    unlimited, limited = (decode_seconds(engine(max_batch_size=size), requests) for size in (10_000, 256))
    assert unlimited.tolist() == limited.tolist()


def test_no_requests_take_no_time():
    nobody = Requests(np.zeros(0), np.zeros(0), np.zeros(0))
    of = engine(chunk_tokens=512)
    for seconds in (prefill_seconds, decode_seconds, mixed_seconds, attainable):
        assert len(seconds(of, nobody)) == 0


def test_mixed_replicas_with_slack_keep_the_itl_of_the_mean_request_and_those_without_do_not():
    of = engine(ttft_s=5.0, itl_s=0.012, chunk_tokens=1024)
    requests = Requests(np.arange(0.0, 120.0, 0.01), np.full(12_000, 1000.0), np.full(12_000, 200.0))
    busy = mixed_seconds(of, requests).sum() / 120.0
    slack = mixed_slack(of, requests)
    assert slack > 1.3
    shares = [simulated(of, requests, {Role.MIXED: round(n)})[1].mean() for n in (busy, 1.3 * slack * busy)]
    assert shares[0] > 0.9
    assert shares[1] < 0.5


@pytest.mark.parametrize("itl_s", [1.0, 1e-6])
def test_where_full_batches_keep_the_itl_or_none_does_there_is_no_slack(itl_s):
    of, nobody = engine(itl_s=itl_s, chunk_tokens=1024), Requests(np.zeros(0), np.zeros(0), np.zeros(0))
    assert mixed_slack(of, load(1, 40, 60, 1000, 200)) == 1.0
    assert mixed_slack(of, nobody) == 1.0


def test_an_itl_that_an_idle_replica_just_keeps_does_not_ask_for_a_replica_a_request():
    of, requests = engine(chunk_tokens=1024), load(1, 40, 60, 1000, 200)
    idle_s = of.profile.decode.itl_s(1.0 / of.kv_capacity_tokens, 1100.0)
    slacks = [
        mixed_slack(replace(of, slo=Slo(ttft_s=1.0, itl_s=idle_s * f)), requests) for f in (1.02, 1.1, 3)
    ]
    assert max(slacks) == 6.0
    assert slacks[-1] < 3.0
