"""An ASGI app on an HTTP server of its own, on the event loop of its caller, and the socket of that server.

Where the port is taken, most often by Serve's proxy, it takes the next free one, and logs that. The next
server in its place is handed the socket:

    the holder                                   the newcomer
    holds a name, an abstract Unix socket's  ←   connects to it
    sends its sockets: the name's, the clients' →  accepts on the same one

Both accept from one queue until the first one stops, so that no client is cut off. No other process can take
the port meanwhile: the socket does not share it, as it would with `SO_REUSEPORT`, which Serve's proxies set.
The name lives as long as a process holds it; both sides refuse processes of other users. Where none of those
that hold it answers for HUNG_S, they hang, and what waits at the port waits for nobody: they are ended.
"""

import asyncio
import errno
import hashlib
import logging
import os
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from headway.config import TlsSettings
from serve_apps.compat_uvicorn import close_listeners, connection_of, connections_of
from serve_apps.timed_protocol import Limits, let_stalled_go, timed
from serve_apps.tls import Certificate

logger = logging.getLogger("ray.serve")

PORTS_TRIED = 100
BACKLOG = 2048
ANSWERS_WITHIN_S = 2.0
"""Seconds that the holder has to hand its sockets over before it is asked again."""
HUNG_S = 8.0
"""Seconds without an answer after which a holder hangs."""
GREETING = b"sockets"


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on `host`, on `port` or the first free one after it. OSError if there is none."""
    family, kind, protocol, _, _ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    for candidate in range(port, min(port + PORTS_TRIED, 65_536)):
        listener = socket.socket(family, kind, protocol)
        try:
            # Past connections may linger on the port; a listener of now may not.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, candidate))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return listener
    raise OSError(errno.EADDRINUSE, f"no port of {host} from {port} on is free")


class Listener:
    """A socket on which clients are accepted, our own or one handed over, and the name of its place."""

    def __init__(self, clients: socket.socket, name: socket.socket | None) -> None:
        self.clients = clients
        # Whether it blocks is a matter of all who have a descriptor of it; `dup` would set that, too.
        clients.setblocking(False)
        # The server closes its own descriptor.
        self._offered = () if name is None else (name, clients.dup())
        self._offering = asyncio.create_task(_offer(*self._offered)) if self._offered else None

    async def close(self) -> None:
        """Hand nothing over any more."""
        if self._offering is not None:
            self._offering.cancel()
            await asyncio.wait((self._offering,))
        for each in self._offered:
            each.close()


async def open_listener(host: str, port: int, place: str | None, within_s: float) -> Listener:
    """A new socket, or the holder's where one is in this place. OSError.

    Without a place, or for any port (0), there is no holder. One that does not answer is waited for up to
    `within_s`: it holds the port, and clients would not find us at another. After HUNG_S it is ended.
    """
    if place is None or not port or sys.platform != "linux":
        return Listener(listening_socket(host, port), None)
    address = b"\0headway-" + hashlib.sha256(place.encode()).hexdigest()[:32].encode()
    began_s = time.monotonic()
    while True:
        try:
            return Listener(*await asyncio.to_thread(_opened, host, port, address))
        except TimeoutError as error:
            waited_s = time.monotonic() - began_s
            if waited_s > within_s:
                said = f"the process that holds port {port} of {host} does not hand it over"
                raise OSError(errno.EADDRINUSE, said) from error
            if waited_s > HUNG_S:
                await asyncio.to_thread(_end_holders, address)


def _opened(host: str, port: int, address: bytes) -> tuple[socket.socket, socket.socket | None]:
    """The clients' socket, and the name's where we have a part in it."""
    there = _connected(address)
    if there is None:
        name = _named(address)
        try:
            return listening_socket(host, port), name
        except OSError:
            name.close()
            raise
    with there:
        if _user(there) != os.getuid():
            # Another user's process. It only keeps us from handing our sockets over to the next one.
            return listening_socket(host, port), None
        name, clients = _received(there)
    if _listens_there(clients, host, port):
        return clients, name
    # At another address than we shall have. It goes on there until it is stopped.
    clients.close()
    return listening_socket(host, port), name


def _end_holders(address: bytes) -> None:
    """Kill the processes that hold the name, of our user; the kernel lists its sockets by inode."""
    name = address.replace(b"\0", b"@").decode()
    rows = (line.split() for line in Path("/proc/net/unix").read_text("utf-8").splitlines())
    sockets = {f"socket:[{row[6]}]" for row in rows if row[-1] == name}
    for process in Path("/proc").glob("[0-9]*"):
        pid = int(process.name)
        # One that ends meanwhile, or of another user, shows nothing.
        with suppress(OSError):
            held = any(os.readlink(each) in sockets for each in (process / "fd").iterdir())
            if held and pid != os.getpid() and process.stat().st_uid == os.getuid():
                logger.error("gateway: process %d holds our port and has hung for %g s: ended", pid, HUNG_S)
                os.kill(pid, signal.SIGKILL)


def _connected(address: bytes) -> socket.socket | None:
    """A connection to the holder of the name, if there is one."""
    there = socket.socket(socket.AF_UNIX)
    there.settimeout(ANSWERS_WITHIN_S)
    try:
        there.connect(address)
    except OSError as error:
        there.close()
        if isinstance(error, ConnectionRefusedError):
            return None
        raise
    return there


def _named(address: bytes) -> socket.socket:
    """Claim the name; TimeoutError if another process claimed it first."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(address)
        name.listen()
    except OSError as error:
        name.close()
        if error.errno == errno.EADDRINUSE:
            raise TimeoutError from error
        raise
    return name


def _received(there: socket.socket) -> tuple[socket.socket, socket.socket]:
    """The name's socket and the clients'. TimeoutError where there are none to give: it just ended."""
    try:
        _, handed, _, _ = socket.recv_fds(there, len(GREETING), 2)
    except ConnectionError as error:
        raise TimeoutError from error
    for each in handed:
        os.set_inheritable(each, False)
    found = [socket.socket(fileno=each) for each in handed]
    for one in found:
        one.setblocking(False)
    if len(found) != 2:
        for one in found:
            one.close()
        raise TimeoutError
    name, clients = found
    return name, clients


async def _offer(name: socket.socket, clients: socket.socket) -> None:
    """Hand both to each process that connects."""
    loop = asyncio.get_running_loop()
    name.setblocking(False)
    while True:
        asking, _ = await loop.sock_accept(name)
        with asking, suppress(OSError):
            if _user(asking) == os.getuid():
                socket.send_fds(asking, [GREETING], [name.fileno(), clients.fileno()])


def _listens_there(clients: socket.socket, host: str, port: int) -> bool:
    """Whether it is an address that `listening_socket` may choose."""
    wished, at = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0], clients.getsockname()
    return str(at[0]) == wished and port <= int(at[1]) < port + PORTS_TRIED


def _user(connected: socket.socket) -> int:
    """The user id of the process at the other end."""
    peer = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", peer)[1])


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

    With a `place`, the next one there serves at the same address. With `among` others that
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
