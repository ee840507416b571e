"""The benchmark of role changes compares costs at the same attainment."""

import pytest

from benchmarks.policies.loaded_base import Figures
from benchmarks.roles import cost_at


def run(attainment, gpu_hours):
    return Figures(attainment=attainment, gpu_hours=gpu_hours, reversals=0.0, fluid_gpu_hours=1.0)


def test_cost_lies_between_the_runs_beside_it():
    runs = [run(0.995, 20.0), run(0.985, 10.0), run(0.98, 9.0)]
    assert cost_at(0.99, runs) == pytest.approx(15.0)
    assert cost_at(0.985, runs) == 10.0
    assert cost_at(0.999, runs) == 20.0
