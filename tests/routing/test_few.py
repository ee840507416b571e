"""Large fleets: a decision looks at few replicas first, and at all where none of those takes the request."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headway.config import Role
from headway.engine import EngineRules
from headway.routing import RequestSlo
from headway.routing.decide import candidates, scheduler
from headway.routing.decide.candidates import (
    CACHED,
    LIGHTEST,
    MOST,
    SPREAD,
    few_of,
    known_slots,
    mark_least,
    sample_of,
)
from headway.routing.decide.context import Refusal
from headway.routing.fleet.table import FleetRow
from tests.routing.routers import MIXED, SPLIT, placed, question, request, router

MANY = 300


def test_a_small_fleet_is_looked_at_as_a_whole() -> None:
    whole = question(router(count=MOST))
    assert len(whole.slots) == MOST
    assert few_of(whole) is whole
    assert sample_of(whole) is whole


@pytest.mark.slow
def test_the_few_are_those_that_matter_and_some_of_all() -> None:
    made = router(count=MANY, rules=EngineRules(prefix_cache_tokens=10 * EngineRules().block_tokens))
    table = made.state.fleet.table
    table[FleetRow.RUNNING, :MANY] = 9.0
    light, cached = np.arange(17, 17 + LIGHTEST), np.arange(200, 220)
    table[FleetRow.RUNNING, light] = 3.0
    blocks = (1, 2, 3)
    for slot in cached:
        made.state.prefixes.insert(int(slot), blocks)
    seen: set[int] = set()
    for _ in range(40):
        asked = question(made, blocks=blocks, input_tokens=2000)
        slots = set(few_of(asked).slots.tolist())
        assert {*light.tolist(), *cached.tolist()} <= slots
        assert len(slots) <= CACHED + LIGHTEST + SPREAD
        seen |= slots
    assert len(seen) > 0.9 * MANY


def test_the_homes_of_an_adapter_come_in_turn() -> None:
    made, seen, draw = router(count=MANY), set[int](), np.random.default_rng(0)
    for slot in range(100):
        made.state.adapters.report(0.0, slot, ("a",), 4)
    for _ in range(60):
        homes = known_slots(question(made, adapter="a"), int(draw.integers(candidates.LOTS))).tolist()
        assert len(homes) == candidates.LOADED
        seen |= {*homes}
    assert seen == {*range(100)}


def test_the_same_generator_draws_the_same() -> None:
    first, second = (few_of(question(router(count=MANY, seed=3))).slots.tolist() for _ in range(2))
    assert first == second


@pytest.mark.parametrize("most", [1, 3, 8])
def test_the_least_are_marked_and_of_equals_any(most: int) -> None:
    draw = np.random.default_rng(most)
    for _ in range(50):
        values, marks = draw.integers(0, 6, 20).astype(float), np.zeros(20, dtype=np.bool_)
        mark_least(values, most, int(draw.integers(candidates.LOTS)), marks)
        assert sorted(values[marks]) == sorted(values)[:most]


@pytest.mark.parametrize("critical", [False, True])
def test_where_the_few_refuse_all_are_asked(monkeypatch: pytest.MonkeyPatch, critical: bool) -> None:
    made = router(count=MANY)
    table = made.state.fleet.table
    # A guard that nothing keeps closes all but one replica, which is not among the few.
    table[FleetRow.RUNNING, :MANY], table[FleetRow.TPOT_SLO_S, :MANY] = 1.0, 1e-6
    table[FleetRow.TPOT_SLO_S, 123] = 1.0
    monkeypatch.setattr("headway.routing.decide.scheduler.few_of", lambda asked: asked.part(np.arange(5)))
    slo = RequestSlo(ttft_s=2.0, tpot_s=0.1)
    placement = placed(made.submit(0.0, request(slo=slo, critical=critical)))
    assert made.slot(placement.decode_replica) == 123


@pytest.mark.parametrize("pools", [MIXED, SPLIT], ids=["mixed", "split"])
def test_one_that_is_not_likely_to_find_room_is_judged_at_all_at_once(
    monkeypatch: pytest.MonkeyPatch, pools: Any
) -> None:
    made, asked = router("slo", pools, count=MANY), list[Role]()
    monkeypatch.setattr(scheduler, "few_of", lambda context: asked.append(context.role) or few_of(context))
    role = made.state.roles[0]
    slots = made.state.fleet.ready(role)
    # Room at one replica alone.
    made.state.fleet.table[FleetRow.SATURATED_UNTIL_S, slots] = 10.0
    made.state.fleet.table[FleetRow.SATURATED_UNTIL_S, slots[123]] = 0.0
    record = question(made, slo=RequestSlo(ttft_s=5.0, tpot_s=1.0)).record
    choice = made.scheduler.choose(1.0, replace(record, profile="slo", judged=True), likely=False)
    assert not isinstance(choice, Refusal)
    assert choice.prefill.slot == slots[123]
    assert asked == list(made.state.roles[1:])
