"""The two ways to a gateway's pages: over HTTP where an address is configured, else by Serve's handle.

Our own gateway is asked through its handle, which finds it on whatever host it runs, also when it listens on
that host's loopback only, and follows it when it moves. A page comes with the name of the process that it is
from: another name is another process, whose counters began anew.
"""

import asyncio
from typing import Any, Protocol

from actors.collector.exposition import SourceDownError, metrics_url, redacted
from actors.collector.http_text import TextReader
from actors.names import GATEWAY


class Pages(Protocol):
    """A gateway's pages. Whatever the other side does is SourceDownError."""

    @property
    def place(self) -> str:
        """Where it is asked, for people."""

    async def metrics(self) -> tuple[str, str]:
        """The name of the process that answers, and its metrics as Prometheus' text."""

    async def requests(self, seconds: float) -> str:
        """The requests of the last `seconds`, one by one (`exposition.decode`)."""

    async def close(self) -> None:
        """Close connections."""


class HttpPages:
    """The pages of an address, which `/metrics` may end."""

    def __init__(self, address: str, http: TextReader) -> None:
        self._address, self._http = address, http

    @property
    def place(self) -> str:
        """The address without credentials."""
        return redacted(metrics_url(self._address))

    async def metrics(self) -> tuple[str, str]:
        """The address stands for the process."""
        return self._address, await self._http.get(metrics_url(self._address))

    async def requests(self, seconds: float) -> str:
        """The page /metrics/requests."""
        return await self._http.get(f"{metrics_url(self._address)}/requests?seconds={seconds:.3f}")

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()


def serve_handle(application: str) -> Any:  # noqa: ANN401 - a DeploymentHandle
    """The handle of an application's gateway. Blocks while it asks Serve's controller."""
    from ray import serve

    return serve.get_deployment_handle(GATEWAY, application)


class ServePages:
    """The pages of the gateway of a Serve application."""

    def __init__(self, application: str, timeout_s: float) -> None:
        self._application, self._timeout_s = application, timeout_s
        self._handle: Any = None

    @property
    def place(self) -> str:
        """Serve's names for it."""
        return f"{self._application}/{GATEWAY}"

    async def metrics(self) -> tuple[str, str]:
        """The replica's id is the name of the process."""
        replica, text = await self._ask("scraped")
        return f"{self.place}#{replica}", text

    async def requests(self, seconds: float) -> str:
        """As the gateway lists them at /metrics/requests."""
        return str(await self._ask("recent", seconds))

    async def close(self) -> None:
        """Nothing is open."""

    async def _ask(self, method: str, *args: object) -> Any:  # noqa: ANN401 - of the method
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        try:
            async with asyncio.timeout(self._timeout_s):
                if self._handle is None:
                    self._handle = await asyncio.to_thread(serve_handle, self._application)
                return await getattr(self._handle, method).remote(*args)
        except TimeoutError:
            raise SourceDownError(f"no answer within {self._timeout_s:g} s") from None
        except (RayError, RayServeException, RuntimeError) as error:
            # The next read looks for it again: Serve may have been started anew meanwhile.
            self._handle = None
            line = (str(error).strip() or repr(error)).splitlines()[0]
            raise SourceDownError(f"{type(error).__name__}: {line[:200]}") from None
