"""The kernel's parts: closed-form sums, the event order, histograms, routings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.engine.kernel import layout
from headway.engine.kernel.layout import Routing, drop_first, kind_of, push
from headway.engine.kernel.state import BUCKETS, add, add_range, buckets_of, quantile
from headway.engine.surfaces import duration_s, engine_surfaces, iterations_until
from headway.planning.types import Role
from tests.simulation.worlds import poisson_trace, roofline_profile, run, scenario

PROFILE = roofline_profile()
TABLE = PROFILE.decode.table
ITL = engine_surfaces(PROFILE).itl


@given(batch=st.integers(1, 200), context=st.integers(2, 6000), iterations=st.integers(1, 800))
def test_sums_equal_token_by_token_and_invert(batch, context, iterations):
    tokens = np.minimum(float(batch * context) + batch * np.arange(iterations), 100_000.0)
    if tokens[-1] == 100_000.0:
        return
    itl_s = PROFILE.decode.itl_s(tokens / 100_000.0, tokens / batch)
    ends_s = np.cumsum(itl_s)
    start = float(batch * context)
    assert duration_s(ITL, batch, start, float(iterations)) == pytest.approx(ends_s[-1], rel=1e-12)
    middle_s = ends_s[-1] - 0.5 * itl_s[-1]
    done, end_s = iterations_until(ITL, batch, start, middle_s, 1e6)
    assert done == iterations
    assert end_s == pytest.approx(ends_s[-1], rel=1e-12)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=60))
def test_events_leave_in_order_of_time_priority_sequence(pushed):
    clock, events = np.zeros(1, layout.CLOCK), np.zeros(64, layout.EVENT)
    for sequence, (time, kind) in enumerate(pushed):
        push(clock[0], events, float(time), kind, sequence, 0)
    taken = []
    for _ in pushed:
        taken.append((int(events[0]["time_s"]), kind_of(int(events[0]["order"])), int(events[0]["index"])))
        drop_first(clock[0], events)
    assert taken == sorted((time, kind, sequence) for sequence, (time, kind) in enumerate(pushed))


@given(st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=50), st.floats(0.01, 0.99))
def test_quantiles_are_within_a_quarter_of_a_percent(values, q):
    counts = np.bincount(buckets_of(np.array(values)), minlength=BUCKETS)
    exact = np.quantile(values, q, method="inverted_cdf")
    assert quantile(counts, q) == pytest.approx(exact, rel=0.0026)


@given(st.floats(1e-3, 1.0), st.floats(1.0, 1.3), st.integers(1000, 10**6))
def test_a_range_is_counted_whole_and_evenly(start, ratio, times):
    counts = np.zeros(BUCKETS, np.int64)
    add_range(counts, start, start * ratio, times)
    assert counts.sum() == times
    assert (counts >= 0).all()
    assert quantile(counts, 0.5) == pytest.approx(start * (1 + ratio) / 2, rel=0.01)


def test_compiled_and_array_buckets_agree():
    values = np.geomspace(1e-7, 1e6, 5000)
    counts = np.zeros(BUCKETS, np.int64)
    for value in values:
        add(counts, value, 1)
    assert np.array_equal(counts, np.bincount(buckets_of(values), minlength=BUCKETS))


@pytest.mark.parametrize("routing", [Routing.RANDOM, Routing.ROUND_ROBIN])
def test_routings_spread_requests_evenly(routing):
    _, records = run(
        scenario(PROFILE, {Role.PREFILL: 4, Role.DECODE: 2}, routing=routing), poisson_trace(1, 4000, 30.0)
    )
    shares = np.bincount(records["prefill_replica"])[:4] / len(records)
    tolerance = 0.0005 if routing is Routing.ROUND_ROBIN else 0.03
    assert shares == pytest.approx([0.25] * 4, abs=tolerance)
