"""Other performance surfaces for a router that runs, and corrections that one router learnt for another."""

from math import inf, nan

import pytest

from headway.config import Role
from headway.engine import EngineRules
from headway.routing import ReplicaUpdate, RequestSlo, Router
from interp import scaled
from tests.routing.routers import SPLIT, bearing, finish, join, placed, request, router, surfaces

SLO = RequestSlo(ttft_s=30.0, tpot_s=1.0)


def predicted(made: Router, request_id: str) -> tuple[float, float]:
    placement = placed(made.submit(0.0, request(request_id, slo=SLO)))
    assert placement.predicted_ttft_s is not None
    assert placement.predicted_tpot_s is not None
    return placement.predicted_ttft_s, placement.predicted_tpot_s


class TestUseProfiles:
    def test_predictions_follow_the_new_surfaces(self) -> None:
        made, fresh = router(), router(profiles={"": scaled(surfaces(), 0.5)})
        before = predicted(made, "a")
        finish(made, "a")
        made.use_profiles({"": scaled(surfaces(), 0.5)})
        assert predicted(made, "b") == pytest.approx(predicted(fresh, "b"), rel=1e-3)
        assert predicted(fresh, "c")[1] == pytest.approx(2.0 * before[1], rel=0.1)

    def test_disaggregated_pools_follow_too(self) -> None:
        made, slower = router(pools=SPLIT), {"": scaled(surfaces(), 0.5)}
        made.use_profiles(slower)
        assert predicted(made, "a") == predicted(router(pools=SPLIT, profiles=slower), "a")

    def test_requests_on_replicas_keep_what_was_predicted_and_their_load_returns_to_zero(self) -> None:
        made = router("pull", count=1)
        placed(made.submit(0.0, request("a", slo=SLO)))
        made.use_profiles({"": scaled(surfaces(), 0.5)})
        finish(made, "a")
        assert made.running == 0
        placed(made.submit(3.0, request("b", arrival_s=3.0, slo=SLO)))

    def test_types_may_come_and_go_with_the_profiles(self) -> None:
        made = router("pull", count=0, profiles={"": surfaces(), "L20": bearing(3.0)})
        for name, gpu_type in (("a", ""), ("b", "L20"), ("c", "A10")):
            made.replica_changed(0.0, ReplicaUpdate(replica=name, role=Role.MIXED, gpu_type=gpu_type))
        made.use_profiles({"": bearing(1.0), "A10": bearing(5.0)})
        for number in range(10):
            made.submit(0.0, request(f"r{number}"))
        assert (made.running, made.queued) == (7, 3), "one each on a and b, five on c"

    def test_held_requests_are_judged_anew(self) -> None:
        made = router(count=1, profiles={"": scaled(surfaces(), 0.02)}, queue={"max_wait_s": 10.0})
        hopeless = made.submit(0.0, request("a", slo=RequestSlo(ttft_s=0.5, tpot_s=0.02)))
        assert hopeless.sheds, "fifty times slower, no replica keeps it"
        made.use_profiles({"": surfaces()})
        placed(made.submit(0.0, request("b", slo=RequestSlo(ttft_s=0.5, tpot_s=0.02))))


class TestCorrections:
    def test_what_one_router_learnt_another_starts_from(self) -> None:
        made = router()
        assert made.corrections == {"ttft": 1.1, "tpot": 1.1, "transfer": 1.0}
        for number in range(20):
            placed(made.submit(0.0, request(f"r{number}", slo=SLO)))
            made.first_token(20.0, f"r{number}")
            made.complete(60.0, f"r{number}", 100)
        learnt = made.corrections
        assert learnt["ttft"] > 1.2
        successor = router(rules=EngineRules())
        successor.use_corrections(learnt)
        assert successor.corrections == pytest.approx(learnt)

    def test_what_is_missing_or_no_factor_stays(self) -> None:
        made = router()
        made.use_corrections({"ttft": 1.5, "tpot": nan, "transfer": -1.0, "other": 3.0})
        assert made.corrections == pytest.approx({"ttft": 1.5, "tpot": 1.1, "transfer": 1.0})

    def test_factors_stay_within_their_bounds(self) -> None:
        made = router()
        made.use_corrections(dict.fromkeys(made.corrections, inf))
        assert made.corrections == {"ttft": 2.0, "tpot": 2.0, "transfer": 20.0}
        join(made, "another")
        assert placed(made.submit(0.0, request("a", slo=SLO))).predicted_ttft_s is not None
