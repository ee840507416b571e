"""Bodies of requests: how they come, and what the gateway reads of one, which goes to the engine as it came.

Bytes count as they come, not as they are announced: a client that announces much and sends nothing takes no
room from others. A body counts until its request is read and valid; from then on requests are counted.

Where there is no room for more, the body that came slowest so far (bytes since its first / time since) has to
go: one that is held open leaves to those that come, be it ever so large. Short ones always get in.

JSON costs by its values, more than by its bytes: 15 MB of `{},` are 5 million objects, for which the event
loop would stand still for seconds. So the values of a long body are counted as it comes, before it is parsed,
and one that has too many is refused. Of long bodies one part is taken in a turn of the event loop, however
many come, and huge ones are parsed one at a time, as that holds Python's lock: what else is under way waits
for one of them, not for all.

Of a body the gateway reads the model, whether to stream, the bound on the output, the outputs that it asks
for (`outputs`), the user and the conversation, and whether two replicas can share the work; `prompts` reads
the prompt. All else is the engine's to judge, and its refusals reach the client in its own words.
"""

import asyncio
import ctypes
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.types import Receive

from serve_apps.engines.answering.fields import body_fields
from serve_apps.engines.protocol import ClientCall
from serve_apps.faults import RETRY_AFTER_S, BodyTooLarge, BodyTooSlow, ClientGone, InvalidRequest, Shed
from serve_apps.gateway.outputs import MOST_OUTPUTS, several, taken_apart
from serve_apps.gateway.responses import COMPLETIONS, RESPONSES, Endpoint, HeaderList
from serve_apps.timed_protocol import MOST_BODY_BYTES
from serve_apps.tracing.spans import TRACEPARENT, TRACESTATE

MOST_UNREAD_BYTES = 256 * 2**20
"""Bytes of bodies that a gateway is still reading, of all requests together; beyond that status 429."""
WITHIN_S = 60.0
"""Seconds in which a body has to come; then status 408."""

SHORT_BYTES = 64 * 2**10
"""Bodies up to this get in whatever is held."""

LONG_BYTES = 256 * 2**10
"""Bodies from this on take turns, their values are counted, and they are parsed beside the event loop: what
is shorter has few in any case, and parsing it takes some milliseconds at the most."""

HUGE_BYTES = 2**20
"""Bodies from this on are parsed one at a time."""

MOST_COMMAS = 2**20
"""A comma for each but one value of an array or object: room for a million token ids."""

MOST_CONTAINERS = 2**16
"""Arrays and objects, each of them far dearer than a number."""

KEPT_BYTES = 32 * 2**20
"""What bodies held beyond this is given back to the system when the last one is gone."""


class ValueCount:
    """Counts commas, arrays and objects of JSON outside its strings, as its bytes come.

    Of what is no JSON it counts anything: that is refused where the parser first meets it.
    """

    __slots__ = ("_escaping", "_in_string", "commas", "containers")

    def __init__(self) -> None:
        self.commas = self.containers = 0
        self._in_string = self._escaping = False

    def add(self, part: bytes) -> None:
        """The next bytes."""
        if self._escaping:
            part = part[1:]
        plain = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        self._escaping = plain.endswith(b"\\")
        pieces = plain.split(b'"')
        outside = b"".join(pieces[self._in_string :: 2])
        self._in_string ^= len(pieces) % 2 == 0
        self.commas += outside.count(b",")
        self.containers += outside.count(b"{") + outside.count(b"[")

    @property
    def too_many(self) -> bool:
        """Whether parsing would take too long."""
        return self.commas > MOST_COMMAS or self.containers > MOST_CONTAINERS


@dataclass(slots=True, eq=False, kw_only=True)
class _Body:
    """One that comes; `time` is what it has for that."""

    began_s: float
    time: asyncio.Timeout
    size: int = 0
    parts: list[bytes] = field(default_factory=list)
    gave_way: bool = False
    values: ValueCount = field(default_factory=ValueCount)
    counted: int = 0
    """Parts whose values are counted."""

    def take(self, part: bytes) -> None:
        """A part. BodyTooLarge."""
        self.size += len(part)
        self.parts.append(part)
        if self.size >= LONG_BYTES:
            self._count()

    def _count(self) -> None:
        for part in self.parts[self.counted :]:
            self.values.add(part)
        self.counted = len(self.parts)
        if self.values.too_many:
            text = f"{MOST_COMMAS} values, or than {MOST_CONTAINERS} arrays and objects"
            raise BodyTooLarge(f"The body has more than {text}")

    def speed(self, now_s: float, more: int = 0) -> float:
        """Bytes in a second, with so many more that came now."""
        return (self.size + more) / max(now_s - self.began_s, 1e-6)


class Bodies:
    """Reads bodies; `held` bytes are in memory now, of at most `most_bytes` beside short ones."""

    def __init__(self, *, most_bytes: int = MOST_UNREAD_BYTES, within_s: float = WITHIN_S) -> None:
        self.held = self._most_held = 0
        self._coming: set[_Body] = set()
        self._turn, self._one_huge = asyncio.Lock(), asyncio.Lock()
        self._most_bytes, self.within_s = most_bytes, within_s

    @asynccontextmanager
    async def read(self, headers: Iterable[tuple[bytes, bytes]], receive: Receive) -> AsyncIterator[bytes]:
        """The body, held for the block. BodyTooLarge or Shed as soon as it is; BodyTooSlow, ClientGone."""
        for name, value in headers:
            if name == b"content-length" and value.isdigit() and int(value) > MOST_BODY_BYTES:
                raise _too_large()
        time = asyncio.timeout(self.within_s)
        body = _Body(began_s=asyncio.get_running_loop().time(), time=time)
        self._coming.add(body)
        try:
            try:
                async with time:
                    await self._fill(body, receive)
            except TimeoutError:
                if not time.expired():
                    raise
                raise self._too_slow(body) from None
            finally:
                self._coming.discard(body)
            if body.gave_way:
                # Its last part came before its time-out did.
                raise self._too_slow(body)
            whole = b"".join(body.parts)
            body.parts.clear()
            async with self._one_huge if body.size >= HUGE_BYTES else nullcontext():
                yield whole
        finally:
            self.held -= body.size
            if not self.held and self._most_held > KEPT_BYTES:
                self._most_held = 0
                asyncio.get_running_loop().run_in_executor(None, _trim)

    async def _fill(self, body: _Body, receive: Receive) -> None:
        more = True
        while more:
            if body.size >= LONG_BYTES:
                async with self._turn:
                    await asyncio.sleep(0)
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone("The client went away before its request was complete")
            part: bytes = message.get("body", b"")
            size = body.size + len(part)
            if size > MOST_BODY_BYTES:
                raise _too_large()
            if size > SHORT_BYTES and self.held + len(part) > self._most_bytes:
                self._make_room(body, len(part))
            self.held += len(part)
            self._most_held = max(self._most_held, self.held)
            body.take(part)
            more = message.get("more_body", False)

    def _make_room(self, body: _Body, needed: int) -> None:
        """For more of a body; Shed where it is itself the slowest."""
        now_s = asyncio.get_running_loop().time()
        while self.held + needed > self._most_bytes:
            others = (each for each in self._coming if each is not body and each.size > SHORT_BYTES)
            slowest = min(others, key=lambda each: each.speed(now_s), default=None)
            if slowest is None or body.speed(now_s, needed) <= slowest.speed(now_s):
                text = f"Bodies of {self.held} bytes are being read, which is as much as this gateway holds"
                raise Shed(text, retry_after_s=RETRY_AFTER_S)
            self.held -= slowest.size
            slowest.size, slowest.gave_way = 0, True
            slowest.parts.clear()
            if not slowest.time.expired():
                slowest.time.reschedule(now_s)

    def _too_slow(self, body: _Body) -> BodyTooSlow:
        if body.gave_way:
            return BodyTooSlow("The body came slower than others, for which its room was needed")
        return BodyTooSlow(f"The body did not come within {self.within_s:g} s")


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {MOST_BODY_BYTES} bytes")


def _trim() -> None:
    """Give back what is free: glibc keeps what was in use in pieces, be it hundreds of megabytes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


BOUNDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Fields that bound the output; the first that is given counts, as in vLLM."""

MOST_MESSAGES = 10_000
"""Each is looked at by itself: hundreds of thousands would take seconds."""

LONGEST_TRACE = 512
"""Characters of a `tracestate` that W3C's recommendation asks everybody to pass on."""

WHOLE_PROMPT = "the prompt's own probabilities are where it was computed"
BEAMS = "the KV of a prompt goes to one output"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt as the gateway reads it: `fields` are the body's, without other prompts.

    No `max_tokens`: the client sets no bound. `calls` are what engines get: one for each output of it.
    `beams`: choices that an engine makes side by side of one call. `user` and `cache_key`
    (`prompt_cache_key`) are as the client wrote them, of any length.
    """

    model: str | None
    max_tokens: int | None
    calls: Sequence[ClientCall]
    fields: Mapping[str, Any]
    beams: int = 1
    user: str | None = None
    cache_key: str | None = None


class CallReader:
    """Reads bodies. `separate`: prefill and decode are pools of their own, so every request is divided.

    `places`: outputs that there is ever room for at once.
    """

    def __init__(self, *, separate: bool, places: int = MOST_OUTPUTS) -> None:
        self._separate, self._most = separate, min(MOST_OUTPUTS, places)

    def read(self, endpoint: Endpoint, headers: HeaderList, body: bytes) -> Sequence[GenerationRequest]:
        """The prompts of a body, in order. InvalidRequest, BodyTooLarge."""
        try:
            fields = body_fields(body)
        except ValueError as error:
            raise InvalidRequest(str(error)) from error
        stream = _typed(fields, "stream", bool)
        bounds = [_typed(fields, name, int, least=1) for name in BOUNDS]
        bound = next((each for each in bounds if each is not None), endpoint.own_bound)
        for name in ("messages", "input"):
            if isinstance(fields.get(name), list):
                _check_count(name, fields[name])
        undivided = _undivided(fields)
        if undivided is not None and self._separate:
            name, why = undivided
            text = f"{name!r} of this value is not possible with separate prefill and decode pools: {why}"
            raise InvalidRequest(text, param=name)
        trace = tuple(
            each for each in headers if each[0] in (TRACEPARENT, TRACESTATE) and len(each[1]) <= LONGEST_TRACE
        )
        model, user = _typed(fields, "model", str), _typed(fields, "user", str)
        cache_key = _typed(fields, "prompt_cache_key", str)
        parts, beams = self._parts(endpoint, fields, body)
        return [
            GenerationRequest(
                model=model,
                max_tokens=bound,
                calls=[
                    ClientCall(endpoint.path, each, bool(stream), bound is not None, undivided is None, trace)
                    for each in bodies
                ],
                fields=own,
                beams=beams,
                user=user,
                cache_key=cache_key,
            )
            for own, bodies in parts
        ]

    def _parts(
        self, endpoint: Endpoint, fields: Mapping[str, Any], body: bytes
    ) -> tuple[Sequence[tuple[Mapping[str, Any], Sequence[bytes]]], int]:
        """For each prompt its fields and a body for each output, and the beams of each."""
        if endpoint is RESPONSES:
            return [(fields, [body])], 1
        prompts, n = several(fields, prompts=endpoint is COMPLETIONS, most=self._most)
        copies, beams = (1, n) if _typed(fields, "use_beam_search", bool) else (n, 1)
        if len(prompts) * copies == 1:
            return [(fields, [body])], beams
        return list(taken_apart(fields, prompts, copies)), beams


def model_named(body: bytes) -> str | None:
    """The model that a body names, None without one. InvalidRequest: it is no JSON, or the name no text."""
    try:
        return _typed(body_fields(body), "model", str)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


def _check_count(name: str, messages: Sequence[object]) -> None:
    if len(messages) > MOST_MESSAGES:
        text = f"Invalid {name!r}: it holds {len(messages)}, and at most {MOST_MESSAGES} are read"
        raise InvalidRequest(text, param=name)


Kind = TypeVar("Kind", bool, int, str)


def _typed(fields: Mapping[str, Any], name: str, kind: type[Kind], *, least: int = 0) -> Kind | None:
    value = fields.get(name)
    if value is None:
        return None
    # Not by isinstance: in Python true is an integer, in JSON it is none.
    if type(value) is not kind:
        raise InvalidRequest(f"Invalid {name!r}: it should be of type {_JSON_NAMES[kind]}", param=name)
    found: Kind = kind(value)
    if isinstance(found, int) and not least <= found < 2**31:
        raise InvalidRequest(f"Invalid {name!r}: it should be from {least} to {2**31 - 1}", param=name)
    return found


_JSON_NAMES = {bool: "boolean", int: "integer", str: "string"}


def _undivided(fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """The field for which the replica that decodes has to compute the prompt, too, and why."""
    if _typed(fields, "use_beam_search", bool):
        return "use_beam_search", BEAMS
    if fields.get("prompt_logprobs") is not None:
        return "prompt_logprobs", WHOLE_PROMPT
    if fields.get("echo") and fields.get("logprobs") is not None:
        return "echo", WHOLE_PROMPT
    return None
