"""The state machine: events, retries, holding, deadlines, restoring."""

import numpy as np
import pytest

from headway.config import Role
from headway.engine import EngineRules
from headway.routing import (
    NOTHING,
    OutputProgress,
    ReplicaState,
    ReplicaUpdate,
    RequestFault,
    RequestSlo,
    RouteClass,
    Running,
    ShedReason,
    SloRequired,
)
from headway.routing.fleet.table import FleetRow
from tests.routing.routers import MIXED, OWN_ROWS, SPLIT, finish, gone, join, placed, request, router

OFFLOAD = {"mode": "always", "heavy_tokens": 4096, "warm_tokens": 512}


class TestEvents:
    @pytest.mark.parametrize("pools", [MIXED, SPLIT])
    @pytest.mark.parametrize(
        "profile",
        [
            "random",
            "round_robin",
            "least_load",
            "bin_pack",
            "prefix",
            "default",
            "slo",
            "pull",
            "pull_bin_pack",
        ],
    )
    def test_every_profile_places_and_all_books_close(self, pools, profile) -> None:
        made = router(profile, pools, count=9)
        for number in range(9):
            placement = placed(
                made.submit(
                    0.1 * number,
                    request(f"r{number}", arrival_s=0.1 * number, input_tokens=100, critical=True),
                )
            )
            assert placement.split == (pools is SPLIT)
        assert made.running == 9
        for number in range(9):
            finish(made, f"r{number}")
        assert made.running == made.queued == 0
        assert made.books_are_closed
        assert made.metrics()["ended"][("completed",)] == 9

    def test_unknown_requests_are_ignored_and_counted(self) -> None:
        made = router()
        outcomes = [
            made.prefilled(0.0, "x"),
            made.first_token(0.0, "x"),
            made.progress(0.0, [OutputProgress("x", 3)]),
            made.complete(0.0, "x", 1),
            made.failed(0.0, "x", retry=True),
            gone(made, "nobody"),
        ]
        assert outcomes == [NOTHING] * 6
        assert sum(made.metrics()["unknown_events"].values()) == 6

    def test_a_request_submitted_twice_is_placed_once(self) -> None:
        made = router()
        placed(made.submit(0.0, request()))
        assert made.submit(0.0, request()) == NOTHING
        assert made.running == 1

    def test_a_first_token_says_that_the_prompt_is_computed(self) -> None:
        made = router(count=1)
        made.submit(0.0, request())
        made.first_token(0.1, "r")
        assert made.cell(FleetRow.WAITING) == 0
        assert made.cell(FleetRow.RUNNING) == 1

    def test_the_prediction_based_flag_needs_an_slo_and_takes_the_slo_profile(self) -> None:
        with pytest.raises(SloRequired):
            request(prediction_based=True)
        made = router("least_load")
        slo = RequestSlo(ttft_s=1.0, tpot_s=0.05)
        placement = placed(made.submit(0.0, request(slo=slo, prediction_based=True)))
        assert placement.profile == "slo"
        assert placement.predicted_ttft_s is not None
        assert placed(made.submit(0.0, request("other", slo=slo))).profile == "least_load"

    def test_requests_without_an_slo_are_held_to_the_one_in_force(self) -> None:
        made = router("pull", slo={"ttft_ms": 10_000.0, "itl_ms": 1000.0})
        placed(made.submit(0.0, request("before")))
        made.use_slo(RequestSlo(ttft_s=1e-6, tpot_s=1e-6))
        assert [shed.request_id for shed in made.submit(0.0, request("strict")).sheds] == ["strict"]
        placed(made.submit(0.0, request("own", slo=RequestSlo(ttft_s=10.0, tpot_s=1.0))))
        made.use_slo(RequestSlo(ttft_s=10.0, tpot_s=1.0))
        placed(made.submit(0.0, request("after")))

    def test_who_names_no_slo_is_not_shed_for_the_deployments(self) -> None:
        made, impossible = router("slo", queue={"max_wait_s": 5.0}), RequestSlo(ttft_s=1e-6, tpot_s=1e-6)
        made.use_slo(impossible)
        placed(made.submit(0.0, request("plain")))
        assert [shed.request_id for shed in made.submit(0.0, request("own", slo=impossible)).sheds] == ["own"]
        sheds = [made.submit(0.0, request(f"r{number}", input_tokens=20_000)).sheds for number in range(20)]
        assert not any(sheds)
        assert made.queued > 0
        while made.next_due_s < 5.0:
            assert not made.expire(made.next_due_s).sheds
        assert {shed.reason for shed in made.expire(5.0).sheds} == {ShedReason.NO_HEADROOM}


class TestHolding:
    def test_requests_wait_for_a_ready_replica_and_go_when_it_comes(self) -> None:
        made = router("least_load", count=0)
        for number in range(20):
            assert made.submit(0.0, request(f"r{number}")) == NOTHING
        assert made.queued == 20
        assert len(join(made, "mixed-0", now_s=1.0).placements) == 20
        assert made.queued == 0

    def test_both_roles_must_be_ready(self) -> None:
        made = router("least_load", SPLIT, count=0)
        made.submit(0.0, request())
        assert join(made, "p", Role.PREFILL) == NOTHING
        placement = placed(join(made, "d", Role.DECODE))
        assert (placement.prefill_replica, placement.decode_replica) == ("p", "d")

    def test_nobody_waits_longer_than_max_wait(self) -> None:
        made = router("least_load", count=0, queue={"max_wait_s": 5.0})
        made.submit(1.0, request(arrival_s=1.0))
        assert made.next_due_s == 6.0
        assert made.expire(5.9) == NOTHING
        (shed,) = made.expire(6.0).sheds
        assert shed.reason is ShedReason.WAITED_TOO_LONG
        assert made.next_due_s == np.inf
        assert made.queued == made.running == 0

    def test_a_full_queue_sheds_the_newcomer(self) -> None:
        made = router("least_load", count=0, queue={"max_requests": 1})
        made.submit(0.0, request("a"))
        (shed,) = made.submit(0.0, request("b")).sheds
        assert (shed.request_id, shed.reason) == ("b", ShedReason.QUEUE_FULL)

    def test_a_draining_replica_takes_nothing_new_but_keeps_what_it_has(self) -> None:
        made = router("least_load", count=1)
        placed(made.submit(0.0, request("a")))
        made.replica_changed(
            0.0, ReplicaUpdate(replica="mixed-0", role=Role.MIXED, state=ReplicaState.DRAINING)
        )
        assert made.submit(0.0, request("b")) == NOTHING
        finish(made, "a")
        assert made.queued == 1

    def test_a_held_request_may_fail(self) -> None:
        made = router("least_load", count=0)
        made.submit(0.0, request())
        assert made.failed(0.0, "r", retry=True) == NOTHING
        assert made.queued == 1
        made.failed(0.0, "r", retry=False)
        assert made.queued == 0
        assert join(made, "mixed-0") == NOTHING


class TestFaults:
    def breaks(self, made, *request_ids):
        """Have the scheduler fail on these requests."""
        choose, chosen = made.scheduler.choose, made.scheduler.chosen

        def guarded(work):
            def run(now_s, record, *rest, **named):
                if record.request.request_id in request_ids:
                    raise ZeroDivisionError
                return work(now_s, record, *rest, **named)

            return run

        made.scheduler.choose, made.scheduler.chosen = guarded(choose), guarded(chosen)

    def test_what_was_placed_before_a_held_request_failed_comes_with_the_next_event(self) -> None:
        made = router("least_load", count=0, queue={"max_wait_s": 5.0})
        for number, name in enumerate(["old", "good", "bad", "behind"]):
            made.submit(float(number), request(name, arrival_s=float(number)))
        self.breaks(made, "bad")
        with pytest.raises(RequestFault) as caught:
            join(made, "mixed-0", now_s=5.5)
        assert caught.value.request_id == "bad"
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        outcome = made.failed(5.5, "bad", retry=False)
        assert [shed.request_id for shed in outcome.sheds] == ["old"]
        assert [placement.request_id for placement in outcome.placements] == ["good", "behind"]
        assert (made.running, made.queued) == (2, 0)
        assert made.expire(5.5) == NOTHING

    def test_an_event_that_anothers_fault_cuts_short_is_done(self) -> None:
        made = router("least_load", count=1)
        placed(made.submit(0.0, request("r")))
        gone(made, "mixed-0")
        made.submit(0.0, request("bad"))
        self.breaks(made, "bad")
        with pytest.raises(RequestFault):
            join(made, "mixed-1")
        with pytest.raises(RequestFault):
            made.failed(1.0, "r", retry=True)
        placement = placed(made.failed(1.0, "bad", retry=False))
        assert (placement.request_id, placement.decode_replica, placement.attempt) == ("r", "mixed-1", 2)

    def test_an_offloaded_prompt_that_cannot_be_taken_back_stops_no_other(self) -> None:
        made = router("least_load", count=2, offload=OFFLOAD, rules=EngineRules(chunk_tokens=2048))
        late = [placed(made.submit(0.0, request(name, input_tokens=9000))) for name in ("bad", "good")]
        self.breaks(made, "bad")
        due_s = max(placement.deadline_s for placement in late)
        with pytest.raises(RequestFault) as caught:
            made.expire(due_s)
        assert caught.value.request_id == "bad"
        assert made.failed(due_s, "bad", retry=False) == NOTHING
        assert placed(made.expire(due_s)).reason == "deadline_passed"
        finish(made, "good", due_s)
        assert made.books_are_closed


class TestRetries:
    @pytest.mark.parametrize("pools", [MIXED, SPLIT])
    @pytest.mark.parametrize("prefilled", [False, True])
    def test_a_lost_attempt_goes_elsewhere(self, pools, prefilled) -> None:
        made = router("least_load", pools)
        first = placed(made.submit(0.0, request()))
        if prefilled:
            made.prefilled(0.1, "r")
        gone(made, first.decode_replica, Role(first.decode_replica.split("-")[0]), 0.2)
        second = placed(made.failed(0.2, "r", retry=True))
        assert second.attempt == 2
        assert second.decode_replica != first.decode_replica
        finish(made, "r")
        assert made.books_are_closed

    def test_without_a_replica_left_the_retry_waits(self) -> None:
        made = router("least_load", count=1)
        made.submit(0.0, request())
        gone(made, "mixed-0")
        assert made.failed(0.1, "r", retry=True) == NOTHING
        assert made.queued == 1
        assert placed(join(made, "new", now_s=0.2)).attempt == 2

    def test_what_is_lost_with_a_replica_leaves_nothing_behind(self) -> None:
        made = router("least_load", count=1)
        made.submit(0.0, request())
        gone(made, "mixed-0")
        made.complete(1.0, "r", 3)
        join(made, "next")
        assert made.running == 0
        assert made.books_are_closed


class TestOffload:
    def make(self, **changes):
        return router(
            "least_load", count=2, offload={**OFFLOAD, **changes}, rules=EngineRules(chunk_tokens=2048)
        )

    def test_a_heavy_prompt_is_computed_elsewhere_with_a_deadline(self) -> None:
        made = self.make()
        placement = placed(made.submit(0.0, request(input_tokens=9000)))
        assert placement.split
        assert placement.route_class is RouteClass.HEAVY_P2P
        assert 1.0 < placement.deadline_s == made.next_due_s < 60.0
        made.prefilled(0.5, "r")
        assert made.next_due_s == np.inf
        finish(made, "r")
        assert made.books_are_closed

    def test_a_lost_prefill_replica_colocates(self) -> None:
        made = self.make()
        first = placed(made.submit(0.0, request(input_tokens=9000)))
        gone(made, first.prefill_replica)
        second = placed(made.failed(0.1, "r", retry=True))
        assert second.prefill_replica == second.decode_replica == first.decode_replica
        assert second.reason == "p_lost"
        finish(made, "r")
        assert made.books_are_closed

    def test_transferred_kv_is_in_the_decode_replicas_cache(self) -> None:
        made = router(
            "least_load",
            offload=OFFLOAD,
            rules=EngineRules(chunk_tokens=2048, prefix_cache_tokens=100_000),
        )
        blocks = tuple(range(17))
        first = placed(made.submit(0.0, request(input_tokens=9000, blocks=blocks)))
        made.prefilled(0.5, "r")
        assert made.state.prefixes.run_at(made.slot(first.decode_replica), blocks) == 17


class TestRestore:
    @pytest.mark.parametrize("pools", [MIXED, SPLIT])
    def test_the_books_are_as_before(self, pools) -> None:
        before = router("slo", pools, count=12)
        before.submit(0.0, request("first"))
        finish(before, "first", output_tokens=20)
        requests = [
            request(f"r{n}", arrival_s=0.01 * n, slo=RequestSlo(ttft_s=5.0, tpot_s=0.1), critical=True)
            for n in range(12)
        ]
        placements = {each.request_id: placed(before.submit(each.arrival_s, each)) for each in requests}
        for number in range(0, 12, 2):
            before.prefilled(0.5, f"r{number}")
        expected = before.state.fleet.table[FleetRow.OUTPUT_TOKENS].sum() / 12
        after = router("slo", pools, count=12)
        after.restore(
            1.0,
            [
                Running(
                    request=each,
                    placement=placements[each.request_id],
                    prefilled=number % 2 == 0,
                    expected_output_tokens=round(expected),
                )
                for number, each in enumerate(requests)
            ],
        )
        seconds = {FleetRow.WORK_S}
        same = [row for row in OWN_ROWS if row not in seconds] + [FleetRow.TPOT_SLO_S]
        assert (after.state.fleet.table[same] == before.state.fleet.table[same]).all()
        assert after.running == 12
        # How long prompts took is not known.
        assert after.state.latency.prompt_s == 0.0
        for each in requests:
            finish(after, each.request_id, 2.0)
        assert after.books_are_closed

    def test_requests_on_unknown_replicas_are_ignored(self) -> None:
        other = router(count=1)
        placement = placed(other.submit(0.0, request()))
        made = router(count=0)
        made.restore(0.0, [Running(request=request(), placement=placement)])
        assert made.running == 0
        assert made.metrics()["unknown_events"] == {("restore",): 1}

    def test_a_deadline_survives(self) -> None:
        before = router("least_load", offload=OFFLOAD)
        placement = placed(before.submit(0.0, request(input_tokens=9000)))
        after = router("least_load", offload=OFFLOAD)
        after.restore(0.1, [Running(request=request(input_tokens=9000), placement=placement)])
        assert after.next_due_s == placement.deadline_s
        assert not placed(after.expire(placement.deadline_s)).split
