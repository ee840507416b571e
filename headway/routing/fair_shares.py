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
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

OUTPUT_COST = 2.0
"""Cost of an output token beside that of an input token, as in the paper."""

ALLOWANCE = 1024.0
"""Tokens per weight that a tenant may be ahead: about a request, so that urgency decides between equals."""

MOST_COUNTERS = 10_000
"""Counters that are kept before the lower half of them is dropped."""


def cost_of(uncached_tokens: float, output_tokens: float) -> float:
    """The cost of a request in tokens."""
    return uncached_tokens + OUTPUT_COST * output_tokens


class FairShares:
    """The counters of all tenants; `weight_of` says a tenant's weight, above 0."""

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        self._weight_of = weight_of
        self._virtual = 0.0
        self._counters: dict[str, float] = {}
        self._waiting: dict[str, int] = {}
        self._order: list[tuple[float, str]] = []
        """(counter, tenant) of those that wait, a heap; a row that is out of date counts for nothing."""

    @property
    def least(self) -> float:
        """The least start of those that wait; V without any."""
        while self._order:
            counter, tenant = self._order[0]
            if tenant in self._waiting and self._counters.get(tenant, 0.0) == counter:
                return max(self._virtual, counter)
            heappop(self._order)
        return self._virtual

    @property
    def several(self) -> bool:
        """True if more than one tenant has been served."""
        return len(self._counters) > 1

    def waiting(self, tenant: str) -> bool:
        """True if requests of the tenant are held."""
        return tenant in self._waiting

    def start(self, tenant: str) -> float:
        """Where its next request begins."""
        return max(self._virtual, self._counters.get(tenant, 0.0))

    def ahead(self, tenant: str) -> bool:
        """True if others that wait go first."""
        return self.start(tenant) > self.least + ALLOWANCE

    def in_turn(self, tenant: str) -> bool:
        """True if it is one of several tenants, and none of those that others go before."""
        return self.several and not self.ahead(tenant)

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

    def waits(self, tenant: str) -> None:
        """One more of its requests is held."""
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1
        if self._waiting[tenant] == 1:
            self._list(tenant)

    def waits_no_more(self, tenant: str) -> None:
        """One of its requests is held no longer."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]

    def _set(self, tenant: str, counter: float) -> None:
        self._counters[tenant] = counter
        if tenant in self._waiting:
            self._list(tenant)
        if len(self._counters) > MOST_COUNTERS:
            # Those least above V lose least by beginning at V again.
            first = sorted(self._counters.items(), key=lambda item: item[1])[: MOST_COUNTERS // 2]
            for name, _ in first:
                if name not in self._waiting:
                    del self._counters[name]

    def _list(self, tenant: str) -> None:
        heappush(self._order, (self._counters.get(tenant, 0.0), tenant))
        if len(self._order) > 4 * len(self._waiting) + 64:
            self._order = [(self._counters.get(name, 0.0), name) for name in self._waiting]
            heapify(self._order)
