"""One request over HTTP: its times go to a `StreamTimer`, its end is an `Ending`, never an exception.

The answer is a stream of server-sent events. An event is its `data:` lines joined by newlines, up to an empty
line; comments and other fields are skipped. The stream of a completion ends with the data `[DONE]`.
Cancelling `perform` closes the connection, so that the server can abort the request.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from json import loads
from typing import Any
from urllib.parse import quote

import aiohttp

from headway.loadgen.plan import LoadError, LoadPlan, PlannedRequest, authorisation, base_url
from headway.loadgen.records import Ending, RequestOutcome, StreamTimer

DONE = b"[DONE]"
LONGEST_DETAIL = 400


class EventParser:
    """Bytes as they arrive → the data of whole events. Lines may end in LF or CR LF."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> Iterator[bytes]:
        """The events that are complete now."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data = []


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionEvent:
    """One event: whether it is of a choice, carries text, ends it, counts tokens so far, or is an error."""

    has_choice: bool = False
    has_text: bool = False
    finished: bool = False
    output_tokens: int | None = None
    input_tokens: int | None = None
    error: str | None = None


def read_event(data: bytes) -> CompletionEvent:
    """The content of an event; data that is no JSON object is an error event."""
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return CompletionEvent(error=f"not a JSON object: {data[:80]!r}")
    if document.get("error") is not None:
        return CompletionEvent(error=error_text(document))
    choices = [choice for choice in document.get("choices") or () if isinstance(choice, dict)]
    usage = document.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return CompletionEvent(
        has_choice=bool(choices),
        has_text=any(choice.get("text") for choice in choices),
        finished=any(choice.get("finish_reason") for choice in choices),
        output_tokens=_count(usage.get("completion_tokens")),
        input_tokens=_count(usage.get("prompt_tokens")),
    )


def error_text(document: Any) -> str:  # noqa: ANN401 - whatever a server sent
    """The message of an error in OpenAI's form, the reason of `/ready`, or else the document, in one line."""
    error = document.get("error", document) if isinstance(document, dict) else document
    text = error.get("message", error.get("reason", error)) if isinstance(error, dict) else error
    return _cut(" ".join(str(text).split()))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_DETAIL else f"{text[:LONGEST_DETAIL]}…"


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


Clock = Callable[[], float]

ASK_TIMEOUT_S = 10.0
IDLE_S = 2.0
"""Idle connections are given up before usual servers do (5 s), so that no request meets a closing one."""
OK, TOO_MANY_REQUESTS = 200, 429


def make_session(plan: LoadPlan) -> aiohttp.ClientSession:
    """Connections without a limit: the open loop must never wait for one."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300, keepalive_timeout=IDLE_S),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"Content-Type": "application/json", **plan.headers},
    )


async def perform(
    session: aiohttp.ClientSession, plan: LoadPlan, planned: PlannedRequest, timer: StreamTimer, clock: Clock
) -> Ending:
    """Send a request and follow its stream to the end."""
    left_s = planned.at_s + plan.timeout_s - clock()
    try:
        async with asyncio.timeout(max(left_s, 0.0)):
            timer.sent(clock())
            async with session.post(plan.completions_url, data=planned.body) as response:
                if response.status != OK:
                    return await _refused(response)
                return await _follow(response, timer, clock)
    except TimeoutError:
        return Ending(outcome=RequestOutcome.TIMEOUT)
    except (aiohttp.ClientError, OSError) as error:
        return Ending(outcome=RequestOutcome.CONNECTION, detail=_one_line(error))


async def _refused(response: aiohttp.ClientResponse) -> Ending:
    text = (await response.content.read(4096)).decode(errors="replace")
    detail = _detail(text)
    outcome = RequestOutcome.SHED if response.status == TOO_MANY_REQUESTS else RequestOutcome.HTTP
    return Ending(outcome=outcome, status=response.status, detail=f"{response.status}: {detail}".rstrip(": "))


async def _follow(response: aiohttp.ClientResponse, timer: StreamTimer, clock: Clock) -> Ending:
    parser, reading = EventParser(), _Reading(timer)
    async for received in response.content.iter_any():
        now_s = clock()
        for data in parser.feed(received):
            if data == DONE:
                return reading.ending()
            event = read_event(data)
            if event.error is not None:
                return Ending(outcome=RequestOutcome.ERROR_EVENT, detail=event.error, **reading.counted)
            reading.take(event, now_s)
    return Ending(
        outcome=RequestOutcome.INCOMPLETE, detail="the stream ended without [DONE]", **reading.counted
    )


class _Reading:
    """The part of a stream that has arrived."""

    def __init__(self, timer: StreamTimer) -> None:
        self._timer = timer
        self._finished = False
        self._chunks = 0
        self._output_tokens: int | None = None
        self._input_tokens: int | None = None

    @property
    def counted(self) -> dict[str, Any]:
        """The token counts, as fields of an `Ending`."""
        return {"output_tokens": self._output_tokens, "input_tokens": self._input_tokens}

    def take(self, event: CompletionEvent, now_s: float) -> None:
        """Note an event; one with text is a chunk, of as many tokens as its usage rose by."""
        # A stream that reports usage all along may send tokens without text; they are chunks all the same.
        rise = None
        if event.output_tokens is not None:
            rise = event.output_tokens - (self._output_tokens or 0)
        said_all_along = self._output_tokens is not None or not self._chunks
        if event.has_text or (event.has_choice and said_all_along and rise):
            self._timer.chunk(now_s, rise)
            self._chunks += 1
        self._finished |= event.finished
        if event.output_tokens is not None:
            self._output_tokens = event.output_tokens
        if event.input_tokens is not None:
            self._input_tokens = event.input_tokens

    def ending(self) -> Ending:
        """The end of a stream that has said that it is done."""
        if not self._chunks:
            return Ending(outcome=RequestOutcome.INCOMPLETE, detail="the stream had no text", **self.counted)
        return Ending(outcome=RequestOutcome.OK, status=OK, **self.counted)


async def fetch_models(url: str, api_key: str | None = None) -> list[str]:
    """The ids that `/v1/models` lists; LoadError names the address and what went wrong."""
    address = f"{base_url(url)}/v1/models"
    try:
        status, text = await _asked(address, api_key)
    except TimeoutError:
        raise LoadError(f"{address}: no answer within {ASK_TIMEOUT_S:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise LoadError(f"{address}: {_one_line(error)}") from error
    if status != OK:
        raise LoadError(f"{address}: answered with status {status}: {_detail(text)}")
    return _ids(address, text)


async def fetch_slo(url: str, model: str, api_key: str | None = None) -> Mapping[str, float]:
    """What a server of Headway's promises for a model: `ttft_ms`, `itl_ms`, `attainment`; nothing where none
    is told.
    """
    place = base_url(url)
    try:
        status, text = await _asked(f"{place}/v1/models/{quote(model, safe='')}", api_key)
        if status == OK and (deployment := loads(text).get("deployment")):
            place = f"{place}/deployments/{deployment}"
        status, text = await _asked(f"{place}/v1/control/status", api_key)
        told = loads(text)["slo"] if status == OK else {}
        return {name: float(told[name]) for name in ("ttft_ms", "itl_ms", "attainment") if told.get(name)}
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


async def _asked(address: str, api_key: str | None) -> tuple[int, str]:
    """Status and text of one answer."""
    timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=authorisation(api_key)) as session,
        session.get(address) as response,
    ):
        return response.status, await response.text()


def _ids(address: str, text: str) -> list[str]:
    try:
        ids = [str(entry["id"]) for entry in loads(text)["data"]]
    except (ValueError, KeyError, TypeError):
        raise LoadError(f"{address}: is no list of models as OpenAI's API has it") from None
    if not ids:
        raise LoadError(f"{address}: lists no model; name one with --model")
    return ids


def _detail(text: str) -> str:
    try:
        return error_text(loads(text))
    except ValueError:
        return _cut(" ".join(text.split()))


def _one_line(error: BaseException) -> str:
    return _cut(" ".join(str(error).split())) or type(error).__name__
