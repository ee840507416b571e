"""A client for streams of completions that only counts: how many events came, and whether the end did.

Run as a process of its own (`python -m benchmarks.streams URL MODEL COUNT CONCURRENCY TOKENS`), so that its
CPU time is nobody else's; prints JSON.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

PROMPT = "Tell me a story. " * 8


def main(arguments: Sequence[str]) -> int:
    url, model, count, concurrency, tokens = arguments
    begun_s = time.perf_counter()
    events = asyncio.run(streams(url, model, int(count), int(concurrency), int(tokens)))
    wall_s = time.perf_counter() - begun_s
    print(json.dumps({"events": events, "wall_s": wall_s}))
    return 0


async def streams(url: str, model: str, count: int, concurrency: int, tokens: int) -> list[int]:
    """Events of each stream; each of `concurrency` connections does its share one after the other."""
    body = json.dumps({"model": model, "prompt": PROMPT, "max_tokens": tokens, "stream": True}).encode()
    shares = [count // concurrency + (at < count % concurrency) for at in range(concurrency)]
    done = await asyncio.gather(*(_one_by_one(url, body, share) for share in shares))
    return [events for share in done for events in share]


async def _one_by_one(url: str, body: bytes, count: int) -> list[int]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    events = []
    for _ in range(count):
        writer.write(request)
        events.append(await _events(reader))
    writer.close()
    return events


async def _events(reader: asyncio.StreamReader) -> int:
    """Events with output in one chunked response."""
    status = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1]
    if status != b"200":
        raise RuntimeError(f"status {status.decode()}: {await reader.read(500)!r}")
    text = b""
    while size := int(await reader.readline(), 16):
        text += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    if not text.endswith(b"data: [DONE]\n\n"):
        raise RuntimeError(f"a stream ended without its end mark: ...{text[-200:]!r}")
    return text.count(b"data: ") - 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
