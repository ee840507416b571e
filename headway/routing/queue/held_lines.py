"""Requests that wait, in lines of alike ones, and which of them is next.

s = start_by_s is the latest start that still keeps a request's SLO, x = expires_s the end of its patience.

    latest start   d = min(s, x)         a request that is shed at x can be helped only before x
    slack          d − now               < 0: lost, nothing keeps its SLO any more; 0 can still be saved
    risk           P(W > slack)          W: how long until a replica has room for it

Whatever the distribution of W, as long as it is the same for all, the greatest risk is the least slack, and
all slacks shrink alike: the order between two requests never changes, and keys can stay in heaps. Equals go
by arrival; the lost come after all others, by enqueueing, so that none of them is overtaken for ever.

Where not all can be saved, the most are saved by leaving out the longest (Moore and Hodgson: the fewest late
jobs on one machine); by latest start alone all begin at the last moment, the long at the cost of several.

    due            d + LENIENCE p c      c: what a request costs in tokens (`fair_shares.cost_of`), p: the
                                         seconds that the tenant's usual requests may wait, a token of theirs
    rank           (its key is ahead, its user is, tier, due or for the lost enqueueing, arrival), least first
    tier           critical ones that can be saved; others that can; those that are lost

Requests of one tenant, pattern, SLO and criticality are a line: when its head finds no room, those behind it
need not ask. The heads stand in a table with a column per line, which compiled loops scan (`heads`). n
requests in p lines: push and remove cost O(log n) amortised (`LazyHeap`), the next head O(p), some
nanoseconds each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import exp, frexp, inf, isinf, ldexp
from typing import NamedTuple

import numpy as np

from headway.routing.fleet.records import LazyHeap
from headway.routing.fleet.table import FloatArray
from headway.routing.queue.fair_shares import Prices, TenantShares, cost_of
from headway.routing.queue.heads import (
    CRITICAL_TIER,
    LOST_TIER,
    PLAIN_TIER,
    HeadRow,
    Marks,
    RequestClass,
    first_of,
    lost_by,
    next_lost_s,
    restart,
)
from headway.routing.types import RequestSlo, RouteRequest, RoutingError

FIRST_LINES = 64

NO_HOME = -1

CRITICAL_PATIENCE = 0.5
"""The part of its patience after which a critical request goes where it harms nobody, also if it is late."""

LENIENCE = 1.0
"""How many times its wait a usual request counts as due later than one that costs nothing."""

PRICE_STEP = 0.25
"""The change of the logarithm of the price that puts a line in order anew."""

HOME_PATIENCE = 0.5
"""The part of its patience for which a request waits for the replica that has most of its prompt."""


class RequestPattern(NamedTuple):
    """Requests of about the same lengths: the octave of each, 0 for one token or none."""

    model: str
    input_octave: int
    output_octave: int


def pattern_of(request: RouteRequest, expected_output_tokens: float) -> RequestPattern:
    """The pattern of a request that is expected to yield so many output tokens (at least 1)."""
    return RequestPattern(request.model, _octave(request.input_tokens), _octave(expected_output_tokens))


def _octave(tokens: float) -> int:
    return max(int(tokens), 1).bit_length() - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRequest:
    """A request that waits. `expires_s` ends its patience; `start_by_s` is infinite without an SLO.

    From `late_from_s` on a critical one may also miss its SLO.

    `home` is the slot of the replica with `cached_tokens` of its prompt, −1 without one; `role` the place of
    the role that had no room for it, ANY_ROLE where none was asked. `slo` is what it is held to. `forced`: it
    waited as long as it may, and waits on.
    """

    request: RouteRequest
    pattern: RequestPattern
    enqueued_s: float
    start_by_s: float = inf
    expires_s: float = inf
    output_tokens: float = 1.0
    cached_tokens: float = 0.0
    home: int = NO_HOME
    role: int = 0
    slo: RequestSlo | None = None
    forced: bool = False
    profile: str = ""
    late_from_s: float = inf

    @property
    def latest_start_s(self) -> float:
        """The latest start that is still worth something."""
        return min(self.start_by_s, self.expires_s)

    @property
    def cost(self) -> float:
        """Tokens, those that it has cached left out."""
        return cost_of(max(self.request.input_tokens - self.cached_tokens, 0.0), self.output_tokens)

    @property
    def home_until_s(self) -> float:
        """The time until which it waits for its home, while others may have room."""
        patience_s = self.latest_start_s - self.enqueued_s
        return self.enqueued_s + HOME_PATIENCE * patience_s if 0.0 < patience_s < inf else -inf


class Alike(NamedTuple):
    """What the requests of a line have in common; SLOs to within 1/64."""

    tenant: str
    pattern: RequestPattern
    ttft_slo_s: float
    tpot_slo_s: float
    critical: bool
    adapter: str
    home: int
    profile: str


def alike(entry: WaitingRequest) -> Alike:
    """The line of a request."""
    return line_of(entry.request, entry.slo or entry.request.slo, entry.pattern, entry.home, entry.profile)


def line_of(
    request: RouteRequest, slo: RequestSlo, pattern: RequestPattern, home: int, profile: str
) -> Alike:
    """The line of a request that is held to that SLO."""
    ttft_slo_s, tpot_slo_s = rounded_down(slo.ttft_s), rounded_down(slo.tpot_s)
    of_whom = (request.critical, request.adapter, home, profile)
    return Alike(request.tenant, pattern, ttft_slo_s, tpot_slo_s, *of_whom)


STEPS = 128
"""Rounding of SLOs: so many steps in an octave's upper end."""


def rounded_down(seconds: float) -> float:
    """`seconds` less at most 1/64 of it, one of 64 values in each octave; infinite stays infinite.

    So clients that write their own SLOs do not make as many lines.
    """
    if isinf(seconds):
        return seconds
    fraction, exponent = frexp(seconds)
    return ldexp(int(fraction * STEPS) / STEPS, exponent)


class _Line:
    """One line; `column` is its place in the table of heads.

    `entries` are in the order in which they are served; `starts`, by latest start, those that can be saved.
    All in it are due by one price, so that none passes its like when usual requests change.
    """

    __slots__ = ("column", "entries", "key", "log_price", "s_per_token", "starts")

    def __init__(self, key: tuple[Alike, bool], column: int) -> None:
        self.key, self.column = key, column
        self.entries: LazyHeap[WaitingRequest] = LazyHeap()
        self.starts: LazyHeap[WaitingRequest] = LazyHeap()
        self.log_price, self.s_per_token = inf, 0.0

    def due_s(self, entry: WaitingRequest) -> float:
        """When one that can be saved is due."""
        return entry.latest_start_s + LENIENCE * self.s_per_token * entry.cost

    def priced(self, log_price: float) -> bool:
        """Go by this price, if it is another one (True)."""
        if abs(log_price - self.log_price) <= PRICE_STEP:
            return False
        self.log_price, self.s_per_token = log_price, exp(log_price)
        self.entries.rekey(self.due_s)
        return True


class UrgencyQueue:
    """All that wait. Times passed in never go back; `due` is called before `first` at a time."""

    def __init__(self, shares: TenantShares) -> None:
        self._shares, self._sequence = shares, 0
        self._entries: dict[str, tuple[WaitingRequest, _Line, int]] = {}
        self._lines: dict[tuple[Alike, bool], _Line] = {}
        self._at: list[_Line | None] = []
        self._free: list[int] = []
        self._of_tenant: dict[str, set[int]] = {}
        self._tenants: dict[str, int] = {}
        self._numbers = count()
        self._next_lost_s = -inf
        """No head that can be saved is lost before."""
        self._prices = Prices()
        self.savable = 0
        """How many wait that are not lost."""
        self._expiry: LazyHeap[WaitingRequest] = LazyHeap()
        self.heads: FloatArray = np.zeros((len(HeadRow), 0))
        """f8[rows, lines]."""
        self.profiles: dict[str, int] = {}
        """The profiles of those that ever waited, and the number of each."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    @property
    def next_due_s(self) -> float:
        """When `due` has something next; infinite if never."""
        first = self._expiry.first()
        return inf if first is None else first[0]

    def due_s(self, request_id: str) -> float:
        """When one that waits, and can be saved, is due."""
        entry, line, _ = self._entries[request_id]
        return line.due_s(entry)

    def waits_alike(self, of_line: Alike) -> bool:
        """True if requests of that line wait that can be saved."""
        return (of_line, False) in self._lines

    def push(self, entry: WaitingRequest) -> None:
        """Let a request wait. Raises RoutingError if it does already."""
        request_id = entry.request.request_id
        if request_id in self._entries:
            raise RoutingError(f"request {request_id!r} waits already")
        sequence = self._sequence = self._sequence + 1
        self._shares.waits(entry.request.tenant)
        self._expiry.push(entry.expires_s, sequence, entry)
        self._prices.seen(entry.request.tenant, entry.latest_start_s - entry.enqueued_s, entry.cost)
        self._add(entry, sequence, lost=entry.forced)

    def remove(self, request_id: str) -> WaitingRequest | None:
        """Let it wait no longer; None if it does not wait."""
        found = self._entries.pop(request_id, None)
        if found is None:
            return None
        entry, line, sequence = found
        self._take(line, sequence)
        self._expiry.discard(sequence)
        self._shares.waits_no_more(entry.request.tenant)
        return entry

    def due(self, now_s: float) -> Iterator[WaitingRequest]:
        """Those whose patience has ended, longest ago first; each waits no longer once it is given out."""
        while self.next_due_s <= now_s and (first := self._expiry.first()) is not None:
            entry = self._expiry.item(first[1])
            self.remove(entry.request.request_id)
            yield entry

    def give_up(self, now_s: float) -> None:
        """Move those that can be saved no longer to the lost."""
        if now_s <= self._next_lost_s:
            return
        while (column := lost_by(self.heads, now_s)) >= 0:
            line = self._line(column)
            first = line.starts.first()
            assert first is not None
            entry, sequence = line.starts.item(first[1]), first[1]
            self._take(line, sequence)
            self._add(entry, sequence, lost=True)
        self._next_lost_s = next_lost_s(self.heads)

    def first(self, among: Marks | None = None) -> tuple[int, WaitingRequest] | None:
        """The column and the head of the line that is next, of the lines that are marked; after `give_up`."""
        marks, shares = _ALL if among is None else among, self._shares
        column = first_of(self.heads, marks, among is None, shares.table, shares.ahead_from)
        return None if column < 0 else (column, self.head(column))

    def head(self, column: int) -> WaitingRequest:
        """The head of a line."""
        entries = self._line(column).entries
        first = entries.first()
        assert first is not None
        return entries.item(first[1])

    def refused_by(self, column: int, role: int) -> None:
        """The head of that line found no room at the role in this place."""
        self.heads[HeadRow.ROLE, column] = role

    def served(self, tenant: str) -> None:
        """The tenant's counter has changed: its lines rank by it, if its key has users."""
        if tenant in self._of_tenant and self._shares.has_users(tenant):
            restart(self.heads, float(self._tenants[tenant]), self._shares.start(tenant))

    def last_of(self, tenant: str) -> str:
        """The youngest of the tenant's line with most; a critical one only where all of its lines are."""
        lines = [self._line(column) for column in self._of_tenant[tenant]]
        longest = max(lines, key=lambda line: (not line.key[0].critical, len(line.entries))).entries
        return longest.item(longest.youngest).request.request_id

    def ordered(self, now_s: float) -> Iterator[WaitingRequest]:
        """The heads, the next one first. One that the caller removes makes room for the next of its line."""
        self.give_up(now_s)
        opened = self.heads[HeadRow.LIVE] > 0.0
        while (found := self.first(opened)) is not None:
            column, entry = found
            yield entry
            if entry.request.request_id in self._entries:
                opened[column] = False

    def _line(self, column: int) -> _Line:
        line = self._at[column]
        assert line is not None
        return line

    def _add(self, entry: WaitingRequest, sequence: int, *, lost: bool) -> None:
        self.savable += not lost
        key = (alike(entry), lost)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(key, self._column())
            self._at[line.column] = line
            if entry.request.tenant not in self._of_tenant:
                self._of_tenant[entry.request.tenant] = set()
                self._tenants[entry.request.tenant] = next(self._numbers)
            self._of_tenant[entry.request.tenant].add(line.column)
        ordered_anew = not lost and line.priced(self._prices.log_of(entry.request.tenant))
        key_s = entry.enqueued_s if lost else line.due_s(entry)
        line.entries.push(key_s, sequence, entry)
        if not lost:
            line.starts.push(entry.latest_start_s, sequence, entry)
        self._entries[entry.request.request_id] = (entry, line, sequence)
        if ordered_anew or sequence in {_first(line.entries), _first(line.starts)}:
            self._write(line)

    def _take(self, line: _Line, sequence: int) -> None:
        self.savable -= not line.key[1]
        leads = sequence in {_first(line.entries), _first(line.starts)}
        line.entries.discard(sequence)
        line.starts.discard(sequence)
        if not line.entries:
            del self._lines[line.key]
            self.heads[HeadRow.LIVE, line.column] = 0.0
            self._at[line.column] = None
            self._free.append(line.column)
            columns = self._of_tenant[line.key[0].tenant]
            columns.discard(line.column)
            if not columns:
                del self._of_tenant[line.key[0].tenant], self._tenants[line.key[0].tenant]
        elif leads:
            self._write(line)

    def _write(self, line: _Line) -> None:
        """The head of a line stands in the table."""
        first = line.entries.first()
        assert first is not None
        (key_s, sequence), (of_line, lost) = first, line.key
        entry = line.entries.item(sequence)
        request, slo = entry.request, entry.slo or entry.request.slo
        next_start = line.starts.first()
        tier = LOST_TIER if lost else CRITICAL_TIER if of_line.critical else PLAIN_TIER
        self.heads[:, line.column] = (
            1.0,
            tier,
            key_s,
            sequence,
            self._shares.start(request.tenant),
            request.input_tokens,
            entry.output_tokens,
            entry.cached_tokens,
            entry.home,
            request.arrival_s + slo.ttft_s,
            slo.tpot_s,
            entry.role,
            entry.forced,
            entry.home_until_s,
            self.profiles.setdefault(entry.profile, len(self.profiles)),
            self._shares.number(request.tenant),
            self._tenants[request.tenant],
            entry.late_from_s,
            RequestClass.of(request),
            inf if next_start is None else next_start[0],
        )
        if next_start is not None:
            self._next_lost_s = min(self._next_lost_s, next_start[0])

    def _column(self) -> int:
        if not self._free:
            old = len(self._at)
            new = max(FIRST_LINES, 2 * old)
            heads = np.zeros((len(HeadRow), new))
            heads[:, :old] = self.heads
            self.heads = heads
            self._at.extend([None] * (new - old))
            self._free.extend(range(new - 1, old - 1, -1))
        return self._free.pop()


def _first(heap: LazyHeap[WaitingRequest]) -> int:
    """The number of the first; −1 without one."""
    first = heap.first()
    return -1 if first is None else first[1]


_ALL: Marks = np.ones(0, dtype=np.bool_)
