"""The ways to pages of metrics: over HTTP, bounded in time and size, or by Serve's handle of our gateways.

Our own gateways are asked through their handle, all of them at once: it finds them on whatever hosts they
run, also when they listen on a host's loopback only, and follows them when they move. A page comes with the
name of the process that it is from: another name is another process, whose counters began at 0.

    a gateway that                                      is taken as
    answers                                             read
    has died, or takes no more requests (it drains)     not there: what it counted since is lost
    does not answer in time, or with an error           a fault
"""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import aiohttp

from actors.collector.exposition import SourceDownError, metrics_url, redacted
from actors.compat_ray import replica_results
from actors.names import GATEWAY

MOST_BYTES = 16 * 2**20
TEXT = {"Accept": "text/plain;version=0.0.4"}


class RefusedError(SourceDownError):
    """The address refuses connections: the process that listened there is gone."""


def bearer(token_file: str | None) -> dict[str, str]:
    """The header with the key in the file; none without a file. SourceDownError: it cannot be read."""
    if token_file is None:
        return {}
    try:
        token = Path(token_file).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceDownError(f"metrics.token_file: {token_file}: {reason}") from None
    return {"Authorization": f"Bearer {token}"}


class TextReader:
    """GETs. Every failure of HTTP is a `SourceDownError`."""

    def __init__(self, timeout_s: float, ca_file: str | None = None, token_file: str | None = None) -> None:
        self._timeout_s = timeout_s
        self._ca_file, self._token_file = ca_file, token_file
        self._session: aiohttp.ClientSession | None = None

    async def get(self, url: str) -> str:
        """The body."""
        if self._session is None:
            # A connection each read, as servers drop idle ones at moments of their own.
            self._session = self._opened()
        headers = {**TEXT, **bearer(self._token_file)}
        try:
            async with asyncio.timeout(self._timeout_s), self._session.get(url, headers=headers) as response:
                if response.status != 200:
                    raise SourceDownError(f"HTTP status {response.status}")
                body = bytearray()
                async for piece in response.content.iter_chunked(2**16):
                    body += piece
                    if len(body) > MOST_BYTES:
                        raise SourceDownError(f"over {MOST_BYTES} bytes")
                return body.decode("utf-8", "replace")
        except TimeoutError:
            raise SourceDownError(f"no answer within {self._timeout_s:g} s") from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            # Their text is the whole address, with the credentials in it.
            raise SourceDownError("is not an http address") from None
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            kind = RefusedError if refused else SourceDownError
            raise kind(f"{type(error).__name__}: {str(error)[:200]}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise SourceDownError(f"{type(error).__name__}: {str(error)[:200]}") from None

    def _opened(self) -> aiohttp.ClientSession:
        try:
            trusted = ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            raise SourceDownError(f"metrics.ca_file: {self._ca_file}: {error.strerror or error}") from None
        connector = aiohttp.TCPConnector(force_close=True, limit=0, ssl=trusted)
        return aiohttp.ClientSession(connector=connector)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


class Page(NamedTuple):
    """What one replica of our gateway answers: its id, the node that it is on, the text."""

    process: str
    node: str
    text: str


class Answers(NamedTuple):
    """Texts by process; of those that did not answer a line each."""

    texts: Mapping[str, str]
    faults: Sequence[str] = ()


class Pages(Protocol):
    """Pages of gateways. Whatever the other side does is SourceDownError."""

    by_process: bool
    """True if a process that begins anew has another name."""

    @property
    def place(self) -> str:
        """Where it is asked, for people."""

    async def metrics(self) -> "Answers":
        """The metrics of each process as Prometheus' text."""

    async def requests(self, seconds: float) -> "Answers":
        """Of each the requests of the last `seconds`, one by one (`request_list.decode`)."""

    async def close(self) -> None:
        """Close connections."""


class HttpPages:
    """The pages of an address, which `/metrics` may end."""

    by_process = False

    def __init__(self, address: str, http: TextReader) -> None:
        self._address, self._http = address, http

    @property
    def place(self) -> str:
        """The address without credentials."""
        return redacted(metrics_url(self._address))

    async def metrics(self) -> Answers:
        """The address stands for the process."""
        return Answers({self._address: await self._http.get(metrics_url(self._address))})

    async def requests(self, seconds: float) -> Answers:
        """The page /metrics/requests."""
        page = f"{metrics_url(self._address)}/requests?seconds={seconds:.3f}"
        return Answers({self._address: await self._http.get(page)})

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()


def serve_handle(application: str) -> Any:  # noqa: ANN401 - a DeploymentHandle
    """The handle of an application's gateways. Blocks while it asks Serve's controller."""
    from ray import serve

    return serve.get_deployment_handle(GATEWAY, application)


async def ask_all(handle: Any, method: str, *args: object, timeout_s: float) -> tuple[list[Any], list[str]]:  # noqa: ANN401
    """What the replicas of a deployment answer, and a line for each that does not in time."""
    from ray.exceptions import ActorDiedError

    async with asyncio.timeout(timeout_s):
        asked = await replica_results(handle, method, *args)
    tasks = [asyncio.ensure_future(each.get_async()) for each in asked]
    _, late = await asyncio.wait(tasks, timeout=timeout_s)
    answers, faults = [], [f"no answer within {timeout_s:g} s"] * len(late)
    for task in tasks:
        if task in late:
            task.cancel()
        elif (error := task.exception()) is None:
            answers.append(task.result())
        elif not isinstance(error, ActorDiedError):
            faults.append(one_line(error))
    return answers, faults


def one_line(error: BaseException) -> str:
    """The first line of an error, with its kind."""
    line = (str(error).strip() or repr(error)).splitlines()[0]
    return f"{type(error).__name__}: {line[:200]}"


class ServePages:
    """The pages of all gateways of a Serve application."""

    by_process = True

    def __init__(self, application: str, timeout_s: float) -> None:
        self._application, self._timeout_s = application, timeout_s
        self._handle: Any = None

    @property
    def place(self) -> str:
        """Serve's names for them."""
        return f"{self._application}/{GATEWAY}"

    async def metrics(self) -> Answers:
        """A replica's id names its process."""
        return await self._answers("scraped")

    async def requests(self, seconds: float) -> Answers:
        """As each gateway lists its own."""
        return await self._answers("recent", seconds)

    async def close(self) -> None:
        """Nothing is open."""

    async def ask(self, method: str, *args: object) -> tuple[Sequence[Page], Sequence[str]]:
        """What the gateways answer, and a line for each that does not. SourceDownError where none does."""
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        try:
            if self._handle is None:
                async with asyncio.timeout(self._timeout_s):
                    self._handle = await asyncio.to_thread(serve_handle, self._application)
            answers, faults = await ask_all(self._handle, method, *args, timeout_s=self._timeout_s)
        except TimeoutError:
            raise SourceDownError(f"no answer within {self._timeout_s:g} s") from None
        except (RayError, RayServeException, RuntimeError) as error:
            # The next read looks for it again: Serve may have been started anew meanwhile.
            self._handle = None
            raise SourceDownError(one_line(error)) from None
        if not answers:
            raise SourceDownError(faults[0] if faults else "no gateway runs")
        return answers, faults

    async def _answers(self, method: str, *args: object) -> Answers:
        pages, faults = await self.ask(method, *args)
        return Answers({f"{self.place}#{page.process}": page.text for page in pages}, faults)
