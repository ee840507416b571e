"""The rules for decisions that an outside system carries out. Pure: the clock is an argument.

The ledger is one value. Each function here takes it, an event and the time, and returns the next ledger;
the coordinator stores the whole of it before any reply.

Ids. An id exists exactly if it lies in 0..newest. `acknowledged_id` is the highest answered one; it only
rises, and all below it count as answered.

Targets. A role that no proposal has named has its `floor`. A proposal changes the roles that it names and
keeps the others as last wished. The first proposal always makes a decision: the outside has none yet.

One at a time. A decision is pending until it is answered. While it is, a proposal becomes the wish, and
replaces an earlier one; a proposal that equals the pending decision takes the wish back. The wish is issued
by the event that frees the way: an answer, or `scaling_timeout_s` after the issue. A decision that was
overtaken that way may still be answered; its answer does not touch the newer one.

Failure. `fail` answers as `complete` does, so the way is free. Proposing the same targets again then makes a
new decision: the planner repeats its targets each tick, and so a failed step is tried once a tick. The first
answer to a decision counts, later ones change nothing.

Time is the wall clock, the only one that outlives a restart. Set forward, it may end a wait early. Set back,
the wait begins anew at the time that is seen first, so that it ends at most `scaling_timeout_s` later.

Pools. A completed decision says that its targets stand now; a report says what stands, in four counts, and
the newer of the two holds:

    seen     = the newest report of the pool, or the targets of a decision that was completed since
    desired  = the targets of the newest decision while it is not answered; else what was seen
    ready    = min(seen ready, desired)     starting = as reported, or what is missing
    draining = as reported, and what is too many

Before anything was said of a pool there is nothing to see. If we started the engines ourselves, it stands at
its floor, and answers go on standing for reports until the first report. Else, and from the first report on,
silence is no information: a pool of which nothing was said for `report_max_age_s` is unknown, and neither a
proposal nor a wish shrinks it below what was last asked for or seen; a pool never seen takes no target.
A report of another desired count than the one that was carried out is an edit by others: it is what a role
that a proposal leaves out keeps, and the old targets, proposed again, make a new decision.

ScalingError(Exception)
├── BadProposal              targets that name no pool, or an impossible count
├── BadReport                a report that names no pool, or impossible counts
├── UnknownDecision          an id that was never issued
├── TooManyWaiters           the coordinator holds as many waiting calls as it can
└── CoordinatorUnreachable   the coordinator does not answer, or there is none
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

from actors.connectors.protocol import PoolCounts
from headway.planning import Role

COUNTS = tuple(each.name for each in fields(PoolCounts))
MOST_REPLICAS = 10_000
"""Of one pool, told or asked for. A slip of the pen must not make a planner replay a fleet of a million."""
MOST_OVERTAKEN = 16
"""Overtaken decisions whose targets are remembered for a late answer."""

Status = Literal["pending", "completed", "failed"]


class ScalingError(Exception):
    """Base of the virtual connector's errors; the text is one line for people."""


class BadProposal(ScalingError):
    """Targets that name no pool, or an impossible count."""


class BadReport(ScalingError):
    """A report of replica counts that names no pool, or impossible counts."""


class UnknownDecision(ScalingError):
    """An id that was never issued."""


class TooManyWaiters(ScalingError):
    """The coordinator holds as many waiting calls as it can."""


class CoordinatorUnreachable(ScalingError, ConnectionError):
    """The coordinator does not answer, or there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """Replica counts that an outside system is asked for.

    `targets` has every pool, also those that the decision leaves as they are. `created_at` is Unix seconds;
    `status` is as of the coordinator's reply.
    """

    decision_id: int
    targets: Mapping[Role, int]
    created_at: float
    reasons: Mapping[str, Any] = field(default_factory=dict)
    status: Status = "pending"

    @property
    def num_prefill(self) -> int | None:
        """Prefill replicas; None where the deployment has no prefill pool."""
        return self.targets.get(Role.PREFILL)

    @property
    def num_decode(self) -> int | None:
        """Decode replicas; None where the deployment has no decode pool."""
        return self.targets.get(Role.DECODE)

    def document(self) -> dict[str, Any]:
        """The decision as JSON-able data."""
        return {
            "decision_id": self.decision_id,
            "num_prefill": self.num_prefill,
            "num_decode": self.num_decode,
            "targets": plain(self.targets),
            "created_at": self.created_at,
            "reasons": dict(self.reasons),
            "status": self.status,
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """The decision that `document` describes."""
        return cls(
            decision_id=document["decision_id"],
            targets={Role(name): count for name, count in document["targets"].items()},
            created_at=document["created_at"],
            reasons=document["reasons"],
            status=document["status"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The pools with the count that holds before the first proposal; how long a wish waits."""

    floor: Mapping[Role, int]
    scaling_timeout_s: float
    report_max_age_s: float = 300.0
    started_by_us: bool = True
    """True where the engines were started with their minimum, as far as nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The targets to be issued next, of all pools."""

    targets: Mapping[Role, int]
    reasons: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedDecision:
    """The newest decision that was carried out."""

    decision_id: int
    targets: Mapping[Role, int]
    at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedPool:
    """One pool's counts as the outside system saw them, and when it said so."""

    counts: PoolCounts
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedDecision:
    """The last failure, until a later decision is carried out."""

    decision_id: int
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The whole state. `waiting_since_s` is when the wait for the newest decision's answer began.

    Ids are above `begun_after`.
    """

    decision: ScalingDecision | None = None
    waiting_since_s: float = 0.0
    acknowledged_id: int = -1
    overtaken: tuple[ScalingDecision, ...] = ()
    completed: CompletedDecision | None = None
    failure: FailedDecision | None = None
    wish: Wish | None = None
    reports: Mapping[Role, ReportedPool] = field(default_factory=dict)
    begun_after: int = -1

    @property
    def last_id(self) -> int:
        """The newest id, `begun_after` before the first."""
        return self.begun_after if self.decision is None else self.decision.decision_id

    @property
    def pending(self) -> bool:
        """True if the newest decision has no answer yet."""
        return self.last_id > self.acknowledged_id


def free_at_s(ledger: Ledger, rules: Rules) -> float | None:
    """When the pending decision stops blocking the next; None if there is none."""
    return ledger.waiting_since_s + rules.scaling_timeout_s if ledger.pending else None


def asked_for(ledger: Ledger, rules: Rules) -> dict[Role, int]:
    """The counts that were last asked for, issued or not, of every pool."""
    latest = ledger.wish or ledger.decision
    told = {role: one.counts.desired for role, one in ledger.reports.items()} if latest is None else {}
    asked = {**rules.floor, **told, **(latest.targets if latest else {})}
    return _of_pools({**asked, **({} if ledger.wish else _edits(ledger))}, rules)


def plain(targets: Mapping[Role, int]) -> dict[str, int]:
    """Replica counts under plain names."""
    return {role.value: count for role, count in targets.items()}


def targets_of(named: Mapping[str, int], rules: Rules) -> dict[Role, int]:
    """The targets that a proposal names; BadProposal says what is wrong with them."""
    for name, count in named.items():
        if name not in rules.floor:
            raise BadProposal(f"targets: {_no_pool(name, rules)}")
        if not _is_count(count):
            raise BadProposal(f"targets.{name}: {_no_count(count)}")
    return {Role(name): count for name, count in named.items()}


def counts_of(named: Mapping[str, object], rules: Rules) -> dict[Role, PoolCounts]:
    """The counts that a report names: draining is 0 if left out, desired what is ready or starting.

    BadReport says what is wrong with them.
    """
    for name in named:
        if name not in rules.floor:
            raise BadReport(f"pools: {_no_pool(name, rules)}")
    return {Role(name): _reported(name, given) for name, given in named.items()}


def _reported(pool: str, given: object) -> PoolCounts:
    counted = given if isinstance(given, Mapping) else {}
    for name, count in counted.items():
        if name not in COUNTS:
            raise BadReport(f"pools.{pool}.{name}: unknown; the counts are {', '.join(COUNTS)}")
        if not _is_count(count):
            raise BadReport(f"pools.{pool}.{name}: {_no_count(count)}")
    if "ready" not in counted:
        raise BadReport(f"pools.{pool}.ready: needed, the replicas that serve")
    ready, starting = counted["ready"], counted.get("starting", 0)
    desired = counted.get("desired", ready + starting)
    return PoolCounts(
        desired=desired,
        starting=counted.get("starting", max(0, desired - ready)),
        ready=ready,
        draining=counted.get("draining", 0),
    )


def _no_pool(name: str, rules: Rules) -> str:
    return f"there is no {name} pool; the pools are {', '.join(rules.floor)}"


def _no_count(count: object) -> str:
    return f"{count!r} is no replica count (0 to {MOST_REPLICAS})"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_REPLICAS


def newest(ledger: Ledger) -> str:
    """The newest id in words."""
    return "there is none yet" if ledger.decision is None else f"the newest is {ledger.last_id}"


def propose(
    ledger: Ledger, rules: Rules, targets: Mapping[Role, int], reasons: Mapping[str, Any], now_s: float
) -> Ledger:
    """Ask for these counts: issued now, kept as the wish, or nothing new."""
    if refusal := _unseen_shrink(ledger, rules, targets, now_s):
        raise BadProposal(refusal)
    wish = Wish(targets={**asked_for(ledger, rules), **targets}, reasons=reasons)
    return elapse(replace(ledger, wish=wish), rules, now_s)


def answer(ledger: Ledger, rules: Rules, decision_id: int, failure: str | None, now_s: float) -> Ledger:
    """Take an answer: carried out, or why not. An id at or below the acknowledged one changes nothing."""
    if not _is_whole(decision_id) or not 0 <= decision_id <= ledger.last_id:
        raise UnknownDecision(f"decision {decision_id!r} was never issued: {newest(ledger)}")
    if decision_id > ledger.acknowledged_id:
        ledger = _settled(ledger, decision_id, failure, now_s)
    return elapse(ledger, rules, now_s)


def report(ledger: Ledger, rules: Rules, pools: Mapping[Role, PoolCounts], now_s: float) -> Ledger:
    """Take the counts of these pools; the others keep what was said of them."""
    told = {role: ReportedPool(counts=counts, at_s=now_s) for role, counts in pools.items()}
    return elapse(replace(ledger, reports={**ledger.reports, **told}), rules, now_s)


def unseen(ledger: Ledger, rules: Rules, now_s: float) -> dict[Role, str]:
    """The pools whose counts are not known, and why."""
    reasons = {}
    for role in rules.floor:
        told = ledger.reports.get(role)
        if rules.started_by_us and told is None:
            continue
        answered = ledger.completed if ledger.completed and role in ledger.completed.targets else None
        times = [one.at_s for one in (told, answered) if one is not None]
        if not times:
            reasons[role] = "nobody has reported its replicas yet"
        elif (age_s := now_s - max(times)) > rules.report_max_age_s:
            reasons[role] = f"nobody has reported its replicas for {age_s:.0f} s"
    return reasons


def _unseen_shrink(ledger: Ledger, rules: Rules, targets: Mapping[Role, int], now_s: float) -> str:
    """Why these targets may not be asked for; empty if they may."""
    shown = pool_counts(ledger, rules)
    for role, why in unseen(ledger, rules, now_s).items():
        seen = role in ledger.reports or ledger.completed is not None
        most = max(shown[role].desired, shown[role].ready + shown[role].draining)
        if role in targets and (not seen or targets[role] < most):
            line = f"targets.{role}: {targets[role]} is refused: {why}, so it might end replicas that serve"
            return f"{line} (POST /v1/scaling/report)"
    return ""


def elapse(ledger: Ledger, rules: Rules, now_s: float) -> Ledger:
    """Let time pass: drop a wish that is already in force, issue one whose way is free."""
    if ledger.pending and now_s < ledger.waiting_since_s:
        ledger = replace(ledger, waiting_since_s=now_s)
    if ledger.wish is None:
        return ledger
    wish = {**rules.floor, **_of_pools(ledger.wish.targets, rules)}
    latest = ledger.decision
    taken = latest is not None and latest.status != "failed" and dict(latest.targets) == wish
    if taken and not _edits(ledger):
        return replace(ledger, wish=None)
    free_at = free_at_s(ledger, rules)
    if free_at is not None and now_s < free_at:
        return ledger
    if _unseen_shrink(ledger, rules, wish, now_s):
        return ledger
    return _issued(ledger, Wish(targets=wish, reasons=ledger.wish.reasons), now_s)


def _issued(ledger: Ledger, wish: Wish, now_s: float) -> Ledger:
    overtaken = ledger.overtaken
    if ledger.decision is not None and ledger.pending:
        overtaken = (*overtaken, replace(ledger.decision, reasons={}))[-MOST_OVERTAKEN:]
    decision = ScalingDecision(
        decision_id=ledger.last_id + 1, targets=wish.targets, created_at=now_s, reasons=wish.reasons
    )
    return replace(ledger, decision=decision, waiting_since_s=now_s, overtaken=overtaken, wish=None)


def _settled(ledger: Ledger, decision_id: int, reason: str | None, now_s: float) -> Ledger:
    failure = (
        FailedDecision(decision_id=decision_id, reason=reason, at_s=now_s) if reason is not None else None
    )
    known = {one.decision_id: one for one in (*ledger.overtaken, ledger.decision) if one is not None}
    completed = ledger.completed
    # Where its targets are no longer remembered, the one before stays.
    if failure is None and (answered := known.get(decision_id)) is not None:
        completed = CompletedDecision(decision_id=decision_id, targets=answered.targets, at_s=now_s)
    decision = ledger.decision
    if decision is not None and decision.decision_id == decision_id:
        decision = replace(decision, status="completed" if failure is None else "failed")
    return replace(
        ledger,
        decision=decision,
        acknowledged_id=decision_id,
        overtaken=tuple(one for one in ledger.overtaken if one.decision_id > decision_id),
        completed=completed,
        failure=failure,
    )


def _of_pools(targets: Mapping[Role, int], rules: Rules) -> dict[Role, int]:
    """Without roles that the configuration no longer has."""
    return {role: count for role, count in targets.items() if role in rules.floor}


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def pool_counts(ledger: Ledger, rules: Rules) -> dict[Role, PoolCounts]:
    """The four counts of every configured pool, as last seen."""
    newest = ledger.decision
    pools = {}
    for role, floor in rules.floor.items():
        seen = _seen(ledger, role, floor)
        desired = seen.desired
        if newest is not None and newest.status == "pending":
            desired = newest.targets.get(role, desired)
        ready = min(seen.ready, desired)
        pools[role] = PoolCounts(
            desired=desired,
            starting=seen.starting if desired == seen.desired else desired - ready,
            ready=ready,
            draining=seen.draining + max(0, seen.ready - desired),
        )
    return pools


def _edits(ledger: Ledger) -> dict[Role, int]:
    """Desired counts that others have set since the newest decision was carried out."""
    newest, done = ledger.decision, ledger.completed
    if newest is None or done is None or done.decision_id != newest.decision_id:
        return {}
    return {
        role: told.counts.desired
        for role, told in ledger.reports.items()
        if told.at_s >= done.at_s and told.counts.desired != done.targets.get(role)
    }


def _seen(ledger: Ledger, role: Role, floor: int) -> PoolCounts:
    """The newest of what was reported of a pool and of what was answered for it."""
    told, answered = ledger.reports.get(role), ledger.completed
    if told is not None and (answered is None or told.at_s >= answered.at_s):
        return told.counts
    there = floor if answered is None else answered.targets.get(role, floor)
    return PoolCounts(desired=there, starting=0, ready=there, draining=0)
