"""What hostile and broken clients do to a gateway, each attack by its name.

Run as a process of its own: `python -m tests.gateway.attackers NAME PORT SECONDS` prints the answers as JSON.
"""

import asyncio
import json
import socket
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
CLOSED = "closed"
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that closes with a reset."""

One = Callable[[int], Awaitable[str]]
"""One attacker on a port: what it was answered."""


class Connection:
    """One connection to the gateway; used as a context manager."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._loop = sock, asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        """All of it, however long that takes."""
        await self._loop.sock_sendall(self._sock, data)

    async def read(self) -> bytes:
        """Some bytes; none: closed by the other end."""
        return await self._loop.sock_recv(self._sock, 65_536)

    async def status(self) -> str:
        """The status of the next answer."""
        line = await self.read()
        return line.split(b" ", 2)[1].decode() if line.startswith(b"HTTP/") else CLOSED

    async def to_the_end(self) -> None:
        """Return when the other end closes."""
        while await self.read():
            pass

    async def reset_by_peer(self) -> str:
        """Return when the other end gives up what it has not sent."""
        while not self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            await asyncio.sleep(0.2)
        return CLOSED

    def reset(self) -> None:
        """Close without a farewell."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._sock.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()


async def connected(port: int, receive_bytes: int | None = None) -> Connection:
    """To a port of this machine; `receive_bytes` bounds what the kernel takes in unread."""
    sock = socket.socket()
    sock.setblocking(False)
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return Connection(sock)


def head(path: str, *headers: str, method: str = "POST") -> bytes:
    """The head of a request, complete."""
    lines = [f"{method} {path} HTTP/1.1", "host: gateway", "content-type: application/json", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(path: str, body: bytes) -> bytes:
    """A whole request."""
    return head(path, f"content-length: {len(body)}") + body


def completion(tokens: int, **fields: object) -> bytes:
    """A request for so many tokens, streamed."""
    asked = {"model": "m", "prompt": "Why?", "max_tokens": tokens, "stream": True, **fields}
    return whole(COMPLETIONS, json.dumps(asked).encode())


@cache
def many_messages_body() -> bytes:
    """14 MB with 400,000 messages."""
    message = b'{"role":"user","content":"abc"},'
    return b'{"model":"m","messages":[' + message * 399_999 + message[:-1] + b" " * 1_200_000 + b"]}"


@cache
def many_values_body(value: bytes) -> bytes:
    """15 MB of one small value."""
    return b'{"model":"m","prompt":[' + (value + b",") * (15_000_000 // (len(value) + 1)) + value + b"]}"


@cache
def large_prompt_body() -> bytes:
    """15 MB that are one prompt: valid, but for its length."""
    return json.dumps({"model": "m", "prompt": "Why is the sky blue? " * 714_000}).encode()


def asks(request: Callable[[], bytes]) -> One:
    """One whole request, made when the attack begins, and its status."""

    async def one(port: int) -> str:
        with await connected(port) as connection:
            await connection.send(request())
            return await connection.status()

    return one


async def slow_headers(port: int) -> str:
    """Half a head, and a byte more of it each second."""
    with await connected(port) as connection:
        await connection.send(head(CHAT)[:40])
        ended = asyncio.create_task(connection.status())
        try:
            while not ended.done():
                await connection.send(b"x")
                await asyncio.wait((ended,), timeout=1.0)
            return await ended
        finally:
            ended.cancel()


def floods(first: bytes, more: bytes) -> One:
    """`first`, and then `more` of it without end, also when it has been refused."""

    async def one(port: int) -> str:
        with await connected(port) as connection:
            await connection.send(first)
            while True:
                await connection.send(more)

    return one


async def drips(port: int) -> str:
    """A body that comes byte by byte."""
    with await connected(port) as connection:
        await connection.send(head(CHAT, "content-length: 100000"))
        while True:
            await connection.send(b"{")
            await asyncio.sleep(0.2)


async def unread_streams(port: int) -> str:
    """A long stream of which nothing is read."""
    with await connected(port, receive_bytes=4096) as connection:
        await connection.send(completion(100_000))
        return await connection.reset_by_peer()


async def unread_answers(port: int) -> str:
    """Answers to one question after the other, none of which is read."""
    with await connected(port, receive_bytes=4096) as connection:
        for _ in range(100):
            await connection.send(head("/metrics", method="GET"))
            await asyncio.sleep(0.5)
        return await connection.reset_by_peer()


def leaves(request: bytes) -> One:
    """`request`, left before its first token; 1,000 a minute."""

    async def one(port: int) -> str:
        with await connected(port) as connection:
            await connection.send(request)
            await asyncio.sleep(0.06)
            connection.reset()
        return CLOSED

    return one


async def held_bodies(port: int) -> str:
    """A body of 15 MB of which a byte is missing."""
    with await connected(port) as connection:
        body = large_prompt_body()
        await connection.send(head(COMPLETIONS, f"content-length: {len(body)}") + body[:-1])
        return await connection.status()


async def pipelining(port: int) -> str:
    """Requests without end on one connection, whose answers are not waited for."""
    with await connected(port) as connection:
        reading = asyncio.create_task(connection.to_the_end())
        try:
            while not reading.done():
                await connection.send(head("/health", method="GET") * 2000)
            return CLOSED
        finally:
            reading.cancel()


async def pipelined_unread(port: int) -> str:
    """The same behind a long stream, and nothing is read."""
    with await connected(port, receive_bytes=4096) as connection:
        await connection.send(completion(100_000))
        while True:
            await connection.send(head("/health", method="GET") * 2000)


@dataclass(frozen=True, slots=True)
class Attack:
    """So many attackers at once, each of whom begins anew when it is let go."""

    attackers: int
    one: One


MORE_HEADERS = b"x-more: and-more\r\n" * 4096
CHUNKED = head(CHAT, "transfer-encoding: chunked")
MANY_MESSAGES = asks(lambda: whole(CHAT, many_messages_body()))
STOPS = [f"stop {number}" for number in range(1000)]

ATTACKS: Mapping[str, Attack] = {
    "slow_headers": Attack(500, slow_headers),
    "idle": Attack(500, asks(bytes)),
    "endless_headers": Attack(20, floods(head(CHAT)[:-2], MORE_HEADERS)),
    "unread_streams": Attack(200, unread_streams),
    "unread_answers": Attack(20, unread_answers),
    "disconnects": Attack(1, leaves(completion(1000))),
    "disconnects_pipelined": Attack(1, leaves(completion(1000) * 2)),
    "many_messages_10": Attack(10, MANY_MESSAGES),
    "many_messages_20": Attack(20, MANY_MESSAGES),
    "many_objects": Attack(10, asks(lambda: whole(COMPLETIONS, many_values_body(b"{}")))),
    "many_numbers": Attack(10, asks(lambda: whole(COMPLETIONS, many_values_body(b"1")))),
    "large_prompts": Attack(10, asks(lambda: whole(COMPLETIONS, large_prompt_body()))),
    "held_bodies": Attack(200, held_bodies),
    "drips": Attack(200, drips),
    "endless_chunks": Attack(20, floods(CHUNKED, b"8000\r\n" + b"x" * 0x8000 + b"\r\n")),
    "tiny_chunks": Attack(20, floods(CHUNKED, b"1\r\nx\r\n" * 8192)),
    "endless_trailers": Attack(20, floods(CHUNKED + b"1\r\n{\r\n0\r\n", MORE_HEADERS)),
    "deep_json": Attack(10, asks(lambda: whole(CHAT, b'{"model":"m","messages":' + b"[" * 10_000_000))),
    "many_stops": Attack(20, asks(lambda: completion(16, stop=STOPS))),
    "pipelining": Attack(20, pipelining),
    "pipelined_unread": Attack(20, pipelined_unread),
    "metrics": Attack(50, asks(lambda: head("/metrics", method="GET"))),
}


async def attack(name: str, port: int, seconds: float) -> Counter[str]:
    """The answers to an attack that lasts so long."""
    answers: Counter[str] = Counter()
    chosen = ATTACKS[name]
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for _ in range(chosen.attackers):
                group.create_task(_again_and_again(chosen.one, port, answers))
    return answers


async def _again_and_again(one: One, port: int, answers: Counter[str]) -> None:
    while True:
        try:
            answers[await one(port)] += 1
        except OSError:
            answers[CLOSED] += 1
            # As fast as a client that has been told to go would come back.
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    chosen, port, seconds = sys.argv[1:]
    sys.stdout.write(json.dumps(asyncio.run(attack(chosen, int(port), float(seconds)))))
