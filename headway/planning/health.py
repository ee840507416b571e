"""The health of a running deployment: its state in one word, and one sentence for the person on call.

| state | when |
|---|---|
| `waiting` | the planner does not plan yet, or has measured no interval |
| `stuck` | it has not planned for longer than an engine may take to start (`engine.ready_within_s`) |
| `stopped` | the planner's loop has ended |
| `burning` | more requests of all, or of one class, miss their SLO than may and than chance explains; or,
              where nothing else is measured, a mean latency is above its target |
| `blind` | the last interval could not be measured: replica counts stay |
| `hindered` | on target, but something is in the planner's way |
| `stalled` | requests are under way, and none has ended for twice as long as they usually take |
| `busy` | requests arrived or are under way, and none finished in the last interval |
| `idle` | nothing arrived in the last interval, and nothing runs or waits |
| `keeping` | on target |

The first that applies, in this order.

Burning. Of n requests that each miss their SLO with the promised probability p = 1 − attainment, k or more do

    P(K ≥ k) = Σ_j≥k C(n, j) p^j (1 − p)^(n − j)

A window of w seconds burns where its share of misses is above p and this chance is below w / 30 days. So
requests that miss at the promised rate, each by itself, would be called burning once in the 30 days over
which alerts reckon the error budget (examples/observability/rules.yaml). The windows are the last interval,
the last 5 minutes and the last hour. A longer one counts while the next shorter one is above p, too: what is
over is over. The fastest alert has the same 5 minutes and hour, and its 10 misses are beyond chance.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import ceil, exp, inf, lgamma, log, log1p
from typing import Literal, NamedTuple

from headway.planning.documents import PoolStatus, SilentFigures, StatusDocument
from headway.planning.record_figures import WINDOWS_S
from headway.planning.records import ClassFigures, LatencyFigures, MeasuredFigures, SloFigures
from headway.planning.types import Role
from headway.words import duration, milliseconds, percent, plural

State = Literal[
    "waiting", "stuck", "stopped", "burning", "blind", "hindered", "stalled", "busy", "idle", "keeping"
]
UNWELL: frozenset[State] = frozenset({"stuck", "stopped", "burning", "blind", "hindered", "stalled"})
"""States with which `headway status --check` fails."""

LASTING = 3.0
"""Intervals without a decision that are a hindrance."""
BEGINS = 3.0
"""Intervals until a first one is measured: planners of a fleet tick apart, and waking begins one anew."""
PERIOD_S = 30 * 86400.0
"""The theory's 30 days."""
ROUNDING = 1e-9
STANDS, PATIENCE = 0.5, 2.0
"""Requests that run and wait in the mean, from which on a deployment is not idle; times the usual duration of
a request, after which one should have ended."""
LIMITS = {"max_step": "planner.max_step", "gpu_budget": "planner.max_gpu_budget"}
"""Settings by the names of limits in decisions, where these differ."""


class Health(NamedTuple):
    """A state and its sentence, without a full stop."""

    state: State
    text: str

    @property
    def well(self) -> bool:
        """False where somebody should look."""
        return self.state not in UNWELL


def health(status: StatusDocument, now_s: float) -> Health:
    """The health at `now_s`, in seconds since 1970."""
    reason = status.planner.reason
    if (stuck_s := _stuck_s(status, now_s)) is not None:
        limit = f"engine.ready_within_s is {status.planner.ready_within_s:g}"
        why = reason or "reason unknown"
        return Health("stuck", f"Stuck: no decision for {duration(round(stuck_s))} ({limit}): {why}")
    if status.planner.state == "waiting":
        return Health("waiting", f"Waiting: {reason or 'no decision yet'}")
    if status.planner.state == "running" and status.planner.ticks == 0 and status.measured is None:
        return Health("waiting", f"Waiting for the first interval; {_fleet(status)}")
    if status.planner.state == "stopped":
        return Health("stopped", f"Stopped: {reason or 'the planner makes no decisions'}")
    hindered, attained = "; ".join(_hindrances(status, now_s)), status.attainment.last_interval
    served = attained is not None or _ended(status)
    state: State = "keeping" if served else "idle"
    text = f"On target{_but(status, now_s)}: {_kept(status)}; {_fleet(status)}"
    missed = _missed(status)
    if missed or _late_on_average(status):
        state, text = "burning", f"Burning: {_burning(status, missed, now_s)}{_also(hindered)}"
    elif blind := _blind(status, now_s):
        state, text = "blind", f"Blind: {blind}; replica counts stay{_also(hindered)}"
        if _begins(status, now_s):
            state, text = "waiting", f"Waiting for the first interval; {_fleet(status)}{_also(hindered)}"
    elif hindered:
        state, text = "hindered", f"Hindered: {hindered}{_also(_kept(status))}"
    elif stalled := _stalled(status, now_s):
        state, text = "stalled", f"Stalled: {stalled}; {_fleet(status)}"
    elif not served:
        busy = _busy(status)
        state, text = "busy" if busy else "idle", f"Busy: {busy}, none" if busy else "Idle: no request"
        text += f" finished in the last interval; {_fleet(status)}"
    return Health(state, text)


def _stalled(status: StatusDocument, now_s: float) -> str:
    """That requests are under way and do not end; empty while they may just be long."""
    found, usual_s = status.measured or MeasuredFigures(), status.attainment.usual_s
    since_s = status.attainment.unended_since
    if since_s is None or now_s - since_s <= PATIENCE * (usual_s or 0.0):
        return ""
    usual = "" if usual_s is None else f" (usually {duration(round(usual_s))})"
    none = f"none of {plural(round(found.unended or 0.0), 'request')} under way"
    return f"{none} has ended for {duration(round(now_s - since_s))}{usual}"


def _busy(status: StatusDocument) -> str:
    """What arrived, or else what is under way; empty where there is nothing."""
    found = status.measured or MeasuredFigures()
    if found.requests:
        return f"{plural(round(found.requests), 'request')} arrived"
    there = sum((pool.running or 0.0) + (pool.waiting or 0.0) for pool in status.pools.values())
    there = max(there, found.unended or 0.0)
    return f"{plural(ceil(there), 'request')} under way" if there >= STANDS else ""


def _stuck_s(status: StatusDocument, now_s: float) -> float | None:
    """Seconds without a decision; None while an engine may still be starting."""
    planner = status.planner
    if planner.state not in ("waiting", "holding") or planner.undecided_since is None:
        return None
    undecided_s = now_s - planner.undecided_since
    return undecided_s if undecided_s > (planner.ready_within_s or inf) else None


def _ended(status: StatusDocument) -> bool:
    """True if requests finished in the last interval."""
    return status.measured is not None and (status.measured.completed or 0.0) > 0.0


class _Window(NamedTuple):
    """Requests of all (or ` of CLASS`) judged and missed in the last `seconds`; the share that may miss."""

    of: str
    seconds: float
    judged: float
    missed: float
    may: float

    @property
    def above(self) -> bool:
        """True if more missed than may."""
        return self.missed > self.may * self.judged * (1.0 + ROUNDING)

    @property
    def burns(self) -> bool:
        """True if that is more than chance explains."""
        return self.above and chance(self.missed, self.judged, self.may) < self.seconds / PERIOD_S


def chance(missed: float, judged: float, share: float) -> float:
    """The chance that so many or more of the requests judged miss, if each does with probability `share`."""
    count = round(judged)
    least = min(round(missed), count)
    if least <= count * share:
        return 1.0
    if share <= 0.0:
        return 0.0
    ways = lgamma(count + 1) - lgamma(least + 1) - lgamma(count - least + 1)
    term, total = exp(ways + least * log(share) + (count - least) * log1p(-share)), 0.0
    while term > ROUNDING * total:
        total += term
        term *= (count - least) / (least + 1) * share / (1.0 - share)
        least += 1
    return min(1.0, total)


def _missed(status: StatusDocument) -> list[_Window]:
    """The windows that burn: that of all requests, or else those of classes."""
    measured, attained = status.measured or MeasuredFigures(), status.attainment.last_interval
    judged = measured.judged if measured.judged is not None else measured.completed or measured.requests
    parts = {name: (part.attainment, part.judged) for name, part in measured.classes.items()}
    whole = _burning_window(status, "all", (attained, judged))
    found = [whole] if whole else [_burning_window(status, name, part) for name, part in parts.items()]
    return [window for window in found if window is not None]


def _burning_window(
    status: StatusDocument, name: str, last: tuple[float | None, float | None]
) -> _Window | None:
    """The shortest window that burns; `last` is the attainment of the last interval, and of how many."""
    (attained, judged), interval_s = last, status.planner.interval_s or WINDOWS_S["5m"]
    if attained is None or judged is None:
        return None
    of, slo = ("", status.slo) if name == "all" else (f" of {name}", status.slo.of_class(name))
    counts = [(interval_s, judged, (1.0 - attained) * judged)]
    for key, found in status.attainment.windows.get(name, {}).items():
        counts.append((max(WINDOWS_S[key], interval_s), found["judged"], found["missed"]))
    windows = [_Window(of, *each, 1.0 - _target(slo)) for each in counts]
    shorter = [windows[0], *windows]
    return next(
        (one for one, before in zip(windows, shorter, strict=False) if before.above and one.burns), None
    )


def _late_on_average(status: StatusDocument) -> bool:
    """True if a mean latency is above its target, where requests cannot be judged one by one."""
    if not _ended(status) or (
        status.attainment.last_interval is not None and not status.attainment.ttft_only
    ):
        return False
    return any(mean_s is not None and mean_s * 1e3 > target_ms for _, mean_s, target_ms in _means(status))


def _means(status: StatusDocument) -> Iterator[tuple[str, float | None, float]]:
    """The mean latencies of the last interval in seconds, and their targets in ms."""
    measured = status.measured or MeasuredFigures()
    for name, mean_s, target_ms in (
        ("TTFT", measured.ttft_s.mean, status.slo.ttft_ms),
        ("ITL", measured.itl_s.mean, status.slo.itl_ms),
    ):
        if target_ms is not None:
            yield name, mean_s, target_ms


def _but(status: StatusDocument, now_s: float) -> str:
    """The last interval or two, if they missed the target by no more than chance explains."""
    attained, since_s = status.attainment.last_interval, status.attainment.missed_since
    if attained is None or attained >= _target(status.slo):
        return ""
    return f" except for the last {'interval' if since_s is None else duration(round(now_s - since_s))}"


def _target(slo: SloFigures) -> float:
    return slo.attainment if slo.attainment is not None else 1.0


def _also(text: str) -> str:
    return f"; {text}" if text else ""


def _burning(status: StatusDocument, missed: Iterable[_Window], now_s: float) -> str:
    slo = "TTFT" if status.attainment.ttft_only else "SLO"
    text = "; ".join(_missing(status, each, slo, now_s) for each in missed) or "latencies are above target"
    if late := ", ".join(_late(status)):
        text += f": {late}"
    if wants := "; ".join(_wanting(status)):
        text += f"; {wants}"
    last = status.last_decision
    lost = 0.0 if last is None else last.beyond_reach or 0.0
    if lost > 1.0 - _target(status.slo):
        text += f"; for {percent(round(lost, 3))} the SLO is unreachable, even when idle"
    return text


def _missing(status: StatusDocument, found: _Window, slo: str, now_s: float) -> str:
    since_s = None if found.of else status.attainment.missed_since
    lasts = "" if since_s is None else f"; below target for {duration(round(now_s - since_s))}"
    missed, budget = percent(found.missed / found.judged), percent(round(found.may, 6))
    requests, span = plural(round(found.judged), "request"), duration(round(found.seconds))
    return f"{missed} of {requests}{found.of} in the last {span} missed their {slo} (budget {budget}{lasts})"


def _late(status: StatusDocument) -> Iterator[str]:
    """The latencies whose 95th percentile is above its target, of all requests and by class."""
    measured = status.measured or MeasuredFigures()
    yield from _above(measured, status.slo, "")
    for name, figures in measured.classes.items():
        yield from _above(figures, status.slo.of_class(name), f" of {name}")


def _above(measured: MeasuredFigures | ClassFigures, slo: SloFigures, of_class: str) -> Iterator[str]:
    for name, found, target_ms in (
        ("TTFT", measured.ttft_s, slo.ttft_ms),
        ("ITL", measured.itl_s, slo.itl_ms),
    ):
        worst_s, of = _worst(found)
        if worst_s is not None and target_ms is not None and worst_s * 1e3 > target_ms:
            yield f"{name}{of_class} {of} {milliseconds(worst_s)} ms, target {target_ms:g}"


def _worst(found: LatencyFigures) -> tuple[float | None, str]:
    return (found.p95, "p95") if found.p95 is not None else (found.mean, "mean")


def _wanting(status: StatusDocument) -> Iterator[str]:
    """The replicas that each pool lacks, and the limit that holds it back."""
    last = status.last_decision
    limits = {} if last is None else _limits_by_role(last.limits, status.pools)
    for role, pool in status.pools.items():
        ready, target = pool.ready, None if last is None else last.targets.get(role)
        needed = None if last is None else last.needed.get(role, target)
        if needed is None or ready is None or needed <= ready:
            continue
        text = f"{role} needs {needed:g}, {ready} ready"
        if pool.starting:
            text += f", {pool.starting} starting"
        yield f"{text}{_held_back(limits.get(role), pool)}"


def _held_back(limit: str | None, pool: PoolStatus) -> str:
    if limit is None:
        return ""
    if pool.schedule:
        return f" ({limit}; {pool.schedule})"
    return f" ({limit} {pool.max_replicas})" if limit == "max_replicas" else f" ({limit})"


def _limits_by_role(limits: Iterable[str], roles: Iterable[Role]) -> Mapping[Role, str]:
    """The setting that cut each pool's target, from a decision's limits; a budget cuts all `roles`."""
    found: dict[Role, str] = {}
    for limit in limits:
        role, _, name = limit.rpartition(": ")
        found.update(dict.fromkeys([Role(role)] if role else roles, LIMITS.get(name, name)))
    return found


def _blind(status: StatusDocument, now_s: float) -> str:
    """Why the last interval cannot be planned from; empty if it can."""
    measured = status.measured or MeasuredFigures()
    data = measured.health
    if data.status == "partial" and measured.requests is None:
        return f"the number of requests is unknown ({data.detail})"
    if data.plannable:
        return ""
    seen_s = status.seen_at.get("metrics")
    lasts = "" if seen_s is None or seen_s > now_s else f" for {duration(round(now_s - seen_s))}"
    return f"no metrics{lasts} ({data.detail or data.status})"


def _begins(status: StatusDocument, now_s: float) -> bool:
    """True if it decided before a whole interval could be measured, as a request woke it."""
    planner, health = status.planner, (status.measured or MeasuredFigures()).health
    if planner.begun_at is None or health.status != "starting" or "metrics" in status.seen_at:
        return False
    return now_s - planner.begun_at <= BEGINS * (planner.interval_s or 0.0)


def _hindrances(status: StatusDocument, now_s: float) -> Iterator[str]:
    """What is in the planner's way."""
    if status.gcs_away_since_s is not None:
        yield f"Ray's GCS has been away for {duration(now_s - status.gcs_away_since_s)}"
    for host in status.hosts:
        if host.state != "back":
            yield f"host {host.address} has been {host.state} for {duration(now_s - host.since_s)}"
    yield from (silent_text(silent, now_s) for silent in status.silent)
    for name, part in status.components.items():
        if not part.ok:
            yield f"{name}: {part.detail or 'does not answer'}"
    last = status.last_decision
    if last is not None:
        silent_s = now_s - last.created_at
        if status.planner.state == "holding" and silent_s > LASTING * (status.planner.interval_s or inf):
            yield f"no decision for {duration(round(silent_s))}: {status.planner.reason}"
        for role, missing in last.missing.items():
            ordered = plural(missing.replicas, f"{role} replica")
            since = duration(round(now_s - missing.since_s))
            yield f"{ordered} ordered {since} ago never became ready"
        if last.status in ("refused", "unreachable"):
            yield f"decision {last.id} was {'refused' if last.status == 'refused' else 'not delivered'}"
    for edit in status.connector.foreign_edits:
        yield f"{edit.role} was set to {edit.found} by {edit.by or 'someone else'}"
    yield from status.connector.rivals


def silent_text(silent: SilentFigures, now_s: float) -> str:
    """That a part hangs."""
    of = "answer" if silent.requests is None else f"progress on {plural(silent.requests, 'request')}"
    return f"{silent.part}: no {of} for {duration(round(now_s - silent.since_s))}"


def _kept(status: StatusDocument) -> str:
    attained = status.attainment.last_interval
    if attained is None:
        return f"attainment is not measured{_means_text(status)}" if _ended(status) else ""
    slo = f"TTFT{_means_text(status)}" if status.attainment.ttft_only else "SLO"
    return f"{percent(attained)} of requests met their {slo}, target {percent(_target(status.slo))}"


def _means_text(status: StatusDocument) -> str:
    """The mean latencies and their targets, where requests cannot be judged one by one."""
    known = [
        f"{name} {milliseconds(mean_s)} of {target_ms:g} ms"
        for name, mean_s, target_ms in _means(status)
        if mean_s is not None
    ]
    return f" (means: {', '.join(known)})" if known else ""


def _fleet(status: StatusDocument) -> str:
    counts = ", ".join(
        f"{'?' if pool.ready is None else pool.ready} {role}" for role, pool in status.pools.items()
    )
    dry = "; dry run, nothing is scaled" if status.planner.dry_run else ""
    return f"{counts} ready{dry}"
