"""Least load wherever it is carried out: compiled simulation, the router's profile, gateways by themselves.

Requests come one after the other and none ends, so that each choice follows from those before: the replica
with the least load, of equals the first.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import Role
from headway.engine import EngineRules
from serve_apps.membership import Membership
from tests.routing.routers import MIXED, SPLIT, placed, request, router
from tests.simulation.worlds import ArrayTrace, constant_profile, run, scenario

Choices = Callable[[Role, int, Sequence[int]], list[int]]
"""Role, number of replicas, prompt tokens of each request → the replicas chosen."""

PROFILE = constant_profile(itl_s=0.01, prefill_s_per_token=1e-3)


def simulated(role: Role, replicas: int, prompts: Sequence[int]) -> list[int]:
    initial = {Role.MIXED: replicas} if role is Role.MIXED else {Role.PREFILL: replicas, Role.DECODE: 1}
    rules = EngineRules(max_batch_size=64, chunk_tokens=512 if role is Role.MIXED else 0)
    trace = ArrayTrace(np.zeros(len(prompts)), np.array(prompts), np.full(len(prompts), 2))
    _, records = run(scenario(PROFILE, initial, engine=rules), trace)
    return [int(number) for number in records["prefill_replica"]]


def routed(role: Role, replicas: int, prompts: Sequence[int]) -> list[int]:
    made = router("least_load", MIXED if role is Role.MIXED else SPLIT, count=replicas)
    names = [f"{role}-{number}" for number in range(replicas)]
    outcomes = [
        made.submit(0.0, request(f"r{number}", input_tokens=tokens)) for number, tokens in enumerate(prompts)
    ]
    return [names.index(placed(outcome).prefill_replica) for outcome in outcomes]


def by_a_gateway(role: Role, replicas: int, prompts: Sequence[int]) -> list[int]:
    pool = Membership()
    pool.update((str(number), {}) for number in range(replicas))
    chosen = []
    for number, tokens in enumerate(prompts):
        replica = pool.pick("least_load", 0.0, role)
        assert replica is not None
        pool.sent(replica, f"r{number}", tokens)
        chosen.append(int(replica))
    return chosen


def expected(role: Role, replicas: int, prompts: Sequence[int]) -> list[int]:
    loads, chosen = [0] * replicas, []
    for tokens in prompts:
        first = loads.index(min(loads))
        loads[first] += tokens if role is Role.PREFILL else 1
        chosen.append(first)
    return chosen


@pytest.mark.parametrize("choices", [simulated, routed, by_a_gateway])
@pytest.mark.parametrize("role", [Role.PREFILL, Role.MIXED])
class TestLeastLoad:
    def test_the_first_of_equals_is_chosen(self, choices: Choices, role: Role) -> None:
        assert choices(role, 3, [100] * 7) == [0, 1, 2, 0, 1, 2, 0]

    def test_long_prompts_count_on_prefill_replicas_alone(self, choices: Choices, role: Role) -> None:
        after_long = [0, 1, 1, 1, 1] if role is Role.PREFILL else [0, 1, 0, 1, 0]
        assert choices(role, 2, [1000, 100, 100, 100, 100]) == after_long

    @given(
        replicas=st.integers(1, 5),
        prompts=st.lists(st.sampled_from([1, 10, 200, 1500]), min_size=1, max_size=12),
    )
    def test_each_choice_follows_from_those_before(
        self, choices: Choices, role: Role, replicas: int, prompts: list[int]
    ) -> None:
        assert choices(role, replicas, prompts) == expected(role, replicas, prompts)
