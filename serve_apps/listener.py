"""The socket on which an HTTP server listens, and how the next one in its place is handed it.

    the holder                                   the newcomer
    holds a name, an abstract Unix socket's  ←   connects to it
    sends its sockets: the name's, the clients' →  accepts on the same one

Both accept from one queue until the first one stops, so that no client is cut off. No other process can take
the port meanwhile: the socket does not share it, as it would with `SO_REUSEPORT`, which Serve's proxies set.
The name lives as long as a process holds it; both sides refuse processes of other users.
"""

import asyncio
import errno
import hashlib
import os
import socket
import struct
import sys
import time
from contextlib import suppress

PORTS_TRIED = 100
BACKLOG = 2048
ANSWERS_WITHIN_S = 2.0
"""Seconds that the holder has to hand its sockets over before it is asked again."""
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
    `within_s`: it holds the port, and clients would not find us at another.
    """
    if place is None or not port or sys.platform != "linux":
        return Listener(listening_socket(host, port), None)
    address = b"\0headway-" + hashlib.sha256(place.encode()).hexdigest()[:32].encode()
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            return Listener(*await asyncio.to_thread(_opened, host, port, address))
        except TimeoutError as error:
            if time.monotonic() > deadline_s:
                said = f"the process that holds port {port} of {host} does not hand it over"
                raise OSError(errno.EADDRINUSE, said) from error


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
