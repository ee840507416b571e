"""Held requests judged at freed replicas: none that its profile would place is passed over."""

from typing import Any

import numpy as np
import pytest

from headway.engine import EngineRules
from headway.routing import RequestSlo, Router
from headway.routing.decide.context import Refusal
from headway.routing.decide.scheduler import FreedSlots, Scheduler
from headway.routing.dispatch.held_queue import HeldQueue
from headway.routing.fleet.records import Record
from headway.routing.fleet.table import FloatArray
from headway.routing.predict.evidence import Probes
from headway.routing.queue.heads import ANY_ROLE, HeadRow, Marks
from tests.routing.routers import MIXED, SPLIT, request, router

SLOS = (RequestSlo(ttft_s=0.5, tpot_s=0.03), RequestSlo(ttft_s=4.0, tpot_s=0.1), RequestSlo())


def overloaded(made: Router, steps: int) -> None:
    """More requests than the fleet has room for; each step ends one of those that run."""
    draw, running, young, now_s = np.random.default_rng(5), [], [], 0.0
    for number in range(steps):
        now_s += float(draw.exponential(0.05))
        kind = int(draw.integers(4))
        new = request(
            f"r{number}",
            arrival_s=now_s,
            input_tokens=int(min(64 + draw.lognormal(7.0, 1.0), 30_000)),
            max_tokens=256,
            slo=SLOS[kind % 3],
            critical=kind == 0,
            tenant=f"t{draw.integers(3)}",
        )
        outcomes = [made.submit(now_s, new)]
        for name in young[:1]:
            outcomes += [made.prefilled(now_s, name), made.first_token(now_s, name)]
            running.append(young.pop(0))
        if running and draw.random() < 0.7:
            ended = running.pop(int(draw.integers(len(running))))
            outcomes.append(made.complete(now_s, ended, int(draw.integers(20, 400))))
        outcomes.append(made.expire(now_s))
        young += [each.request_id for outcome in outcomes for each in outcome.placements]


@pytest.mark.parametrize("pools", [MIXED, SPLIT], ids=["mixed", "split"])
def test_no_held_request_is_passed_over_that_its_profile_would_place(
    monkeypatch: pytest.MonkeyPatch, pools: Any
) -> None:
    fitting, add, passed_over = Scheduler.fitting, HeldQueue.add, 0
    held: dict[str, Record] = {}
    queues: list[HeldQueue] = []

    def added(self: HeldQueue, now_s: float, record: Record, *rest: Any) -> None:
        held[record.request.request_id] = record
        queues[:] = [self]
        add(self, now_s, record, *rest)

    def spied(
        self: Scheduler, now_s: float, heads: FloatArray, profile: str, freed: FreedSlots, open_lines: Marks
    ) -> Marks:
        nonlocal passed_over
        marks = fitting(self, now_s, heads, profile, freed, open_lines)
        assert not (marks & ~open_lines).any()
        if not any(len(slots) for slots in freed.of_roles):
            return marks
        for column in np.flatnonzero(open_lines & ~marks & (heads[HeadRow.LIVE] > 0.0)):
            _, request_id = queues[0].first(np.arange(len(marks)) == column) or (column, "")
            role = int(heads[HeadRow.ROLE, column])
            if role == ANY_ROLE:
                role = next(place for place, slots in enumerate(freed.of_roles) if len(slots))
            if len(freed.of_roles[role]):
                among = [slots if place == role else None for place, slots in enumerate(freed.of_roles)]
                assert isinstance(self.choose(now_s, held[request_id], among), Refusal)
                passed_over += 1
        return marks

    # Probes are requests that predictions refuse.
    monkeypatch.setattr(Probes, "may", lambda *_: False)
    monkeypatch.setattr(Scheduler, "fitting", spied)
    monkeypatch.setattr(HeldQueue, "add", added)
    rules = EngineRules(chunk_tokens=2048 if pools is MIXED else 0, max_batch_size=6)
    overloaded(router("slo", pools, count=3, rules=rules), 600)
    assert passed_over > 100
