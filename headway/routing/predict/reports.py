"""What engines report of themselves, against the router's own books.

A report says how many requests are in the batch (r) and queued (q), and how full the KV cache is. Whatever
exceeds our books belongs to others, who send requests past the router; engines say no more of them:

    others      r + q − ours                  ours: what we have there now, and what has left it since the
                                              report before
    queued      q − our prompts there         likewise; decode replicas: q, since ours come with their KV
    tokens      mean uncached prompt of ours that wait there, else of the latest requests, times what is both
    seconds     the iterations that so many tokens fill, beside the batch, by the profile
    KV          usage · capacity − what ours will hold
    shut out    those of ours without a first token, at most q, once that of one is so late that there must be
                no room, whatever the books have: LATE_S after a decode replica had its KV, or where its
                prompt is computed SLOWEST times what was predicted, and LATE_S

The books can also be late. Where m of our prompts were there when the last report came and are still booked
as queued, but the engine says that q wait (and one is computed, if it runs anything), then m − q − 1 are
done, and their share of the queued seconds is taken off, half of the difference with each report. Prompts
that were placed since count in full: a report is older than they are.

A report is less old than the time between two reports, so events since the last one bound what it may not
know. Ours that come and go in the meantime are never taken for others'; a few of others' may be missed, for
one report. After `SILENT_S` without one, what has left meanwhile has left before this one was written. The
same figures again are the same report, which another gateway passed on. What others have there is forgotten
when nothing more has been heard for `FRESH_S`: no replica is given up on old news. Where that was wrong the
next request that goes there changes the engine's figures, and it reports again.
"""

from dataclasses import dataclass, field
from math import inf

from headway.config import Role
from headway.routing.fleet.fleet import RoutedFleet
from headway.routing.fleet.records import Replica
from headway.routing.fleet.table import FleetRow, FloatArray
from headway.routing.predict.latency import LatencyForecaster
from headway.routing.shared_rules import FRESH_S, EngineWord, SaturationRule
from headway.routing.types import ReplicaLoad

FIRST_PROMPT_TOKENS = 512.0
"""The mean prompt before any came."""

SMOOTHING = 0.02
SILENT_S = 2.0
LATE_S = 1.0
"""Seconds after which a first token that was predicted has not just been missed: the time of two reports."""

SLOWEST = 8.0
"""Engines that are slower than predicted by more than this are not taken for slow."""

TRUST = 0.5
"""The part of a difference that one report corrects. Where first tokens are told 1 s late, goodput is 1.7 %
less without it, at 2 s 8 %."""


OTHERS = [
    FleetRow.OTHER_REQUESTS,
    FleetRow.OTHER_TOKENS,
    FleetRow.OTHER_WAITING,
    FleetRow.OTHER_PROMPT_TOKENS,
    FleetRow.OTHER_WORK_S,
    FleetRow.SHUT_OUT,
]


@dataclass(slots=True)
class _Reported:
    """One engine's reports so far: the last, what had been counted when it came, and when the one before."""

    word: EngineWord = field(default_factory=EngineWord)
    load: ReplicaLoad | None = None
    at_s: float = -inf
    counted: tuple[int, int, int] = (0, 0, 0)
    before: tuple[int, int, int] = (0, 0, 0)


class EngineReports:
    """Takes the reports of one router's fleet."""

    def __init__(self, fleet: RoutedFleet, latency: LatencyForecaster, rule: SaturationRule) -> None:
        self._fleet, self._latency, self._rule = fleet, latency, rule
        self._reported: dict[Replica, _Reported] = {}
        self._prompt_tokens, self._prompts = FIRST_PROMPT_TOKENS, 0
        self._others: dict[Replica, float] = {}
        """When they were reported, the oldest first."""

    def prompt_placed(self, uncached_tokens: float) -> None:
        """A prompt goes to a replica."""
        self._prompts += 1
        part = max(SMOOTHING, 1.0 / self._prompts)
        self._prompt_tokens += part * (uncached_tokens - self._prompt_tokens)

    def forget(self, replica: Replica) -> None:
        """It is GONE."""
        self._reported.pop(replica, None)
        self._others.pop(replica, None)

    def fade(self, now_s: float) -> None:
        """Forget the others of which nothing has been heard for long."""
        while self._others and (oldest := next(iter(self._others.items())))[1] + FRESH_S <= now_s:
            del self._others[oldest[0]]
            self._fleet.table[OTHERS, oldest[0].slot] = 0.0

    def take(self, now_s: float, replica: Replica, load: ReplicaLoad) -> None:
        """An engine's own figures have come."""
        replica.busy_s = replica.busy_s if load.busy_s is None else load.busy_s
        reported = self._reported.setdefault(replica, _Reported())
        if load != reported.load:
            counts = replica.prompts_placed, replica.prompts_left, replica.requests_left
            silent = now_s - reported.at_s > SILENT_S
            reported.before = (reported.counted[0], *counts[1:]) if silent else reported.counted
            reported.counted, reported.load, reported.at_s = counts, load, now_s
        reported.word.heard(now_s, load.waiting, load.kv_usage, load.preemptions, self._rule)
        self._enter(now_s, replica, load, reported)
        self._others.pop(replica, None)
        if self._fleet.table[OTHERS, replica.slot].any():
            self._others[replica] = now_s

    def _enter(self, now_s: float, replica: Replica, load: ReplicaLoad, reported: _Reported) -> None:
        cell, row = self._fleet.table[:, replica.slot], FleetRow
        placed, prompts_left, requests_left = reported.before
        prompts = cell[row.WAITING] + replica.prompts_left - prompts_left
        ours = cell[row.RUNNING] + max(cell[row.WAITING], cell[row.COMING])
        ours += replica.requests_left - requests_left
        cell[row.OTHER_REQUESTS] = others = max(0.0, load.running + load.waiting - ours)
        beyond = load.waiting - (0.0 if replica.role is Role.DECODE else prompts)
        cell[row.OTHER_WAITING] = max(0.0, beyond)
        cell[row.SATURATED_UNTIL_S] = reported.word.until_s
        capacity = cell[row.CAPACITY_TOKENS]
        used = load.kv_usage * capacity if capacity < inf else 0.0
        cell[row.OTHER_TOKENS] = max(0.0, used - cell[row.RESERVED_TOKENS])
        cell[row.SHUT_OUT] = min(load.waiting, _shut_out(now_s, replica)) if load.waiting else 0.0
        if replica.role is not Role.DECODE:
            self._enter_work(cell, replica, min(others, float(cell[row.OTHER_WAITING])))
            known = cell[row.WAITING] - (replica.prompts_placed - placed)
            self._correct(cell, known, load)

    def _enter_work(self, cell: FloatArray, replica: Replica, prompts: float) -> None:
        """The prompts of others that are queued."""
        waiting = cell[FleetRow.WAITING]
        tokens = cell[FleetRow.PREFILL_TOKENS] / waiting if waiting else self._prompt_tokens
        cell[FleetRow.OTHER_PROMPT_TOKENS] = prompts * tokens
        cell[FleetRow.OTHER_WORK_S] = self._latency.prompts_s(
            self._fleet.table, replica.slot, prompts, float(tokens)
        )

    @staticmethod
    def _correct(cell: FloatArray, known: float, load: ReplicaLoad) -> None:
        """Of `known` prompts of ours the engine may have done some that the books still have as queued."""
        waiting = cell[FleetRow.WAITING]
        left = load.waiting + (1.0 if load.running else 0.0)
        done = max(0.0, known - left) / waiting if waiting else 0.0
        cell[FleetRow.DONE_S] += TRUST * (done * cell[FleetRow.WORK_S] - cell[FleetRow.DONE_S])


def _shut_out(now_s: float, replica: Replica) -> int:
    """Requests without a first token, if one of them has been there for too long to be on its way; else 0."""
    if replica.role is Role.DECODE:
        since = [each.prefilled_s for each in replica.running if each.first_token_s < 0.0 <= each.prefilled_s]
    else:
        since = [each.placed_s + SLOWEST * each.ttft_s for each in replica.waiting.values()]
    return len(since) if any(each_s + LATE_S < now_s for each_s in since) else 0
