"""The profile `pull`: the request itself is judged, by what is left of its SLO, and loads are compared."""

from dataclasses import replace

import numpy as np
import pytest

from headway.engine import EngineRules
from headway.engine.surfaces import idle_prompt_s
from headway.routing import NOTHING, RequestSlo, ShedReason
from headway.routing.fleet.table import FleetRow
from headway_aibrix.plugins import CapacityFilter, LeastPatternLoad
from tests.routing.routers import finish, placed, question, request, router, surfaces


@pytest.mark.slow
def test_an_idle_replica_takes_whatever_it_serves_within_its_slo() -> None:
    """By the middle of a bucket a fifth of these were shed: whatever is longer than that seems shorter."""
    draw = np.random.default_rng(1)
    for number in range(100):
        tokens, margin = int(2 ** draw.uniform(5, 13.5)), draw.uniform(1.02, 1.3)
        made = router("pull", count=1)
        prompt_s = idle_prompt_s(surfaces(), np.array([float(tokens)]), 2048)[0]
        asked = request("r", input_tokens=tokens, slo=RequestSlo(ttft_s=margin * float(prompt_s)))
        placed(made.submit(0.0, replace(asked, critical=number % 2 == 0)))


def test_the_time_waited_counts() -> None:
    made, slo = router("pull", count=1), RequestSlo(ttft_s=2.0)
    assert placed(made.submit(1.0, request("a", slo=slo))).queued_s == 1.0
    finish(made, "a")
    (shed,) = made.submit(5.0, request("b", slo=slo)).sheds
    assert shed.reason is ShedReason.NO_HEADROOM
    assert "were it idle" in shed.detail


def test_what_waits_is_shed_once_an_idle_replica_is_too_late() -> None:
    made, slo = router("pull", count=1), RequestSlo(ttft_s=3.0)
    made.book(FleetRow.LOAD, 1.0)
    assert made.submit(0.0, request("a", slo=slo)) == NOTHING
    while made.next_due_s < 2.8:
        assert made.expire(made.next_due_s) == NOTHING
    assert made.next_due_s < 3.0
    (shed,) = made.expire(made.next_due_s).sheds
    assert shed.reason is ShedReason.NO_HEADROOM


def test_a_request_that_promised_nothing_itself_is_not_late() -> None:
    made = router("pull", count=1)
    assert placed(made.submit(50.0, request("a"))).queued_s == 50.0


def test_a_critical_one_that_no_replica_can_save_takes_a_whole_one() -> None:
    made, lost = router("pull", count=1), RequestSlo(ttft_s=1e-4, tpot_s=1e-5)
    placed(made.submit(0.0, request("first", slo=lost, critical=True)))
    assert made.cell(FleetRow.LOAD) == 1.0
    assert made.submit(0.0, request("second", slo=lost, critical=True)) == NOTHING
    assert made.queued == 1


def test_a_critical_one_that_comes_too_late_leaves_room_to_those_that_can_be_saved() -> None:
    slo = RequestSlo(ttft_s=2.0, tpot_s=0.03)
    early, late = router("pull", count=1), router("pull", count=1)
    placed(early.submit(0.0, request(slo=slo, critical=True)))
    placed(late.submit(1.9999, request(slo=slo, critical=True)))
    assert late.cell(FleetRow.LOAD) == pytest.approx(2.0 * early.cell(FleetRow.LOAD))


def test_cached_prompt_tokens_are_not_charged() -> None:
    rules = EngineRules(chunk_tokens=2048, prefix_cache_tokens=100_000)
    slo, filled = RequestSlo(ttft_s=4.0, tpot_s=0.03), []
    for step in (0, 1):
        made, number = router("pull", count=1, rules=rules), 0
        while not made.queued:
            blocks = tuple(range(step * 100 * number, step * 100 * number + 8))
            made.submit(0.0, request(f"r{number}", slo=slo, input_tokens=4200, blocks=blocks))
            number += 1
        filled.append(made.running)
    assert filled[0] > 1.5 * filled[1]


def test_the_least_pattern_load_is_preferred_not_the_fewest_requests() -> None:
    made = router("pull")
    made.book(FleetRow.LOAD, 0.6, 0.2)
    made.book(FleetRow.RUNNING, 1.0, 9.0)
    scores = LeastPatternLoad().score(question(made))
    assert 0.0 < scores[0] < scores[1] < 1.0
    assert placed(made.submit(0.0, request())).decode_replica == "mixed-1"


class TestCapacityFilter:
    def test_a_replica_is_filled_to_its_capacity_and_no_further(self) -> None:
        made = router("pull", count=1)
        slo = RequestSlo(ttft_s=1.0, tpot_s=0.01)
        number = 0
        while made.submit(0.0, request(f"r{number}", slo=slo)).placements:
            number += 1
        assert made.queued == 1
        assert 1 < number < 256
        assert made.cell(FleetRow.LOAD) <= 1.0 + 1e-9
        finish_one = made.complete(0.2, "r0", 10)
        assert placed(finish_one).request_id == f"r{number}"

    def test_no_capacity_anywhere_sheds_at_once(self) -> None:
        made = router("pull")
        (shed,) = made.submit(0.0, request(slo=RequestSlo(ttft_s=1e-4, tpot_s=1e-5))).sheds
        assert shed.reason is ShedReason.NO_CAPACITY

    def test_unknown_engines_take_a_batch(self) -> None:
        made = router("pull", count=1, profiles={}, rules=EngineRules(max_batch_size=3))
        for number in range(4):
            made.submit(0.0, request(f"r{number}"))
        assert (made.running, made.queued) == (3, 1)

    def test_it_keeps_what_has_room(self) -> None:
        made = router("pull")
        made.book(FleetRow.LOAD, 1.0, 0.0)
        assert CapacityFilter().keep(question(made)).tolist() == [False, True]
