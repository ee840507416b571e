"""The facts of a running deployment as sentences, made once for the status document.

The terminal and the live page show them as they are. Spans of time stand where a time of day could: readers
are in other time zones. What is unknown or not the case has no fact.
"""

from collections.abc import Iterator
from json import dumps

from headway.engine.refinement import difference, limits_text
from headway.planning.advice_text import acts, fleet_text, verdict
from headway.planning.decision_text import answer_text, measured_text, targets_text
from headway.planning.documents import AdviceFigures, ChangeFigures, Fact, LastDecision, StatusDocument
from headway.planning.health import silent_text
from headway.planning.record_figures import reached_text
from headway.words import duration, percent, plural, shown

RECENT_S = 600.0
"""A restart is worth a warning for so long."""


def warnings(status: StatusDocument, now_s: float) -> list[str]:
    """What a reader must not overlook: simulated engines, a planner that only watches, recent restarts."""
    found = []
    if status.engine.simulated:
        found.append(simulated_text(status.engine.time_scale))
    if status.planner.dry_run:
        found.append("dry run: decisions are logged, nothing is scaled")
    found += [
        f"{name} restarted {_ago(restart.at, now_s)}"
        for name, restart in status.restarts.items()
        if now_s - restart.at < RECENT_S
    ]
    return found


def simulated_text(time_scale: float | None) -> str:
    """That engines are simulated, and at which speed."""
    speed = "" if time_scale in (None, 1.0) else f", at {time_scale:g} × the speed of its profile"
    return f"SIMULATED engine: no GPU is used and no model answers{speed}"


def facts(status: StatusDocument, now_s: float) -> list[Fact]:
    """The facts at `now_s`, in seconds since 1970; several of one name follow each other."""
    last = status.last_decision
    return [
        *_planner(status),
        *_advice(status.advice),
        *_decision(status, last, now_s),
        *_edits(status, now_s),
        *([] if last is None else _missing(last, now_s)),
        *_load(status),
        *_settings(status, now_s),
        *_engines(status, now_s),
        *_parts(status, now_s),
    ]


def _planner(status: StatusDocument) -> Iterator[Fact]:
    planner = status.planner
    why = f" ({planner.reason})" if planner.reason else ""
    ticks = {"late tick": planner.late_ticks, "failed tick": planner.failed_ticks}
    parts = [
        f"{planner.policy} policy",
        *([f"predictor {planner.predictor}"] if planner.predictor else []),
        f"every {shown(planner.interval_s)} s",
        *([f"at most {planner.max_gpu_budget} GPUs"] if planner.max_gpu_budget else []),
        *([] if planner.ticks is None else [plural(planner.ticks, "tick")]),
        *(plural(count, name) for name, count in ticks.items() if count),
    ]
    yield Fact(name="Planner", text=f"{planner.state}{why}: {', '.join(parts)}")
    limits = [
        f"{role} {shown(pool.min_replicas)} to {shown(pool.max_replicas)} replicas"
        + ("" if pool.gpus_per_replica is None else f" of {plural(pool.gpus_per_replica, 'GPU')}")
        + (f" ({pool.schedule})" if pool.schedule else "")
        + (f", {pool.asleep} asleep" if pool.asleep else "")
        for role, pool in status.pools.items()
    ]
    if limits:
        yield Fact(name="Limits", text=", ".join(limits))
    if (fleet := status.fleet) is not None:
        granted = (
            "nothing decided yet"
            if fleet.granted is None
            else (fleet.words or f"granted {fleet.granted} of {fleet.wanted} GPUs wanted")
        )
        yield Fact(name="Budget", text=f"{fleet.holds} of {shown(fleet.gpus)} GPUs in common; {granted}")


def _advice(advice: AdviceFigures | None) -> Iterator[Fact]:
    """What the plan of a dry run would have saved, or acting has: of a day, an hour and all of it."""
    acted = None if advice is None or not acts(advice) else advice.acted
    if advice is None or (advice.acting and acted is None):
        return
    whole = advice if acted is None else acted
    name = "Its plan" if acted is None else "Headway"
    beside = "" if acted is None else f", compared with a constant {fleet_text(acted)}"
    windows = [each for each in (whole.day, whole.hour, whole.start) if each is not None]
    for place, window in enumerate(windows if whole.day is not None else ()):
        if window not in windows[:place]:
            yield Fact(name=name, text=f"{verdict(window, advice)}{beside}")


def _decision(status: StatusDocument, last: LastDecision | None, now_s: float) -> Iterator[Fact]:
    if last is None:
        yield Fact(name="Decision", text="none yet")
        return
    made = f"#{last.id}, {_ago(last.created_at, now_s)}: {targets_text(last.targets)}"
    yield Fact(name="Decision", text=f"{made}; {answer_text(status.connector) or reached_text(last)}")
    yield Fact(name="Why", text=last.summary or "no reason given")


def _edits(status: StatusDocument, now_s: float) -> Iterator[Fact]:
    """Counts set by someone else, and other controllers."""
    for edit in status.connector.foreign_edits:
        kept_s = None if edit.left_until is None else edit.left_until - now_s
        text = (
            f"{edit.role} set to {edit.found} (ours: {edit.ours}) by {edit.by or 'someone else'} "
            f"{_ago(edit.changed_at or edit.seen_at, now_s)}, "
            + ("will be reset" if kept_s is None else f"kept for {_span(kept_s)}")
        )
        yield Fact(name="Others", text=text, ok=False)
    for rival in status.connector.rivals:
        yield Fact(name="Others", text=rival, ok=False)


def _missing(last: LastDecision, now_s: float) -> Iterator[Fact]:
    for role, each in last.missing.items():
        text = (
            f"{plural(each.replicas, f'{role} replica')} for {_span(now_s - each.since_s)}, "
            f"{percent(each.lost_share)} of the requests lost"
        )
        yield Fact(name="Missing", text=text, ok=False)


def _load(status: StatusDocument) -> Iterator[Fact]:
    """The SLO and its attainment, the last interval, and the forecast of the next."""
    slo, attained = status.slo, status.attainment
    text = (
        f"TTFT {shown(slo.ttft_ms)} ms, ITL {shown(slo.itl_ms)} ms: "
        f"{percent(attained.last_interval)} in the last interval, "
        f"{percent(attained.total)} in total, target {percent(slo.attainment)}"
    )
    yield Fact(name="SLO", text=text + (", by TTFT alone" if attained.ttft_only else ""))
    if measured := status.measured:
        span_s = (measured.end_s or 0.0) - (measured.start_s or 0.0)
        yield Fact(name="Measured", text=measured_text(measured, span_s))
    last = status.last_decision
    forecast = None if last is None else last.forecast
    if last is None or forecast is None or forecast.requests is None:
        return
    low, high = forecast.requests_low, forecast.requests_high
    band = "" if low is None or high is None else f", 90 % interval {shown(low)} to {shown(high)}"
    error = last.forecast_error
    missed = "" if error is None else f"; recent error {percent(round(error, 3))}"
    yield Fact(
        name="Forecast", text=f"{shown(forecast.requests)} requests in the next interval{band}{missed}"
    )


def _settings(status: StatusDocument, now_s: float) -> Iterator[Fact]:
    """The settings that were changed while it ran, by whom and when."""
    for key, value in status.changes.items():
        change = status.changed.get(key, ChangeFigures())
        by = f" by {change.by}" if change.by else ""
        at = "" if change.at is None else f" {_ago(change.at, now_s)}"
        yield Fact(name="Settings", text=f"{key} {dumps(value)}{by}{at}")


def _engines(status: StatusDocument, now_s: float) -> Iterator[Fact]:
    """How phases differ from the profile, and replicas from their peers; what the plan holds for them."""
    refined = status.refined
    for phase, factor in {} if refined is None else refined.factors.items():
        since_s = None if refined is None else refined.since.get(phase)
        lasts = "" if since_s is None else f" for {_span(now_s - since_s)}"
        differs = difference(phase, factor)
        text = f"{differs}{lasts}; the plan accounts for it" if differs else f"{phase} as profiled"
        yield Fact(name="Engines", text=text)
    if refined is not None and (text := limits_text(refined.limits)):
        yield Fact(name="Engines", text=f"{text}; the plan accounts for it")
    if status.guess:
        yield Fact(name="Profile", text=status.guess)
    slow = status.last_decision.slow if status.last_decision else {}
    for role, differing in status.differing.items():
        ready = status.pools[role].ready if role in status.pools else None
        of = "" if ready is None else f" of {ready}"
        for one in differing:
            text = (
                f"1{of} {role} replicas ({one.replica}) has taken {one.slowness:g} times as long "
                f"as the others for {_span(now_s - one.since_s)}"
            )
            yield Fact(name="Replicas", text=text)
        if (held := slow.get(role)) and held.slowness:
            work = f"slow ones do {percent(sum(held.worth) / len(held.slowness))} of the work of others"
            yield Fact(name="Replicas", text=f"{work}; keeping {held.lacking} more to make up")


def _parts(status: StatusDocument, now_s: float) -> Iterator[Fact]:
    """Components, restarts, hosts, and the age of what decisions are made from."""
    unhealthy = {name: each for name, each in status.components.items() if not each.ok}
    if status.components and not unhealthy:
        yield Fact(name="Components", text=f"all healthy: {', '.join(status.components)}")
    for name, each in unhealthy.items():
        yield Fact(name="Components", text=f"{name}: {each.detail or 'unhealthy'}", ok=False)
    for silent in status.silent:
        yield Fact(name="Silent", text=silent_text(silent, now_s), ok=False)
    for name, found in status.restarts.items():
        again = f" ({found.count} times so far)" if found.count > 1 else ""
        yield Fact(name="Restarts", text=f"{name} {_ago(found.at, now_s)}{again}")
    if (away_s := status.gcs_away_since_s) is not None:
        text = f"Ray's GCS has not answered for {_span(now_s - away_s)}: nothing can be stored or started"
        yield Fact(name="Hosts", text=text, ok=False)
    for host in status.hosts:
        ran = f"it ran {', '.join(host.ran) or 'nothing of Headway'}"
        state = f"{host.state} for {_span(now_s - host.since_s)}"
        if host.back_s is not None:
            state = (
                f"back for {_span(now_s - host.back_s)}, away for {_span(host.back_s - host.since_s)} before"
            )
        yield Fact(name="Hosts", text=f"{host.address}: {state}; {ran}", ok=host.back_s is not None)
    for key, at_s in status.set_aside.items():
        text = f"{key} could not be read {_ago(at_s, now_s)} and began anew; kept under aside/"
        yield Fact(name="Store", text=text, ok=False)
    if ages := [f"{name} {_span(now_s - at)}" for name, at in status.seen_at.items()]:
        yield Fact(name="Input freshness", text=", ".join(ages))


def _span(seconds: float) -> str:
    return duration(round(max(0.0, seconds)))


def _ago(unix_s: float, now_s: float) -> str:
    """`5 min ago`; in days from two days on."""
    seconds = now_s - unix_s
    return f"{seconds / 86400.0:.0f} days ago" if seconds >= 2 * 86400.0 else f"{_span(seconds)} ago"
