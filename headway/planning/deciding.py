"""Calls into a policy: what it raises, and a decision that cannot be carried out, become one line.

Policies come from other packages too. The simulator, the live planner and its rehearsals call them through
here, so that all of them refuse the same with the same words: policy, fault, and the line of its code that an
exception came from.
"""

from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, ParamSpec, TypeVar

from headway.extensions import fault_line
from headway.planning.budget import gpus
from headway.planning.types import Decision, Observation, PlanningError, Policy, PoolLimits, Role

P = ParamSpec("P")
T = TypeVar("T")


class PolicyError(PlanningError):
    """A policy raised an exception, or decided what cannot be carried out."""

    @classmethod
    def of(cls, policy: str, fault: str) -> "PolicyError":
        """The line about the policy of that name."""
        return cls(f"planner.policy: {policy}: {fault}")


def call(policy: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a function of that policy returns; PolicyError for whatever it raises but PlanningError."""
    try:
        return function(*args, **kwargs)
    except PlanningError:
        raise
    except Exception as error:
        raise PolicyError.of(policy, fault_line(error)) from error


def decide(
    policy: Policy,
    observation: Observation,
    state: Any,  # noqa: ANN401 - each policy's state is its own
    limits: Mapping[Role, PoolLimits],
    budget: int | None,
) -> Decision:
    """The policy's decision, which can be carried out. PlanningError or PolicyError otherwise."""
    decision = call(policy.name, policy.plan, observation, state)
    check_decision(policy.name, decision, limits, budget)
    return decision


def check_decision(
    policy: str,
    decision: object,
    limits: Mapping[Role, PoolLimits],
    budget: int | None,
) -> None:
    """PolicyError unless it is a Decision: a whole number for each pool, in limits and budget."""
    if not isinstance(decision, Decision):
        raise PolicyError.of(policy, f"plan returned {_kind(decision)}, not a Decision")
    for name in ("targets", "reasons", "changes"):
        if not isinstance(value := getattr(decision, name), Mapping):
            raise PolicyError.of(policy, f"{name} of the decision are {_kind(value)}, not a mapping")
    targets = decision.targets
    for role in targets:
        if not isinstance(role, Role):
            raise PolicyError.of(policy, f"target of {role!r}, a {_kind(role)}; keys are members of Role")
        if role not in limits:
            raise PolicyError.of(policy, f"target of {role}, which is no pool here ({', '.join(limits)})")
    for role, pool in limits.items():
        if role not in targets:
            raise PolicyError.of(policy, f"no target for {role}")
        _check_count(policy, role, targets[role], pool)
    needed = gpus(targets, limits)
    if budget is not None and needed > budget:
        raise PolicyError.of(policy, f"needs {needed} GPUs, planner.max_gpu_budget is {budget}")


def _check_count(policy: str, role: Role, count: object, pool: PoolLimits) -> None:
    # Integral: numpy's whole numbers are as good; a bool is one too, but never a count.
    if isinstance(count, bool) or not isinstance(count, Integral):
        said = f"{count}" if isinstance(count, float | bool) else f"of type {_kind(count)}"
        raise PolicyError.of(policy, f"target of {role} is {said}, not a whole number")
    if int(count) > pool.max_replicas:
        raise PolicyError.of(policy, f"{role} {count} is above pools.{role}.max_replicas {pool.max_replicas}")
    if int(count) < pool.min_replicas:
        raise PolicyError.of(policy, f"{role} {count} is below pools.{role}.min_replicas {pool.min_replicas}")


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
