"""What each key may have at once and in a minute.

    bucket    level(t) = min(size, level + size/60 s × time); a request is let in while level > 0

A request is let in as soon as anything is left, and what it takes beyond that is a debt that the next ones
wait off: so one that is larger than the whole bucket is late, but not for ever. Output tokens are taken as
the request's bound, and what was not produced is given back at its end.

Every gateway keeps its own books. Of several each lets a key have its share, the limit divided by their
number, so that together they never let it have more than the limit, and a key that uses one of them alone
has its share.

While many requests of all keys are in flight, `Places` shares what is left:

    reserved    = most / 16
    share(k)    = (most - reserved) × weight(k) / weights of the keys with requests in flight, k among them

While more than `reserved` places are free, they are any key's; the last ones are for keys that have less than
their share. So a key that is alone for now has nearly all, one that joins it finds a place at once, and gets
the next ones that become free until it has its share.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from serve_apps.access import KeyLimits
from serve_apps.faults import RETRY_AFTER_S, OverLimit, Shed

MINUTE_S = 60.0
RESERVED = 16
"""One place in so many is for keys that have less than their share."""


class Bucket:
    """A bucket that is full at first."""

    def __init__(self, now_s: float) -> None:
        self._size, self._level, self._at_s = 0.0, math.inf, now_s

    def wait_s(self, size: int, now_s: float) -> float:
        """Seconds until something is left in a bucket of that size; 0: there is."""
        self._size = float(size)
        filled = self._level + self._size * (now_s - self._at_s) / MINUTE_S
        self._level, self._at_s = min(self._size, filled), now_s
        return 0.0 if self._level > 0.0 else (1.0 - self._level) * MINUTE_S / self._size

    def take(self, amount: float) -> None:
        """Take that much, or give it back where it is below 0; a bucket without a size stays full."""
        if not self._size:
            return
        self._level = min(self._size, self._level - amount)


@dataclass(slots=True)
class Account:
    """The books of one key."""

    of_requests: Bucket
    of_tokens: Bucket
    requests: int = 0
    streams: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Quotas:
    """The accounts of all keys, by name."""

    clock: Callable[[], float]
    gateways: int = 1
    accounts: dict[str, Account] = field(default_factory=dict)

    def check(self, name: str, limits: KeyLimits | None) -> None:
        """OverLimit for what is known before a request is read."""
        if limits is not None:
            self._check(self._account(name), limits, stream=False)

    @contextmanager
    def used(
        self,
        name: str,
        limits: KeyLimits | None,
        tokens: int,
        came_to: Callable[[], int],
        *,
        stream: bool,
    ) -> Iterator[None]:
        """A request of at most `tokens`, while it runs; `came_to` counts them at its end. OverLimit."""
        if limits is None:
            yield
            return
        account = self._account(name)
        self._check(account, limits, stream=stream)
        self._bound("tokens", account.tokens, limits.tokens_at_once)
        account.requests, account.tokens = account.requests + 1, account.tokens + tokens
        account.streams += stream
        account.of_requests.take(1.0)
        account.of_tokens.take(tokens)

        try:
            yield
        finally:
            account.requests, account.tokens = account.requests - 1, account.tokens - tokens
            account.streams -= stream
            account.of_tokens.take(came_to() - tokens)

    @property
    def _here(self) -> str:
        return "" if self.gateways == 1 else f" at each of {self.gateways} gateways"

    def _account(self, name: str) -> Account:
        if name not in self.accounts:
            now_s = self.clock()
            self.accounts[name] = Account(Bucket(now_s), Bucket(now_s))
        return self.accounts[name]

    def _check(self, account: Account, limits: KeyLimits, *, stream: bool) -> None:
        self._bound("requests", account.requests, limits.requests_at_once)
        if stream:
            self._bound("streams", account.streams, limits.streams_at_once)
        now_s = self.clock()
        for what, bucket, most in (
            ("requests", account.of_requests, limits.requests_per_minute),
            ("tokens", account.of_tokens, limits.tokens_per_minute),
        ):
            if most is not None and (wait_s := bucket.wait_s(most, now_s)) > 0.0:
                raise OverLimit(f"This key has {most} {what} a minute{self._here}", retry_after_s=wait_s)

    def _bound(self, what: str, now: int, most: int | None) -> None:
        if most is not None and now >= most:
            text = f"This key has {most} {what} at once{self._here}, and {now} are under way"
            raise OverLimit(text, retry_after_s=RETRY_AFTER_S)


class Places:
    """The places for requests in flight: `taken` of `most`. Without other keys the last one is any key's."""

    def __init__(self, most: int) -> None:
        self.taken = 0
        self._most = most
        self._reserved = min(most - 1, max(1, most // RESERVED))
        self._of_keys: dict[str, tuple[int, float]] = {}

    @contextmanager
    def one(self, name: str, limits: KeyLimits | None, *, alone: bool) -> Iterator[None]:
        """A place for a request of that key, which is the only one there is where it is `alone`. Shed."""
        weight = 1.0 if limits is None else limits.weight
        count, _ = self._of_keys.get(name, (0, weight))
        free = self._most - self.taken
        if free <= 0:
            text = f"{self.taken} requests are in flight, which is as many as this gateway takes"
            raise Shed(text, retry_after_s=RETRY_AFTER_S)
        if not alone and free <= self._reserved and count >= self._share(name, weight):
            text = f"This key has {count} of {self.taken} requests in flight, and what is left is for others"
            raise Shed(text, retry_after_s=RETRY_AFTER_S)
        self._change(name, 1, weight)
        try:
            yield
        finally:
            self._change(name, -1, weight)

    def _share(self, name: str, weight: float) -> float:
        others = sum(each for key, (_, each) in self._of_keys.items() if key != name)
        return (self._most - self._reserved) * weight / (weight + others)

    def _change(self, name: str, by: int, weight: float) -> None:
        self.taken += by
        count = self._of_keys.get(name, (0, weight))[0] + by
        if count:
            self._of_keys[name] = (count, weight)
        else:
            del self._of_keys[name]
