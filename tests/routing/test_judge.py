"""Held requests judged at freed replicas: none that its profile would place is passed over."""

from typing import Any

import numpy as np
import pytest

from headway.engine import EngineRules
from headway.routing import RequestSlo, Router
from headway.routing.decide.context import Refusal
from headway.routing.decide.scheduler import FreedSlots, Scheduler
from headway.routing.fleet.table import FloatArray
from headway.routing.predict.evidence import Evidence, Probes
from headway.routing.queue.heads import ANY_ROLE, FREE, HeadRow, LineSearch
from headway.routing.queue.held_lines import HeldQueue, HeldRequest
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
    look_through, push, passed_over = Scheduler.look_through, HeldQueue.push, 0
    queues: list[HeldQueue] = []

    def pushed(self: HeldQueue, held: HeldRequest) -> None:
        queues[:] = [self]
        push(self, held)

    def spied(
        self: Scheduler,
        now_s: float,
        heads: FloatArray,
        profile: tuple[str, int],
        freed: FreedSlots,
        search: LineSearch,
    ) -> None:
        nonlocal passed_over
        look_through(self, now_s, heads, profile, freed, search)
        assert not search.fits[~search.open].any()
        passed = search.open & ~search.fits & (heads[HeadRow.ROLE] != FREE)
        if search.late_s > 0.0 and search.column >= 0:
            passed[search.column] = True
        for column in np.flatnonzero(passed):
            head = queues[0].later(int(column))
            assert head is not None
            role = int(heads[HeadRow.ROLE, column])
            if role == ANY_ROLE:
                role = next(place for place, slots in enumerate(freed) if len(slots))
            if len(freed[role]):
                among = [slots if place == role else None for place, slots in enumerate(freed)]
                assert isinstance(self.choose(now_s, head.record, among), Refusal)
                passed_over += 1

    # Probes are requests that predictions refuse; and no engine is as quick and as slow as these.
    monkeypatch.setattr(Probes, "may", lambda *_: False)
    monkeypatch.setattr(Evidence, "alone", lambda *_: None)
    monkeypatch.setattr(Scheduler, "look_through", spied)
    monkeypatch.setattr(HeldQueue, "push", pushed)
    rules = EngineRules(chunk_tokens=2048 if pools is MIXED else 0, max_batch_size=6)
    overloaded(router("slo", pools, count=3, rules=rules), 600)
    assert passed_over > 100
