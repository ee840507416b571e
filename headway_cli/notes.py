"""Notes on a result: what its figures do not say, one line each, most important first."""

import re
import sys
from collections.abc import Iterable, Iterator

from headway.config import RoutingSettings
from headway.planning import Role
from headway.planning.forecasting import LearnsFromPast
from headway.planning.policies import predictors_asked
from headway.simulation.build import Plan
from headway.simulation.demand import Reach
from headway.simulation.report import Interval
from headway.simulation.results import SimulationResult
from headway.words import plural
from headway.workload import Trace

WARM_UP_TRACE = "load_predictor_warmup_trace"
FORECASTING = ("predictor", "predictor_options", WARM_UP_TRACE)
"""Keys of `planner` that matter only to policies that ask for a forecast."""

DIGITS = re.compile(r"\d+(\.\d+)?")


def collect_notes(plan: Plan, trace: Trace, reach: Reach, result: SimulationResult) -> list[str]:
    """The notes of one simulation."""
    return [
        *trace_notes(trace),
        *(() if plan.config.spillover else routing_notes(plan.config.routing)),
        *warm_up_notes(plan),
        *result.notes,
        *_infeasible(plan, reach),
        *_outside_profile(reach),
        *_requests_and_rows(result, plan, trace),
        *without_offload(plan),
        *without_forecast(plan),
        *tighter_classes(plan),
        *_repeated("decisions warned", result.intervals, "warnings"),
        *_repeated("decisions were limited", result.intervals, "limits"),
        *_failing_predictors(result.intervals),
        *_profile(plan),
    ]


def trace_notes(trace: Trace) -> list[str]:
    """How the trace was read, where that is not as it stands in the file."""
    return [f"trace: {note}" for note in trace.notes]


def warm_up_notes(plan: Plan) -> list[str]:
    """The same of the warm-up trace."""
    return [f"planner.{WARM_UP_TRACE}: {note}" for note in plan.past_notes]


def routing_notes(routing: RoutingSettings) -> Iterator[str]:
    """That requests were not routed as a gateway would route them, and how to have that simulated."""
    simulated, live = routing.simulated_profile, routing.live_profile
    if simulated != live:
        yield (
            f"routing: {simulated}, which is compiled; Headway's gateway routes by {live}, which takes some "
            f"25 times as long to simulate: routing.profile: {live} (--routing {live})"
        )


def say_notes(trace: Trace) -> None:
    """Tell on standard error how the trace was read; for verbs whose answer has no notes."""
    for note in trace_notes(trace):
        print(f"note: {note}", file=sys.stderr)


def _infeasible(plan: Plan, reach: Reach) -> Iterator[str]:
    slo, mixed = plan.settings.slo, Role.MIXED in plan.settings.limits
    cached = ", prefix reuse aside" if plan.engine.prefix_cache_tokens else ""
    for role, name, missed, target_s, best_s in (
        (Role.PREFILL, "TTFT", reach.ttft_missed, slo.ttft_s, reach.best_ttft_s),
        (Role.DECODE, "ITL", reach.itl_missed, slo.itl_s, reach.best_itl_s),
    ):
        if missed:
            yield (
                f"{Role.MIXED if mixed else role}: {name} of {target_s * 1e3:.4g} ms is infeasible for "
                f"{_share(missed, reach.requests)} of the requests{cached}: no replica count meets it; "
                f"the best achievable for the mean request is {best_s * 1e3:.4g} ms"
            )


def _outside_profile(reach: Reach) -> Iterator[str]:
    for count, what in ((reach.isl_outside, "input lengths"), (reach.context_outside, "contexts")):
        if count:
            share = _share(count, reach.requests)
            yield f"profile: {share} of the requests lie outside the sampled {what}: extrapolated there"


def _requests_and_rows(result: SimulationResult, plan: Plan, trace: Trace) -> Iterator[str]:
    if result.tally.too_long:
        yield f"{plural(result.tally.too_long, 'request')} failed: too long for the KV cache of a replica"
    if result.tally.retried:
        yield f"served again after a crash: {plural(result.tally.retried, 'request')}"
    if result.tally.repeats:
        gave_up = plural(result.tally.gave_up, "request")
        yield f"clients came again {plural(result.tally.repeats, 'time')}, and gave up {gave_up} for good"
    stats = trace.stats
    if stats.reordered:
        yield f"trace: {stats.reordered:,} of {stats.rows_read:,} rows came out of order and were sorted"
    for count, what in ((stats.skipped_zero_output, "output"), (stats.skipped_zero_input, "input")):
        if count:
            yield f"trace: {count:,} of {stats.rows_read:,} rows without {what} tokens were skipped"
    if stats.blocks and not plan.engine.prefix_cache_tokens:
        yield "trace: its prefix blocks are not used, since engine.prefix_cache_tokens is not set"


def without_offload(plan: Plan) -> Iterator[str]:
    """That offload is set where there is none."""
    mode = plan.config.routing.offload.mode
    if mode != "never" and Role.MIXED not in plan.settings.limits:
        yield f"routing.offload.mode: {mode} is for mixed pools; here nothing is offloaded"


def without_forecast(plan: Plan) -> Iterator[str]:
    """That predictors are set for a policy that does not ask them."""
    planner = plan.config.planner
    asked = predictors_asked(planner)
    learns = asked or isinstance(plan.policy, LearnsFromPast)
    used = FORECASTING if plan.kind.forecasts else (WARM_UP_TRACE,) if learns else ()
    chosen = [key for key in FORECASTING if key in planner.model_fields_set and key not in used]
    if chosen:
        keys = ", ".join(f"planner.{key}" for key in chosen)
        yield f"{keys}: the policy {plan.policy.name} asks for no forecast; it changes nothing here"


def tighter_classes(plan: Plan) -> Iterator[str]:
    """That the policy sizes fleets by the deployment's SLO alone, where a class has a tighter one."""
    slo = plan.config.slo
    tighter = [
        name
        for name, each in slo.classes.items()
        if (each.ttft_ms or slo.ttft_ms) < slo.ttft_ms or (each.tpot_ms or slo.itl_ms) < slo.itl_ms
    ]
    if tighter and plan.kind.fixed_fleet is None and not plan.kind.classes:
        yield (
            f"slo.classes: {plan.policy.name} plans for slo.ttft_ms and slo.itl_ms, not for the tighter "
            f"SLOs of {', '.join(tighter)}; set slo to the tightest that must hold"
        )


def _repeated(what: str, intervals: Iterable[Interval], key: str) -> Iterator[str]:
    """The texts that decisions carry under `key`, counted; those that differ only in numbers count as one."""
    kinds: dict[str, tuple[int, str]] = {}
    total = 0
    for interval in intervals:
        total += bool(interval.targets)
        for text in interval.reasons.get(key, ()):
            kind = DIGITS.sub("#", text)
            count, first = kinds.get(kind, (0, text))
            kinds[kind] = (count + 1, first)
    for kind, (count, first) in kinds.items():
        example = "" if kind == first else ", first"
        yield f"{count} of {total} {what}{example}: {first}"


def _failing_predictors(intervals: Iterable[Interval]) -> Iterator[str]:
    failures: dict[str, int] = {}
    for interval in intervals:
        sources = interval.forecast.source if interval.forecast else None
        for series, source in (sources or {}).items():
            if "failed" in source:
                line = f"{series}: {source}"
                failures[line] = failures.get(line, 0) + 1
    for line, count in failures.items():
        yield f"forecast of {line}, {plural(count, 'time')}"


def _profile(plan: Plan) -> Iterator[str]:
    if plan.config.engine.profile is None:
        yield (
            "profile: none given, so that of an 8B model on one H100; "
            "headway profile export writes the one that a running deployment plans by"
        )
    source = plan.profile.meta.get("source")
    if isinstance(source, str):
        yield f"profile: {source}"
    remarks = plan.profile.meta.get("notes")
    if isinstance(remarks, list):
        yield from (f"profile: {remark}" for remark in remarks)
    yield from (f"profile: {remark}" for remark in plan.profile.notes)


def _share(count: int, total: int) -> str:
    return f"{100.0 * (count / total):.1f} %" if count / total >= 0.001 else f"{count:,} of {total:,}"
