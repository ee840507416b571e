"""The headers with which a request asks something of routing, and the request as the router sees it.

    x-slo-ttft-ms, x-slo-tpot-ms             milliseconds above 0; also as x-llm-d-slo-*
    x-prediction-based-scheduling            true | false | 1 | 0; true needs an SLO, of headers or class
    x-headway-slo-class                      a name in `slo.classes`
    x-headway-criticality                    critical | sheddable
    x-session-id, x-headway-session          the conversation that the request belongs to
    x-headway-explain                        true: the response's headers say where it was served, and why

A class fills in what headers leave open; what a class leaves open is as the deployment's targets are at that
moment. What of it a tenant gets, `admission` says. A header that is not what it should be is the client's
error, which names it; where a header comes twice, the later one counts. Both spellings of a target with
different values are an error: neither is more right than the other.

The router is asked for every request where the profile, offload or SLO classes need it, else for those that
ask for prediction-based scheduling. Prefix blocks are made only for these, and only where replicas keep
prefixes.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from actors.routing_actors import needs_router
from headway.config import HeadwayConfig
from headway.config.routing import SloClass
from headway.engine import EngineRules
from headway.engine.kinds import caches_prefixes
from headway.planning import Slo
from headway.routing.types import NO_SLO, Placement, RequestSlo, RouteRequest
from serve_apps.faults import InvalidRequest
from serve_apps.gateway.prompts import prefix_blocks

Headers = Iterable[tuple[bytes, bytes]]
MOST_SESSION_CHARACTERS = 256

LEAST_MS, MOST_MS = 1e-6, 1e12
"""Bounds of an SLO: what is divided by it, or by a thousand, stays above 0 and finite."""

SWITCH: Mapping[str, bool] = {"true": True, "1": True, "false": False, "0": False}
CRITICALITY: Mapping[str, bool] = {"critical": True, "sheddable": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class SloTargets:
    """The wishes of one request, or what `admission` grants of them. `slo` None: the deployment's counts.

    `class_place` counts the classes of the settings from 1 on; 0: it names none. `tenant` is not a wish.
    """

    slo: RequestSlo | None = None
    slo_class: str = ""
    class_place: int = 0
    critical: bool = False
    prediction_based: bool = False
    session: str | None = None
    explain: bool = False
    tenant: str = ""


class SloTargetReader:
    """Reads headers, given the classes of the settings; `targets` are the deployment's, which may change."""

    def __init__(
        self, classes: Mapping[str, SloClass], targets: Callable[[], Slo], *, default_critical: bool
    ) -> None:
        self._classes, self._targets = classes, targets
        self._plain = SloTargets(critical=default_critical)

    def read(self, headers: Headers) -> SloTargets:
        """The targets that the headers set; InvalidRequest names the header."""
        given = {name: value for name, value in headers if name in _NAMES}
        if not given:
            return self._plain
        _check_spellings(given)
        return self._of_headers({_NAMES[name]: (name, value) for name, value in given.items()})

    def _of_headers(self, said: Mapping[str, tuple[bytes, bytes]]) -> SloTargets:
        values = {
            key: _READERS[key](name.decode(), _text(name, value)) for key, (name, value) in said.items()
        }
        slo_class = self._class(values.get("class"))
        of_class = self._classes.get(slo_class)
        slo = _slo(values, None if of_class is None else class_slo(of_class, self._targets()))
        prediction_based = bool(values.get("prediction", False))
        if prediction_based and (slo is None or not slo.given):
            header = said["prediction"][0].decode()
            raise InvalidRequest(
                f"{header}: needs an SLO: x-slo-ttft-ms, x-slo-tpot-ms, or x-headway-slo-class", param=header
            )
        by_class = self._plain.critical if of_class is None else of_class.critical
        session = values.get("session")
        return SloTargets(
            slo=slo,
            slo_class=slo_class,
            class_place=list(self._classes).index(slo_class) + 1 if slo_class else 0,
            critical=bool(values.get("criticality", by_class)),
            prediction_based=prediction_based,
            session=None if session is None else str(session),
            explain=bool(values.get("explain", False)),
        )

    def _class(self, name: object) -> str:
        if name is None:
            return ""
        if name not in self._classes:
            known = ", ".join(sorted(self._classes)) or "there are none: see slo.classes in the settings"
            header = "x-headway-slo-class"
            raise InvalidRequest(f"{header}: unknown class {name!r:.80}; known: {known}", param=header)
        return str(name)


def _check_spellings(given: Mapping[bytes, bytes]) -> None:
    for name, other in SPELLINGS:
        if name in given and other in given:
            one, two = (_milliseconds(each.decode(), _text(each, given[each])) for each in (name, other))
            if one != two:
                text = f"{name.decode()}: {one:g}, but {other.decode()} is {two:g}: send one of them"
                raise InvalidRequest(text, param=name.decode())


def _slo(values: Mapping[str, object], of_class: RequestSlo | None) -> RequestSlo | None:
    ttft, tpot = values.get("ttft"), values.get("tpot")
    if ttft is None and tpot is None:
        return of_class
    otherwise = of_class or NO_SLO
    return RequestSlo(ttft_s=_seconds(ttft, otherwise.ttft_s), tpot_s=_seconds(tpot, otherwise.tpot_s))


def class_slo(settings: SloClass, targets: Slo) -> RequestSlo:
    """The targets of a class, in seconds."""
    return RequestSlo(
        ttft_s=_seconds(settings.ttft_ms, targets.ttft_s), tpot_s=_seconds(settings.tpot_ms, targets.itl_s)
    )


def _seconds(milliseconds: object, otherwise_s: float) -> float:
    return float(milliseconds) / 1e3 if isinstance(milliseconds, float | int) else otherwise_s


def _text(name: bytes, value: bytes) -> str:
    try:
        return value.decode().strip()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name.decode()}: is not text", param=name.decode()) from error


def _milliseconds(header: str, text: str) -> float:
    try:
        # Python would also take "1_000".
        value = math.nan if "_" in text else float(text)
    except ValueError:
        value = math.nan
    if not LEAST_MS <= value <= MOST_MS:
        limits = f"milliseconds above 0, {LEAST_MS:g} to {MOST_MS:g}"
        raise InvalidRequest(f"{header}: should be {limits}, not {text!r:.80}", param=header)
    return value


def _choice(choices: Mapping[str, bool]) -> Callable[[str, str], bool]:
    def read(header: str, text: str) -> bool:
        if text.lower() not in choices:
            known = ", ".join(choices)
            raise InvalidRequest(f"{header}: should be one of {known}, not {text!r:.80}", param=header)
        return choices[text.lower()]

    return read


def _session(header: str, text: str) -> str:
    if not 0 < len(text) <= MOST_SESSION_CHARACTERS:
        limits = f"1 to {MOST_SESSION_CHARACTERS} characters"
        raise InvalidRequest(f"{header}: should have {limits}, not {len(text)}", param=header)
    return text


_NAMES: Mapping[bytes, str] = {
    b"x-slo-ttft-ms": "ttft",
    b"x-llm-d-slo-ttft-ms": "ttft",
    b"x-slo-tpot-ms": "tpot",
    b"x-llm-d-slo-tpot-ms": "tpot",
    b"x-prediction-based-scheduling": "prediction",
    b"x-headway-slo-class": "class",
    b"x-headway-criticality": "criticality",
    b"x-session-id": "session",
    b"x-headway-session": "session",
    b"x-headway-explain": "explain",
}

SPELLINGS = ((b"x-slo-ttft-ms", b"x-llm-d-slo-ttft-ms"), (b"x-slo-tpot-ms", b"x-llm-d-slo-tpot-ms"))

_READERS: Mapping[str, Callable[[str, str], object]] = {
    "ttft": _milliseconds,
    "tpot": _milliseconds,
    "prediction": _choice(SWITCH),
    "class": lambda _, text: text,
    "criticality": _choice(CRITICALITY),
    "session": _session,
    "explain": _choice(SWITCH),
}

BLOCK_TOKENS = EngineRules().block_tokens
"""Tokens of a prefix block, as in the simulated engines' cache."""


class Routes:
    """Makes the router's view of requests."""

    def __init__(self, config: HeadwayConfig) -> None:
        self._always = needs_router(config)
        self._prefixes = caches_prefixes(config)

    def needed(self, targets: SloTargets) -> bool:
        """True if the router is asked."""
        return self._always or targets.prediction_based

    def blocks(self, prompt: str | Sequence[int], adapter: str = "") -> tuple[int, ...]:
        """The prompt's prefix blocks, of an adapter its own ones; none where replicas keep none."""
        return prefix_blocks(prompt, BLOCK_TOKENS, adapter) if self._prefixes else ()


def route_request(
    request_id: str,
    arrival_s: float,
    lengths: tuple[int, int],
    blocks: tuple[int, ...],
    targets: SloTargets,
    *,
    adapter: str = "",
) -> RouteRequest:
    """The request for the router; `lengths` are its input tokens and its bound on output tokens."""
    return RouteRequest(
        request_id=request_id,
        arrival_s=arrival_s,
        input_tokens=lengths[0],
        max_tokens=lengths[1],
        slo=targets.slo or NO_SLO,
        critical=targets.critical,
        prediction_based=targets.prediction_based,
        session=targets.session,
        blocks=blocks,
        block_tokens=BLOCK_TOKENS,
        tenant=targets.tenant,
        adapter=adapter,
    )


def explanation(placement: Placement) -> list[tuple[bytes, bytes]]:
    """The headers that say where a request is served."""
    said = {
        b"x-headway-replica": placement.decode_replica,
        b"x-headway-prefill-replica": placement.prefill_replica,
        b"x-headway-route-class": placement.route_class,
        b"x-headway-route-reason": placement.reason,
        b"x-headway-predicted-ttft-ms": _as_milliseconds(placement.predicted_ttft_s),
        b"x-headway-predicted-tpot-ms": _as_milliseconds(placement.predicted_tpot_s),
        b"x-headway-queued-ms": _as_milliseconds(placement.queued_s),
    }
    return [(name, str(value).encode()) for name, value in said.items() if value is not None]


def _as_milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{1e3 * seconds:.3f}"
