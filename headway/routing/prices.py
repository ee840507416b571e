"""What waiting is worth to each tenant: the seconds that its usual requests may wait, a token of them.

Each tenant has its own price, so that nobody's odd SLOs change the order of others' requests, and none whose
requests are long comes after those of others (`held_lines`).
"""

from math import inf, log

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
