"""The tenant of a request, and what that tenant may ask for (`routing.tenants`).

    tenant     KEY, or KEY/USER where the key speaks for many (`per_user`) and the body names a `user`
    session    TENANT/SESSION: of a header, else of the body's `prompt_cache_key`
    SLO held   max(SLO asked for, the tenant's least); of a request without one: max(the deployment's, least)
    critical   asked for, by header, class or `routing.default_critical`, and the tenant may be

KEY is the name of an API key, which has no `/` (`serve_apps.access`). USER and SESSION are what clients say:
everything but letters, digits and `-._~@:+=` is percent-encoded, so neither contains a `/`, and what is
longer than it may be is its beginning, `#` and a digest of the whole. So no text of one tenant makes the name
of another, nor of its sessions; and different texts stay different.

A request without an SLO of its own is held to the deployment's. Where that is tighter than the tenant's
least, the least counts: a request that asks for nothing gets no more than it may ask for.
"""

from collections.abc import Callable, Set
from dataclasses import replace
from hashlib import blake2b
from math import inf
from urllib.parse import quote, unquote

from headway.config import ConfigError
from headway.config.routing import ANY_TENANT, RoutingSettings, TenantSettings
from headway.planning import Slo
from headway.routing.types import RequestSlo
from serve_apps.access import UNNAMED_TENANT, Holder
from serve_apps.gateway.reading import GenerationRequest
from serve_apps.gateway.slo_targets import MOST_SESSION_CHARACTERS, SloTargets

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
