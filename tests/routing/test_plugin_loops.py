"""Loops over candidates say what their formulas say, and types are remembered beyond their replicas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import Role
from headway.routing import ReplicaState, ReplicaUpdate
from headway.routing.decide.scorers import EQUAL, best_places, drawn
from headway.routing.fleet.table import FleetRow
from headway_aibrix.plugins import room_for
from tests.routing.routers import MIXED, placed, request, router, surfaces

scores = st.lists(st.sampled_from([0.0, 0.5, 0.5 + EQUAL / 2, 0.75, 1.0, np.nan]), min_size=1, max_size=20)


@given(scores)
def test_the_best_are_the_highest_and_its_equals(values) -> None:
    plain = np.nan_to_num(np.array(values), nan=-1.0)
    expected = np.nonzero(plain >= plain.max() - EQUAL)[0]
    assert best_places(np.array(values)).tolist() == expected.tolist()


def test_there_is_room_up_to_a_load_of_one_and_anyhow_where_nothing_is() -> None:
    table = np.zeros((len(FleetRow), 5))
    table[FleetRow.LOAD] = [0.7, 0.7, 0.0, 0.0, 0.1 * 9]
    new = np.array([0.3, 0.31, 1.5, np.inf, 0.1])
    assert room_for(table, np.arange(5), new).tolist() == [True, False, True, False, True]


@given(scores, st.sampled_from([0.0, 1.0, 2.5]), st.floats(0.0, 1.0, exclude_max=True))
def test_draws_are_weighted_by_the_score_to_the_sharpness(values, sharpness, lot) -> None:
    plain = np.nan_to_num(np.array(values), nan=0.0)
    weights = np.where(plain > 0.0, plain**sharpness, 0.0 if plain.any() else 1.0)
    place = drawn(np.array(values), sharpness, lot)
    before, total = float(weights[:place].sum()), float(weights.sum())
    assert weights[place] > 0.0
    assert before - 1e-9 <= lot * total <= before + weights[place] + 1e-9


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
