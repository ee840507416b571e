"""Fair shares of what the router hands out while requests of several tenants wait.

Weighted fair queueing in tokens: virtual counters as in VTC (Sheng et al., "Fairness in Serving Large
Language Models", 2024), started as in start-time fair queueing (Goyal, Vin and Cheng, 1996). For tenant t of
weight w:

    cost of a request   uncached input tokens + 2 × output tokens, since an output token takes longer
    start(t)            max(V, counter(t))
    is served           counter(t) = start(t) + cost / w; what its output was expected too long comes back
    V                   the least start of those that wait, or of the one that is served; never falls
    ahead               start(t) > V + ALLOWANCE while others wait: those go first

So of two tenants that always want more each has its share whatever the other sends, one that wants less than
its share gets all of it, and what a tenant did not want is no credit for later. Among tenants that are not
ahead urgency decides.

Shares have two levels: keys share what there is, and the users of a key share what the key gets. So a key
with many users, or one whose client makes them up, gets no more than another. Both levels have counters and a
V of their own (`FairShares`); a request is charged on both, and is behind others if its key is, or if its
user is within the key.

What waiting is worth to each tenant: the seconds that its usual requests may wait, a token of them.

Each tenant has its own price, so that nobody's odd SLOs change the order of others' requests, and none whose
requests are long comes after those of others (`held_lines`).
"""

from collections.abc import Callable
from enum import IntEnum
from math import inf, log
from typing import TypeVar

import numpy as np

from headway.routing.fleet.records import LazyHeap
from headway.routing.fleet.table import Columns, FloatArray

Figure = TypeVar("Figure", float, FloatArray)

OUTPUT_COST = 2.0
"""Cost of an output token beside that of an input token, as in the paper."""

ALLOWANCE = 1024.0
"""Tokens per weight that a tenant may be ahead: about a request, so that urgency decides between equals."""

MOST_COUNTERS = 10_000
"""Counters that are kept before the lower half of them, but for those that wait, is dropped."""


def cost_of(uncached_tokens: Figure, output_tokens: Figure) -> Figure:
    """The cost of a request in tokens, or of many."""
    return uncached_tokens + OUTPUT_COST * output_tokens


class FairShares:
    """The counters of one level; `weight_of` says a tenant's weight, above 0."""

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        self._weight_of = weight_of
        self._virtual = 0.0
        self._counters: dict[str, float] = {}
        self._most = MOST_COUNTERS
        self._waiting: dict[str, int] = {}
        self._order: LazyHeap[None] = LazyHeap()
        """Those that wait, by their counters."""

    @property
    def least(self) -> float:
        """The least start of those that wait; V without any."""
        return max(self._virtual, self._order.least) if self._waiting else self._virtual

    @property
    def several(self) -> bool:
        """True if more than one tenant has been served or held."""
        return len(self._counters) > 1

    def others(self, tenant: str) -> bool:
        """True if another has been served or held."""
        return len(self._counters) > (tenant in self._counters)

    @property
    def anybody_waits(self) -> bool:
        """True if requests are held."""
        return bool(self._waiting)

    def waiting(self, tenant: str) -> int:
        """How many of its requests are held."""
        return self._waiting.get(tenant, 0)

    def start(self, tenant: str) -> float:
        """Where its next request begins."""
        return max(self._virtual, self._counters.get(tenant, 0.0))

    def ahead(self, tenant: str) -> bool:
        """True if others that wait go first."""
        return self.start(tenant) > self.least + ALLOWANCE

    def most_waiting(self) -> str:
        """The tenant with the most held requests for its weight; there is one that waits."""
        return max(self._waiting, key=lambda tenant: self._waiting[tenant] / self._weight_of(tenant))

    def served(self, tenant: str, cost: float) -> None:
        """One of its requests was placed."""
        start = self.start(tenant)
        self._virtual = max(self._virtual, min(start, self.least) if self._waiting else start)
        self._set(tenant, start + cost / self._weight_of(tenant))

    def returned(self, tenant: str, cost: float) -> None:
        """So much less, or below 0 more, than it was served for."""
        if tenant in self._counters:
            self._set(tenant, self._counters[tenant] - cost / self._weight_of(tenant))

    def waits(self, tenant: str, count: int = 1) -> None:
        """So many more of its requests are held."""
        held = self._waiting.get(tenant, 0)
        self._waiting[tenant] = held + count
        if not held:
            # It has a counter before it is served: one that others keep from being served never would be.
            self._order.push(self._counters.setdefault(tenant, self._virtual), tenant, None)

    def waits_no_more(self, tenant: str) -> None:
        """One of its requests is held no longer."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._order.discard(tenant)

    def _set(self, tenant: str, counter: float) -> None:
        self._counters[tenant] = counter
        if tenant in self._waiting:
            self._order.discard(tenant)
            self._order.push(counter, tenant, None)
        if len(self._counters) > self._most:
            # Those least above V lose least by beginning at V again.
            first = sorted(self._counters.items(), key=lambda item: item[1])[: len(self._counters) // 2]
            for name, _ in first:
                if name not in self._waiting:
                    del self._counters[name]
            # Where most of them wait there are more: to sort them for each that comes takes milliseconds.
            self._most = max(MOST_COUNTERS, 2 * len(self._counters))


class KeyRow(IntEnum):
    """The rows of the table of keys."""

    START = 0
    """Where the key's next request begins."""
    USERS_AHEAD_FROM = 1
    """The start from which one of its users is ahead of others; infinite where it has none."""


class TenantShares:
    """The shares of keys, and within each of its users; a tenant is KEY or KEY/USER.

    A key's requests that name no user are those of a user more. A key is looked at as a whole until one of
    its users is seen.
    """

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        self._weight_of = weight_of
        self._keys = FairShares(weight_of)
        self._users: dict[str, FairShares] = {}
        self._numbers: dict[str, int] = {}
        self._columns = Columns(np.zeros(len(KeyRow)))
        self.table = self._columns.values
        """f8[rows, keys]: the keys of which requests are held, by `number`."""

    @property
    def ahead_from(self) -> float:
        """The start from which a key is ahead of others."""
        return self._keys.least + ALLOWANCE

    @property
    def several(self) -> bool:
        """True if more than one key has been served or held, or users of one."""
        return bool(self._users) or self._keys.several

    def others(self, tenant: str) -> bool:
        """True if another has been served or held."""
        return bool(self._users) or self._keys.others(_key(tenant))

    def waiting(self, tenant: str) -> int:
        """How many of its requests are held."""
        shares, name = self._levels(tenant)[-1]
        return shares.waiting(name)

    def number(self, tenant: str) -> int:
        """The column of its key, of which requests are held."""
        return self._numbers[_key(tenant)]

    def has_users(self, tenant: str) -> bool:
        """True if users of its key were seen; without any, all of the key begin at 0."""
        return _key(tenant) in self._users

    def start(self, tenant: str) -> float:
        """Where its next request begins, within its key."""
        users = self._users.get(_key(tenant))
        return 0.0 if users is None else users.start(tenant)

    def ahead(self, tenant: str) -> bool:
        """True if others that wait go first: those of other keys, or of other users of its key."""
        key = _key(tenant)
        users = self._users.get(key)
        return self._keys.ahead(key) or (users is not None and users.anybody_waits and users.ahead(tenant))

    def most_waiting(self) -> str:
        """Of the key with the most held requests for its weight, the user with most; there is one."""
        shares, key = self._levels(self._keys.most_waiting())[-1]
        return key if shares is self._keys else shares.most_waiting()

    def served(self, tenant: str, cost: float) -> None:
        """One of its requests was placed."""
        for shares, name in self._levels(tenant, seen=True):
            shares.served(name, cost)
        self._note(tenant)

    def returned(self, tenant: str, cost: float) -> None:
        """So much less, or below 0 more, than it was served for."""
        for shares, name in self._levels(tenant):
            shares.returned(name, cost)
        self._note(tenant)

    def waits(self, tenant: str) -> None:
        """One more of its requests is held."""
        for shares, name in self._levels(tenant, seen=True):
            shares.waits(name)
        if (key := _key(tenant)) not in self._numbers:
            self._numbers[key] = self._columns.take()
            self.table = self._columns.values
        self._note(tenant)

    def waits_no_more(self, tenant: str) -> None:
        """One of its requests is held no longer."""
        for shares, name in self._levels(tenant):
            shares.waits_no_more(name)
        if not self._keys.waiting(key := _key(tenant)):
            self._columns.give_back(self._numbers.pop(key))
        self._note(tenant)

    def _levels(self, tenant: str, *, seen: bool = False) -> tuple[tuple[FairShares, str], ...]:
        """The shares that it has part in, and under which name; users are looked at once one is `seen`."""
        key = _key(tenant)
        users = self._users.get(key)
        if users is None and seen and tenant != key:
            users = self._users[key] = FairShares(self._weight_of)
            if held := self._keys.waiting(key):
                # Those of the key's requests that are held so far name no user.
                users.waits(key, held)
        return ((self._keys, key),) if users is None else ((self._keys, key), (users, tenant))

    def _note(self, tenant: str) -> None:
        """The table has the figures of the tenant's key."""
        key = _key(tenant)
        if (number := self._numbers.get(key)) is not None:
            users = self._users.get(key)
            self.table[KeyRow.START, number] = self._keys.start(key)
            ahead_from = inf if users is None else users.least + ALLOWANCE
            self.table[KeyRow.USERS_AHEAD_FROM, number] = ahead_from


def _key(tenant: str) -> str:
    return tenant.partition("/")[0]


MOST = 10_000
"""Tenants whose prices are remembered."""

SMOOTHING, LEAST_PATIENCE_S = 0.01, 1e-3
"""The part of each request in a price, and the least patience that counts."""


class Prices:
    """A geometric mean for each tenant, over those of its requests that came to wait."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}

    def log_of(self, tenant: str) -> float:
        """The logarithm of the tenant's price; 0 while nothing is known of it."""
        return self._seen.get(tenant, (0, 0.0))[1]

    def seen(self, tenant: str, patience_s: float, cost: float) -> None:
        """A request that costs so many tokens came to wait; without an SLO, or when late, it says nothing."""
        if not (0.0 < patience_s < inf and cost > 0.0):
            return
        if tenant not in self._seen and len(self._seen) >= MOST:
            self._seen.clear()
        count, price = self._seen.get(tenant, (0, 0.0))
        part = max(1.0 / (count + 1), SMOOTHING)
        price += part * (log(max(patience_s, LEAST_PATIENCE_S)) - log(cost) - price)
        self._seen[tenant] = count + 1, price
