"""One request over HTTP: its times go to a `StreamTimer`, its end is an `Ending`, never an exception.

Cancelling `perform` closes the connection, so that the server can abort the request.
"""

import asyncio
from collections.abc import Callable
from json import JSONDecodeError, loads
from typing import Any

import aiohttp

from headway.loadgen.errors import LoadError
from headway.loadgen.plan import LoadPlan, authorisation, base_url
from headway.loadgen.prompts import Planned
from headway.loadgen.records import Ending, Outcome, StreamTimer
from headway.loadgen.sse import DONE, LONGEST_DETAIL, CompletionEvent, EventParser, error_text, read_event

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
    session: aiohttp.ClientSession, plan: LoadPlan, planned: Planned, timer: StreamTimer, clock: Clock
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
        return Ending(outcome=Outcome.TIMEOUT)
    except (aiohttp.ClientError, OSError) as error:
        return Ending(outcome=Outcome.CONNECTION, detail=_one_line(error))


async def _refused(response: aiohttp.ClientResponse) -> Ending:
    text = (await response.content.read(4096)).decode(errors="replace")
    try:
        detail = error_text(loads(text))
    except JSONDecodeError:
        detail = " ".join(text.split())[:LONGEST_DETAIL]
    outcome = Outcome.SHED if response.status == TOO_MANY_REQUESTS else Outcome.HTTP
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
                return Ending(outcome=Outcome.ERROR_EVENT, detail=event.error, **reading.counted)
            reading.take(event, now_s)
    return Ending(outcome=Outcome.INCOMPLETE, detail="the stream ended without [DONE]", **reading.counted)


class _Reading:
    """What a stream has said so far."""

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
        """Note an event; one with text is a chunk, of as many tokens as its usage rose by.

        Tokens need not have text (a part of a character has none): where usage is said all along, an event
        with which it rises is a chunk, too.
        """
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
        """How the stream ended, once it said that it is done."""
        if not self._chunks:
            return Ending(outcome=Outcome.INCOMPLETE, detail="the stream had no text", **self.counted)
        return Ending(outcome=Outcome.OK, status=OK, **self.counted)


async def fetch_models(url: str, api_key: str | None = None) -> list[str]:
    """The ids that `/v1/models` lists; LoadError names the address and what went wrong."""
    address = f"{base_url(url)}/v1/models"
    timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=authorisation(api_key)) as session,
            session.get(address) as response,
        ):
            text = await response.text()
            status = response.status
    except TimeoutError:
        raise LoadError(f"{address}: no answer within {ASK_TIMEOUT_S:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise LoadError(f"{address}: {_one_line(error)}") from error
    if status != OK:
        raise LoadError(f"{address}: answered with status {status}: {_message(text)}")
    return _ids(address, text)


def _ids(address: str, text: str) -> list[str]:
    try:
        ids = [str(entry["id"]) for entry in loads(text)["data"]]
    except (ValueError, KeyError, TypeError):
        raise LoadError(f"{address}: is no list of models as OpenAI's API has it") from None
    if not ids:
        raise LoadError(f"{address}: lists no model; name one with --model")
    return ids


def _message(text: str) -> str:
    try:
        return error_text(loads(text))
    except ValueError:
        return " ".join(text.split())[:LONGEST_DETAIL]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:LONGEST_DETAIL] or type(error).__name__
