"""aiohttp servers under test on loopback, each in a thread of its own."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.patience import PATIENCE_S


@contextmanager
def served(app: web.Application, **options: Any) -> Iterator[tuple[str, asyncio.AbstractEventLoop]]:
    """The address of an application for the length of the block, and the loop that it runs in.

    `options` are those of `web.AppRunner`. At the end handlers have 0.1 s.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="server", daemon=True)
    listening = socket.create_server(("127.0.0.1", 0))
    runner = web.AppRunner(app, shutdown_timeout=0.1, **options)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(_start(runner, listening), loop).result(PATIENCE_S)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", loop
        finally:
            asyncio.run_coroutine_threadsafe(_end(runner, listening), loop).result(PATIENCE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        loop.close()


async def _start(runner: web.AppRunner, listening: socket.socket) -> None:
    await runner.setup()
    await web.SockSite(runner, listening).start()


async def _end(runner: web.AppRunner, listening: socket.socket) -> None:
    """Close the server and all connections, also one that a client makes at this moment.

    A connection that asyncio has accepted gets its handler some rounds of the loop later; if the server is
    closed in between, nobody closes it. So first nothing more is accepted, then what was gets its handler.
    """
    asyncio.get_running_loop().remove_reader(listening)
    for _ in range(5):
        await asyncio.sleep(0)
    await runner.cleanup()
    await asyncio.get_running_loop().shutdown_asyncgens()
