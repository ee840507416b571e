"""A client for completions that only counts: how many events came, whether the end did, and how long it took.

Run as a process of its own, so that its CPU time is nobody else's; prints JSON:

    python -m benchmarks.streams URL MODEL COUNT CONCURRENCY TOKENS PROMPT STREAM RATE [HEADER]

PROMPT in bytes, STREAM 0 or 1. With a RATE of requests a second each has its moment, from which its time
counts, be a connection free or not; 0: each connection asks as soon as it has its answer.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

START_S = 0.2
"""Seconds until the first of a RATE: the connections are there by then."""
WORDS = "Tell me a story. "


def main(arguments: Sequence[str]) -> int:
    url, model, *numbers = arguments[:8]
    header = "".join(f"{header}\r\n" for header in arguments[8:])
    count, concurrency, tokens, size, stream, rate = map(int, numbers)
    prompt = (WORDS * (size // len(WORDS) + 1))[:size]
    asked = {"model": model, "prompt": prompt, "max_tokens": tokens, "stream": bool(stream)}
    begun_s = time.perf_counter()
    answers = asyncio.run(requests(_request(url, header, asked), url, count, concurrency, rate))
    wall_s = time.perf_counter() - begun_s
    events, taken_s = zip(*answers, strict=True)
    print(json.dumps({"events": events, "taken_s": taken_s, "wall_s": wall_s}))
    return 0


def _request(url: str, header: str, asked: Mapping[str, object]) -> bytes:
    parts, body = urlsplit(url), json.dumps(asked).encode()
    head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n{header}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def requests(
    request: bytes, url: str, count: int, concurrency: int, rate: int
) -> list[tuple[int, float]]:
    """Events and seconds of each request; `concurrency` connections take one after the other."""
    begin_s, numbers = time.perf_counter() + START_S, iter(range(count))
    due = (begin_s + number / rate if rate else None for number in numbers)
    done = await asyncio.gather(*(_one_by_one(url, request, due) for _ in range(concurrency)))
    return [answer for share in done for answer in share]


async def _one_by_one(url: str, request: bytes, due: Iterator[float | None]) -> list[tuple[int, float]]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    answers = []
    for due_s in due:
        if due_s is not None:
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        begun_s = time.perf_counter() if due_s is None else due_s
        writer.write(request)
        events = await _answer(reader)
        answers.append((events, time.perf_counter() - begun_s))
    writer.close()
    return answers


async def _answer(reader: asyncio.StreamReader) -> int:
    """Events with output in one response; 1 for a whole document."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = head.split(b" ", 2)[1]
    if status != b"200":
        raise RuntimeError(f"status {status.decode()}: {await reader.read(500)!r}")
    _, _, length = head.partition(b"content-length:")
    if length:
        json.loads(await reader.readexactly(int(length.split(b"\r\n", 1)[0])))
        return 1
    text = b""
    while size := int(await reader.readline(), 16):
        text += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    if not text.endswith(b"data: [DONE]\n\n"):
        json.loads(text)
        return 1
    return text.count(b"data: ") - 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
