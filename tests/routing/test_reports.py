"""What engines report of their queues, and how far outputs are: the books have it, and keep no trace."""

from collections import Counter

import pytest

from headway.config import Role
from headway.routing import OutputProgress, ReplicaLoad, ReplicaUpdate, Router
from headway.routing.fleet.table import FleetRow
from headway.routing.predict.forecast import queue_s
from tests.routing.routers import SPLIT, SeenRouter, finish, placed, request, router

QUEUE_ONLY = {"scheduling_profiles": [{"name": "queues", "plugins": [{"plugin_ref": "queue-scorer"}]}]}


def report(made: Router, name: str, now_s: float = 0.0, role: Role = Role.MIXED, **figures) -> None:
    load = ReplicaLoad(**{"running": 0, "waiting": 0, "kv_usage": 0.0, **figures})
    made.replica_changed(now_s, ReplicaUpdate(replica=name, role=role, load=load))


def queued_s(made: SeenRouter, now_s: float) -> float:
    return queue_s(made.state.fleet.table, made.slot("mixed-0"), now_s)


def busy(made: Router, count: int, now_s: float = 0.0, **fields) -> None:
    for number in range(count):
        made.submit(now_s, request(f"b{number}", arrival_s=now_s, **fields))


class TestReportedQueue:
    def test_its_work_is_in_the_predicted_ttft(self) -> None:
        predicted = []
        for waiting in (0, 200):
            made = router("default", count=1)
            finish(made, placed(made.submit(0.0, request("before"))).request_id)
            report(made, "mixed-0", 3.0, waiting=waiting)
            predicted.append(placed(made.submit(3.0, request("r", arrival_s=3.0))).predicted_ttft_s)
        # 200 prompts of 1,000 tokens, as the one before, in iterations of 2,048 tokens.
        alone = router("default", count=1)
        busy(alone, 200)
        assert predicted[1] - predicted[0] == pytest.approx(alone.cell(FleetRow.WORK_S), rel=0.2)
        assert predicted[1] - predicted[0] > 2.0

    def test_its_prompts_are_as_long_as_those_known_there(self) -> None:
        made = router("default", count=1)
        busy(made, 1, input_tokens=4000)
        report(made, "mixed-0", 0.5, running=1, waiting=10)
        assert made.cell(FleetRow.OTHER_WAITING) == 9.0
        assert made.cell(FleetRow.OTHER_PROMPT_TOKENS) == 9 * 4000.0

    def test_the_queue_scorer_sends_nothing_there_while_others_are_empty(self) -> None:
        made = router("queues", count=2, **QUEUE_ONLY)
        report(made, "mixed-0", running=10, waiting=50)
        went = Counter()
        for number in range(100):
            went[placed(made.submit(0.01 * number, request(f"r{number}"))).prefill_replica] += 1
            made.prefilled(0.01 * number, f"r{number}")
        assert went == {"mixed-1": 100}

    def test_a_queue_at_a_decode_replica_counts_for_the_queue_scorer_and_is_no_prefill_work(self) -> None:
        made = router("queues", SPLIT, **QUEUE_ONLY)
        report(made, "decode-0", role=Role.DECODE, running=20, waiting=5)
        assert placed(made.submit(0.0, request())).decode_replica == "decode-1"
        assert made.cell(FleetRow.OTHER_WORK_S, "decode-0") == 0.0

    def test_prefill_replicas_are_compared_with_it_by_least_load(self) -> None:
        made = router("least_load", SPLIT)
        report(made, "prefill-0", role=Role.PREFILL, waiting=3)
        went = {
            placed(made.submit(0.0, request(f"r{n}", input_tokens=100))).prefill_replica for n in range(3)
        }
        assert went == {"prefill-1"}

    def test_ours_are_not_counted_twice(self) -> None:
        made = router("least_load", count=1)
        busy(made, 8)
        report(made, "mixed-0", 0.5, running=3, waiting=5)
        assert made.cell(FleetRow.OTHER_WAITING) == made.cell(FleetRow.OTHER_REQUESTS) == 0.0

    def test_ours_that_came_and_went_since_it_was_written_are_not_others(self) -> None:
        made = router("least_load", count=1)
        report(made, "mixed-0", 0.0)
        busy(made, 8, 0.1)
        report(made, "mixed-0", 0.5, running=1, waiting=7, busy_s=0.4)
        for number in range(8):
            made.prefilled(0.6, f"b{number}")
        made.complete(0.7, "b0", 10)
        # Written before all that.
        report(made, "mixed-0", 1.0, running=2, waiting=6, busy_s=0.5)
        assert made.cell(FleetRow.OTHER_WAITING) == made.cell(FleetRow.OTHER_REQUESTS) == 0.0

    def test_it_fades_when_nothing_more_is_heard(self) -> None:
        made = router("least_load", count=1)
        report(made, "mixed-0", waiting=200)
        made.expire(9.0)
        assert queued_s(made, 9.0) > 1.0
        report(made, "mixed-0", 9.0, waiting=200)
        made.expire(18.0)
        assert queued_s(made, 18.0) > 1.0
        made.expire(19.0)
        assert queued_s(made, 19.0) == 0.0

    def test_the_next_report_takes_it_back(self) -> None:
        made = router("least_load", count=1)
        report(made, "mixed-0", waiting=200)
        assert queued_s(made, 0.0) > 1.0
        report(made, "mixed-0", 0.5, running=1, busy_s=0.4)
        report(made, "mixed-0", 1.0)
        assert made.books_are_closed


class TestShutOut:
    """Ours that a decode replica has the KV of and gives no token: it has no room, whatever the books say."""

    @staticmethod
    def waiting_for_tokens(came_s: float, count: int = 3) -> SeenRouter:
        """Ten at `decode-0`, of which `count` have no token and came at that time."""
        made = router("default", SPLIT, count=1)
        for number in reversed(range(10)):
            at_s = came_s if number < count else 0.0
            made.submit(at_s, request(f"b{number}", arrival_s=at_s))
            made.prefilled(at_s + 0.2, f"b{number}")
            if number >= count:
                made.first_token(at_s + 0.3, f"b{number}")
        report(made, "decode-0", 10.0, Role.DECODE, running=10 - count, waiting=count)
        return made

    def test_who_comes_next_waits_until_as_many_have_ended(self) -> None:
        made = self.waiting_for_tokens(came_s=2.0)
        assert made.cell(FleetRow.SHUT_OUT, "decode-0") == 3.0
        assert made.cell(FleetRow.RESERVED_TOKENS, "decode-0") < 0.1 * made.cell(
            FleetRow.CAPACITY_TOKENS, "decode-0"
        )
        predicted_s = placed(made.submit(10.0, request("r", arrival_s=10.0))).predicted_ttft_s
        stays = (3 + 1) / 7
        assert predicted_s == pytest.approx(stays * made.state.latency.stay_s, rel=0.1)

    def test_kv_that_has_just_come_is_not_shut_out(self) -> None:
        made = self.waiting_for_tokens(came_s=9.7)
        assert made.cell(FleetRow.SHUT_OUT, "decode-0") == 0.0
        assert placed(made.submit(10.0, request("r", arrival_s=10.0))).predicted_ttft_s < 1.0

    def test_prompts_that_cannot_be_under_way_any_more_are_shut_out_of_a_mixed_replica(self) -> None:
        made = router("default", count=1)
        busy(made, 10, input_tokens=100)
        for number in range(3, 10):
            made.first_token(0.5, f"b{number}")
        # The seven that run have all of their output before them, and leave room by the books.
        for now_s, shut_out in ((1.0, 0.0), (10.0, 3.0)):
            report(made, "mixed-0", now_s, running=7, waiting=3)
            assert made.cell(FleetRow.SHUT_OUT) == shut_out
        predicted_s = placed(made.submit(10.0, request("r", arrival_s=10.0))).predicted_ttft_s
        stays = (3 + 1) / 7
        assert predicted_s == pytest.approx(stays * made.state.latency.stay_s, rel=0.2)

    def test_the_engine_says_how_many_at_most(self) -> None:
        made = self.waiting_for_tokens(came_s=2.0)
        report(made, "decode-0", 10.5, Role.DECODE, running=9, waiting=1)
        assert made.cell(FleetRow.SHUT_OUT, "decode-0") == 1.0
        report(made, "decode-0", 11.0, Role.DECODE, running=10, waiting=0)
        assert made.cell(FleetRow.SHUT_OUT, "decode-0") == 0.0

    def test_it_fades_when_nothing_more_is_heard(self) -> None:
        made = self.waiting_for_tokens(came_s=2.0)
        made.expire(21.0)
        assert made.cell(FleetRow.SHUT_OUT, "decode-0") == 0.0


class TestBooksThatAreLate:
    def test_an_idle_engine_is_believed_step_by_step(self) -> None:
        made = router("least_load", count=1)
        report(made, "mixed-0")
        busy(made, 100, 0.1)
        booked = made.cell(FleetRow.WORK_S)
        report(made, "mixed-0", 0.5, busy_s=0.1)
        # They were placed since the last report, of which this one may know nothing.
        assert made.cell(FleetRow.DONE_S) == 0.0
        left = []
        for step in range(1, 6):
            report(made, "mixed-0", 0.5 + 0.5 * step, busy_s=0.1 + 0.1 * step)
            left.append(booked - made.cell(FleetRow.DONE_S))
        assert left == pytest.approx([booked * 0.5**step for step in range(1, 6)])

    def test_what_it_still_has_is_not_taken_off(self) -> None:
        made = router("least_load", count=1)
        report(made, "mixed-0")
        busy(made, 100, 0.1)
        for step in range(20):
            report(made, "mixed-0", 0.5 + 0.5 * step, running=1, waiting=49, busy_s=0.1 * step)
        assert made.cell(FleetRow.DONE_S) == pytest.approx(0.5 * made.cell(FleetRow.WORK_S), rel=1e-3)

    def test_nothing_is_left_of_it_when_the_prompts_are_done(self) -> None:
        made = router("least_load", count=1)
        report(made, "mixed-0")
        busy(made, 10, 0.1)
        for step in range(3):
            report(made, "mixed-0", 0.5 + 0.5 * step, busy_s=0.1 * step)
        for number in range(10):
            assert 0.0 <= made.cell(FleetRow.DONE_S) <= made.cell(FleetRow.WORK_S)
            made.prefilled(2.0, f"b{number}")
        assert made.cell(FleetRow.DONE_S) == 0.0


class TestProgress:
    def test_books_follow_outputs_that_are_15_times_as_long_as_expected(self) -> None:
        made = router("least_load", count=1)
        for number in range(100):
            made.submit(0.0, request(f"r{number}", input_tokens=126, max_tokens=8000))
            made.prefilled(0.1, f"r{number}")
        before = made.cell(FleetRow.KV_TOKENS)
        for second in range(1, 31):
            made.progress(second, [OutputProgress(f"r{number}", 125 * second) for number in range(100)])
            assert made.cell(FleetRow.KV_TOKENS) <= made.cell(FleetRow.RESERVED_TOKENS)
        held = 100 * (126 + 3750)
        assert held > 15 * before
        assert held <= made.cell(FleetRow.KV_TOKENS) < 1.1 * held

    def test_what_is_expected_is_at_least_what_has_come_and_at_most_what_may(self) -> None:
        made = router("least_load", count=1)
        made.submit(0.0, request(max_tokens=500))
        made.prefilled(0.1, "r")
        for tokens in (1, 100, 499, 500):
            made.progress(1.0, [OutputProgress("r", tokens)])
            assert tokens <= made.cell(FleetRow.OUTPUT_TOKENS) <= 500

    def test_old_news_changes_nothing(self) -> None:
        made = router("least_load", count=1)
        made.submit(0.0, request(max_tokens=8000))
        made.prefilled(0.1, "r")
        made.progress(1.0, [OutputProgress("r", 1000)])
        books = made.state.fleet.table.copy()
        made.progress(2.0, [OutputProgress("r", 1000), OutputProgress("r", 900), OutputProgress("other", 5)])
        assert (made.state.fleet.table == books).all()

    @pytest.mark.parametrize("pools", [{"mixed": {}}, SPLIT])
    def test_nothing_is_left_when_the_last_one_leaves(self, pools) -> None:
        made = router("least_load", pools, count=1)
        for number in range(20):
            made.submit(0.0, request(f"r{number}", input_tokens=7 + number, max_tokens=8000))
            if number % 3:
                made.prefilled(0.1, f"r{number}")
            made.progress(1.0, [OutputProgress(f"r{number}", 1 + 37 * number)])
            if number % 3 == 0:
                made.prefilled(1.1, f"r{number}")
        made.progress(2.0, [OutputProgress(f"r{number}", 1000 + number) for number in range(20)])
        assert made.cell(FleetRow.KV_TOKENS, next(reversed(pools)) + "-0") > 20_000
        for number in range(20):
            made.complete(3.0, f"r{number}", 2000)
        assert made.books_are_closed
