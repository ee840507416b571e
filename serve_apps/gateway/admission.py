"""What a key may have at once and in a minute, and what its tenant may ask for (`routing.tenants`).

    bucket    level(t) = min(size, level + size/60 s × time); a request is let in while level > 0

A request is let in as soon as anything is left, and what it takes beyond that is a debt that the next ones
wait off: so one that is larger than the whole bucket is late, but not for ever. Output tokens are taken as
the request's bound, and what was not produced is given back at its end.

A call with several outputs counts as so many requests and as one stream; its prompts count once each.

Every gateway keeps its own books. Of several each lets a key have its share, the limit divided by their
number, so that together they never let it have more than the limit, and a key that uses one of them alone
has its share.

While many requests of all keys are in flight, `Places` shares what is left:

    reserved    = most / 16
    share(k)    = (most - reserved) × weight(k) / weights of the keys with requests in flight, k among them

While more than `reserved` places are free, they are any key's; the last ones are for keys that have less than
their share. So a key that is alone for now has nearly all, one that joins it finds a place at once, and gets
the next ones that become free until it has its share.

`Tenants` sets what a request gets of what its headers wish:

    tenant     KEY, or KEY/USER where the key speaks for many (`per_user`) and the body names a `user`
    session    TENANT/SESSION: of a header, else of the body's `prompt_cache_key`
    SLO held   max(SLO asked for, the tenant's least); of a request without one: max(the deployment's, least)
    critical   asked for, by header, class or `routing.default_critical`, and the tenant may be

KEY is the name of an API key, which has no `/` (`serve_apps.access`). USER and SESSION come from clients:
everything but letters, digits and `-._~@:+=` is percent-encoded, so neither contains a `/`, and what is
longer than it may be is its beginning, `#` and a digest of the whole. So no text of one tenant makes the name
of another, nor of its sessions; and different texts stay different.

A request without an SLO of its own is held to the deployment's. Where that is tighter than the tenant's
least, the least counts: a request that asks for nothing gets no more than it may ask for.
"""

import math
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import inf
from urllib.parse import quote, unquote

from headway.config import ConfigError
from headway.config.routing import ANY_TENANT, RoutingSettings, TenantSettings
from headway.planning import Slo
from headway.routing.types import RequestSlo
from serve_apps.access import UNNAMED_TENANT, Holder, KeyLimits
from serve_apps.faults import RETRY_AFTER_S, Fault, OverLimit, Shed
from serve_apps.gateway.reading import GenerationRequest
from serve_apps.gateway.slo_targets import MOST_SESSION_CHARACTERS, SloTargets

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
        requests: int = 1,
        given_back: Callable[[Fault], bool] = lambda _: False,
    ) -> Iterator[None]:
        """A call of at most `tokens`, while it runs; `came_to` counts them at its end. OverLimit.

        One that ends by a fault that is `given_back` used nothing of a minute: it is counted elsewhere.
        """
        if limits is None:
            yield
            return
        account = self._account(name)
        self._check(account, limits, stream=stream)
        self._bound("tokens", account.tokens, limits.tokens_at_once)
        account.requests, account.tokens = account.requests + requests, account.tokens + tokens
        account.streams += stream
        account.of_requests.take(requests)
        account.of_tokens.take(tokens)

        try:
            yield
        except Fault as fault:
            if given_back(fault):
                account.of_requests.take(-requests)
                account.of_tokens.take(-came_to())
            raise
        finally:
            account.requests, account.tokens = account.requests - requests, account.tokens - tokens
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
    def some(self, wanted: int, name: str, limits: KeyLimits | None, *, alone: bool) -> Iterator[None]:
        """Places for requests of that key, which is the only one there is where it is `alone`. Shed."""
        weight = 1.0 if limits is None else limits.weight
        count, _ = self._of_keys.get(name, (0, weight))
        # As the last of them finds it.
        free, held = self._most - self.taken - (wanted - 1), count + wanted - 1
        if free <= 0:
            text = f"{self.taken} requests are in flight, and this gateway takes {self._most}"
            raise Shed(text, retry_after_s=RETRY_AFTER_S)
        if not alone and free <= self._reserved and held >= self._share(name, weight):
            text = f"This key has {count} of {self.taken} requests in flight, and what is left is for others"
            raise Shed(text, retry_after_s=RETRY_AFTER_S)
        self._change(name, wanted, weight)
        try:
            yield
        finally:
            self._change(name, -wanted, weight)

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


MOST_USER_CHARACTERS = 64
KEPT = "-._~@:+="
"""What is not encoded, beside letters and digits."""

DIGEST_BYTES = 8


def cleaned(text: str, most: int) -> str:
    """A client's text as a part of a name, of at most so many characters."""
    # One character too many shows that it is too long, and a megabyte is not encoded for that.
    name = quote(text[: most + 1], safe=KEPT, errors="surrogatepass")
    if len(name) <= most:
        return name
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).hexdigest()
    return f"{name[: most - len(digest) - 1]}#{digest}"


class Tenants:
    """The tenants of the settings; `targets` are the deployment's, which may change."""

    def __init__(self, routing: RoutingSettings, targets: Callable[[], Slo]) -> None:
        self._routing, self._targets = routing, targets

    def name(self, holder: Holder, user: str | None) -> str:
        """The tenant of a request of that key in which `user` is named."""
        if not user or not self._routing.tenant(holder.tenant).per_user:
            return holder.tenant
        return f"{holder.tenant}/{cleaned(user, MOST_USER_CHARACTERS)}"

    def granted(self, holder: Holder, asked: GenerationRequest, wished: SloTargets) -> SloTargets:
        """What the request gets of what its headers wish."""
        tenant = self.name(holder, asked.user)
        settings = self._routing.tenant(tenant)
        session = wished.session or asked.cache_key
        return replace(
            wished,
            tenant=tenant,
            session=f"{tenant}/{cleaned(session, MOST_SESSION_CHARACTERS)}" if session else None,
            critical=wished.critical and settings.may_be_critical,
            slo=self._held(wished.slo, settings),
        )

    def _held(self, wished: RequestSlo | None, settings: TenantSettings) -> RequestSlo | None:
        least_s = _seconds(settings.least_ttft_ms), _seconds(settings.least_tpot_ms)
        now = self._targets()
        ttft_s, tpot_s = (now.ttft_s, now.itl_s) if wished is None else (wished.ttft_s, wished.tpot_s)
        if ttft_s >= least_s[0] and tpot_s >= least_s[1]:
            return wished
        return RequestSlo(ttft_s=max(ttft_s, least_s[0]), tpot_s=max(tpot_s, least_s[1]))


def _seconds(milliseconds: float | None) -> float:
    return 0.0 if milliseconds is None else milliseconds / 1e3


def held_to(wished: SloTargets, granted: SloTargets, promised: RequestSlo) -> list[tuple[bytes, bytes]]:
    """The headers that say what a request is held to: where it asked for something else, or wants to know."""
    said: dict[bytes, str] = {}
    if (wished.slo is not None and granted.slo != wished.slo) or granted.explain:
        said |= {
            b"x-headway-slo-ttft-ms": _milliseconds(promised.ttft_s),
            b"x-headway-slo-tpot-ms": _milliseconds(promised.tpot_s),
        }
    if granted.critical != wished.critical or granted.explain:
        said[b"x-headway-criticality"] = "critical" if granted.critical else "sheddable"
    return [(name, value.encode()) for name, value in said.items() if value]


def _milliseconds(seconds: float) -> str:
    return "" if seconds == inf else f"{1e3 * seconds:.10g}"


def check_tenants(routing: RoutingSettings, keys: Set[str]) -> None:
    """ConfigError for a name in `routing.tenants` that no request will ever have.

    `keys` are the tenants of those that are known; none: they may be known to the gateway alone.
    """
    for name in routing.tenants:
        key, divided, user = name.partition("/")
        if name == ANY_TENANT:
            continue
        if not key or (keys and key not in keys and not UNNAMED_TENANT.fullmatch(key)):
            known = ", ".join(sorted(keys)) or "none"
            raise ConfigError(
                f"routing.tenants: {name!r}: no key has that name; known: {known}; {ANY_TENANT!r}: any other"
            )
        if divided and not routing.tenant(key).per_user:
            raise ConfigError(f"routing.tenants: {name!r}: {key!r} has no users without per_user: true")
        if divided and "#" not in user and (said := cleaned(unquote(user), MOST_USER_CHARACTERS)) != user:
            raise ConfigError(f"routing.tenants: {name!r}: this user is called {key}/{said} there")
