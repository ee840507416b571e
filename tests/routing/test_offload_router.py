"""What a router records and measures of offload: traces, transfers, and what its replicas report."""

import numpy as np
import pytest

from headway.config import Role
from headway.config.routing import OffloadSettings
from headway.engine import EngineRules
from headway.engine.surfaces import engine_surfaces, idle_itl_s, work_of
from headway.routing import ReplicaLoad, ReplicaUpdate, Running
from headway.routing.decide.offload import Traces
from headway.routing.offload import OffloadReason, OffloadTrace
from tests.routing.routers import SPLIT, gone, placed, request, router, surfaces

SLOW = EngineRules(chunk_tokens=2048, transfer_bytes_per_s=1e9)
HEAVY = 9000


def made(mode="always", profile="least_load", rules=SLOW, **changes):
    offload = {"mode": mode, "heavy_tokens": 8000, **changes}
    return router(profile, rules=rules, count=2, offload=offload)


def serve(one, request_id="r", at_s=0.0, handover_s=0.5, input_tokens=HEAVY, **facts):
    """An offloaded request from its arrival to its end, its KV on its way for `handover_s`."""
    one.submit(at_s, request(request_id, arrival_s=at_s, input_tokens=input_tokens, **facts))
    one.prefilled(at_s + 1.0, request_id)
    one.first_token(at_s + 1.0 + handover_s, request_id)
    one.complete(at_s + 9.0, request_id, 50)


def stamps(trace: OffloadTrace) -> tuple[float | None, ...]:
    return (
        trace.t_proxy_recv,
        trace.t_prefill_sent,
        trace.t_prefill_done,
        trace.t_first_token,
        trace.t_done,
    )


class TestTraces:
    def test_an_offloaded_request_has_all_its_stamps(self) -> None:
        one = made()
        one.submit(2.0, request(arrival_s=1.5, input_tokens=HEAVY))
        one.prefilled(3.0, "r")
        one.first_token(3.5, "r")
        assert one.traces.take() == ()
        one.complete(7.0, "r", 50)
        (trace,) = one.traces.take()
        assert (trace.request_id, trace.route_class, trace.offload_decision_reason) == (
            "r",
            "HEAVY_P2P",
            OffloadReason.ALWAYS,
        )
        assert stamps(trace) == (1.5, 2.0, 3.0, 3.5, 7.0)
        assert one.traces.take() == ()

    def test_a_small_prompt_is_done_with_its_first_token(self) -> None:
        one = made()
        one.submit(2.0, request(arrival_s=2.0, input_tokens=300))
        one.first_token(3.0, "r")
        one.complete(4.0, "r", 50)
        (trace,) = one.traces.take()
        assert (trace.route_class, trace.t_prefill_done) == ("WARM", trace.t_first_token)
        assert stamps(trace) == (2.0, 2.0, 3.0, 3.0, 4.0)

    def test_a_prompt_taken_back_has_the_stamps_of_its_way_at_d(self) -> None:
        one = made()
        first = placed(one.submit(0.0, request(input_tokens=HEAVY)))
        one.expire(first.deadline_s)
        one.first_token(first.deadline_s + 1.0, "r")
        one.complete(first.deadline_s + 2.0, "r", 50)
        (trace,) = one.traces.take()
        assert (trace.route_class, trace.offload_decision_reason) == ("HEAVY_COLO", "deadline_passed")
        late = first.deadline_s
        assert stamps(trace) == (0.0, late, late + 1.0, late + 1.0, late + 2.0)

    def test_kv_that_was_lost_leaves_no_stamp(self) -> None:
        """P was done, then D died: the prompt is placed anew, and fails there."""
        one = made()
        first = placed(one.submit(0.0, request(input_tokens=HEAVY)))
        one.prefilled(1.0, "r")
        gone(one, first.decode_replica)
        assert placed(one.failed(1.5, "r", retry=True)).attempt == 2
        one.failed(3.0, "r", retry=False)
        (trace,) = one.traces.take()
        assert stamps(trace) == (0.0, 1.5, None, None, None)

    def test_a_restored_request_has_the_stamps_that_are_known(self) -> None:
        asked = request(input_tokens=HEAVY)
        placement = placed(made().submit(0.0, asked))
        one = made()
        one.restore(5.0, [Running(request=asked, placement=placement, prefilled=True)])
        one.first_token(6.0, "r")
        one.complete(7.0, "r", 50)
        (trace,) = one.traces.take()
        assert stamps(trace) == (0.0, 0.0, None, 6.0, 7.0)
        assert one.metrics()["transfer"] == {}

    def test_nothing_is_recorded_without_offload_or_for_what_is_shed(self) -> None:
        never = made(mode="never")
        serve(never)
        split = router("least_load", SPLIT, offload={"mode": "always"})
        serve(split)
        assert never.traces.take() == split.traces.take() == ()
        held = router("least_load", count=0, offload={"mode": "always"})
        held.submit(0.0, request())
        assert len(held.expire(1e6).sheds) == 1
        assert held.traces.take() == ()

    def test_the_ring_keeps_the_latest(self) -> None:
        one = made()
        one.traces = Traces(OffloadSettings(mode="always"), most=3)
        for number in range(5):
            serve(one, f"r{number}", at_s=10.0 * number)
        assert [trace.request_id for trace in one.traces.latest(2)] == ["r3", "r4"]
        assert [trace.request_id for trace in one.traces.latest(9)] == ["r2", "r3", "r4"]
        assert one.traces.latest(0) == ()


class TestTransfers:
    def settled(self, handover_s, rules=SLOW, count=60):
        one = made(rules=rules)
        for number in range(count):
            serve(one, f"r{number}", at_s=100.0 * number, handover_s=handover_s)
        return one.metrics()["transfer"]

    def test_the_factor_is_measured_less_d_s_iteration_over_the_rule(self) -> None:
        # D is idle: one iteration of one sequence and nothing else.
        itl_s = idle_itl_s(surfaces(), np.array([float(HEAVY)]))[0]
        figures = self.settled(3.0 * SLOW.transfer_s(HEAVY) + itl_s)
        assert figures["factor",] == pytest.approx(3.0, rel=0.01)
        assert figures["measured",] == 60

    def test_a_busy_d_is_waited_for(self) -> None:
        """Half of the iteration under way and one of its own, each with a chunk of the prompt there."""
        busy, work = made(), engine_surfaces(surfaces()).work
        placement = placed(busy.submit(0.0, request(input_tokens=HEAVY)))
        others = [placed(busy.submit(0.1, request(f"x{n}", input_tokens=3000))) for n in range(2)]
        assert placement.decode_replica in {each.decode_replica for each in others}
        idle_s = idle_itl_s(surfaces(), np.array([float(HEAVY)]))[0]
        wait_s = idle_s + 1.5 * work_of(work, SLOW.chunk_tokens) + 0.5 * float(work.seconds[0])
        busy.prefilled(1.0, "r")
        busy.first_token(1.0 + SLOW.transfer_s(HEAVY) + wait_s, "r")
        assert busy.metrics()["transfer"]["factor",] == pytest.approx(1.0, abs=1e-9)

    def test_where_d_has_no_room_nothing_is_measured(self) -> None:
        one = made(rules=EngineRules(chunk_tokens=2048, max_batch_size=1))
        placement = placed(one.submit(0.0, request(input_tokens=HEAVY)))
        load = ReplicaLoad(running=4, waiting=0, kv_usage=0.1)
        one.replica_changed(0.5, ReplicaUpdate(replica=placement.decode_replica, role=Role.MIXED, load=load))
        one.prefilled(1.0, "r")
        one.first_token(2.0, "r")
        assert one.metrics()["transfer"] == {}

    def test_only_what_d_lacks_is_sent(self) -> None:
        rules = EngineRules(chunk_tokens=2048, prefix_cache_tokens=100_000, transfer_bytes_per_s=1e9)
        one = made(rules=rules, profile="prefix")
        blocks = tuple(range(40))
        one.submit(0.0, request("before", input_tokens=5120, blocks=blocks[:10], session="s"))
        one.first_token(1.0, "before")
        one.complete(2.0, "before", 5)
        placement = placed(
            one.submit(3.0, request(arrival_s=3.0, input_tokens=20_480, blocks=blocks, session="s"))
        )
        assert placement.split
        one.prefilled(6.0, "r")
        idle_s = idle_itl_s(surfaces(), np.array([20_480.0]))[0]
        one.first_token(6.0 + rules.transfer_s(20_480 - 5120) + idle_s, "r")
        assert one.metrics()["transfer"]["factor",] == pytest.approx(1.0, abs=1e-9)

    def test_decisions_and_predictions_go_by_it(self) -> None:
        predicted = []
        for factor in (1.0, 4.0):
            one = made(profile="slo")
            one.use_corrections({"transfer": factor})
            predicted.append(placed(one.submit(0.0, request(input_tokens=HEAVY))).predicted_ttft_s)
        assert predicted[1] - predicted[0] == pytest.approx(3.0 * SLOW.transfer_s(HEAVY))

    def test_what_is_measured_to_be_dear_is_not_offloaded(self) -> None:
        """D decodes two others, P none; the transfer takes next to nothing, or 20 times the rule's time."""
        reasons = []
        for factor in (0.1, 20.0):
            one = made("cost", "round_robin", EngineRules(chunk_tokens=2048))
            one.use_corrections({"transfer": factor})
            for number in range(4):
                one.submit(0.0, request(f"x{number}", input_tokens=300))
                one.first_token(0.1, f"x{number}")
            for number in (1, 3):
                one.complete(0.5, f"x{number}", 10)
            reasons.append(placed(one.submit(1.0, request(arrival_s=1.0, input_tokens=HEAVY))).reason)
        assert reasons == ["p_idle_d_busy", "transfer_too_dear"]


class TestUtilisation:
    def report(self, one, at_s, busy_s, replica="mixed-0"):
        load = ReplicaLoad(running=1, waiting=0, kv_usage=0.25, busy_s=busy_s)
        one.replica_changed(at_s, ReplicaUpdate(replica=replica, role=Role.MIXED, load=load))

    def test_it_is_what_engines_say_of_those_that_are_there(self) -> None:
        one = made()
        self.report(one, 100.0, None)
        assert one.metrics()["busy_s"] == {}
        self.report(one, 100.0, 40.0)
        self.report(one, 104.0, None)
        self.report(one, 104.0, 1.0, "mixed-1")
        assert one.metrics()["busy_s"] == {("mixed", "mixed-0"): 40.0, ("mixed", "mixed-1"): 1.0}
        gone(one, "mixed-1")
        assert set(one.metrics()["busy_s"]) == {("mixed", "mixed-0")}
