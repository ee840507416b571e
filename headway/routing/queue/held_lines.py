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
    rank           (its key is ahead, its user is, lost, due or for the lost enqueueing, arrival), least first

Requests of one tenant, pattern, SLO and criticality are a line: when its head finds no room, those behind it
need not ask. The heads stand in a table with a column per line, which compiled loops scan (`heads`). n
requests in p lines: push and remove cost O(log n) amortised (`LazyHeap`), the next head O(p), some
nanoseconds each.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, frexp, inf, isinf, ldexp, log2

import numpy as np

from headway.routing.fleet.records import LazyHeap, Record
from headway.routing.fleet.table import Columns
from headway.routing.queue.fair_shares import Figure, Prices, TenantShares, cost_of
from headway.routing.queue.heads import CRITICAL_WORTH, FREE, HeadRow, Marks, RequestClass, first_of
from headway.routing.types import RoutingError, ShedReason

NO_HOME = -1, 0.0
"""The home of a request for which no replica has a part of its prompt that is worth waiting for."""

LENIENCE = 1.0
"""How many times its wait a usual request counts as due later than one that costs nothing."""

PRICE_STEP = 0.25
"""The change of the logarithm of the price that puts a tenant's lines in order anew."""

HOME_PATIENCE = 0.5
"""The part of its patience for which a request waits for the replica that has most of its prompt."""

STEPS_OF_LENGTH = 4.0
"""Lengths that are alike: so many steps an octave. The head of a line stands for all of it."""

STEPS_OF_SLO = 128
"""Rounding of SLOs: so many steps in an octave's upper end."""


@dataclass(slots=True, eq=False, kw_only=True)
class HeldRequest:
    """A request that waits. `expires_s` ends its patience; `start_by_s` is infinite without an SLO.

    `role` is the place of the role that had no room for it, ANY_ROLE where none was asked; `unstaffed`: one
    had no ready replica. Once its patience ends it is shed for `reason`, which `explain` has in words.
    """

    record: Record
    held_s: float
    start_by_s: float = inf
    expires_s: float = inf
    role: int = 0
    unstaffed: bool = False
    reason: ShedReason = ShedReason.WAITED_TOO_LONG
    explain: Callable[[], str] | None = None
    sequence: int = 0
    """The order of pushing, written by the queue."""

    @property
    def latest_start_s(self) -> float:
        """The latest start that is still worth something."""
        return min(self.start_by_s, self.expires_s)

    @property
    def home(self) -> tuple[int, float]:
        """The slot of the replica that has most of its prompt, −1 without one, and how many tokens of it."""
        return self.record.home or NO_HOME

    @property
    def cost(self) -> float:
        """Tokens, those that its home has cached left out."""
        record = self.record
        return cost_of(max(record.request.input_tokens - self.home[1], 0.0), float(record.expected_output))

    @property
    def home_until_s(self) -> float:
        """The time until which it waits for its home, while others may have room."""
        patience_s = self.latest_start_s - self.held_s
        return self.held_s + HOME_PATIENCE * patience_s if 0.0 < patience_s < inf else -inf


Alike = tuple[object, ...]


def alike(record: Record) -> Alike:
    """What a request, whose home is known, has in common with those of its line: lengths, and so costs, to
    within a quarter of an octave (0 for one token), SLOs to within 1/64."""
    request, slo = record.request, record.slo
    lengths = _step_of(request.input_tokens), _step_of(record.expected_output)
    slos, home = (rounded_down(slo.ttft_s), rounded_down(slo.tpot_s)), (record.home or NO_HOME)[0]
    of_client = request.tenant, request.model, request.critical, request.adapter
    return (*of_client, *lengths, *slos, home, record.profile)


def due_s(latest_start_s: Figure, price: Figure, cost: Figure) -> Figure:
    """By when a request that can be saved is due, by which it ranks."""
    return latest_start_s + LENIENCE * price * cost


def _step_of(tokens: float) -> int:
    return int(STEPS_OF_LENGTH * log2(max(tokens, 1.0)))


def rounded_down(seconds: float) -> float:
    """`seconds` less at most 1/64 of it, one of 64 values in each octave; infinite stays infinite.

    So clients that write their own SLOs do not make as many lines.
    """
    if isinf(seconds):
        return seconds
    fraction, exponent = frexp(seconds)
    return ldexp(int(fraction * STEPS_OF_SLO) / STEPS_OF_SLO, exponent)


class _Line:
    """One line; `column` is its place in the table of heads.

    Those that can be saved stand in it by latest start, those that are lost by when they came.
    """

    __slots__ = ("_order", "column", "key", "requests")

    def __init__(self, key: tuple[Alike, bool], column: int) -> None:
        self.key, self.column = key, column
        self.requests: dict[int, HeldRequest] = {}
        self._order: list[tuple[float, int]] = []

    @property
    def head(self) -> HeldRequest:
        """The first of it."""
        return self.requests[self._order[0][1]]

    @property
    def more_s(self) -> float:
        """How much later the last of it has to start than the head."""
        return self._order[-1][0] - self._order[0][0] if self._order[-1][0] < inf else 0.0

    def add(self, held: HeldRequest) -> None:
        """One more."""
        insort(self._order, self._place(held))
        self.requests[held.sequence] = held

    def take(self, held: HeldRequest) -> None:
        """One less."""
        del self.requests[held.sequence]
        del self._order[bisect_left(self._order, self._place(held))]

    def at_ends(self, held: HeldRequest) -> bool:
        """True for its head and its last."""
        return held.sequence in {self._order[0][1], self._order[-1][1]}

    def later(self, more_s: float) -> HeldRequest | None:
        """The first that may start so much later than the head; None without one."""
        if more_s > self.more_s:
            return None
        return self.requests[self._order[bisect_left(self._order, (self._order[0][0] + more_s, -1))][1]]

    def _place(self, held: HeldRequest) -> tuple[float, int]:
        return (held.held_s if self.key[1] else held.latest_start_s), held.sequence


class HeldQueue:
    """All that wait. Times never go back; `due` and `give_up` are called before `first` at a time."""

    def __init__(self, shares: TenantShares) -> None:
        self._shares, self._sequence = shares, 0
        self._held: dict[str, tuple[HeldRequest, _Line]] = {}
        self._lines: dict[tuple[Alike, bool], _Line] = {}
        self._at: dict[int, _Line] = {}
        self._of_tenant: dict[str, set[int]] = {}
        self._next_lost_s = -inf
        """No head that can be saved is lost before."""
        self._prices = Prices()
        self._priced: dict[str, float] = {}
        """The logarithm of the price by which the tenant's lines are in order."""
        self._expiry: LazyHeap[HeldRequest] = LazyHeap()
        self.unstaffed: dict[str, HeldRequest] = {}
        """Those that came when a role had no ready replica and were not judged since, in order of coming."""
        free = {HeadRow.LATEST_S: inf, HeadRow.ROLE: float(FREE)}
        self._columns = Columns(np.array([free.get(row, 0.0) for row in HeadRow]))
        self.heads = self._columns.values
        """f8[rows, lines]."""
        self.profiles: dict[str, int] = {}
        """The profiles of those that ever waited, and the number of each."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._held

    @property
    def next_due_s(self) -> float:
        """When `due` has something next; infinite if never."""
        return self._expiry.least

    def log_price(self, tenant: str) -> float:
        """The logarithm of the price by which the tenant's lines are in order now."""
        return self._priced.get(tenant, 0.0)

    def waits_alike(self, record: Record) -> bool:
        """True if requests of its line wait that can be saved."""
        return (alike(record), False) in self._lines

    def waits_for_less(self, record: Record) -> bool:
        """True if a request waits that can be saved and asks for no more: neither prompt nor TPOT."""
        heads = self.heads
        waits = (heads[HeadRow.ROLE] != FREE) & (heads[HeadRow.LOST] == 0.0)
        waits &= heads[HeadRow.INPUT_TOKENS] <= record.request.input_tokens
        return bool((waits & (heads[HeadRow.TPOT_SLO_S] >= record.slo.tpot_s)).any())

    def push(self, held: HeldRequest) -> None:
        """Let a request wait. Raises RoutingError if it does already."""
        request = held.record.request
        if request.request_id in self._held:
            raise RoutingError(f"request {request.request_id!r} waits already")
        held.sequence = self._sequence = self._sequence + 1
        self._shares.waits(request.tenant)
        self._expiry.push(held.expires_s, held.sequence, held)
        self._prices.seen(request.tenant, held.latest_start_s - held.held_s, held.cost)
        self._add(held, lost=False)
        self._reprice(request.tenant)
        if held.unstaffed:
            self.unstaffed[request.request_id] = held

    def remove(self, request_id: str) -> HeldRequest | None:
        """Let it wait no longer; None if it does not wait."""
        found = self._held.pop(request_id, None)
        if found is None:
            return None
        held, line = found
        self._take(held, line)
        self._expiry.discard(held.sequence)
        self._shares.waits_no_more(held.record.request.tenant)
        self.unstaffed.pop(request_id, None)
        return held

    def due(self, now_s: float) -> Iterator[HeldRequest]:
        """Those whose patience has ended, longest ago first; each waits no longer once it is given out."""
        while self._expiry.least <= now_s:
            held = self._expiry.pop()
            self.remove(held.record.request.request_id)
            yield held

    def give_up(self, now_s: float) -> None:
        """Move those that can be saved no longer to the lost."""
        if now_s <= self._next_lost_s:
            return
        while len(columns := np.flatnonzero(self.heads[HeadRow.LATEST_S] < now_s)):
            line = self._at[int(columns[0])]
            held = line.head
            self._take(held, line)
            self._add(held, lost=True)
        self._next_lost_s = float(self.heads[HeadRow.LATEST_S].min(initial=inf))

    def first(self, among: Marks) -> int | None:
        """The column of the line that is next, of the lines that are marked."""
        column = first_of(self.heads, among, self._shares.table, self._shares.ahead_from, -1)
        return None if column < 0 else column

    def later(self, column: int, more_s: float = 0.0) -> HeldRequest | None:
        """The first of that line that may start so much later than its head; None without one."""
        return self._at[column].later(more_s)

    def served(self, tenant: str) -> None:
        """The tenant's counter has changed: its lines rank by it, if its key has users."""
        if tenant in self._of_tenant and self._shares.has_users(tenant):
            self.heads[HeadRow.START, list(self._of_tenant[tenant])] = self._shares.start(tenant)

    def last_of_most(self) -> Record:
        """Of the tenant that holds most for its weight, the youngest of its line with most; a critical one
        only where all of its lines are."""
        lines = [self._at[column] for column in self._of_tenant[self._shares.most_waiting()]]
        lasts = ((line.requests[next(reversed(line.requests))].record, len(line.requests)) for line in lines)
        return max(lasts, key=lambda each: (not each[0].request.critical, each[1]))[0]

    def _add(self, held: HeldRequest, *, lost: bool) -> None:
        key, tenant = (alike(held.record), lost), held.record.request.tenant
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(key, self._columns.take())
            self.heads, self._at[line.column] = self._columns.values, line
            self._of_tenant.setdefault(tenant, set()).add(line.column)
        line.add(held)
        self._held[held.record.request.request_id] = held, line
        if line.at_ends(held):
            self._write(line)

    def _take(self, held: HeldRequest, line: _Line) -> None:
        at_ends = line.at_ends(held)
        line.take(held)
        if not line.requests:
            del self._lines[line.key]
            del self._at[line.column]
            self._columns.give_back(line.column)
            tenant = held.record.request.tenant
            self._of_tenant[tenant].discard(line.column)
            if not self._of_tenant[tenant]:
                del self._of_tenant[tenant]
                self._priced.pop(tenant, None)
        elif at_ends:
            self._write(line)

    def _write(self, line: _Line) -> None:
        """The head of a line stands in the table."""
        lost, held = line.key[1], line.head
        request, slo = held.record.request, held.record.slo
        home, cached_tokens = held.home
        price = exp(self.log_price(request.tenant)) / (CRITICAL_WORTH if request.critical else 1.0)
        self.heads[:, line.column] = (
            held.role,
            lost,
            held.held_s if lost else due_s(held.latest_start_s, price, held.cost),
            held.sequence,
            self._shares.start(request.tenant),
            request.input_tokens,
            held.record.expected_output,
            cached_tokens,
            home,
            request.arrival_s + slo.ttft_s,
            slo.tpot_s,
            held.home_until_s,
            self.profiles.setdefault(held.record.profile, len(self.profiles)),
            self._shares.number(request.tenant),
            RequestClass.of(request),
            inf if lost else held.latest_start_s,
            0.0 if lost else line.more_s,
        )
        if not lost:
            self._next_lost_s = min(self._next_lost_s, held.latest_start_s)

    def _reprice(self, tenant: str) -> None:
        """All lines of the tenant go by its price as it is now, once that has changed."""
        log_price = self._prices.log_of(tenant)
        if tenant not in self._priced or abs(log_price - self._priced[tenant]) > PRICE_STEP:
            self._priced[tenant] = log_price
            # A tenant may have thousands of lines: to write each anew takes milliseconds.
            columns = [*self._of_tenant[tenant]]
            self.served(tenant)
            self.heads[HeadRow.ROLE, columns] = [self._at[column].head.role for column in columns]
            heads = self.heads[:, columns]
            price = exp(log_price) / np.where(
                heads[HeadRow.CLASS] == RequestClass.CRITICAL, CRITICAL_WORTH, 1.0
            )
            uncached = np.maximum(heads[HeadRow.INPUT_TOKENS] - heads[HeadRow.CACHED_TOKENS], 0.0)
            due = due_s(heads[HeadRow.LATEST_S], price, cost_of(uncached, heads[HeadRow.OUTPUT_TOKENS]))
            lost = heads[HeadRow.LOST] > 0.0
            self.heads[HeadRow.KEY_S, columns] = np.where(lost, heads[HeadRow.KEY_S], due)
