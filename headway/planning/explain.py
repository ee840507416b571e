"""A reference decision in an operator's words: one summary sentence or two, and warnings. Text only."""

from collections.abc import Iterator, Mapping
from math import isnan

from headway.planning.reasons import describe, ordered, progress_warnings
from headway.planning.sizing import Requirement, Sizing
from headway.planning.types import LoadForecast, Observation, Role


def summarise(
    observation: Observation, sizing: Sizing, targets: Mapping[Role, int], limits: tuple[str, ...]
) -> str:
    """What was decided and why, for a person."""
    limited = f"; limited by {', '.join(limits)}" if limits else ""
    return f"{_cause(observation, sizing)}: {describe(targets, observation)}{limited}."


def _cause(observation: Observation, sizing: Sizing) -> str:
    if sizing.kind == "hold":
        return "The request count was not measured, targets are held"
    if sizing.kind == "zero_traffic":
        return f"No request arrived in {observation.interval_s:g} s, pools go to their minimum"
    held = [f"{role} is held" for role in sizing.held]
    needs = [f"{sizing.wished[role]} {role}" for role in ordered(sizing.requirement)]
    if not needs:
        return ", ".join(["No length of a request is known", *held])
    return ", ".join([f"{_expected(observation, sizing.forecast)} need {' and '.join(needs)}", *held])


def _expected(observation: Observation, load: LoadForecast | None) -> str:
    if load is None:
        return "Requests"
    tokens = f"{_count(load.isl_tokens)} input and {_count(load.osl_tokens)} output tokens"
    return f"{_count(load.requests)} requests of {tokens} in the next {observation.interval_s:g} s"


def _count(value: float) -> str:
    return "unknown" if isnan(value) else f"{value:.0f}"


def warnings(observation: Observation, sizing: Sizing) -> list[str]:
    """What an operator should look at, one sentence per item."""
    return [
        *progress_warnings(observation),
        *_held(sizing),
        *(text for role in ordered(sizing.requirement) for text in _doubts(role, sizing.requirement[role])),
        *_kept(sizing),
    ]


def _held(sizing: Sizing) -> list[str]:
    why = "the request count was not measured" if sizing.kind == "hold" else "no length is known"
    return [f"{role}: target held, {why}" for role in sizing.held]


def _doubts(role: Role, need: Requirement) -> Iterator[str]:
    if (limit := need.infeasible) is not None:
        target, best = limit.target_s * 1e3, limit.best_s * 1e3
        yield f"{role}: {limit.metric} of {target:.4g} ms is infeasible, the best achievable is {best:.4g} ms"
    if need.throughput_per_gpu <= 0 < need.load_tokens_per_s:
        yield f"{role}: the profile gives no throughput here, the pool's maximum is wished"
    if need.extrapolated:
        yield f"{role}: the profile was not sampled at the expected lengths, its values are extrapolated"


def _kept(sizing: Sizing) -> list[str]:
    kept = [
        role for role in ordered(sizing.corrections) if sizing.corrections[role].basis.startswith("kept: ")
    ]
    return [f"{role}: correction factor {sizing.corrections[role].basis}" for role in kept]
