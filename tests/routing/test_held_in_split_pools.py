"""Requests that are held in split pools: by the events of which role they are asked again."""

import pytest

from headway.config import Role
from headway.engine import EngineRules
from headway.routing import ReplicaUpdate, RequestSlo, Router, RoutingOutcome
from headway.routing.decide.scheduler import Scheduler
from tests.routing.routers import SPLIT, finish, request, router

SLO = RequestSlo(ttft_s=2.0, tpot_s=1.0)


def placed_ids(outcome: RoutingOutcome) -> list[str]:
    return [each.request_id for each in outcome.placements]


@pytest.fixture
def full() -> Router:
    """The only decode replica decodes two, which is its batch, for longer than the TTFT SLO."""
    made = router(pools=SPLIT, count=1, rules=EngineRules(max_batch_size=2))
    # An outcome: before the first all are asked at every event.
    made.submit(0.0, request("first", slo=SLO))
    finish(made, "first", 0.0)
    for number in range(2):
        assert made.submit(1.0, request(f"r{number}", arrival_s=1.0, slo=SLO)).placements
        made.prefilled(1.0, f"r{number}")
    return made


def test_what_waits_for_decode_is_placed_when_that_has_room(full: Router) -> None:
    for number in range(2, 5):
        assert not full.submit(1.01, request(f"r{number}", arrival_s=1.01, slo=SLO)).placements
    full.progress(1.02, [])  # What was free before is known to be no help.
    assert placed_ids(full.complete(1.1, "r0", 100)) == ["r2"]
    assert not full.prefilled(1.2, "r2").placements
    assert placed_ids(full.complete(1.3, "r1", 100)) == ["r3"]


def test_one_that_was_never_asked_is_by_the_event_of_either_role(full: Router) -> None:
    for number in range(2, 4):
        full.submit(1.01, request(f"r{number}", arrival_s=1.01, slo=SLO))
    assert not full.failed(1.02, "r2", retry=False).placements
    assert placed_ids(full.complete(1.1, "r0", 100)) == ["r3"]


def test_a_critical_one_that_is_late_is_not_asked_by_every_event_of_decodes(
    full: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, choose = list[str](), Scheduler.choose

    def counted(self, now_s, record, *others, **named):
        asked.append(record.request.request_id)
        return choose(self, now_s, record, *others, **named)

    patient = RequestSlo(ttft_s=60.0, tpot_s=1.0)
    assert not full.submit(1.01, request("prompt", arrival_s=1.01, slo=patient)).placements
    full.submit(1.02, request("critical", arrival_s=0.05, slo=SLO, critical=True))
    # An outcome: where none comes for a second, all are asked at each event.
    full.first_token(1.1, "r0")
    assert placed_ids(full.complete(2.1, "r0", 100)) == ["prompt"]
    monkeypatch.setattr(Scheduler, "choose", counted)
    for number in range(8):
        now_s = 2.2 + 0.01 * number
        full.replica_changed(now_s, ReplicaUpdate(replica="decode-0", role=Role.DECODE))
    assert asked.count("critical") <= 2


def test_no_prompt_is_looked_at_while_no_decode_replica_has_a_place(
    full: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, choose = list[str](), Scheduler.choose

    def counted(self, now_s, record, *others, **named):
        asked.append(record.request.request_id)
        return choose(self, now_s, record, *others, **named)

    for number in range(2, 4):
        full.submit(1.01, request(f"r{number}", arrival_s=1.01, slo=RequestSlo(ttft_s=60.0, tpot_s=1.0)))
    monkeypatch.setattr(Scheduler, "choose", counted)
    # Of the one behind it nobody knows yet for which role it waits.
    full.failed(1.02, "r2", retry=False)
    full.replica_changed(1.03, ReplicaUpdate(replica="prefill-0", role=Role.PREFILL))
    assert asked == []
    full.complete(1.1, "r0", 100)
    assert asked == ["r3"]
