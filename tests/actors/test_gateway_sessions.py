"""Several gateways at one router: who is told what, and what a restart and a silent gateway do."""

import pytest

from actors.routing.messages import (
    SILENT_S,
    Again,
    Completed,
    Failed,
    FirstToken,
    OnReplica,
    Placed,
    Submit,
)
from headway.routing import ShedReason
from headway.routing.decide.context import Refusal
from headway.routing.decide.scheduler import Scheduler
from tests.actors.router_cases import asked, batch, hello, on, ready, sessions


def placed(answer):
    return {placement.request_id: placement.decode_replica for placement in answer.messages.placements}


def test_times_are_shifted_to_the_routers_clock_and_never_go_back():
    made = sessions()
    made.exchange(1000.0, "g", hello(sent_s=5.0))
    made.exchange(1002.0, "g", batch(Submit(6.0, asked("r", arrival_s=5.5)), sent_s=7.0))
    answer = made.exchange(1003.0, "g", batch(ready("a", 7.5), sent_s=8.0))
    (placement,) = answer.messages.placements
    # Arrived at 1000.5, placed at 1002.5.
    assert placement.queued_s == pytest.approx(2.0)
    late = made.exchange(1004.0, "g", batch(Submit(-500.0, asked("s", arrival_s=8.0)), sent_s=9.0))
    assert placed(late) == {"s": "a"}


def test_what_frees_room_for_anothers_request_goes_to_its_letters():
    made = sessions()
    made.exchange(0.0, "one", hello())
    made.exchange(0.0, "two", hello())
    assert placed(made.exchange(1.0, "one", batch(Submit(0.0, asked("r"))))) == {}
    assert placed(made.exchange(2.0, "two", batch(ready("a")))) == {}
    assert made.gateways.with_messages() == ["one"]
    (placement,) = made.gateways.take("one").placements
    assert (placement.request_id, placement.decode_replica) == ("r", "a")
    assert made.gateways.with_messages() == []


def test_a_lost_attempt_that_the_router_never_knew_is_a_new_request():
    made = sessions()
    # Its replica has gone before the router heard of it, so that it can't be restored.
    made.exchange(0.0, "g", hello(ready("b"), Placed(0.0, on("a", asked("r")))))
    assert "r" not in made.router
    assert placed(made.exchange(1.0, "g", batch(Again(1.0, asked("r"))))) == {"r": "b"}
    assert "r" in made.router


def test_batches_of_an_earlier_session_are_not_heard():
    made = sessions()
    made.exchange(0.0, "g", hello(ready("a"), session=2))
    assert not made.exchange(1.0, "g", batch(Submit(0.0, asked("r")), session=1)).known
    assert not made.exchange(1.0, "g", hello(Submit(0.0, asked("r")), session=1)).known
    assert made.router.running == 0


def test_a_request_placed_by_its_gateway_takes_the_place_of_the_routers_choice():
    made = sessions()
    made.exchange(0.0, "g", hello(ready("a"), Submit(0.0, asked("r"))))
    made.exchange(1.0, "g", batch(ready("b"), Placed(1.0, on("b", asked("r")))))
    assert made.router.running == 1
    # It runs on b: a newcomer prefers the empty one.
    answer = made.exchange(2.0, "g", batch(*[Submit(2.0, asked(f"s{n}")) for n in range(2)]))
    assert set(placed(answer).values()) == {"a", "b"}


def test_a_silent_gateway_is_gone_and_its_requests_with_it():
    made = sessions()
    made.exchange(0.0, "one", hello(ready("a"), Submit(0.0, asked("r"))))
    made.exchange(0.0, "two", hello(Submit(0.0, asked("s"))))
    made.exchange(SILENT_S, "two", batch())
    made.expire(SILENT_S + 1.0)
    assert len(made.gateways) == 1
    assert made.router.running == 1
    assert not made.exchange(SILENT_S + 2.0, "one", batch()).known


class Broken(Exception):
    """What a router with a fault raises."""


def breaks(made, method, *request_ids):
    """Have the router raise in `method`, for these requests."""
    works = getattr(made.router, method)

    def broken(now_s, about=None, *rest, **options):
        if getattr(about, "request_id", about) in request_ids:
            raise Broken(method)
        return works(now_s, about, *rest, **options)

    setattr(made.router, method, broken)


def test_an_event_that_cannot_be_handled_does_not_stop_the_others_of_its_batch(caplog):
    made = sessions()
    breaks(made, "submit", "bad", "worse")
    made.exchange(0.0, "g", hello(ready("a"), Submit(0.0, asked("r"))))
    events = (Submit(1.0, asked("bad")), Submit(1.0, asked("s")), Completed(1.0, "r", 10))
    answer = made.exchange(1.0, "g", batch(*events, Submit(1.0, asked("worse"))))
    assert answer.known
    assert placed(answer) == {"s": "a"}
    assert answer.messages.failed == ("bad", "worse")
    assert made.router.running == 1
    assert made.metrics()["event_errors"] == {("Submit",): 2.0}
    assert [record.exc_info[0] for record in caplog.records] == [Broken]
    assert made.exchange(2.0, "g", batch(Failed(2.0, "s"))).messages.failed == ()


def test_each_kind_of_failure_is_logged_once(caplog):
    made = sessions()
    made.exchange(0.0, "g", hello(ready("a")))
    breaks(made, "complete", "r")
    breaks(made, "first_token", "r")
    for _ in range(3):
        events = (Submit(1.0, asked("r")), FirstToken(1.0, "r"), Completed(1.0, "r", 10))
        made.exchange(1.0, "g", batch(*events))
    assert made.metrics()["event_errors"] == {("FirstToken",): 3.0, ("Completed",): 3.0}
    assert len(caplog.records) == 2
    # It has ended all the same, and loads its replica no longer.
    assert made.router.running == 0


def test_a_request_whose_new_attempt_cannot_be_placed_is_given_back_and_forgotten():
    made = sessions()
    made.exchange(0.0, "one", hello(ready("a"), Submit(0.0, asked("r"))))
    breaks(made, "failed", "r")
    answer = made.exchange(1.0, "one", batch(Again(1.0, asked("r"))))
    assert answer.messages.failed == ("r",)
    # Not even forgetting it works, which is counted too.
    assert made.metrics()["event_errors"] == {("Again",): 1.0, ("Drop",): 1.0}


def test_held_requests_that_cannot_be_placed_are_given_back_and_hold_nobody_up(monkeypatch):
    made = sessions(**{"routing.profile": "least_load"})
    made.exchange(0.0, "one", hello(Submit(0.0, asked("good")), Submit(0.0, asked("bad"))))
    made.exchange(0.0, "two", hello(Submit(0.0, asked("worse")), Submit(0.0, asked("behind"))))
    choose = Scheduler.choose

    def broken(self, now_s, record, *rest, **named):
        if record.request.request_id in {"bad", "worse"}:
            raise Broken
        return choose(self, now_s, record, *rest, **named)

    monkeypatch.setattr(Scheduler, "choose", broken)
    answer = made.exchange(1.0, "one", batch(ready("a", 1.0), sent_s=1.0))
    assert (placed(answer), answer.messages.failed) == ({"good": "a"}, ("bad",))
    assert made.gateways.with_messages() == ["two"]
    messages = made.gateways.take("two")
    assert [placement.request_id for placement in messages.placements] == ["behind"]
    assert messages.failed == ("worse",)
    assert (made.router.queued, made.router.running, answer.queued) == (0, 2, 0)
    assert made.metrics()["event_errors"] == {("Drain",): 1.0, ("Drop",): 1.0}
    # Their gateways have placed them, and what follows is theirs.
    made.exchange(2.0, "one", batch(Placed(2.0, on("a", asked("bad")))))
    assert made.router.running == 3


def test_what_is_due_and_cannot_be_done_does_not_keep_gateways_that_have_gone():
    made = sessions()
    made.exchange(0.0, "g", hello())
    assert made.expire(0.0)
    breaks(made, "expire", None)
    assert not made.expire(SILENT_S + 1.0)
    assert len(made.gateways) == 0
    assert made.metrics()["event_errors"] == {("Expire",): 1.0}


OFFLOAD = {"routing.profile": "least_load", "routing.offload": {"mode": "always", "heavy_tokens": 2000}}


def test_deadlines_are_on_the_gateways_clock_whatever_the_routers_is():
    heavy, first = asked("r", 5.0, input_tokens=4000), sessions(**OFFLOAD)
    answer = first.exchange(1000.0, "g", hello(ready("a"), ready("b"), Submit(5.0, heavy), sent_s=5.0))
    (placement,) = answer.messages.placements
    assert placement.split
    assert 5.0 < placement.deadline_s < 30.0
    kept = OnReplica(heavy, placement, computed=False, output_tokens=0)
    second = sessions(**OFFLOAD)
    second.exchange(50.0, "g", hello(ready("a"), ready("b"), Placed(6.0, kept), sent_s=6.0))
    assert second.router.next_due_s == pytest.approx(placement.deadline_s + 44.0)
    second.expire(placement.deadline_s + 44.0)
    (colocated,) = second.gateways.take("g").placements
    assert (colocated.split, colocated.attempt) == (False, 2)


def test_a_gateway_whose_connection_has_ended_is_gone_until_it_says_hello():
    made = sessions()
    one = Submit(0.0, asked("one"))
    made.exchange(0.0, "one", hello(ready("a"), one))
    made.exchange(0.0, "two", hello(Submit(0.0, asked("two"))))
    made.parted(1.0, "one")
    assert (made.router.running, len(made.gateways)) == (1, 1)
    assert not made.exchange(2.0, "one", batch(sent_s=2.0)).known
    made.exchange(2.0, "one", hello(Placed(2.0, on("a", one.request)), session=2, sent_s=2.0))
    assert made.router.running == 2
    made.parted(3.0, "nobody")


def test_who_waits_is_tried_once_a_batch_and_before_its_newcomers(monkeypatch):
    made = sessions()
    running = [asked(f"r{number}") for number in range(5)]
    made.exchange(0.0, "g", hello(ready("a"), *(Submit(0.0, one) for one in running)))
    choose, tried = Scheduler.choose, []

    def full(self, now_s, record, *rest, **named):
        tried.append(record.request.request_id)
        if record.request.request_id == "held":
            return Refusal(reason=ShedReason.NO_HEADROOM, explain=lambda: "full")
        return choose(self, now_s, record, *rest, **named)

    monkeypatch.setattr(Scheduler, "choose", full)
    assert made.exchange(1.0, "g", batch(Submit(1.0, asked("held", 1.0)), sent_s=1.0)).queued == 1
    tried.clear()
    ends = [Completed(2.0, one.request_id, 10) for one in running]
    newcomer = Submit(2.0, asked("new", 2.0, input_tokens=4000))
    said = batch(newcomer, *ends, FirstToken(2.0, "new"), Completed(2.0, "new", 1), sent_s=2.0)
    answer = made.exchange(2.0, "g", said)
    assert placed(answer) == {"new": "a"}
    # The newcomer's own end frees room once more.
    assert tried == ["held", "new", "held"]
    assert (made.router.running, made.router.queued) == (0, 1)
