"""The two ways to a gateway's pages: over HTTP where an address is configured, else by Serve's handle.

Our own gateways are asked through their handle, all of them at once: it finds them on whatever hosts they
run, also when they listen on a host's loopback only, and follows them when they move. A page comes with the
name of the process that it is from: another name is another process, whose counters began at 0.

    a gateway that                                      is taken as
    answers                                             read
    has died, or takes no more requests (it drains)     not there: what it counted since is lost
    does not answer in time, or with an error           a fault
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from actors.collector.exposition import SourceDownError, metrics_url, redacted
from actors.collector.http_text import TextReader
from actors.names import GATEWAY


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
        """Of each the requests of the last `seconds`, one by one (`exposition.decode`)."""

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
    """What the replicas of a deployment answer, and a line for each that does not in time.

    Serve's own `results_async` knows one time for all: one replica that hangs would hide the others' answers.
    """
    from ray.exceptions import ActorDiedError

    async with asyncio.timeout(timeout_s):
        asked = await handle.broadcast(method, *args)._fetch_replica_results_async()
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
