"""API keys, the roles (`Right`) that they have, and the roles that a request needs.

    access = make_access(config.gateway)        # ConfigError, one line
    holder = access.admit(scope)                # Unauthorized (401), Forbidden (403)

| a key of                                      | has the roles     |
|-----------------------------------------------|-------------------|
| `gateway.api_keys`, HEADWAY_API_KEYS          | infer, observe    |
| `gateway.keys_file`                           | those of its line |
| nowhere: there are no keys, this machine only | all               |

`OPEN` are open: probes and Prometheus carry no keys, and what they read holds no content of requests; the
live page is the same for all, and asks for a key before it shows anything. Of everything else `NEEDS` says
the role; a path that it does not list needs a key of any role, unknown paths included: what is open is
listed, not what is protected.

The keys file is a YAML list, looked at once a second and read again when it has changed. One that cannot
be read then, or holds no key, leaves the keys as they were, which is logged: to take a key back, remove its
entry.

A page in somebody's browser may send requests, to this machine's loopback too. So control requests of a page
of another origin (`CONTROL`) are refused, with and without keys; and without keys those to a name that is not
known as ours: another's name may lead here (DNS rebinding). Names are `localhost`, addresses, this machine's,
`gateway.host` and `gateway.hosts`. Bodies have to be JSON, which no page sends elsewhere by itself.

Keys are kept and compared as SHA-256, so that a comparison tells nothing of their length; all are compared in
constant time, whichever fits.
"""

import hmac
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

import yaml
from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from starlette.types import Scope

from headway.config import ConfigError, GatewaySettings, Right, Settings
from headway.config.base import describe
from headway.config.routing import ANY_TENANT
from serve_apps.faults import Forbidden, Unauthorized

logger = logging.getLogger("ray.serve")

VARIABLE = "HEADWAY_API_KEYS"
INFERENCE = frozenset({Right.INFER, Right.OBSERVE})
LOOK_EVERY_S = 1.0
OTHERS = 0o077

READ, ANY = frozenset({"GET", "HEAD"}), None
OPEN = frozenset({"/", "/health", "/ready", "/metrics", "/openapi.json", "/docs"})
NEEDS = (
    (READ, "/metrics/requests", frozenset({Right.OBSERVE})),
    (READ, "/v1/requests/", frozenset({Right.OBSERVE, Right.INFER})),
    (READ, "/v1/control/", frozenset({Right.OBSERVE})),
    (ANY, "/v1/control/", frozenset({Right.OPERATE})),
    (READ, "/v1/scaling/", frozenset({Right.OBSERVE, Right.SCALE})),
    (ANY, "/v1/scaling/", frozenset({Right.SCALE})),
    (ANY, "/v1/completions", frozenset({Right.INFER})),
    (ANY, "/v1/chat/", frozenset({Right.INFER})),
    (ANY, "/v1/responses", frozenset({Right.INFER})),
    (ANY, "/v1/embeddings", frozenset({Right.INFER})),
    (ANY, "/tokenize", frozenset({Right.INFER})),
    (ANY, "/detokenize", frozenset({Right.INFER})),
    (ANY, "/v1/models", frozenset({Right.INFER})),
    (READ, "/v1/fleet", frozenset({Right.OBSERVE})),
)
"""Methods and beginnings of paths, the first that fits counts, and the roles of which one is enough."""

CONTROL = ("/v1/control/", "/v1/scaling/", "/v1/fleet")
"""Beginnings of the paths of control requests."""

EVERY = frozenset(Right)
ON_LOOPBACK, ANONYMOUS = "unauthenticated on loopback", "unauthenticated"
UNNAMED = "a key without a name"
"""Of `gateway.api_keys` or HEADWAY_API_KEYS."""

NOBODY = "anonymous"
"""The tenant of requests where there are no keys."""

UNNAMED_TENANT = re.compile("key-[0-9a-f]{8}")
"""The tenant of a key without a name: the beginning of its SHA-256."""

MOST_NAME_CHARACTERS = 128
FROM_BROWSERS = frozenset({b"host", b"origin", b"sec-fetch-site"})
Headers = Iterable[tuple[bytes, bytes]]


class KeyLimits(Settings):
    """The limits of one key; null: none. Tokens are those of prompt and output together."""

    requests_at_once: PositiveInt | None = None
    streams_at_once: PositiveInt | None = None
    tokens_at_once: PositiveInt | None = None
    requests_per_minute: PositiveInt | None = None
    tokens_per_minute: PositiveInt | None = None
    weight: PositiveFloat = 1.0
    """Its share beside that of others where more is asked than the gateway takes."""

    def shared(self, gateways: int) -> "KeyLimits":
        """What each of so many gateways keeps. ValueError for a limit that has no share for each."""
        limits = self.model_dump(exclude_none=True, exclude={"weight"})
        if short := [name for name, most in limits.items() if most < gateways]:
            raise ValueError(
                f"{short[0]}: {limits[short[0]]} is too little to share among {gateways} gateways"
            )
        return KeyLimits(weight=self.weight, **{name: most // gateways for name, most in limits.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The name, the roles, the limits and the models of a key (None: any); `alone` where no key has another
    name.

    `tenant` is unique (`routing.tenants`): the name of the key, or of one without a name `key-` and
    the first 8 hexadecimal digits of its SHA-256.
    """

    name: str = UNNAMED
    tenant: str = NOBODY
    rights: frozenset[Right]
    limits: KeyLimits | None = None
    models: frozenset[str] | None = None
    alone: bool = True

    def may_use(self, model: str) -> bool:
        """Whether requests for this model, or adapter, may be made."""
        return self.models is None or model in self.models

    def check_model(self, model: str) -> None:
        """Forbidden where it may not be used."""
        if not self.may_use(model):
            raise Forbidden(f"This key may not use the model {model!r}", param="model")


Keys = Mapping[bytes, Holder]
"""Holders by SHA-256 of the key."""


class KeyEntry(Settings):
    """One entry of a keys file; `sha256` is the hexadecimal digest, in place of the key itself."""

    name: str = Field(min_length=1)
    key: SecretStr | None = None
    sha256: str | None = Field(default=None, pattern="^[0-9a-fA-F]{64}$")
    roles: tuple[Right, ...] = Field(min_length=1)
    limits: KeyLimits | None = None
    models: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Models and adapters that it may use; null: any."""

    @field_validator("name")
    @classmethod
    def _divides_no_tenants(cls, name: str) -> str:
        if "/" in name or name == ANY_TENANT or not name.isprintable() or len(name) > MOST_NAME_CHARACTERS:
            raise ValueError(
                f"should be of at most {MOST_NAME_CHARACTERS} characters that print, without '/', and not"
                f" {ANY_TENANT!r}: it is also a tenant's (routing.tenants)"
            )
        return name

    @model_validator(mode="after")
    def _has_one_form(self) -> "KeyEntry":
        if (self.key is None) == (self.sha256 is None):
            raise ValueError("needs either key or sha256")
        if self.key is not None and not self.key.get_secret_value().strip("* "):
            raise ValueError("key is empty or masked (only asterisks)")
        return self

    @property
    def digest(self) -> bytes:
        """SHA-256 of the key."""
        if self.key is None:
            return bytes.fromhex(self.sha256 or "")
        return sha256(self.key.get_secret_value().encode()).digest()


class KeysFile(Settings):
    """The whole file."""

    keys: tuple[KeyEntry, ...] = Field(min_length=1)


def read_keys(path: Path, gateways: int = 1) -> Keys:
    """The keys of a file, with their limits at each of so many gateways. ConfigError, one line, without the
    keys in it.
    """
    place = f"gateway.keys_file: {path}"
    try:
        listed = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror or error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        raise ConfigError(f"{place}: is not YAML{where}") from None
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{place}: should be a list of keys with name, key or sha256, and roles")
    try:
        entries = KeysFile.model_validate({"keys": listed}).keys
    except ValidationError as error:
        raise ConfigError(f"{place}: {_fault(error)}") from None
    names = [entry.name for entry in entries]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"{place}: the name {min(twice)!r} is there twice")
    return united((entry.digest, _held(entry, place, gateways)) for entry in entries)


def _held(entry: KeyEntry, place: str, gateways: int) -> Holder:
    try:
        limits = None if entry.limits is None else entry.limits.shared(gateways)
    except ValueError as error:
        raise ConfigError(f"{place}: {entry.name}: limits: {error}") from None
    models = None if entry.models is None else frozenset(entry.models)
    rights = frozenset(entry.roles)
    return Holder(name=entry.name, tenant=entry.name, rights=rights, limits=limits, models=models)


def _fault(error: ValidationError) -> str:
    """One line; the value of a key that pydantic would show is left out."""
    place, text = describe(error, KeysFile.model_json_schema())
    number, _, key = place.removeprefix("keys.").partition(".")
    entry = f"entry {int(number) + 1}" if number.isdecimal() else "keys"
    said = text.partition(", not ")[0] if key in ("key", "sha256", "") else text
    return f"{entry}: {key}: {said}" if key else f"{entry}: {said}"


def united(pairs: Iterable[tuple[bytes, Holder]]) -> Keys:
    """Holders by key; a key that is there twice has the roles of both, and the later name."""
    keys: dict[bytes, Holder] = {}
    for digest, holder in pairs:
        before = keys[digest].rights if digest in keys else frozenset()
        keys[digest] = replace(holder, rights=before | holder.rights)
    alone = len({holder.name for holder in keys.values()}) == 1
    return {digest: replace(holder, alone=alone) for digest, holder in keys.items()}


class Access:
    """The keys in force. Without any, every request is let in, and comes from `anonymous`."""

    def __init__(
        self,
        keys: Keys,
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        anonymous: str = ON_LOOPBACK,
        gateways: int = 1,
        hosts: Iterable[str] = (),
    ) -> None:
        self._hosts = frozenset({"localhost", socket.gethostname().lower(), *map(str.lower, hosts)})
        self._stated, self._file, self._clock = keys, file, clock
        self._gateways = gateways
        self._anonymous = Holder(name=anonymous, rights=EVERY)
        self._looked_s, self._stamp = clock(), _stamp(file)
        self._keys = keys if file is None else united([*keys.items(), *read_keys(file, gateways).items()])
        self._warn()

    @property
    def keyed(self) -> bool:
        """Whether there are keys."""
        return bool(self._keys)

    @property
    def tenants(self) -> Set[str]:
        """The tenants of all keys."""
        return {holder.tenant for holder in self._keys.values()}

    def admit(self, scope: Scope) -> Holder:
        """The holder of the key of a request. Unauthorized or Forbidden where it may not be made."""
        method, path = scope["method"], scope["path"]
        needed, holder = needs(method, path), self._holder(scope["headers"])
        if path.startswith(CONTROL):
            self._check_origin(scope["headers"], changes=method not in READ)
        if needed is None:
            return holder or self._anonymous
        if holder is None:
            raise Unauthorized("Send a valid API key as 'Authorization: Bearer KEY'")
        if not holder.rights & needed:
            wanted, has = " or ".join(sorted(needed)), ", ".join(sorted(holder.rights))
            raise Forbidden(f"{method} {path} needs the role {wanted}; this key has {has}")
        return holder

    def _check_origin(self, headers: Headers, *, changes: bool) -> None:
        """Forbidden for what a page of another origin sends, or one that another's name led here."""
        found = {name: value.decode("latin-1").lower() for name, value in headers if name in FROM_BROWSERS}
        host = found.get(b"host", "")
        origin, site = found.get(b"origin", f"http://{host}"), found.get(b"sec-fetch-site", "none")
        if changes and (origin.partition("://")[2] != host or site not in ("none", "same-origin")):
            raise Forbidden(f"Control requests of a page of another origin are refused ({origin[:100]})")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if not self._keys and name not in self._hosts and not _is_address(name):
            raise Forbidden(
                f"Without keys, control requests go to an address or a name of this machine, not to"
                f" {name[:100]!r}: add it to gateway.hosts, or set keys"
            )

    def _holder(self, headers: Headers) -> Holder | None:
        self._look()
        if not self._keys:
            return self._anonymous
        offered = sha256(_bearer(headers)).digest()
        found: Holder | None = None
        for digest, holder in self._keys.items():
            if hmac.compare_digest(digest, offered):
                found = holder
        return found

    def _look(self) -> None:
        """Read the file again when it has changed."""
        now_s = self._clock()
        if self._file is None or now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        if (stamp := _stamp(self._file)) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = united([*self._stated.items(), *read_keys(self._file, self._gateways).items()])
        except ConfigError as error:
            logger.warning("the keys stay as they were: %s", error)
            return
        logger.info("%s was read again: %d keys", self._file, len(self._keys))
        self._warn()

    def _warn(self) -> None:
        if self._file is not None and (mode := self._file.stat().st_mode & 0o777) & OTHERS:
            _warn_of(self._file, mode)


@cache
def _warn_of(file: Path, mode: int) -> None:
    """Once a process: each deployment of a fleet is checked with the keys of all."""
    logger.warning("%s may be read by others (mode %04o): chmod 600", file, mode)


def make_access(settings: GatewaySettings, environ: Mapping[str, str] = os.environ) -> Access:
    """Keys of the settings, of HEADWAY_API_KEYS and of the keys file.

    ConfigError: none, yet open to other machines; or the file cannot be used.
    """
    configured = [key.get_secret_value() for key in settings.api_keys]
    keys = configured + [key.strip() for key in environ.get(VARIABLE, "").split(",") if key.strip()]
    for key in keys:
        if not key.strip("* "):
            # What a SecretStr prints as: settings were dumped to JSON and read back.
            raise ConfigError("gateway.api_keys: a key is empty or masked (only asterisks)")
    file = None if settings.keys_file is None else Path(settings.keys_file)
    if not keys and file is None and not settings.loopback and not settings.allow_anonymous:
        raise ConfigError(
            f"gateway.host: {settings.host} is open to other machines, but there are no API keys; set"
            f" gateway.api_keys, gateway.keys_file or {VARIABLE}, or gateway.allow_anonymous: true"
        )
    stated = united(map(_unnamed, keys))
    anonymous = ON_LOOPBACK if settings.loopback else ANONYMOUS
    hosts = (settings.host, *settings.hosts)
    return Access(stated, file, anonymous=anonymous, gateways=settings.replicas, hosts=hosts)


def _unnamed(key: str) -> tuple[bytes, Holder]:
    digest = sha256(key.encode()).digest()
    return digest, Holder(tenant=f"key-{digest.hex()[:8]}", rights=INFERENCE)


def needs(method: str, path: str) -> frozenset[Right] | None:
    """The roles of which a request needs one; None where it needs no key."""
    if path in OPEN:
        return None
    for methods, beginning, rights in NEEDS:
        if path.startswith(beginning) and (methods is None or method in methods):
            return rights
    return EVERY


def own_scope(scope: Scope) -> Scope:
    """The scope without the root path under which the application is mounted: what is checked is routed."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    if root and path.startswith(root + "/"):
        path = path[len(root) :]
    return {**scope, "path": path, "root_path": ""} if scope.get("root_path") else scope


def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _bearer(headers: Headers) -> bytes:
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            return key.strip() if scheme.lower() == b"bearer" else b""
    return b""


def _stamp(file: Path | None) -> tuple[int, int, int] | None:
    """Changes when the file does; None where there is none."""
    try:
        found = None if file is None else file.stat()
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)
