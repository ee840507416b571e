"""Patterns and capacities: the table's stated results, and the surfaces' against the simulator."""

from math import inf, isclose

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.config import Role
from headway.engine import EngineRules
from headway.routing import RequestSlo, RouteRequest, RoutingError
from headway.routing import capacity as capacity_module
from headway.routing.capacity import (
    DEFAULT_BUCKETS,
    Buckets,
    CapacityTable,
    RequestPattern,
    pattern_of,
    rounded_down,
)
from headway.routing.gpu_profiles import capacity_table
from headway.routing.surface_capacity import (
    CapacityQuery,
    PromptCost,
    SurfaceCapacity,
    largest_point,
)
from tests.simulation.worlds import ArrayTrace, roofline_profile, run, scenario

PROFILE = roofline_profile()
CAPACITY_TOKENS = 100_000
RULES = EngineRules(max_batch_size=64, chunk_tokens=1024)
SURFACE = SurfaceCapacity(profile=PROFILE, rules=RULES)
TIGHT, LOOSE = RequestSlo(ttft_s=0.3, tpot_s=0.012), RequestSlo(ttft_s=3.0, tpot_s=0.05)
EXACT = Buckets((1, 200, 201, 1000, 1001))
FINER = Buckets(tuple(sorted({round(2.0 ** (step / 4)) for step in range(81)})))
TOKENS = st.integers(1, 1 << 20)
INPUT_1000_OUTPUT_200 = RequestPattern("", 3, 1)


class Told:
    """A source that answers what it was told and notes what it was asked."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def capacity(self, input_tokens, output_tokens, role, slo):
        self.asked.append((input_tokens, output_tokens, role, slo))
        return self.answer


def table(**answers) -> CapacityTable:
    return CapacityTable({name.strip("_"): Told(answer) for name, answer in answers.items()}, EXACT)


@pytest.mark.parametrize(
    ("answer", "capacity", "load"), [(4.0, 4.0, 0.25), (0.0, 0.0, inf), (None, None, None)]
)
def test_load_is_one_over_capacity(answer, capacity, load):
    asked = (INPUT_1000_OUTPUT_200, "", Role.MIXED, LOOSE)
    assert table(_=answer).load(*asked) == load
    assert table(_=answer).capacity(*asked) == capacity


def test_gpu_types_have_capacities_of_their_own_and_a_default():
    known = table(h100=8.0, a10=2.0)
    with_default = table(h100=8.0, _=5.0)
    asked = (Role.MIXED, LOOSE)
    assert known.load(INPUT_1000_OUTPUT_200, "h100", *asked) == 1 / 8
    assert known.load(INPUT_1000_OUTPUT_200, "a10", *asked) == 1 / 2
    assert known.load(INPUT_1000_OUTPUT_200, "l4", *asked) is None
    assert with_default.load(INPUT_1000_OUTPUT_200, "l4", *asked) == 1 / 5


def test_a_source_is_asked_once_for_what_its_pattern_stands_for():
    source = Told(4.0)
    known = CapacityTable({"": source}, EXACT)
    for ttft_s in (2.0, 2.001, 2.002):
        known.load(INPUT_1000_OUTPUT_200, "", Role.MIXED, RequestSlo(ttft_s=ttft_s))
    assert source.asked == [(1000.0, 200.0, Role.MIXED, RequestSlo(ttft_s=2.0))]


def test_answers_are_forgotten_beyond_a_bound(monkeypatch):
    monkeypatch.setattr(capacity_module, "MOST_ANSWERS", 10)
    source = Told(4.0)
    known = CapacityTable({"": source}, EXACT)
    for number in range(25):
        known.load(INPUT_1000_OUTPUT_200, "", Role.MIXED, RequestSlo(ttft_s=2.0**number))
    assert len(known._loads) <= 10
    assert len(source.asked) == 25


@given(st.floats(1e-6, 1e6))
def test_slos_are_rounded_down_by_little(seconds):
    assert seconds * (1 - 1 / 64) <= rounded_down(seconds) <= seconds


def test_endless_slos_stay_endless_and_no_time_stays_none():
    assert rounded_down(inf) == inf
    assert rounded_down(0.0) == 0.0


@pytest.mark.parametrize(
    ("input_tokens", "output_tokens", "slo"),
    [
        (1000, 200, TIGHT),
        (1000, 200, RequestSlo(tpot_s=0.014)),
        (200, 50, RequestSlo(ttft_s=1.0, tpot_s=0.0125)),
        (3000, 100, RequestSlo(ttft_s=1.0, tpot_s=0.02)),
        (2000, 1, RequestSlo(ttft_s=0.25)),
    ],
)
def test_a_mixed_replica_fares_as_its_operating_point_says(input_tokens, output_tokens, slo):
    """Little's law in the engine model: at the rate found, TTFT, TPOT and requests inside are as computed."""
    point = operating_point(input_tokens, output_tokens, slo)
    count = 12_000
    arrivals = np.cumsum(np.random.default_rng(5).exponential(1 / point.rate_rps, count))
    lengths = np.full(count, input_tokens), np.full(count, output_tokens)
    _, records = run(scenario(PROFILE, {Role.MIXED: 1}, engine=RULES), ArrayTrace(arrivals, *lengths))
    settled = records[count // 5 :]
    e2e_s = float((settled["finished_s"] - settled["arrival_s"]).mean())
    tpot_s = float((settled["finished_s"] - settled["first_token_s"]).mean()) / max(1, output_tokens - 1)
    ttft_s = float((settled["first_token_s"] - settled["arrival_s"]).mean())
    assert tpot_s == pytest.approx(point.tpot_s, rel=0.07)
    assert ttft_s == pytest.approx(point.ttft_s, rel=0.3)
    assert point.rate_rps * e2e_s == pytest.approx(point.requests, rel=0.15)


def operating_point(input_tokens, output_tokens, slo):
    prompt = PromptCost.of(PROFILE.prefill, input_tokens, RULES.chunk_tokens)
    asked = CapacityQuery(input_tokens=input_tokens, output_tokens=output_tokens, slo=slo, holds=64)
    point = largest_point(PROFILE.decode, prompt, asked)
    assert point is not None
    return point


def test_the_operating_point_keeps_the_slo_and_is_close_to_it():
    point = operating_point(1000, 200, TIGHT)
    assert 0.97 * TIGHT.tpot_s < point.tpot_s <= TIGHT.tpot_s
    assert point.ttft_s <= TIGHT.ttft_s
    assert isclose(point.requests, point.rate_rps * (point.ttft_s + 199 * point.tpot_s), rel_tol=1e-9)


def test_a_decode_replica_bears_the_largest_batch_within_the_tpot_target():
    capacity = SURFACE.capacity(1000, 200, Role.DECODE, RequestSlo(tpot_s=0.012))
    context, itl_s = 1100.0, PROFILE.decode.itl_s
    assert itl_s(capacity * context / CAPACITY_TOKENS, context) <= 0.012
    assert itl_s((capacity + 1) * context / CAPACITY_TOKENS, context) > 0.012


def test_a_prefill_replica_bears_what_leaves_in_time_together():
    slo = RequestSlo(ttft_s=0.5)
    capacity = SURFACE.capacity(1000, 200, Role.PREFILL, slo)
    first_s = PROFILE.decode.itl_s(1100.0 / CAPACITY_TOKENS, 1100.0)
    ends_s = capacity * PROFILE.prefill.ttft_s(1000.0) + RULES.transfer_s(1000) + first_s
    assert ends_s == pytest.approx(slo.ttft_s)


@pytest.mark.parametrize("role", list(Role))
def test_without_a_promise_capacity_is_what_a_replica_holds(role):
    held = {Role.PREFILL: 100.0, Role.MIXED: 64.0, Role.DECODE: 64.0}
    assert SURFACE.capacity(1000, 200, role, RequestSlo()) == held[role]
    assert SURFACE.capacity(9000, 1000, Role.MIXED, RequestSlo()) == 10.0


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("slo", [LOOSE, RequestSlo()])
def test_what_the_kv_cache_cannot_hold_has_no_capacity(role, slo):
    assert SURFACE.capacity(CAPACITY_TOKENS + 1, 10, role, slo) == 0.0


def test_slos_that_an_idle_replica_cannot_keep_leave_no_capacity():
    alone_s = PROFILE.prefill.ttft_s(1000.0)
    assert SURFACE.capacity(1000, 200, Role.MIXED, RequestSlo(ttft_s=alone_s * 0.99)) == 0.0
    assert SURFACE.capacity(1000, 200, Role.PREFILL, RequestSlo(ttft_s=alone_s * 0.99)) == 0.0
    assert SURFACE.capacity(1000, 200, Role.MIXED, RequestSlo(tpot_s=0.008)) == 0.0
    assert SURFACE.capacity(1000, 200, Role.DECODE, RequestSlo(tpot_s=0.008)) == 0.0


def test_what_an_idle_replica_just_keeps_has_room_for_one():
    alone_s = PROFILE.prefill.ttft_s(1000.0)
    assert SURFACE.capacity(1000, 200, Role.MIXED, RequestSlo(ttft_s=alone_s * 1.01)) == 1.0


@given(
    st.integers(1, 20_000),
    st.integers(1, 3_000),
    st.floats(0.01, 10.0),
    st.floats(0.005, 0.2),
    st.sampled_from(list(Role)),
)
@settings(deadline=None)
def test_looser_promises_never_lower_capacity(input_tokens, output_tokens, ttft_s, tpot_s, role):
    lengths = input_tokens, output_tokens, role
    capacity = SURFACE.capacity(*lengths, RequestSlo(ttft_s=ttft_s, tpot_s=tpot_s))
    assert capacity == 0.0 or capacity >= 1.0
    assert capacity <= SURFACE.capacity(*lengths, RequestSlo(ttft_s=2 * ttft_s, tpot_s=tpot_s)) * (1 + 1e-9)
    assert capacity <= SURFACE.capacity(*lengths, RequestSlo(ttft_s=ttft_s, tpot_s=2 * tpot_s)) * (1 + 1e-9)
    assert capacity <= SURFACE.capacity(*lengths, RequestSlo()) * (1 + 1e-9)


def test_whole_prompts_need_no_chunk_size():
    whole = SurfaceCapacity(profile=PROFILE, rules=EngineRules(max_batch_size=64))
    assert whole.capacity(1000, 200, Role.MIXED, LOOSE) > 1.0


def test_a_table_of_profiles_answers_by_gpu_type():
    slower = roofline_profile(base_s=0.011)
    known = capacity_table({"fast": PROFILE, "slow": slower}, RULES, EXACT)
    fast, slow = (
        known.capacity(INPUT_1000_OUTPUT_200, gpu_type, Role.MIXED, TIGHT) for gpu_type in ("fast", "slow")
    )
    assert fast is not None
    assert slow is not None
    assert fast > slow >= 1.0


@given(TOKENS, TOKENS)
def test_buckets_keep_the_order_of_lengths(one, other):
    low, high = sorted((one, other))
    assert DEFAULT_BUCKETS.bucket(low) <= DEFAULT_BUCKETS.bucket(high)


@given(TOKENS)
def test_a_bucket_stands_for_lengths_within_the_root_of_its_width(tokens):
    for buckets, width in ((DEFAULT_BUCKETS, 2.0), (FINER, 2.0**0.5)):
        middle = buckets.tokens(buckets.bucket(tokens))
        assert middle / width**0.5 <= tokens * 1.001
        assert tokens <= middle * width**0.5 * 1.5
        assert buckets.bucket(middle) == buckets.bucket(tokens)


@pytest.mark.parametrize(("tokens", "bucket"), [(0, 0), (1, 0), (1.9, 0), (2, 1), (3, 1), (4, 2), (1024, 10)])
def test_edges_belong_to_the_bucket_that_they_begin(tokens, bucket):
    assert DEFAULT_BUCKETS.bucket(tokens) == bucket


def test_what_buckets_stand_for():
    buckets = Buckets((1, 2, 5, 100))
    assert [buckets.tokens(place) for place in range(len(buckets))] == [
        1.0,
        pytest.approx(8**0.5),
        pytest.approx(495**0.5),
        100.0,
    ]


def test_beyond_the_last_edge_all_is_one_bucket():
    assert Buckets((1, 10)).bucket(10**9) == 1
    assert DEFAULT_BUCKETS.bucket(1 << 40) == len(DEFAULT_BUCKETS) - 1


@pytest.mark.parametrize("edges", [[], [0, 1], [2, 2], [4, 2], [-1]])
def test_edges_that_do_not_ascend_are_an_error(edges):
    with pytest.raises(RoutingError, match="bucket edges must ascend"):
        Buckets(tuple(edges))


def test_a_pattern_is_model_and_two_buckets():
    request = RouteRequest(request_id="a", arrival_s=0.0, input_tokens=1000, max_tokens=5000, model="m")
    assert pattern_of(request, 130.5) == RequestPattern("m", 9, 7)
    assert pattern_of(request, 130.5, Buckets((1, 100))) == RequestPattern("m", 1, 1)
