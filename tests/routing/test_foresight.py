"""What is quickly told of held requests: none that its profile would place is passed over."""

from typing import Any

import numpy as np
import pytest

from headway.engine import EngineRules
from headway.routing import RequestSlo, Router
from headway.routing.context import Refusal
from headway.routing.dispatch import Dispatcher, Freed
from headway.routing.evidence import Probes
from headway.routing.heads import HeadRow, Marks
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
@pytest.mark.parametrize("profile", ["slo", "pull"])
def test_no_held_request_is_passed_over_that_its_profile_would_place(
    monkeypatch: pytest.MonkeyPatch, profile: str, pools: Any
) -> None:
    promising, passed_over = Dispatcher._promising, 0

    def spied(self: Dispatcher, now_s: float, freed: Freed | None, open_lines: Marks) -> Marks:
        nonlocal passed_over
        before = open_lines.copy()
        marks = promising(self, now_s, freed, open_lines)
        assert not (marks & ~open_lines).any()
        live = self._queue.heads[HeadRow.LIVE] > 0.0
        for column in np.flatnonzero(before & live & ~open_lines):
            record = self._records[self._queue._waiting.head(column).request.request_id]
            among = self._among(column, freed)
            if among is None or all(slots is None for slots in among):
                continue
            barred = self._kept.barred(record.request.tenant)
            assert isinstance(self._scheduler.choose(now_s, record, among, barred), Refusal)
            passed_over += 1
        return marks

    # Probes are requests that predictions refuse.
    monkeypatch.setattr(Probes, "may", lambda *_: False)
    monkeypatch.setattr(Dispatcher, "_promising", spied)
    rules = EngineRules(chunk_tokens=2048 if pools is MIXED else 0, max_batch_size=6)
    overloaded(router(profile, pools, count=3, rules=rules), 600)
    assert passed_over > 100
