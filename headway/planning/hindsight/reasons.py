"""A decision in an operator's words, and as data from which it can be followed."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from headway.engine.refinement import difference
from headway.planning.budget import Fit
from headway.planning.hindsight.backtest import SURPRISE
from headway.planning.hindsight.capacity import MissingCapacity, missing_lines
from headway.planning.hindsight.excess import Excess, excess_lines
from headway.planning.hindsight.needs import ClassOption, Need
from headway.planning.hindsight.settings import (
    HeadwaySettings,
    class_budgets,
    headway_settings,
    loss_budget,
)
from headway.planning.hindsight.slow_replicas import SlowReplicas, slow_lines
from headway.planning.hindsight.state import ReleaseDelay
from headway.planning.policies import PolicySettings
from headway.planning.reasons import common, describe, jsonable, ordered, progress_warnings
from headway.planning.types import NO_CHANGES, Observation, Role, RoleChanges
from headway.words import percent, plural

NOTHING_MISSING: Mapping[Role, MissingCapacity] = MappingProxyType({})
NO_EXCESS: Mapping[Role, Excess] = MappingProxyType({})
NONE_SLOW: Mapping[Role, SlowReplicas] = MappingProxyType({})

PEAKY = 1.5
"""Times the typical need from which a pool is said to be held for peaks."""


def explain(
    observation: Observation,
    settings: PolicySettings,
    needs: Mapping[Role, Need],
    delays: Mapping[Role, ReleaseDelay],
    fitted: Fit,
    *,
    changes: RoleChanges = NO_CHANGES,
    corrected: Mapping[str, Any] | None = None,
    missing: Mapping[Role, MissingCapacity] = NOTHING_MISSING,
    unexplained: Mapping[Role, Excess] = NO_EXCESS,
    slow: Mapping[Role, SlowReplicas] = NONE_SLOW,
) -> Mapping[str, Any]:
    """The reasons of one decision.

    `corrected` is the part `refined` of the profile's `meta`, None for a profile as measured.
    """
    own, reasons = headway_settings(settings), common("headway", observation, settings)
    may_miss = loss_budget(settings)
    reasons["settings"] |= {
        "loss_budget": may_miss,
        "headway": own.model_dump(),
    }
    names = [each.name for each in settings.classes]
    if names:
        reasons["settings"]["class_budgets"] = dict(zip(("", *names), class_budgets(settings), strict=True))
    cause = "; ".join(
        _cause(role, needs[role], delays[role], names, slow.get(role)) for role in ordered(needs)
    )
    changed = "".join(f"; {words}" for words in _changes(changes, own))
    beyond = "".join(f"; {words}" for words in _beyond_reach(needs, may_miss))
    limited = f"; limited by {', '.join(fitted.limits)}" if fitted.limits else ""
    engines = _engines(corrected or {}, observation.now_s)
    if engines:
        reasons["engines"] = corrected
    reasons |= {
        "needs": needs,
        "holds": delays,
        "limits": fitted.limits,
        "targets": fitted.targets,
        "changes": {f"{giver}→{taker}": count for (giver, taker), count in changes.items()},
        "warnings": [
            *progress_warnings(observation),
            *missing_lines(missing, observation.now_s),
            *slow_lines(slow),
            *excess_lines(unexplained, settings.interval_s),
            *_warnings(needs, may_miss),
        ],
        "summary": f"{cause}: {describe(fitted.targets, observation)}{changed}{beyond}{limited}{engines}.",
    }
    if missing:
        reasons["missing"] = missing
    if unexplained:
        reasons["excess"] = unexplained
    if slow:
        reasons["slow"] = slow
    plain: dict[str, Any] = jsonable(reasons)
    return plain


def _cause(
    role: Role,
    need: Need,
    delay: ReleaseDelay,
    names: Sequence[str] = (),
    slow: SlowReplicas | None = None,
) -> str:
    if need.option is None:
        return f"{role} is held, nothing is known yet of what it needs"
    option = need.option
    words = (
        f"{role} needs {need.replicas}: work for {option.expected:.2f} replicas expected "
        f"in {need.lead_s:.0f} s ({option.forecast}), times {option.factor:.2f}, which would have "
        f"kept {percent(1.0 - min(1.0, option.lost / max(need.requests, 1.0)))} of what can be kept in the "
        f"last {plural(need.intervals, 'interval')}"
    )
    if need.recalled:
        words += f" ({need.recalled} of the warm-up trace)"
    if isinstance(option, ClassOption):
        shares = zip(("other requests", *names), option.classes, strict=True)
        said = [f"{percent(1.0 - share)} of {name}" for name, share in shares if share or name in names]
        words += f" ({', '.join(said)})"
    if slow is not None and slow.lacking:
        words += f", {slow.lacking} of them for what slow ones lack"
    if need.extra:
        words += f", {need.extra} of them for the queue"
    if need.learning:
        words += ", not fewer than before while learning"
    if delay.target > need.replicas:
        words += f", {delay.target} are held for now"
    return words


def _engines(corrected: Mapping[str, Any], now_s: float) -> str:
    """How engines differ from their profile, where they do materially; "" where not."""
    words = []
    for phase, factor in corrected.get("factors", {}).items():
        if said := difference(phase, factor):
            words.append(f"{said}, as seen for {now_s - corrected['since'].get(phase, now_s):.0f} s")
    return f"; {' and '.join(words)}: the plan is corrected" if words else ""


def _changes(changes: RoleChanges, own: HeadwaySettings) -> list[str]:
    return [
        f"{count} of {giver} take over {taker} in {own.role_change_s:g} s once they have "
        "drained, instead of starting"
        for (giver, taker), count in changes.items()
    ]


def _warnings(needs: Mapping[Role, Need], may_miss: float) -> Iterator[str]:
    for role, need in needs.items():
        if need.option is not None and not need.learning and _holds_peaks(need):
            usual = "1 replica is" if round(need.typical) == 1 else f"{need.typical:.0f} replicas are"
            yield (
                f"{role}: {usual} enough half of the time, but peaks come faster than one starts "
                f"({need.lead_s:.0f} s): {need.replicas} are held for them"
            )
    surprising = max(need.surprising for need in needs.values())
    if surprising > may_miss:
        yield (
            f"{percent(round(surprising, 3))} of the requests so far came in jumps to more than {SURPRISE:g} "
            "times all that was known: what the first of its kind loses, no past could tell"
        )
    for words in _beyond_reach(needs, may_miss):
        yield f"{words}: no replicas are planned for them"


def _beyond_reach(needs: Mapping[Role, Need], may_miss: float) -> Iterator[str]:
    """The share of requests that no replica more would keep, where that is more than may miss."""
    infeasible = max(need.infeasible for need in needs.values())
    if infeasible > may_miss:
        yield f"{percent(round(infeasible, 3))} of the last requests miss their SLO on an idle engine, too"


def _holds_peaks(need: Need) -> bool:
    return need.replicas >= max(PEAKY * need.typical, need.typical + 2)
