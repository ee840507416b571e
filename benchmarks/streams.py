"""A client for completions that only counts: how many events came, and whether the end did.

Run as a process of its own (`python -m benchmarks.streams URL MODEL COUNT CONCURRENCY TOKENS PROMPT STREAM
[HEADER]`; PROMPT in bytes, STREAM 0 or 1), so that its CPU time is nobody else's; prints JSON.
"""

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

WORDS = "Tell me a story. "


def main(arguments: Sequence[str]) -> int:
    url, model, *numbers = arguments[:7]
    header = "".join(f"{header}\r\n" for header in arguments[7:])
    count, concurrency, tokens, size, stream = map(int, numbers)
    prompt = (WORDS * (size // len(WORDS) + 1))[:size]
    asked = {"model": model, "prompt": prompt, "max_tokens": tokens, "stream": bool(stream)}
    begun_s = time.perf_counter()
    events = asyncio.run(requests(_request(url, header, asked), url, count, concurrency))
    wall_s = time.perf_counter() - begun_s
    print(json.dumps({"events": events, "wall_s": wall_s}))
    return 0


def _request(url: str, header: str, asked: Mapping[str, object]) -> bytes:
    parts, body = urlsplit(url), json.dumps(asked).encode()
    head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n{header}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def requests(request: bytes, url: str, count: int, concurrency: int) -> list[int]:
    """Events of each request; each of `concurrency` connections does its share one after the other."""
    shares = [count // concurrency + (at < count % concurrency) for at in range(concurrency)]
    done = await asyncio.gather(*(_one_by_one(url, request, share) for share in shares))
    return [events for share in done for events in share]


async def _one_by_one(url: str, request: bytes, count: int) -> list[int]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    events = []
    for _ in range(count):
        writer.write(request)
        events.append(await _answer(reader))
    writer.close()
    return events


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
