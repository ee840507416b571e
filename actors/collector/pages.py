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
import json
import ssl
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import aiohttp
from yarl import URL

from actors.collector.exposition import SourceDownError, metrics_url, redacted
from actors.compat_ray import replica_results
from actors.names import GATEWAY
from headway.config import HeadwayConfig
from headway.config.live import MetricsSettings

ACCEPT = {"GET": "text/plain;version=0.0.4", "POST": "application/json"}
REDIRECTS = frozenset({301, 302, 303, 307, 308})
MOST_REDIRECTS = 3
SAID_BYTES = 2**16
"""Of an answer with an error, which may say why."""


class RefusedError(SourceDownError):
    """The address refuses connections: the process that listened there is gone."""


def sent(settings: MetricsSettings) -> dict[str, str]:
    """The headers that the settings send, their files read now. SourceDownError: one cannot be read."""
    headers = {
        name: _read(value[1:], f"headers.{name}") if value.startswith("@") else value
        for name, value in settings.headers.items()
    }
    if settings.token_file is not None:
        headers["Authorization"] = f"Bearer {_read(settings.token_file, 'token_file')}"
    return headers


def trust(settings: MetricsSettings) -> ssl.SSLContext | bool:
    """What HTTPS goes by; True: aiohttp's, as one of its own takes 0.8 MiB. SourceDownError: no such file."""
    if settings.ca_file is settings.cert_file is None and settings.verify == "full":
        return True
    try:
        trusted = ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:
        raise SourceDownError(f"metrics.ca_file: {settings.ca_file}: {error.strerror or error}") from None
    trusted.check_hostname = settings.verify == "full"
    if settings.verify == "none":
        trusted.verify_mode = ssl.CERT_NONE
    if settings.cert_file is not None:
        try:
            trusted.load_cert_chain(settings.cert_file, settings.key_file)
        except OSError as error:
            raise SourceDownError(f"metrics.cert_file: {settings.cert_file}: {error.strerror}") from None
    return trusted


def _read(path: str, setting: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceDownError(f"metrics.{setting}: {path}: {reason}") from None


class TextReader:
    """Asks over HTTP, as the settings say. Every failure is a `SourceDownError`.

    `proxies`: those of the environment count.
    """

    def __init__(
        self, timeout_s: float, settings: MetricsSettings | None = None, *, proxies: bool = False
    ) -> None:
        self._timeout_s, self._proxies = timeout_s, proxies
        self._settings = MetricsSettings() if settings is None else settings
        self._most_mib = self._settings.max_answer_mib
        self._session: aiohttp.ClientSession | None = None

    async def get(self, url: str) -> str:
        """The body."""
        return (await self._asked("GET", url)).decode("utf-8", "replace")

    async def post(self, url: str, form: Mapping[str, str]) -> bytes:
        """The body that a form is answered with."""
        return await self._asked("POST", url, form)

    async def _asked(self, method: str, url: str, form: Mapping[str, str] | None = None) -> bytes:
        try:
            address = URL(url)
        except ValueError:
            address = URL()
        if address.scheme not in ("http", "https") or not address.host:
            raise SourceDownError("is not an http address")
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._answer(method, address, form)
        except TimeoutError:
            raise SourceDownError(f"no answer within {self._timeout_s:g} s") from None
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            kind = RefusedError if refused else SourceDownError
            raise kind(f"{type(error).__name__}: {str(error)[:200]}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise SourceDownError(f"{type(error).__name__}: {str(error)[:200]}") from None

    async def _answer(self, method: str, address: URL, form: Mapping[str, str] | None) -> bytes:
        """The body, after redirects within the host: to others neither key nor password is sent."""
        if self._session is None:
            # A connection each read, as servers drop idle ones at moments of their own.
            connector = aiohttp.TCPConnector(force_close=True, limit=0, ssl=trust(self._settings))
            self._session = aiohttp.ClientSession(connector=connector, trust_env=self._proxies)
        headers = {"Accept": ACCEPT[method], **sent(self._settings)}
        if address.user is not None and "Authorization" not in headers:
            known = f"{address.user}:{address.password or ''}".encode()
            headers["Authorization"] = f"Basic {b64encode(known).decode()}"
        place = address.with_user(None)
        for _ in range(MOST_REDIRECTS):
            asked = self._session.request(method, place, data=form, headers=headers, allow_redirects=False)
            async with asked as response:
                if response.status not in REDIRECTS:
                    return await self._body(response)
                further = place.join(URL(response.headers.get("Location", "")))
            if further.host != place.host or (place.scheme, further.scheme) == ("https", "http"):
                there = f"{further.scheme}://{further.host}"
                raise SourceDownError(f"redirects to {there}, which is not asked: set its address instead")
            place = further
        raise SourceDownError(f"redirects {MOST_REDIRECTS} times")

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        failed, body = response.status != 200, bytearray()
        async for piece in response.content.iter_chunked(2**16):
            body += piece
            if failed and len(body) >= SAID_BYTES:
                break
            if len(body) > self._most_mib * 2**20:
                most = f"{self._most_mib:g} MiB (metrics.max_answer_mib)"
                raise SourceDownError(f"the answer is over {most}: narrow it, or raise that")
        if failed:
            raise SourceDownError(f"HTTP status {response.status}{_said(body)}")
        return bytes(body)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


def _said(body: bytes | bytearray) -> str:
    """The reason in an error of Prometheus' API, or nothing."""
    try:
        return f": {str(json.loads(body)['error'])[:200]}"
    except (ValueError, KeyError, TypeError):
        return ""


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


async def ask_all(
    handle: Any,  # noqa: ANN401 - a DeploymentHandle
    method: str,
    *args: object,
    timeout_s: float,
    **named: object,
) -> tuple[list[Any], list[str]]:
    """What the replicas of a deployment answer, and a line for each that does not in time."""
    from ray.exceptions import ActorDiedError

    async with asyncio.timeout(timeout_s):
        asked = await replica_results(handle, method, *args, **named)
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


def gateways_of(config: HeadwayConfig, application: str, timeout_s: float) -> "ServePages":
    """The pages of an application: of its own gateways, or of those of its fleet."""
    fleet = config.fleet.application
    return ServePages(fleet or application, timeout_s, application if fleet else "")


class ServePages:
    """The pages of all gateways of a Serve application; of those that serve several, the ones `of` one."""

    by_process = True

    def __init__(self, application: str, timeout_s: float, of: str = "") -> None:
        self.application, self._timeout_s = application, timeout_s
        self._named = {"of": of} if of else {}
        self._handle: Any = None

    @property
    def place(self) -> str:
        """Serve's names for them."""
        return f"{self.application}/{GATEWAY}"

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
                    self._handle = await asyncio.to_thread(serve_handle, self.application)
            answers, faults = await ask_all(
                self._handle, method, *args, timeout_s=self._timeout_s, **self._named
            )
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
