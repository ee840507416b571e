"""An ASGI app on an HTTP server of its own, on the event loop of its caller.

Where the port is taken, most often by Serve's proxy, it takes the next free one, and logs that.
"""

import asyncio
import logging
import socket
from contextlib import suppress

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from headway.config import TlsSettings
from serve_apps.compat_uvicorn import close_listeners, connection_of, connections_of
from serve_apps.listener import Listener, open_listener
from serve_apps.timed_protocol import Limits, let_stalled_go, timed
from serve_apps.tls import Certificate

logger = logging.getLogger("ray.serve")
POLL_S = 0.01
LAST_REQUESTS_S = 0.5
PASS_S, TURNS_OF_ONE = 0.001, 8
"""How long others of the node have for the next client; turns of one until turns grow by one."""
MOST_UNSENT_BYTES = 128 * 2**10
"""Of a connection in the kernel; what was sent and not yet acknowledged is not bounded by it."""
HANDED_OVER_WITHIN_S = 60.0
"""How long a gateway that holds the port may take to hand it over, or to end."""
KEPT_ALIVE_S = 75
"""An idle connection stays open for longer than clients reuse theirs (5 s in httpx, 15 s in aiohttp): where
both end it at 5 s, a busy client sends its request into one that is closing."""


class HttpServer:
    """Serves `app` from `start` until `stop`, which lets requests in flight finish.

    With a `place`, the next one there serves at the same address, see `listener`. With `among` others that
    accept there too it takes turns: one that took all clients that wait would leave the others idle, for as
    long as connections are kept. Turns grow while clients go on waiting.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        place: str | None = None,
        tls: TlsSettings | None = None,
        limits: Limits | None = None,
        among: int = 1,
    ) -> None:
        self.host = host
        self.port = port
        self._among = among
        self._accepting: set[asyncio.Task[None]] = set()
        self._next_turn: asyncio.TimerHandle | None = None
        self._full_turns = 0
        self._place = place
        self._listener: Listener | None = None
        self._certificate = None if tls is None else Certificate(tls)
        self._limits = limits or Limits()
        settings = uvicorn.Config(
            app,
            http=timed(self._limits),
            # No route speaks WebSocket; uvicorn would leave a request for an upgrade unanswered.
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEPT_ALIVE_S,
        )
        settings.load()
        settings.ssl = None if self._certificate is None else self._certificate.context
        self._server = uvicorn.Server(settings)
        self._task: asyncio.Task[None] | None = None
        self._beside: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        """Scheme, host and the port that it came to be."""
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def start(self) -> None:
        """Return when it answers. OSError when the host is none of ours, or every port is taken."""
        listener = await open_listener(self.host, self.port, self._place, HANDED_OVER_WITHIN_S)
        self._listener, wished = listener, self.port
        # Connections inherit it. What a client does not take waits here, where it is seen, not in the kernel.
        listener.clients.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MOST_UNSENT_BYTES)
        self.port = listener.clients.getsockname()[1]
        if wished not in (0, self.port):
            logger.warning("gateway: port %d is taken, listening on %s instead", wished, self.address)
        else:
            logger.info("gateway: listening on %s", self.address)
        sockets = [] if self._among > 1 else [listener.clients]
        self._task = asyncio.create_task(self._server.serve(sockets=sockets))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise OSError(f"the server on {self.address} ended at once")
            await asyncio.sleep(POLL_S)
        if self._among > 1:
            self._look(listener.clients)
        stalled = let_stalled_go(connections_of(self._server), self._limits.taken_within_s)
        self._beside.append(asyncio.create_task(stalled))
        if self._certificate is not None:
            self._beside.append(asyncio.create_task(self._certificate.follow()))

    async def stop(self) -> None:
        """Accept nothing new, and return when what is in flight has ended."""
        if self._listener is not None:
            await self._listener.close()
        if self._task is not None:
            if self._listener is not None and self._among > 1:
                if self._next_turn is not None:
                    self._next_turn.cancel()
                asyncio.get_running_loop().remove_reader(self._listener.clients)
                self._listener.clients.close()
            close_listeners(self._server)
            # A client that has just connected is about to send its request; uvicorn would hang up on it.
            await asyncio.sleep(LAST_REQUESTS_S)
            self._server.should_exit = True
            await self._task
        for task in self._beside:
            task.cancel()

    def _accept(self, clients: socket.socket) -> None:
        """Take as many clients as it is our turn for, then leave the next ones to others for a while."""
        loop = asyncio.get_running_loop()
        for _ in range(1 + self._full_turns // TURNS_OF_ONE):
            try:
                connection, _ = clients.accept()
            except OSError:
                # None is left, or there are too many files: they wait.
                self._full_turns = 0
                break
            task = loop.create_task(self._connect(connection))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)
        else:
            self._full_turns += 1
        loop.remove_reader(clients)
        self._next_turn = loop.call_later(PASS_S, self._look, clients)

    def _look(self, clients: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(clients, self._accept, clients)

    async def _connect(self, connection: socket.socket) -> None:
        loop, server = asyncio.get_running_loop(), self._server
        with suppress(OSError):
            await loop.connect_accepted_socket(
                lambda: connection_of(server), connection, ssl=server.config.ssl
            )


class WithoutLifespan:
    """An app whose start and end belong to another server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass requests on; answer the lifespan protocol without the app."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        for phase in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{phase}.complete"})
