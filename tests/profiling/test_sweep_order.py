from hypothesis import given
from hypothesis import strategies as st

from headway.profiling import Phase
from headway.profiling.sweep.points import Limits, SweepPoint, corners, next_point, sweep_points

LIMITS = st.builds(
    Limits,
    max_request_tokens=st.integers(600, 50_000),
    max_kv_tokens=st.integers(5_000, 500_000),
    max_batch=st.integers(1, 256),
    isl_points=st.integers(2, 8),
    kv_points=st.integers(2, 4),
    context_points=st.integers(2, 4),
)


def order_of(points, latency) -> list[SweepPoint]:
    measured: dict[SweepPoint, float | None] = {}
    while (point := next_point(points, measured)) is not None:
        assert point not in measured
        measured[point] = latency(point)
    return list(measured)


@given(LIMITS, st.randoms(use_true_random=False))
def test_every_point_comes_once_and_the_corners_first(limits: Limits, draw) -> None:
    points = sweep_points(limits)
    order = order_of(points, lambda point: draw.choice([None, draw.uniform(1e-4, 10.0)]))
    assert sorted(order) == sorted(points)
    first = corners(points)
    assert set(order[: len(first)]) == set(first)


@given(LIMITS, st.integers(0, 40))
def test_taking_up_a_sweep_goes_on_as_if_it_had_not_stopped(limits: Limits, stopped_after: int) -> None:
    points = sweep_points(limits)
    whole = order_of(points, lambda point: point.tokens * point.batch)
    before = {point: float(point.tokens * point.batch) for point in whole[:stopped_after]}
    rest: list[SweepPoint] = []
    while (point := next_point(points, before)) is not None:
        before[point] = float(point.tokens * point.batch)
        rest.append(point)
    assert whole[:stopped_after] + rest == whole


def test_after_the_ends_the_steep_part_of_a_curve_comes_before_the_flat_part() -> None:
    tokens = [128 * 2**place for place in range(9)]
    points = [SweepPoint(phase=Phase.PREFILL, tokens=each) for each in tokens]
    latency = {point: max(1.0, point.tokens / 2048) for point in points}
    order = order_of(points, lambda point: latency[point])
    assert [point.tokens for point in order[:3]] == [128, 32768, 2048]
    assert order[3].tokens > 2048


def test_corners_of_the_decode_surface() -> None:
    points = sweep_points(
        Limits(max_request_tokens=8192, max_kv_tokens=100_000, kv_points=3, context_points=3)
    )
    decode = sorted(point for point in corners(points) if point.phase is Phase.DECODE)
    contexts = sorted({point.tokens for point in points if point.phase is Phase.DECODE})
    assert [(point.tokens, point.batch == 1) for point in decode] == [
        (contexts[0], True),
        (contexts[0], False),
        (contexts[-1], True),
        (contexts[-1], False),
    ]
