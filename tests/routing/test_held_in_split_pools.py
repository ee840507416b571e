"""Requests that are held in split pools: by the events of which role they are asked again."""

import pytest

from headway.engine import EngineRules
from headway.routing import RequestSlo, Router, RoutingOutcome
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
