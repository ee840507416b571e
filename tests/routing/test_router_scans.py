"""Loops over candidates say what their formulas say, and types are remembered beyond their replicas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config.roles import Role
from headway.routing import ReplicaState, ReplicaUpdate
from headway.routing.columns import Column
from headway.routing.scans import EQUAL, best_places, requests_in
from tests.routing.routers import MIXED, placed, request, router, surfaces

scores = st.lists(st.sampled_from([0.0, 0.5, 0.5 + EQUAL / 2, 0.75, 1.0, np.nan]), min_size=1, max_size=20)


@given(scores)
def test_the_best_are_the_highest_and_its_equals(values) -> None:
    plain = np.nan_to_num(np.array(values), nan=-1.0)
    expected = np.nonzero(plain >= plain.max() - EQUAL)[0]
    assert best_places(np.array(values)).tolist() == expected.tolist()


def test_requests_are_those_running_others_and_the_longer_of_coming_and_waiting() -> None:
    table = np.random.default_rng(0).integers(0, 9, (len(Column), 12)).astype(np.float64)
    slots = np.array([7, 0, 11])
    queued = np.maximum(table[Column.COMING], table[Column.WAITING])
    expected = (table[Column.RUNNING] + queued + table[Column.OTHER_REQUESTS])[slots]
    assert requests_in(table, slots).tolist() == expected.tolist()


@pytest.mark.parametrize("profile", ["pull", "slo"])
def test_a_deadline_on_a_draining_replica_of_its_own_type_is_met(profile) -> None:
    """No ready replica has D's profile any more when the prompt comes back to it."""
    types = ["x", "y", "z"]
    offload = {"mode": "always", "heavy_tokens": 100, "warm_tokens": 10}
    made = router(profile, MIXED, count=0, profiles=dict.fromkeys(types, surfaces()), offload=offload)
    for name in types:
        made.replica_changed(0.0, ReplicaUpdate(replica=name, role=Role.MIXED, gpu_type=name))
    placement = placed(made.submit(0.0, request(input_tokens=8000, session="s")))
    assert placement.split
    name = placement.decode_replica
    draining = ReplicaUpdate(replica=name, role=Role.MIXED, state=ReplicaState.DRAINING, gpu_type=name)
    made.replica_changed(0.0, draining)
    late = placed(made.expire(placement.deadline_s))
    assert late.prefill_replica == late.decode_replica == name
