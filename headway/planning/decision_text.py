"""The text of a decision: a line when it is made (`summary_text`), and its steps on request (`story`).

The log, the terminal, the live page and reports show the same text. Times of day are local.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headway.config import Role
from headway.engine.refinement import difference, limits_text
from headway.planning.record_figures import reached_text
from headway.planning.records import (
    COUNTS,
    DRY_RUN,
    PENDING,
    UNCHANGED,
    AdvicePoint,
    ConnectorAnswer,
    DecisionReasons,
    DecisionRecord,
    MeasuredFigures,
    NeedFigures,
)
from headway.words import clock, milliseconds, percent, plural, shown

DETAILS: Mapping[tuple[str, str | None], str | None] = {
    ("before", None): "was ",
    ("before", UNCHANGED): None,
    ("decision_id", None): "decision ",
    ("decision_id", PENDING): "waits behind decision ",
    ("error", None): "",
    ("free_at_s", None): None,
    ("object", None): "",
    ("replicas", None): "",
    ("resource_version", None): "version ",
    ("wish", None): None,
    ("yielded", None): "left to others: ",
}
"""Words before each detail of a connector's answer, by key and, where only one status has them, by status;
None leaves the detail out. Decision ids are those of the virtual connector, which other systems see.
"""
FORECAST = (("requests", "requests"), ("isl_tokens", "input tokens"), ("osl_tokens", "output tokens"))


def story(record: DecisionRecord) -> dict[str, list[str]]:
    """The steps of a decision as lines by name: measured, forecast, sized, set, started."""
    interval = record.interval
    reasons = DecisionReasons.model_validate(record.reasons)
    load = [
        f"{role}: {shown(each.running)} running, {shown(each.waiting)} waiting"
        + ("" if each.kv_usage is None else f"; mean KV usage {percent(round(each.kv_usage, 3))}")
        for role, each in record.measured.load.items()
    ]
    replicas = [
        f"{each.role} {each.replica}: STARTING {after(record, each.starting_at)}, "
        f"RUNNING {after(record, each.running_at)}"
        for each in record.replicas
    ]
    steps = {
        "interval": [f"{clock(interval.start_s)} to {clock(interval.end_s)}"],
        "measured": [
            measured_text(record.measured, interval.end_s - interval.start_s),
            *_kept(record),
            *load,
        ],
        "pools": list(_pool_lines(record)),
        "why": list(reason_lines(reasons)) or [record.summary],
        "targets": [targets_text(record.targets, record.previous_targets)],
        "connector": [_connector_text(record)],
        "advice": [] if record.advice is None else [_advice_text(record.advice)],
        "replicas": replicas,
        "reached": [*filter(None, (reached_text(record),))],
    }
    return {name: lines for name, lines in steps.items() if lines}


def _kept(record: DecisionRecord) -> Iterator[str]:
    if (attained := record.measured.attainment) is not None:
        yield f"{percent(attained)} of requests within their SLO"


def summary_text(why: str, measured: MeasuredFigures, target: float) -> str:
    """The line of a decision: what is wrong with its interval, and the policy's reason.

    `target` is the share of requests that should meet their SLO.
    """
    health = measured.health
    opening = ""
    if not health.plannable:
        opening = f"No metrics ({health.detail or health.status})."
    elif measured.attainment is not None and measured.attainment < target:
        slo = "TTFT" if measured.ttft_only else "SLO"
        opening = (
            f"Only {percent(measured.attainment)} of requests met their {slo}, target {percent(target)}."
        )
    return f"{opening} {why}".lstrip()


def _pool_lines(record: DecisionRecord) -> Iterator[str]:
    for role, pool in record.pools.items():
        names = (name for name in COUNTS if name in pool.model_fields_set)
        yield f"{role}: " + ", ".join(f"{getattr(pool, name)} {name}" for name in names)


def _connector_text(record: DecisionRecord) -> str:
    action = record.connector
    dry = " (dry run: nothing was set)" if record.dry_run else ""
    return f"{action.kind}: {', '.join([str(action.status), *_detail_words(action)])}{dry}"


def _detail_words(action: ConnectorAnswer) -> Iterator[str]:
    if isinstance(action.detail, str):
        yield from filter(None, (action.detail,))
        return
    for key, value in action.detail.items():
        words = DETAILS.get((key, action.status), DETAILS.get((key, None), f"{key.replace('_', ' ')} "))
        if words is not None:
            yield f"{words}{_worded(value)}"


def _worded(value: Any) -> str:  # noqa: ANN401 - JSON
    if isinstance(value, Mapping):
        # A line of text needs no name before it.
        return ", ".join(
            each if isinstance(each, str) else f"{key} {_worded(each)}" for key, each in value.items()
        )
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_worded, value))
    return "n/a" if value is None else str(value)


def _advice_text(lived: AdvicePoint) -> str:
    """The interval as the planned and the real fleet served it."""
    parts = []
    for name, of in (("planned fleet", "planned"), ("real fleet", "stood")):
        replicas = getattr(lived, f"{of}_replicas").items()
        counts = ", ".join(f"{role} {count:.3g}" for role, count in replicas)
        kept = percent(getattr(lived, f"{of}_attainment"))
        parts.append(f"{name} {shown(getattr(lived, f'{of}_gpus'))} GPUs ({counts}), {kept} within SLO")
    return "; ".join(parts)


def after(record: DecisionRecord, at: float | None) -> str:
    """`03:04:11 (6.2 s after the decision)`."""
    if at is None:
        return "not yet"
    return f"{clock(at)} ({at - record.created_at:.1f} s after the decision)"


def reason_lines(reasons: DecisionReasons) -> Iterator[str]:
    """The reasons of one decision, a sentence each."""
    if reasons.summary:
        yield reasons.summary
    if forecast := reasons.forecast:
        known = ((getattr(forecast, key), name) for key, name in FORECAST)
        figures = ", ".join(f"{value:,.0f} {name}" for value, name in known if value is not None)
        sources = "; ".join(sorted(set((forecast.source or {}).values())))
        yield f"Forecast: {figures or 'none'}" + (f" ({sources})" if sources else "")
    if reasons.corrections:
        parts = (f"{role} {each.value:.3g} ({each.basis})" for role, each in reasons.corrections.items())
        yield f"Corrections: {', '.join(parts)}"
    for role, need in reasons.requirement.items():
        count = "no number of" if need.replicas is None else f"{need.replicas:.3g}"
        load, throughput = need.load_tokens_per_s, need.throughput_per_gpu
        count += " replica" if need.replicas == 1 else " replicas"
        yield f"Need: {role} {count} for {load:,.0f} tokens/s at {throughput:,.0f} tokens/s per GPU"
    for role, planned in reasons.needs.items():
        yield f"{role}: {_need_text(planned, list(reasons.settings.class_budgets))}"
    if (may_miss := reasons.settings.loss_budget) is not None:
        yield f"Planned so that at most {percent(round(may_miss, 6))} of requests miss their SLO"
    if differences := [text for each in reasons.engines.factors.items() if (text := difference(*each))]:
        yield f"Engines: {' and '.join(differences)}; the plan accounts for it"
    if text := limits_text(reasons.engines.limits):
        yield f"Engines: {text}; the plan accounts for it"
    if reasons.engines.guess:
        yield f"Profile: {reasons.engines.guess}"
    if reasons.limits:
        yield f"Limited by: {', '.join(reasons.limits)}"
    yield from (f"Warning: {warning}" for warning in reasons.warnings)


def _need_text(need: NeedFigures, classes: Sequence[str]) -> str:
    """The forecast and the factor that the policy `headway` chose, and their result on past traffic.

    `classes` are the names of the classes, the first that of requests without one.
    """
    option, text = need.option, f"a new replica serves within {need.lead_s:.0f} s"
    if option is None:
        return text
    forecast = f" ({option.forecast})" if option.forecast else ""
    text += (
        f"; until then work for {option.expected:.2f} replicas is expected{forecast}, "
        f"× {option.factor:.2f} for safety"
    )
    if not need.intervals:
        return text
    if (need.requests or 0.0) < 1.0:
        return (
            f"{text}. No request came by which to judge it in the last {plural(need.intervals, 'interval')}"
        )
    kept = 1.0 - min(1.0, option.lost / (need.requests or 1.0))
    text += f". That would have kept {percent(kept)} of what could be kept in the last "
    text += plural(need.intervals, "interval")
    if need.recalled:
        text += f", {need.recalled} of them from the warm-up trace"
    by_class = ", ".join(
        f"{percent(1.0 - lost)} of {name or 'other requests'}"
        for name, lost in zip(classes, option.classes, strict=False)
        if lost or name
    )
    return f"{text} ({by_class})" if by_class else text


def measured_text(measured: MeasuredFigures, span_s: float) -> str:
    """One interval as measured, in one sentence; what is not known is left out."""
    requests, health = measured.requests, measured.health
    lengths = {"ISL": measured.isl_tokens, "OSL": measured.osl_tokens}
    mean = [f"{name} {shown(tokens)}" for name, tokens in lengths.items() if tokens is not None]
    known = [*_latencies(measured), *_waited_and_cached(measured)]
    state = ": ".join(filter(None, (health.status, health.detail)))
    if requests is None and not mean and not known:
        return f"no data: {health.detail or health.status or 'reason unknown'}"
    rate = "" if requests is None or span_s <= 0 else f" ({requests / span_s:.3g}/s)"
    repeats = [f"{shown(measured.repeats)} repeats"] if measured.repeats else []
    came = ", ".join([f"{shown(requests)} requests{rate}", *repeats, *mean])
    return "; ".join([came, *known, f"data {state or 'unknown'}"])


def _latencies(measured: MeasuredFigures) -> Iterator[str]:
    for name, found in (("TTFT", measured.ttft_s), ("ITL", measured.itl_s)):
        figures = {"mean": found.mean, "p95": found.p95}
        known = [f"{key} {milliseconds(each)} ms" for key, each in figures.items() if each is not None]
        if known:
            yield f"{name} {', '.join(known)}"


def _waited_and_cached(measured: MeasuredFigures) -> Iterator[str]:
    queue_s, cached = measured.queue_s, measured.cached_tokens
    mean_s = measured.ttft_s.mean
    if queue_s is not None:
        part = f", {percent(min(1.0, queue_s / mean_s))} of TTFT" if mean_s else ""
        yield f"mean queueing {milliseconds(queue_s)} ms{part}"
    if cached is not None:
        yield f"{shown(cached)} prompt tokens cached"


def targets_text(targets: Mapping[Role, int], previous: Mapping[Role, int] | None = None) -> str:
    """`prefill 2, decode 3`, or `prefill 1 → 2, decode 3` beside earlier targets."""
    before = previous or {}
    return ", ".join(f"{role} {change_text(before.get(role), count)}" for role, count in targets.items())


def change_text(before: float | None, count: int) -> str:
    """`3 → 4`, or `4` where it was that before, or the count before is unknown."""
    return f"{count}" if before in (None, count) else f"{before:g} → {count}"


def answer_text(answer: ConnectorAnswer) -> str:
    """Why the targets were not set; empty if they were."""
    if answer.status == DRY_RUN:
        return "dry run: nothing is set"
    error = answer.detail.get("error") if isinstance(answer.detail, Mapping) else None
    return f"{answer.status}: {error}" if error else ""
