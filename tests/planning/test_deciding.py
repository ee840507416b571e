"""What a policy raises or decides wrongly is one line; the same in the simulator and in the live planner."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors.planning.start import REHEARSALS
from headway.config import load_config
from headway.planning import Decision, PlanningError, PoolLimits, Role, make_policy
from headway.planning.deciding import PolicyError, check_decision
from headway_cli.app import run
from headway_cli.job import Job, execute
from tests.actors.planner_cases import Deployment, settings
from tests.engines.virtual_loop import run as in_virtual_time
from tests.installed_package import installed_package

NAN = float("nan")
LIMITS = {
    Role.PREFILL: PoolLimits(max_replicas=8),
    Role.DECODE: PoolLimits(max_replicas=16, gpus_per_replica=2),
}
TRACE = "steady:rate_rps=2,duration_s=60"

MODULE = """
from headway.planning import Decision, PolicyKind, Role


class Odd:
    name = "odd"
    interval_s = 10.0
    begin = plan_with = None

    def initial_state(self):
        if self.begin:
            self.begin()

    def plan(self, observation, state):
        return self.plan_with(observation)


def build(settings, profile):
    return making(settings)


def lookup(observation):
    return {}["no such role"]


def elsewhere(observation):
    return __import__("json").loads("{")


def wrong_arguments():
    return 0


def two_lines(*args):
    raise RuntimeError("first\\nsecond")


making = lambda settings: Odd()
ODD = PolicyKind(build=build)
"""


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(MODULE.splitlines(), start=1) if text in line)


def decision(prefill: Any, decode: Any, **more: Any) -> Decision:
    return Decision(targets={Role.PREFILL: prefill, Role.DECODE: decode}, next_state=None, reasons={}, **more)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "none": (lambda: None, "plan returned None, not a Decision"),
    "above": (lambda: decision(1, 500), "decode 500 is above pools.decode.max_replicas 16"),
    "below": (lambda: decision(-1, 1), "prefill -1 is below pools.prefill.min_replicas 1"),
    "budget": (lambda: decision(8, 16), "needs 40 GPUs, planner.max_gpu_budget is 6"),
    "nan": (lambda: decision(1, NAN), "target of decode is nan, not a whole number"),
    "fraction": (lambda: decision(2.5, 1), "target of prefill is 2.5, not a whole number"),
    "bool": (lambda: decision(1, True), "target of decode is True, not a whole number"),
    "text": (lambda: decision(1, "1"), "target of decode is of type str, not a whole number"),
    "missing": (
        lambda: Decision(targets={Role.PREFILL: 1}, next_state=None, reasons={}),
        "no target for decode",
    ),
    "extra": (
        lambda: Decision(targets=dict.fromkeys(Role, 1), next_state=None, reasons={}),
        "target of mixed, which is no pool here (prefill, decode)",
    ),
    "keys": (
        lambda: Decision(targets={"prefill": 1, "decode": 1}, next_state=None, reasons={}),  # type: ignore[dict-item] # the fault
        "target of 'prefill', a str; keys are members of Role",
    ),
    "reasons": (
        lambda: Decision(targets={}, next_state=None, reasons=None),  # type: ignore[arg-type] # the fault
        "reasons of the decision are None, not a mapping",
    ),
}
bad = pytest.mark.parametrize(("made", "fault"), BAD.values(), ids=BAD)


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[Any]:
    """The module of an installed policy, which a test makes do something odd."""
    entry = "[headway.policies]\nodd = odd_policy:ODD\n"
    with installed_package(tmp_path, "odd_policy", MODULE, entry):
        import odd_policy

        odd_policy.Odd.plan_with = lambda self, observation: decision(1, 1)
        yield odd_policy


@bad
def test_a_decision_that_cannot_be_carried_out_is_one_line(made: Callable[[], Any], fault: str) -> None:
    with pytest.raises(PolicyError) as refused:
        check_decision("odd", made(), LIMITS, 6)
    assert str(refused.value) == f"planner.policy: odd: {fault}"


def test_whole_numbers_within_limits_and_budget_pass() -> None:
    check_decision("odd", decision(8, 16), LIMITS, None)
    check_decision("odd", decision(2, 2), LIMITS, 6)
    check_decision("odd", decision(np.int64(2), 2), LIMITS, 6)


@bad
def test_the_simulator_refuses_it(odd: Any, made: Callable[[], Any], fault: str) -> None:
    odd.Odd.plan_with = lambda self, observation: made()
    limits = {
        "pools.prefill.max_replicas": 8,
        "pools.decode.max_replicas": 16,
        "pools.decode.gpus_per_replica": 2,
    }
    config = load_config(None, {"planner.policy": "odd", "planner.max_gpu_budget": 6, **limits})
    with pytest.raises(PolicyError) as refused:
        execute(Job(trace=TRACE, config=config))
    assert str(refused.value) == f"planner.policy: odd: {fault}"


def test_counts_of_numpy_are_written_as_numbers(odd: Any) -> None:
    odd.Odd.plan_with = lambda self, observation: decision(np.int64(2), 1)
    result = execute(Job(trace=TRACE, config=load_config(None, {"planner.policy": "odd"})))
    assert type(result.document()["intervals"][0]["targets"]["prefill"]) is int


CALLS = {
    "plan": ("plan_with", "lookup", "KeyError: 'no such role'", '["no such role"]'),
    "library": ("plan_with", "elsewhere", "JSONDecodeError: Expecting property name", "loads"),
    "state": ("begin", "two_lines", "RuntimeError: first second", "raise RuntimeError"),
}


@pytest.mark.parametrize(("hook", "function", "fault", "place"), CALLS.values(), ids=CALLS)
def test_an_exception_is_one_line_with_its_place(
    odd: Any, hook: str, function: str, fault: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    setattr(odd.Odd, hook, staticmethod(getattr(odd, function)))
    assert run(["simulate", TRACE, "--policy", "odd"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"headway: planner.policy: odd: {fault}")
    assert printed.endswith(f" (odd_policy.py:{line_of(place)})\n")
    assert printed.count("\n") == 1


def test_a_call_that_does_not_reach_the_code_has_no_place(odd: Any) -> None:
    odd.Odd.initial_state = odd.wrong_arguments
    with pytest.raises(PolicyError, match=r"TypeError: wrong_arguments\(\) takes 0 .* given$"):
        execute(Job(trace=TRACE, config=load_config(None, {"planner.policy": "odd"})))


def test_building_that_fails_is_one_line(odd: Any) -> None:
    odd.making = odd.two_lines
    place = rf"\(odd_policy\.py:{line_of('raise RuntimeError')}\)$"
    with pytest.raises(PolicyError, match=rf"^planner\.policy: odd: RuntimeError: first second {place}"):
        make_policy("odd", SimpleNamespace())  # type: ignore[arg-type] # the policy does not look


def test_planning_errors_of_a_policy_pass(odd: Any) -> None:
    def refuse(settings: object) -> None:
        raise PlanningError("planner.odd.pace: too slow")

    odd.making = refuse
    with pytest.raises(PlanningError, match=r"^planner\.odd\.pace: too slow$"):
        make_policy("odd", SimpleNamespace())  # type: ignore[arg-type] # the policy does not look


@pytest.mark.parametrize(
    ("good", "shown_after_s"), [(4, 25.0), (0, 1.5)], ids=["second tick", "first rehearsal"]
)
def test_the_live_planner_says_the_same_and_holds(odd: Any, good: int, shown_after_s: float) -> None:
    deployment, asked = Deployment(config=settings(planner__policy="odd")), []

    def plan(self: object, observation: Any) -> Decision:
        asked.append(observation.now_s)
        return decision(1, 1) if len(asked) <= good else odd.lookup(observation)

    async def status() -> dict[str, Any]:
        async with deployment.running():
            await asyncio.sleep(shown_after_s)
            return deployment.status()["planner"]

    odd.Odd.plan_with = plan
    planner = in_virtual_time(status())
    place = f"odd_policy.py:{line_of(CALLS['plan'][3])}"
    assert planner["state"] == "holding"
    assert planner["reason"] == f"planner.policy: odd: KeyError: 'no such role' ({place})"
    assert planner["failed_ticks"] >= 1
    assert len(deployment.records()) == max(0, good - REHEARSALS)


def test_the_live_planner_refuses_a_decision_as_the_simulator_does(odd: Any) -> None:
    deployment = Deployment(config=settings(planner__policy="odd"))
    odd.Odd.plan_with = lambda self, observation: decision(-1, 1)

    async def status() -> dict[str, Any]:
        async with deployment.running():
            await asyncio.sleep(1.5)
            return deployment.status()["planner"]

    reason = in_virtual_time(status())["reason"]
    assert reason == "planner.policy: odd: prefill -1 is below pools.prefill.min_replicas 1"
    assert deployment.pools.calls == []
