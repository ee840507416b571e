"""How long requests are held, and what makes their latest start."""

import pytest

from headway.config import Role
from headway.routing import NOTHING, RequestSlo, ShedReason
from tests.routing.routers import SPLIT, join, placed, request, router

SLO = RequestSlo(ttft_s=1.0, tpot_s=0.05)


def shed(outcome):
    return [(each.request_id, each.reason) for each in outcome.sheds]


class TestWithoutReplicas:
    def test_what_is_lost_when_they_come_is_shed_then(self) -> None:
        made = router("slo", count=0)
        for number in range(3):
            assert made.submit(0.0, request(f"r{number}", slo=SLO)) == NOTHING
        outcome = join(made, "late", now_s=5.0)
        assert shed(outcome) == [(f"r{number}", ShedReason.NO_HEADROOM) for number in range(3)]
        assert not outcome.placements
        assert made.queued == 0

    def test_what_can_be_kept_is_placed(self) -> None:
        made = router("slo", count=0)
        made.submit(0.0, request(slo=SLO))
        assert placed(join(made, "new", now_s=0.5)).queued_s == 0.5

    def test_what_must_wait_on_is_held_as_long_as_an_idle_replica_could_keep_its_slo(self) -> None:
        made = router("slo", count=0)
        for number in range(20):
            made.submit(0.0, request(f"r{number}", slo=SLO, input_tokens=4000))
        outcome = join(made, "new", now_s=0.5)
        assert outcome.placements
        assert not outcome.sheds
        assert made.queued > 0
        due_s = made.next_due_s
        assert 0.5 < due_s < 1.0
        assert {reason for _, reason in shed(made.expire(due_s))} == {ShedReason.NO_HEADROOM}
        assert made.queued == 0

    def test_critical_ones_are_placed_however_late(self) -> None:
        made = router("slo", count=0)
        made.submit(0.0, request(slo=SLO, critical=True))
        assert placed(join(made, "late", now_s=5.0)).queued_s == 5.0

    def test_a_profile_that_judges_nobody_places_what_is_lost(self) -> None:
        made = router("default", count=0)
        made.submit(0.0, request(slo=SLO))
        assert placed(join(made, "late", now_s=5.0)).queued_s == 5.0

    def test_patience_counts_from_the_arrival(self) -> None:
        made = router("pull", count=0, queue={"max_wait_s": 10.0})
        for number in range(200):
            made.submit(0.0, request(f"r{number}", slo=RequestSlo(ttft_s=60.0, tpot_s=0.01)))
        join(made, "late", now_s=5.0)
        assert made.queued > 0
        assert made.next_due_s == 10.0

    @pytest.mark.parametrize("missing", ["prefill", "decode"])
    def test_one_role_without_replicas_is_enough(self, missing) -> None:
        made = router("slo", SPLIT, count=0)
        there = "decode" if missing == "prefill" else "prefill"
        join(made, "there", Role(there))
        assert made.submit(0.0, request(slo=SLO)) == NOTHING
        assert join(made, "other", Role(there), 4.0) == NOTHING
        assert shed(join(made, "late", Role(missing), 5.0)) == [("r", ShedReason.NO_HEADROOM)]


class TestLatestStart:
    def busy(self, ttft_s):
        """A replica filled by `pull`, and two that are held: one due at `ttft_s`, one later."""
        made, number = router("pull", count=1), 0
        slo = RequestSlo(ttft_s=60.0, tpot_s=0.02)
        while made.queued == 0:
            outcome = made.submit(0.0, request(f"r{number}", slo=slo, input_tokens=200))
            for each in outcome.placements:
                made.first_token(0.0, each.request_id)
            number += 1
        made.failed(0.0, f"r{number - 1}", retry=False)
        made.submit(0.0, request("tight", slo=RequestSlo(ttft_s=ttft_s, tpot_s=0.02), input_tokens=200))
        made.submit(0.0, request("loose", slo=slo, input_tokens=200))
        assert made.queued == 2
        return made

    def first(self, made, now_s):
        outcome = made.complete(now_s, "r0", 100)
        return outcome.placements[0].request_id

    def test_what_can_still_be_saved_goes_first(self) -> None:
        assert self.first(self.busy(2.0), 1.9) == "tight"

    def test_a_start_that_only_an_idle_replica_could_make_up_for_is_too_late(self) -> None:
        idle = placed(router("slo").submit(0.0, request(input_tokens=200)))
        assert self.first(self.busy(2.0), 2.0 - 3.0 * idle.predicted_ttft_s) == "loose"
