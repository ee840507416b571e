"""What holds for any sequence of events: nothing is lost, books close, and a seed says everything."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.config import Role
from headway.engine import EngineRules
from headway.routing import RequestSlo
from tests.routing.routers import MIXED, OWN_ROWS, SPLIT, gone, join, request, router

RULES = EngineRules(chunk_tokens=2048, prefix_cache_tokens=60_000, max_batch_size=8)
OFFLOAD = {"mode": "cost", "heavy_tokens": 4096, "warm_tokens": 512}
SLOS = [RequestSlo(), RequestSlo(ttft_s=0.4, tpot_s=0.02), RequestSlo(ttft_s=4.0, tpot_s=0.06)]

steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["submit", "submit", "submit", "event", "event", "retry", "fail", "lose", "add", "expire"]
        ),
        st.integers(0, 10_000),
    ),
    max_size=60,
)


class World:
    """Drives a router by steps and keeps its own books."""

    def __init__(self, profile, pools, seed, names=None) -> None:
        self.made = router(
            profile, pools, count=0, seed=seed, rules=RULES, offload=OFFLOAD, queue={"max_wait_s": 3.0}
        )
        self.roles = [Role.MIXED] if pools is MIXED else [Role.PREFILL, Role.DECODE]
        self.alive, self.now_s, self.submitted = {}, 0.0, 0
        self.place, self.ended, self.shed, self.log = {}, Counter(), Counter(), []
        for name in names or ["a", "b"]:
            self.add(name)

    def add(self, name):
        for role in self.roles:
            self.alive[f"{name}-{role}"] = role
            self.take(join(self.made, f"{name}-{role}", role, self.now_s))

    def take(self, outcome):
        self.log.append(outcome)
        for placement in outcome.placements:
            assert placement.prefill_replica in self.alive
            assert placement.decode_replica in self.alive
            assert self.ended[placement.request_id] == self.shed[placement.request_id] == 0
            self.place[placement.request_id] = placement
        for shed in outcome.sheds:
            self.shed[shed.request_id] += 1
            assert self.ended[shed.request_id] == 0

    def step(self, kind, number):
        self.now_s += 0.05
        under_way = sorted(set(self.place) - set(self.ended) - set(self.shed))
        chosen = under_way[number % len(under_way)] if under_way else None
        if kind == "submit":
            self.submit(number)
        elif kind == "add":
            self.add(f"n{self.now_s:.2f}")
        elif kind == "expire":
            self.take(self.made.expire(self.now_s))
        elif kind == "lose" and self.alive:
            self.lose(sorted(self.alive)[number % len(self.alive)])
        elif chosen and kind == "event":
            self.event(chosen, number)
        elif chosen and kind in {"retry", "fail"}:
            if kind == "fail":
                self.ended[chosen] += 1
            else:
                del self.place[chosen]
            self.take(self.made.failed(self.now_s, chosen, retry=kind == "retry"))

    def submit(self, number):
        self.submitted += 1
        first = number % 7
        self.take(
            self.made.submit(
                self.now_s,
                request(
                    f"r{self.submitted}",
                    arrival_s=self.now_s,
                    input_tokens=1 + number,
                    max_tokens=1 + number % 500,
                    slo=SLOS[number % 3],
                    critical=number % 2 == 0,
                    session=f"s{first}",
                    blocks=tuple(range(first * 100, first * 100 + number // 512)),
                ),
            )
        )

    def event(self, chosen, number):
        if number % 3 == 0:
            self.take(self.made.prefilled(self.now_s, chosen))
        elif number % 3 == 1:
            self.take(self.made.first_token(self.now_s, chosen))
        else:
            self.ended[chosen] += 1
            self.take(self.made.complete(self.now_s, chosen, 1 + number % 300))

    def lose(self, name):
        role = self.alive.pop(name)
        self.take(gone(self.made, name, role, self.now_s))
        for request_id, placement in list(self.place.items()):
            if name in {placement.prefill_replica, placement.decode_replica} and not self.ended[request_id]:
                del self.place[request_id]
                self.take(self.made.failed(self.now_s, request_id, retry=True))

    def check(self):
        """Each request is in exactly one place."""
        placed = set(self.place) - set(self.ended) - set(self.shed)
        assert self.made.running == len(placed)
        held = self.submitted - len(placed) - len(self.ended) - len(self.shed)
        assert self.made.queued == held >= 0
        assert max(self.ended.values(), default=0) <= 1
        assert max(self.shed.values(), default=0) <= 1
        assert not set(self.ended) & set(self.shed)
        assert (self.made.state.fleet.table[OWN_ROWS] >= -1e-9).all()

    def drain(self):
        """Everything ends; the books are empty."""
        for _ in range(200):
            open_requests = sorted(set(self.place) - set(self.ended) - set(self.shed))
            if not open_requests and not self.made.queued:
                break
            self.now_s += 0.5
            self.take(self.made.expire(self.now_s))
            for request_id in open_requests:
                if not self.ended[request_id]:
                    self.ended[request_id] += 1
                    self.take(self.made.complete(self.now_s, request_id, 10))
        assert self.made.queued == self.made.running == 0
        assert self.made.books_are_closed


@pytest.mark.parametrize("pools", [MIXED, SPLIT])
@pytest.mark.parametrize("profile", ["slo", "default", "pull_bin_pack", "prefix"])
@given(plan=steps)
@settings(max_examples=25, deadline=None)
def test_every_request_is_somewhere_and_books_close(profile, pools, plan) -> None:
    world = World(profile, pools, seed=0)
    for kind, number in plan:
        world.step(kind, number)
        world.check()
    world.drain()


@pytest.mark.parametrize("profile", ["slo", "random", "default"])
@given(plan=steps, seed=st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_the_same_seed_gives_the_same_decisions(profile, plan, seed) -> None:
    logs = []
    for _ in range(2):
        world = World(profile, MIXED, seed)
        for kind, number in plan:
            world.step(kind, number)
        logs.append(world.log)
    assert logs[0] == logs[1]


@pytest.mark.parametrize("profile", ["least_load", "prefix", "bin_pack", "round_robin", "slo"])
@given(order=st.permutations(["a", "b", "c", "d"]), numbers=st.lists(st.integers(0, 10_000), max_size=30))
@settings(max_examples=15, deadline=None)
def test_the_order_in_which_replicas_came_does_not_matter(profile, order, numbers) -> None:
    worlds = [World(profile, MIXED, seed=1, names=names) for names in (["a", "b", "c", "d"], order)]
    for world in worlds:
        for number in numbers:
            world.step("submit", number)
    assert worlds[0].place == worlds[1].place


def test_predictions_come_close_to_the_engine_model() -> None:
    """An idle replica: what is predicted is what the engine takes."""
    from headway.engine import LiveEngine
    from tests.routing.routers import surfaces

    rules, profile = EngineRules(chunk_tokens=2048), surfaces()
    for tokens in (100, 3000, 20_000):
        made = router("slo", count=1, rules=rules)
        placement = made.submit(0.0, request(input_tokens=tokens, slo=SLOS[2], critical=True)).placements[0]
        engine = LiveEngine(profile, rules, Role.MIXED)
        engine.submit("r", tokens, 200, at_s=0.0)
        ended = engine.advance(100.0)
        first_s = next(each.at_s for each in ended if "r" in each.emitted)
        tpot_s = (ended[-1].at_s - first_s) / 199
        assert placement.predicted_ttft_s == pytest.approx(first_s, rel=0.02)
        assert placement.predicted_tpot_s == pytest.approx(tpot_s, rel=0.05)
        assert np.isfinite(placement.predicted_tpot_s)
