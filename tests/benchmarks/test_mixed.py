"""Benchmarks of mixed pools: the table over runs that are there, and the engine that works in passes."""

import json

import numpy as np
import pytest

from benchmarks.mixed import Job, table
from benchmarks.passes import LOADS, itl_s, make_passes, prompt_s, replay
from benchmarks.policies.cells import Base
from headway.planning.replay import Requests


def job(directory, slo, attained, static):
    base = Base(trace="azure1", profile="8b", slo=slo)
    found = Job(data=directory, output=directory, base=base, chunk_tokens=2048, delay_s=60)
    fleet = static and {"replicas": 3, "gpu_hours": static}
    figures = {"attainable": 0.9, "attained": attained, "late": 1.0, "gpu_hours": 6.0, "static": fleet}
    found.path.write_text(json.dumps(figures), encoding="utf-8")
    return found


def test_the_table_counts_what_holds_and_leaves_out_costs_that_no_fleet_sets(tmp_path):
    jobs = [job(tmp_path, "tight", 0.98, None), job(tmp_path, "loose", 0.99, 4.0)]
    missing = Job(data=tmp_path, output=tmp_path, base=jobs[0].base, chunk_tokens=256, delay_s=60)
    rows = list(table([*jobs, missing]))
    assert rows[2] == "| azure1_8b_tight_2048_60s | 90.00% | 98.00% | 100.00% | 6.00 | – | none |"
    assert rows[3] == "| azure1_8b_loose_2048_60s | 90.00% | 99.00% | 100.00% | 6.00 | 1.50 | 3 |"
    assert rows[4].startswith("| all | 1 of 2 hold 99%, 1 below 98.5% | 98.50% (98.00%) |")
    assert rows[4].endswith("| 1.500 (1.50) | | |")


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS)
def test_a_pass_takes_what_its_prompt_tokens_and_its_batch_do_and_loads_end_at_none(load):
    """A prompt of 10,000 tokens takes two passes; the second brings its first token."""
    requests = Requests(np.array([1.0, 1.0]), np.array([10_000.0, 100.0]), np.array([2.0, 1.0]))
    state = make_passes(requests, 2)
    replay(state, requests.arrival_s, load)
    first_s = prompt_s(8192.0) + prompt_s(1808.0) + itl_s(10_000 / 1_048_576)
    assert state.first_s[0] - 1.0 == pytest.approx(first_s)
    assert state.finish_s[0] - state.first_s[0] == pytest.approx(itl_s(10_001 / 1_048_576))
    assert state.finish_s[1] - 1.0 == pytest.approx(prompt_s(100.0) + itl_s(100 / 1_048_576))
    assert state.load.tolist() == state.reserved.tolist() == [0.0, 0.0]
