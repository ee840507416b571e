"""Patterns and capacities: the table's stated results, and the surfaces' against the simulator."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.config import Role
from headway.engine import EngineRules
from headway.engine.surfaces import idle_prompt_s
from headway.routing import RequestSlo
from headway.routing.fleet.table import MIXED_ROLE, FleetRow
from headway_aibrix.capacity import Candidates, LoadQuery
from headway_aibrix.plugins import capacity_table
from headway_aibrix.surfaces import NODES, SurfaceCapacity, held, largest_point
from tests.simulation.worlds import ArrayTrace, roofline_profile, run, scenario

PROFILE = roofline_profile()
CAPACITY_TOKENS = 100_000
RULES = EngineRules(max_batch_size=64, chunk_tokens=1024)
SURFACE = SurfaceCapacity(profile=PROFILE, rules=RULES)
TIGHT, LOOSE = RequestSlo(ttft_s=0.3, tpot_s=0.012), RequestSlo(ttft_s=3.0, tpot_s=0.05)
TOKENS = st.integers(1, 1 << 20)


def loads(source, query, cached, *, kinds=None, kind=0, gpu_type=None):
    """The loads at candidates with these cached tokens; NaN where nothing was written."""
    table = np.zeros((len(FleetRow), len(cached)))
    table[FleetRow.KIND] = 0 if kinds is None else kinds
    among = Candidates(table, np.arange(len(cached)), np.asarray(cached, dtype=np.float64), kind)
    out = np.full(len(cached), np.nan)
    if gpu_type is None:
        source.fill(query, among, out)
    else:
        source.fill(query, gpu_type, among, out)
    return out


def asked(input_tokens=1000, output_tokens=200, role=Role.MIXED, slo=TIGHT):
    return LoadQuery(input_tokens=input_tokens, output_tokens=output_tokens, role=role, slo=slo)


def prompt_alone_s(tokens):
    """TTFT of a prompt on an idle replica, by the engine model."""
    return float(idle_prompt_s(PROFILE, np.array([float(tokens)]), RULES.chunk_tokens)[0])


def exact(query, cached):
    """The loads at `cached`, each solved for itself."""
    lengths = query.input_tokens, query.output_tokens, query.role, query.slo
    capacities = np.array([SURFACE.capacity(*lengths, each) for each in cached])
    return np.where(capacities > 0.0, 1.0 / np.maximum(capacities, 1e-9), inf)


def test_gpu_types_have_capacities_of_their_own_and_a_default():
    slower = roofline_profile(base_s=0.011)
    known = capacity_table({"fast": PROFILE, "slow": slower}, RULES)
    fast, slow = (loads(known, asked(), [0.0], gpu_type=name)[0] for name in ("fast", "slow"))
    assert 0.0 < fast < slow <= 1.0
    assert np.isnan(loads(known, asked(), [0.0], gpu_type="other")[0])
    with_default = capacity_table({"fast": PROFILE, "": slower}, RULES)
    assert loads(with_default, asked(), [0.0], gpu_type="other")[0] == slow


def test_a_source_answers_for_its_own_kind_alone():
    found = loads(SURFACE, asked(), [0.0, 0.0, 0.0], kinds=[1, 0, 1], kind=1)
    assert np.isnan(found).tolist() == [False, True, False]


def test_cached_tokens_are_not_computed_but_their_kv_is_held():
    query = asked(3000, 200, slo=RequestSlo(ttft_s=1.0, tpot_s=0.015))
    none, half, nearly = loads(SURFACE, query, [0.0, 1500.0, 2999.0])
    assert none > 1.2 * half > 1.2 * 1.2 * nearly
    (without,) = loads(SURFACE, asked(1, 200, slo=query.slo), [0.0])
    assert nearly > 1.1 * without, "a request of one token has no KV to read"


@pytest.mark.parametrize("role", [Role.MIXED, Role.PREFILL])
def test_a_ttft_that_only_a_cached_prompt_keeps_fits_where_it_is_cached(role):
    slo = RequestSlo(ttft_s=1.1 * prompt_alone_s(1500) + RULES.transfer_s(4000) + 0.02)
    found = loads(SURFACE, asked(4000, 200, role, slo), [0.0, 2500.0])
    assert found[0] == inf
    assert found[1] <= 1.0


@given(
    st.integers(300, 20_000),
    st.integers(1, 1000),
    st.floats(0.05, 8.0),
    st.floats(0.009, 0.1),
    st.integers(0, 2**32 - 1),
    st.sampled_from(list(Role)),
)
@settings(deadline=None, max_examples=60)
def test_what_is_between_the_nodes_is_close_and_where_it_never_fits_is_exact(
    input_tokens, output_tokens, ttft_s, tpot_s, seed, role
):
    query = asked(input_tokens, output_tokens, role, RequestSlo(ttft_s=ttft_s, tpot_s=tpot_s))
    cached = np.floor(np.random.default_rng(seed).random(40) * (input_tokens - 1))
    found, each = loads(SURFACE, query, cached), exact(query, cached)
    assert (np.isinf(found) == np.isinf(each)).all()
    finite = np.isfinite(each)
    assert np.abs(found[finite] / each[finite] - 1.0).mean() < 0.2 if finite.any() else True
    few = cached[:NODES]
    assert loads(SURFACE, query, few) == pytest.approx(exact(query, few), rel=1e-12)


def test_between_the_nodes_loads_are_within_a_few_percent_on_average():
    draw, errors = np.random.default_rng(2), []
    for _ in range(150):
        slo = RequestSlo(ttft_s=2 ** draw.uniform(-3, 3), tpot_s=2 ** draw.uniform(-6.5, -4))
        query = asked(int(2 ** draw.uniform(8, 14)), int(2 ** draw.uniform(0, 10)), slo=slo)
        cached = np.floor(draw.random(50) * (query.input_tokens - 1))
        found, each = loads(SURFACE, query, cached), exact(query, cached)
        finite = np.isfinite(each)
        errors.extend(np.abs(found[finite] / each[finite] - 1.0))
    assert np.mean(errors) < 0.03


@given(st.integers(2, 20_000), st.integers(1, 2000), st.floats(1.001, 1.3), st.sampled_from(list(Role)))
@settings(deadline=None, max_examples=60)
def test_an_idle_replica_has_room_for_whatever_it_serves_within_its_slo(
    input_tokens, output_tokens, margin, role
):
    prompt_s, itl = prompt_alone_s(input_tokens), PROFILE.decode.itl_s
    context = input_tokens + output_tokens / 2
    itl_s = itl(min(context / CAPACITY_TOKENS, 1.0), context)
    if role is Role.PREFILL:
        prompt_s += RULES.transfer_s(input_tokens) + itl_s
    kept = RequestSlo(ttft_s=margin * prompt_s, tpot_s=margin * itl_s)
    (load,) = loads(SURFACE, asked(input_tokens, output_tokens, role, kept), [0.0])
    assert load <= 1.0
    if role is not Role.DECODE:
        missed = RequestSlo(ttft_s=prompt_s / margin, tpot_s=margin * itl_s)
        assert loads(SURFACE, asked(input_tokens, output_tokens, role, missed), [0.0])[0] == inf


@given(st.integers(1, 15_000), st.integers(1, 1500), st.sampled_from(list(Role)))
@settings(deadline=None, max_examples=60)
def test_neighbouring_lengths_have_neighbouring_loads(input_tokens, output_tokens, role):
    """No steps at the edges of buckets: a hundredth more tokens is a load of a few hundredths more."""
    slo = RequestSlo(ttft_s=20.0, tpot_s=0.03)
    one, other = (
        loads(SURFACE, asked(tokens, output_tokens, role, slo), [0.0])[0]
        for tokens in (input_tokens, input_tokens * 1.01 + 1)
    )
    assert one <= other * 1.005 or other == inf
    assert other <= max(one * 1.1, one + 0.1) or one > 0.3


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
    figures = SURFACE.figures(asked(input_tokens, output_tokens, slo=slo))
    point = largest_point(float(input_tokens), held(MIXED_ROLE, figures), figures)
    assert point.kept
    return point


def test_the_operating_point_keeps_the_slo_and_is_close_to_it():
    point = operating_point(1000, 200, TIGHT)
    assert 0.97 * TIGHT.tpot_s < point.tpot_s <= TIGHT.tpot_s
    assert point.ttft_s <= TIGHT.ttft_s
    assert point.requests == pytest.approx(point.rate_rps * (point.ttft_s + 199 * point.tpot_s))


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
