"""What hostile and broken clients do to a gateway, each attack by its name.

Run as a process of its own: `python -m benchmarks.attackers NAME PORT SECONDS` prints the answers as JSON.
"""

import asyncio
import json
import socket
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
CLOSED = "closed"
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that closes with a reset."""


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


async def _answered(port: int, request: bytes) -> str:
    with await connected(port) as connection:
        await connection.send(request)
        return await connection.status()


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


async def endless_headers(port: int) -> str:
    """A head that goes on and on."""
    with await connected(port) as connection:
        await connection.send(head(CHAT)[:-2])
        while True:
            await connection.send(b"x-more: and-more\r\n" * 4096)


async def tiny_chunks(port: int) -> str:
    """A chunked body of chunks of a byte."""
    with await connected(port) as connection:
        await connection.send(head(CHAT, "transfer-encoding: chunked"))
        while True:
            await connection.send(b"1\r\nx\r\n" * 8192)


async def endless_trailers(port: int) -> str:
    """A chunked body whose trailers go on and on."""
    with await connected(port) as connection:
        await connection.send(head(CHAT, "transfer-encoding: chunked") + b"1\r\n{\r\n0\r\n")
        while True:
            await connection.send(b"x-more: and-more\r\n" * 4096)


async def endless_chunks(port: int) -> str:
    """A chunked body that goes on and on, also when it has been refused."""
    with await connected(port) as connection:
        await connection.send(head(CHAT, "transfer-encoding: chunked"))
        while True:
            await connection.send(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")


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


async def disconnects(port: int) -> str:
    """A request that is left before its first token; 1,000 a minute."""
    with await connected(port) as connection:
        await connection.send(completion(1000))
        await asyncio.sleep(0.06)
        connection.reset()
    return CLOSED


async def disconnects_pipelined(port: int) -> str:
    """The same with a second request behind it."""
    with await connected(port) as connection:
        await connection.send(completion(1000) * 2)
        await asyncio.sleep(0.06)
        connection.reset()
    return CLOSED


async def many_messages(port: int) -> str:
    """A body of 14 MB with 400,000 messages."""
    return await _answered(port, whole(CHAT, many_messages_body()))


async def many_objects(port: int) -> str:
    """15 MB of empty objects."""
    return await _answered(port, whole(COMPLETIONS, many_values_body(b"{}")))


async def many_numbers(port: int) -> str:
    """15 MB of token ids."""
    return await _answered(port, whole(COMPLETIONS, many_values_body(b"1")))


async def large_prompts(port: int) -> str:
    """A prompt of 15 MB."""
    return await _answered(port, whole(COMPLETIONS, large_prompt_body()))


async def held_bodies(port: int) -> str:
    """A body of 15 MB of which a byte is missing."""
    with await connected(port) as connection:
        body = large_prompt_body()
        await connection.send(head(COMPLETIONS, f"content-length: {len(body)}") + body[:-1])
        return await connection.status()


async def deep_json(port: int) -> str:
    """Arrays in arrays, 10 MB of them."""
    return await _answered(port, whole(CHAT, b'{"model":"m","messages":' + b"[" * 10_000_000))


async def many_stops(port: int) -> str:
    """A thousand stop strings."""
    return await _answered(port, completion(16, stop=[f"stop {number}" for number in range(1000)]))


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


async def metrics(port: int) -> str:
    """The page of metrics, again and again."""
    return await _answered(port, head("/metrics", method="GET"))


async def idle(port: int) -> str:
    """A connection that says nothing."""
    with await connected(port) as connection:
        return await connection.status()


@dataclass(frozen=True, slots=True)
class Attack:
    """So many attackers at once, each of whom begins anew when it is let go."""

    attackers: int
    one: Callable[[int], Awaitable[str]]


ATTACKS: Mapping[str, Attack] = {
    "slow_headers": Attack(500, slow_headers),
    "idle": Attack(500, idle),
    "endless_headers": Attack(20, endless_headers),
    "unread_streams": Attack(200, unread_streams),
    "unread_answers": Attack(20, unread_answers),
    "disconnects": Attack(1, disconnects),
    "disconnects_pipelined": Attack(1, disconnects_pipelined),
    "many_messages_10": Attack(10, many_messages),
    "many_messages_20": Attack(20, many_messages),
    "many_objects": Attack(10, many_objects),
    "many_numbers": Attack(10, many_numbers),
    "large_prompts": Attack(10, large_prompts),
    "held_bodies": Attack(200, held_bodies),
    "drips": Attack(200, drips),
    "endless_chunks": Attack(20, endless_chunks),
    "tiny_chunks": Attack(20, tiny_chunks),
    "endless_trailers": Attack(20, endless_trailers),
    "deep_json": Attack(10, deep_json),
    "many_stops": Attack(20, many_stops),
    "pipelining": Attack(20, pipelining),
    "pipelined_unread": Attack(20, pipelined_unread),
    "metrics": Attack(50, metrics),
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


async def _again_and_again(one: Callable[[int], Awaitable[str]], port: int, answers: Counter[str]) -> None:
    while True:
        try:
            answers[await one(port)] += 1
        except OSError:
            answers[CLOSED] += 1
            # As fast as a client that has been told to go would come back.
            await asyncio.sleep(0.1)


def main(arguments: Sequence[str]) -> int:
    name, port, seconds = arguments
    print(json.dumps(asyncio.run(attack(name, int(port), float(seconds)))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
