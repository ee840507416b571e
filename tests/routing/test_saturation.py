"""Saturated replicas get nothing while others are not, with every profile; where all are, requests wait."""

from collections import Counter

import pytest

from headway.config import HeadwayConfig, Role
from headway.routing import ReplicaLoad, ReplicaUpdate, RequestSlo, Router, ShedReason
from headway.routing.factory import BUILT_IN
from headway.routing.fleet.table import FleetRow
from headway.routing.shared_rules import FRESH_S, EngineWord, SaturationRule
from tests.routing.routers import SPLIT, finish, placed, request, router

PATIENCE = {"queue": {"max_wait_s": 30.0}}
SLO = RequestSlo(ttft_s=5.0, tpot_s=0.1)


def report(made: Router, name: str, now_s: float = 0.0, role: Role = Role.MIXED, **figures) -> None:
    load = ReplicaLoad(**{"running": 1, "waiting": 0, "kv_usage": 0.1, **figures})
    made.replica_changed(now_s, ReplicaUpdate(replica=name, role=role, load=load))


def rule(**settings) -> SaturationRule:
    return SaturationRule.of(HeadwayConfig.model_validate({"routing": {"saturation": settings}}), 100)


def own_profile() -> dict:
    plugins = [{"plugin_ref": "session-affinity-scorer"}]
    return {"scheduling_profiles": [{"name": "own", "plugins": plugins}]}


class TestEveryProfileObeys:
    @pytest.mark.parametrize("profile", [*BUILT_IN, "own"])
    @pytest.mark.parametrize("figures", [{"waiting": 300}, {"kv_usage": 0.96}], ids=["waiting", "kv"])
    def test_a_saturated_replica_gets_nothing_while_others_are_not(self, profile, figures) -> None:
        made = router(profile, count=3, **own_profile())
        report(made, "mixed-1", **figures)
        went = Counter[str]()
        for number in range(12):
            asked = request(f"r{number}", arrival_s=0.5, session="s", slo=SLO)
            went[placed(made.submit(0.5, asked)).prefill_replica] += 1
            made.prefilled(0.5, asked.request_id)
        assert went["mixed-1"] == 0

    @pytest.mark.parametrize("profile", sorted(BUILT_IN))
    def test_5000_prompts_are_not_handed_to_one_replica(self, profile) -> None:
        made = router(profile, count=1, **PATIENCE)
        for number in range(5000):
            made.submit(1e-4 * number, request(f"r{number}", arrival_s=1e-4 * number, slo=SLO))
        assert 0 < made.running <= 256
        assert made.cell(FleetRow.WORK_S) < 11.0
        made.expire(31.0)
        assert made.queued == 0
        assert made.metrics()["sheds"].keys() <= {("saturated",), ("no_headroom",), ("waited_too_long",)}
        assert made.running + sum(made.metrics()["sheds"].values()) == 5000

    @pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
    def test_each_role_of_split_pools(self, role) -> None:
        made = router("least_load", SPLIT)
        report(made, f"{role}-0", role=role, waiting=300)
        placements = [placed(made.submit(0.5, request(f"r{n}"))) for n in range(6)]
        went = {each.prefill_replica if role is Role.PREFILL else each.decode_replica for each in placements}
        assert went == {f"{role}-1"}


class TestAllSaturated:
    def saturated(self, profile: str = "least_load", **fields) -> Router:
        made = router(profile, count=2, **PATIENCE)
        for number in range(2):
            report(made, f"mixed-{number}", waiting=400 - number)
        assert not made.submit(0.5, request(arrival_s=0.5, **fields)).placements
        return made

    @pytest.mark.parametrize("profile", sorted(BUILT_IN))
    def test_held_and_placed_when_one_is_not_any_more(self, profile) -> None:
        made = self.saturated(profile, slo=RequestSlo(ttft_s=60.0, tpot_s=0.1))
        assert made.queued == 1
        report(made, "mixed-1", 1.0, waiting=250, busy_s=0.4)
        assert made.queued == 1  # not far enough below the bound of 256
        load = ReplicaLoad(running=1, waiting=0, kv_usage=0.1, busy_s=0.9)
        update = ReplicaUpdate(replica="mixed-1", role=Role.MIXED, load=load)
        assert placed(made.replica_changed(1.5, update)).prefill_replica == "mixed-1"

    @pytest.mark.parametrize("critical", [False, True])
    def test_shed_when_its_patience_is_over(self, critical) -> None:
        made = self.saturated(critical=critical)
        for second in range(1, 31):
            for number in range(2):
                report(made, f"mixed-{number}", float(second), waiting=400, busy_s=float(second))
        (shed,) = made.expire(30.5).sheds
        assert shed.reason is ShedReason.SATURATED
        assert "every mixed replica is saturated" in shed.detail

    def test_old_news_does_not_close_the_fleet_for_good(self) -> None:
        made = self.saturated()
        assert not made.expire(FRESH_S - 0.1).placements
        assert made.next_due_s < FRESH_S + 1.0
        assert placed(made.expire(FRESH_S + 0.6)).attempt == 1


class TestBooks:
    def test_seconds_of_prompts_bound_what_is_placed(self) -> None:
        made = router("least_load", count=1, saturation={"max_queue_s": 2.0})
        for number in range(50):
            made.submit(0.0, request(f"r{number}", input_tokens=10_000))
        assert 2.0 <= made.cell(FleetRow.WORK_S) < 2.6
        assert made.queued > 0

    def test_a_request_that_may_wait_longer_is_placed_all_the_same(self) -> None:
        made = router("least_load", count=1, saturation={"max_queue_s": 2.0})
        patient = RequestSlo(ttft_s=20.0)
        for number in range(50):
            made.submit(0.0, request(f"r{number}", input_tokens=10_000, slo=patient))
        assert made.cell(FleetRow.WORK_S) > 4.0

    def test_what_is_done_makes_room(self) -> None:
        made = router("least_load", count=1, saturation={"max_waiting": 3})
        for number in range(5):
            made.submit(0.0, request(f"r{number}"))
        assert (made.running, made.queued) == (3, 2)
        assert placed(made.prefilled(0.1, "r0")).request_id == "r3"

    def test_decode_replicas_are_bounded_by_their_batch_and_as_many_again(self) -> None:
        made = router("least_load", SPLIT, count=1, saturation={"max_waiting": 4})
        for number in range(270):
            outcome = made.submit(0.0, request(f"r{number}", input_tokens=10, max_tokens=10))
            made.prefilled(0.0, f"r{number}")
            assert not outcome.sheds
        assert made.running == 260
        assert made.queued == 10


class TestEngineWord:
    def test_waiting_and_kv_with_hysteresis(self) -> None:
        for high, middle, low in [((101, 0.0), (96, 0.0), (94, 0.0)), ((0, 0.96), (0, 0.91), (0, 0.9))]:
            word = EngineWord()
            word.heard(0.0, *middle, 0, rule())
            assert word.until_s == 0.0
            word.heard(1.0, *high, 0, rule())
            assert word.until_s == 1.0 + FRESH_S
            word.heard(2.0, *middle, 0, rule())
            assert word.until_s == 2.0 + FRESH_S
            word.heard(3.0, *low, 0, rule())
            assert word.until_s == 0.0

    def test_preemptions_count_for_a_while(self) -> None:
        word = EngineWord()
        word.heard(0.0, 0, 0.5, 7, rule(preempted_s=3.0))
        assert word.until_s == 0.0  # they may be long ago
        word.heard(1.0, 0, 0.5, 8, rule(preempted_s=3.0))
        word.heard(1.5, 0, 0.5, 8, rule(preempted_s=3.0))
        assert word.until_s == 4.0
        word.heard(2.0, 0, 0.5, 0, rule(preempted_s=3.0))  # the engine began anew
        assert word.until_s == 4.0

    def test_bounds_that_are_derived(self) -> None:
        config = HeadwayConfig.model_validate(
            {"slo": {"ttft_ms": 900, "classes": {"batch": {"ttft_ms": 20_000}, "same": {}}}}
        )
        assert SaturationRule.of(config).limits == (256.0, 256.0, 20.0)
        assert SaturationRule.of(HeadwayConfig(), 8).limits == (8.0, 8.0, 10.0)


def test_within_the_bounds_nothing_changes() -> None:
    made = router("least_load", count=2)
    for number in range(200):
        placed(made.submit(0.01 * number, request(f"r{number}", arrival_s=0.01 * number)))
    assert made.queued == 0
    finish(made, "r0")
