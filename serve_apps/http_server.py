"""An HTTP server for an ASGI app inside a running event loop, on the wished port or the next free one."""

import asyncio
import errno
import logging
import socket

import uvicorn
from starlette.types import ASGIApp

logger = logging.getLogger("ray.serve")

PORTS_TRIED = 100
BACKLOG = 2048
POLL_S = 0.01


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on `host`, on `port` or the first free one after it. OSError if there is none."""
    family, kind, protocol, _, _ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    for candidate in range(port, min(port + PORTS_TRIED, 65_536)):
        listener = socket.socket(family, kind, protocol)
        # Past connections may linger on the port; a listener of now may not.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return listener
    raise OSError(errno.EADDRINUSE, f"no port of {host} from {port} on is free")


class HttpServer:
    """Serves `app` from `start` until `stop`, which lets requests in flight finish."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self.host = host
        self.port = port
        settings = uvicorn.Config(
            app,
            http="httptools",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        self._server = uvicorn.Server(settings)
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Scheme, host and the port that it came to be."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def start(self) -> None:
        """Return when it answers. OSError when the host is none of ours, or every port is taken."""
        listener = listening_socket(self.host, self.port)
        wished, self.port = self.port, listener.getsockname()[1]
        if wished not in (0, self.port):
            logger.warning("gateway: port %d is taken, listening on %s instead", wished, self.address)
        else:
            logger.info("gateway: listening on %s", self.address)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise OSError(f"the server on {self.address} ended at once")
            await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        """Accept nothing new, and return when what is in flight has ended."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
