"""`reference`: the documented SLA planner, formula by formula, as the baseline to beat.

Theory. Every interval: measure → correct → forecast → size (all in `sizing`) → fit into limits and GPU budget
(`deciding`). Sources: "SLA-based Planner" (Scaling Algorithm, 1 to 5) and "Planner Design"
(Steps 1 to 5). It wants exactly one prefill and one decode pool. How we read what the documents leave open
stands in decision record 0004.

Missing data, in order of precedence (a value that is not finite, or a length or latency that is not
positive, counts as not measured):

| not measured                          | result                                                             |
|---------------------------------------|--------------------------------------------------------------------|
| requests                              | both pools hold their last target (at first: the desired counts)   |
| nothing, but requests are 0           | both pools go to their minimum; factors and lengths are kept       |
| most of an interval, as in a decision | forecast and lengths stand as they were, no requests say nothing;  |
| out of turn                           | without a forecast both pools hold                                 |
| forecast, or one of its series        | constant forecast for it: the next interval is like this one       |
| ISL                                   | the last known ISL stands in; none yet: both pools hold            |
| OSL                                   | the last known OSL stands in; none yet: decode holds               |
| TTFT                                  | the prefill factor keeps its value                                 |
| ITL, or no decode replica is ready    | the decode factor keeps its value                                  |
| request duration                      | TTFT + ITL * OSL stands in; that unknown too: decode factor kept   |

A forecast ISL or OSL serves a pool even where none was ever observed. Held counts still obey limits and
budget.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

from headway.engine.replica_speeds import Lengths
from headway.planning.deciding import Fit, check_budget, fit
from headway.planning.forecasting import WHOLE
from headway.planning.policies import (
    PolicyKind,
    PolicySettings,
    check,
    common,
    describe,
    jsonable,
    ordered,
    progress_warnings,
)
from headway.planning.sizing import (
    Aim,
    Correction,
    Requirement,
    Sizing,
    correct_decode,
    correct_prefill,
    counted,
    known_lengths,
    positive,
    resolve_forecast,
    size_decode,
    size_prefill,
)
from headway.planning.types import Decision, LoadForecast, Observation, PlanningError, PoolLimits, Role
from interp import Profile

Corrections = Mapping[Role, Correction]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceState:
    """The memory between two decisions: targets, correction factors, and the last known lengths."""

    targets: Mapping[Role, int] = field(default_factory=dict)
    corrections: Mapping[Role, float] = field(default_factory=lambda: {Role.PREFILL: 1.0, Role.DECODE: 1.0})
    lengths: Lengths = field(default_factory=Lengths)


@dataclass(frozen=True, slots=True)
class ReferencePolicy:
    """The documented planner over a profile's surfaces."""

    settings: PolicySettings
    surfaces: Profile

    name = "reference"

    @property
    def interval_s(self) -> float:
        """Seconds between two decisions."""
        return self.settings.interval_s

    def within(self, limits: Mapping[Role, PoolLimits]) -> "ReferencePolicy":
        """The same within these limits."""
        return replace(self, settings=replace(self.settings, limits=limits))

    def initial_state(self) -> ReferenceState:
        """No target yet, factors of 1, lengths unknown."""
        return ReferenceState()

    def plan(self, observation: Observation, state: ReferenceState) -> Decision:
        """One decision; see the module's table for missing data. PlanningError if a pool is missing."""
        check(observation, self.settings)
        sizing = self._size(observation, state)
        fitted = fit(sizing.wished, self.settings.limits, self.settings.max_gpu_budget)
        factors = {role: correction.value for role, correction in sizing.corrections.items()}
        next_state = ReferenceState(targets=fitted.targets, corrections=factors, lengths=sizing.lengths)
        reasons = self._reasons(observation, sizing, fitted)
        return Decision(targets=fitted.targets, next_state=next_state, reasons=reasons)

    def _size(self, observation: Observation, state: ReferenceState) -> Sizing:
        pools, roles = observation.pools, ordered(self.settings.limits)
        last = {role: state.targets.get(role, pools[role].desired) for role in roles}
        kept = {role: Correction(value=value, basis="kept") for role, value in state.corrections.items()}
        part = observation.interval_s < WHOLE * self.interval_s
        if not counted(observation.requests) or (part and observation.forecast is None):
            return Sizing(kind="hold", wished=last, lengths=state.lengths, corrections=kept, held=roles)
        if observation.requests == 0 and not part:
            minimum = {role: pool.min_replicas for role, pool in self.settings.limits.items()}
            return Sizing(kind="zero_traffic", wished=minimum, lengths=state.lengths, corrections=kept)
        return self._size_traffic(observation, state, last)

    def _size_traffic(
        self, observation: Observation, state: ReferenceState, last: Mapping[Role, int]
    ) -> Sizing:
        lengths = known_lengths(observation, state.lengths)
        corrections = self._correct(observation, lengths, state.corrections)
        forecast = resolve_forecast(observation, lengths, self.interval_s)
        requirement = self._require(forecast, corrections)
        limits = self.settings.limits
        return Sizing(
            kind="sized",
            wished={
                role: requirement[role].wished(limits[role].max_replicas)
                if role in requirement
                else last[role]
                for role in ordered(limits)
            },
            lengths=lengths,
            corrections=corrections,
            forecast=forecast,
            requirement=requirement,
            held=tuple(role for role in ordered(limits) if role not in requirement),
        )

    def _correct(self, observation: Observation, lengths: Lengths, last: Mapping[Role, float]) -> Corrections:
        if self.settings.no_correction:
            return {Role.PREFILL: Correction(), Role.DECODE: Correction()}
        prefill = correct_prefill(observation, lengths, last[Role.PREFILL], self.surfaces.prefill)
        decode = correct_decode(observation, lengths, last[Role.DECODE], self.surfaces.decode)
        return {Role.PREFILL: prefill, Role.DECODE: decode}

    def _require(self, load: LoadForecast, corrections: Corrections) -> Mapping[Role, Requirement]:
        required, interval_s = dict[Role, Requirement](), self.interval_s
        if positive(load.isl_tokens):
            aim = self._aim(Role.PREFILL, self.settings.slo.ttft_s, corrections)
            required[Role.PREFILL] = size_prefill(load, interval_s, aim, self.surfaces.prefill)
        if positive(load.isl_tokens) and positive(load.osl_tokens):
            aim = self._aim(Role.DECODE, self.settings.slo.itl_s, corrections)
            required[Role.DECODE] = size_decode(load, interval_s, aim, self.surfaces.decode)
        return required

    def _aim(self, role: Role, slo_s: float, corrections: Corrections) -> Aim:
        gpus = self.settings.limits[role].gpus_per_replica
        return Aim(slo_s=slo_s, correction=corrections[role].value, gpus_per_replica=gpus)

    def _reasons(self, observation: Observation, sizing: Sizing, fitted: Fit) -> Mapping[str, Any]:
        reasons = common(self.name, observation, self.settings)
        reasons["settings"]["no_correction"] = self.settings.no_correction
        reasons |= {
            "kind": sizing.kind,
            "corrections": sizing.corrections,
            "forecast": sizing.forecast,
            "requirement": requirement_data(sizing.requirement),
            "wished": sizing.wished,
            "held": sizing.held,
            "limits": fitted.limits,
            "targets": fitted.targets,
            "infeasible": {
                role: need.infeasible for role, need in sizing.requirement.items() if need.infeasible
            },
            "warnings": warnings(observation, sizing),
            "summary": summarise(observation, sizing, fitted, self.interval_s),
        }
        plain: dict[str, Any] = jsonable(reasons)
        return plain


def summarise(observation: Observation, sizing: Sizing, fitted: Fit, interval_s: float) -> str:
    """The decision and its cause, for a person."""
    limited = f"; limited by {', '.join(fitted.limits)}" if fitted.limits else ""
    return f"{_cause(observation, sizing, interval_s)}: {describe(fitted.targets, observation)}{limited}."


def _cause(observation: Observation, sizing: Sizing, interval_s: float) -> str:
    if sizing.kind == "hold":
        return "The request count was not measured, targets are held"
    if sizing.kind == "zero_traffic":
        return f"No request arrived in {round(observation.interval_s, 1):g} s, pools go to their minimum"
    held = [f"{role} is held" for role in sizing.held]
    needs = [f"{sizing.wished[role]} {role}" for role in ordered(sizing.requirement)]
    if not needs:
        return ", ".join(["No length of a request is known", *held])
    return ", ".join([f"{_expected(sizing.forecast, interval_s)} need {' and '.join(needs)}", *held])


def _expected(load: LoadForecast | None, interval_s: float) -> str:
    if load is None:
        return "Requests"
    tokens = f"{_count(load.isl_tokens)} input and {_count(load.osl_tokens)} output tokens"
    return f"{_count(load.requests)} requests of {tokens} in the next {interval_s:g} s"


def _count(value: float) -> str:
    return "unknown" if isnan(value) else f"{value:.0f}"


def warnings(observation: Observation, sizing: Sizing) -> list[str]:
    """Things that an operator should look at, one sentence per item."""
    why = "the request count was not measured" if sizing.kind == "hold" else "no length is known"
    factors = ((role, sizing.corrections[role].basis) for role in ordered(sizing.corrections))
    return [
        *progress_warnings(observation),
        *(f"{role}: target held, {why}" for role in sizing.held),
        *(text for role in ordered(sizing.requirement) for text in _doubts(role, sizing.requirement[role])),
        *(f"{role}: correction factor {basis}" for role, basis in factors if basis.startswith("kept: ")),
    ]


def _doubts(role: Role, need: Requirement) -> Iterator[str]:
    if (limit := need.infeasible) is not None:
        target, best = limit.target_s * 1e3, limit.best_s * 1e3
        yield f"{role}: {limit.metric} of {target:.4g} ms is infeasible, the best achievable is {best:.4g} ms"
    if need.throughput_per_gpu <= 0 < need.load_tokens_per_s:
        yield f"{role}: the profile gives no throughput here, the pool's maximum is wished"
    if need.extrapolated:
        yield f"{role}: the profile was not sampled at the expected lengths, its values are extrapolated"


def requirement_data(requirement: Mapping[Role, Requirement]) -> Mapping[Role, Mapping[str, Any]]:
    """The sizing of each role as data, with the replicas before rounding (None when no number would do)."""
    return {role: {**jsonable(need), "replicas": need.replicas} for role, need in requirement.items()}


def make_reference(settings: PolicySettings, profile: Profile) -> ReferencePolicy:
    """PlanningError unless there are both pools, and room for their minimums in the budget."""
    if set(settings.limits) != {Role.PREFILL, Role.DECODE}:
        found = ", ".join(ordered(settings.limits))
        raise PlanningError(f"planner.policy: reference needs the pools prefill and decode, found {found}")
    check_budget(settings.limits, settings.max_gpu_budget)
    return ReferencePolicy(settings, profile)


REFERENCE = PolicyKind(build=make_reference, forecasts=True, needs_surfaces=True)
