"""Engines that cost next to nothing, so that what is measured is the path to them.

    FreeEngine     behind Headway's replicas and Serve's default path: both phases, every role
    `python -m benchmarks.free_engine PORT`    the same as an HTTP server, behind proxies

Tokens come in steps, all requests of one pace at the same moment, as from an engine that batches. Their pace
goes by how many are asked for (`PACES_S`). The HTTP server answers what does not stream with one document.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable
from http import HTTPStatus
from typing import Any

from headway.config import HeadwayConfig, Role
from serve_apps.engines.protocol import EngineRequest, EngineStats, KvHandle, TokenChunk

QUICK_S = 0.002
PACES_S = {1: 0.0, 12: 1.0, 64: 0.02, 65: 0.0, 1001: 0.0}
"""Seconds between tokens by their number, 0: at once; any other number every QUICK_S."""
TEXT = " word"


class Steps:
    """Wakes all who wait for the next step of `period_s`; at rest while nobody does."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._next: asyncio.Future[None] | None = None

    def next(self) -> asyncio.Future[None]:
        """Done at the next step."""
        if self._next is None:
            loop = asyncio.get_running_loop()
            self._next = loop.create_future()
            loop.call_later(self._period_s, self._step)
        return self._next

    def _step(self) -> None:
        over, self._next = self._next, None
        if over is not None:
            over.set_result(None)


class Pace:
    """Steps by how many tokens are asked for."""

    def __init__(self) -> None:
        self._steps = {period_s: Steps(period_s) for period_s in (*PACES_S.values(), QUICK_S)}

    async def step(self, tokens: int) -> None:
        """Return at the next one."""
        period_s = PACES_S.get(tokens, QUICK_S)
        # Shielded: one reader that is cancelled cancels nobody else's step.
        await (asyncio.shield(self._steps[period_s].next()) if period_s else asyncio.sleep(0))


class FreeEngine:
    """Follows the protocol of engines; nothing queues."""

    def __init__(self, config: HeadwayConfig, role: Role, engine_id: str) -> None:
        del config, role
        self._id, self._pace = engine_id, Pace()

    async def prefill(self, request: EngineRequest) -> KvHandle:
        return KvHandle(request_id=request.request_id, engine_id=self._id, input_tokens=request.input_tokens)

    async def decode(self, request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
        del kv
        call, tokens = request.call, request.max_tokens
        for left in reversed(range(tokens)):
            await self._pace.step(tokens)
            text: str | bytes = TEXT
            if call is not None:
                text = event(left == 0) if call.stream else (b"" if left else document(tokens))
            yield TokenChunk(text, 1, None if left else "length")

    async def abort(self, request_id: str) -> None:
        """Nothing is kept."""

    def stats(self) -> EngineStats:
        return EngineStats(engine="free", running=0, waiting=0, kv_usage=0.0)


def event(last: bool) -> bytes:
    """One chunk of a stream, as large as engines send them."""
    choice = {"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "length" if last else None}
    head = {"id": f"cmpl-{'0' * 32}", "object": "text_completion", "created": 0, "model": "free"}
    told = b"data: " + json.dumps({**head, "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"
    return told + (b"data: [DONE]\n\n" if last else b"")


def document(tokens: int) -> bytes:
    """A whole answer."""
    choice = {"index": 0, "text": TEXT * tokens, "logprobs": None, "finish_reason": "length"}
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
    head = {"id": f"cmpl-{'0' * 32}", "object": "text_completion", "created": 0, "model": "free"}
    return json.dumps({**head, "choices": [choice], "usage": usage}).encode()


class HttpEngine(asyncio.Protocol):
    """One connection: requests with a content-length, one after the other."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._data = pace, bytearray()
        self._write: Callable[[bytes], object] = len
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._write = transport.write

    def connection_lost(self, _error: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        head = bytes(self._data[:end]).lower()
        _, _, after = head.partition(b"content-length:")
        length = int(after.split(b"\r\n", 1)[0]) if after else 0
        if len(self._data) >= end + length:
            body = bytes(self._data[end : end + length])
            del self._data[: end + length]
            self._task = asyncio.get_running_loop().create_task(self._answer(body))

    async def _answer(self, body: bytes) -> None:
        asked: dict[str, Any] = json.loads(body) if body else {}
        tokens = int(asked.get("max_tokens", 0))
        if not asked.get("stream"):
            if tokens:
                await asyncio.sleep(PACES_S.get(tokens, QUICK_S) * tokens)
            self._send(b"application/json", document(tokens) if tokens else b'{"status": "ok"}')
            return
        self._write(_head(b"text/event-stream", b"transfer-encoding: chunked"))
        for left in reversed(range(tokens)):
            await self._pace.step(tokens)
            text = event(left == 0)
            self._write(b"%x\r\n%s\r\n" % (len(text), text) + (b"" if left else b"0\r\n\r\n"))

    def _send(self, kind: bytes, body: bytes) -> None:
        self._write(_head(kind, b"content-length: %d" % len(body)) + body)


def _head(kind: bytes, framing: bytes) -> bytes:
    return b"HTTP/1.1 %d OK\r\ncontent-type: %s\r\n%s\r\n\r\n" % (HTTPStatus.OK, kind, framing)


async def _serve(port: int) -> None:
    pace = Pace()
    server = await asyncio.get_running_loop().create_server(lambda: HttpEngine(pace), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(int(sys.argv[1])))
