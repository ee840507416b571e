"""`python -m benchmarks fleet`: which requests count as cold."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.fleet import _cold

SERIES = SimpleNamespace(
    time_s=[0.0, 100.0, 200.0, 260.0, 500.0], ready=[1, 0, 0, 1, 0], desired=[1, 0, 1, 1, 0]
)


@pytest.mark.parametrize(
    ("arrivals_s", "wanted"),
    [
        ([50.0, 300.0], (0, 0)),
        ([200.0, 210.0, 250.0], (1, 2)),
        ([258.0], (0, 0)),
        ([600.0], (1, 0)),
    ],
)
def test_a_request_is_cold_that_waits_too_long_for_a_replica(
    arrivals_s: list[float], wanted: tuple[int, int]
) -> None:
    report = SimpleNamespace(replicas={"mixed": SERIES}, slo=SimpleNamespace(ttft_s=5.0))
    assert _cold(report, np.array(arrivals_s)) == wanted  # type: ignore[arg-type]
