"""The gateways of one application, as one of them shows them: a client gets whichever has accepted it.

    /metrics            series of all gateways of this node, each labelled `gateway`. What all show alike (the
                        replicas, the router's own figures, the control plane's) is there once, without it
    /metrics/requests   the requests of all gateways of this node in one list
    /v1/requests/ID     the records of a request, whichever gateway on whichever node has them
    live page           outcomes, SLO classes and what was turned away, of all gateways on all nodes

So a Prometheus that has each node as a target sees everything once, whichever process answers it. Answers
that would be a part are none: 503 while a gateway of this node is known and does not answer.

A gateway alone (`gateway.replicas` of 1) never joins: its pages are its own, without the label.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from starlette.responses import Response

from actors.collector.exposition import SourceDownError
from actors.collector.pages import Page
from actors.collector.request_list import RequestList, decode, merged
from serve_apps.faults import Fault
from serve_apps.gateway.metrics import GatewayMetrics
from serve_apps.gateway.request_record import RecentRequests

GATEWAY = "gateway"
"""The label with the replica's id."""

OF_REPLICAS = frozenset({"replica", "engine"})
"""Labels of what every gateway shows alike."""

ALIKE = frozenset(
    {
        "headway_engine_info",
        "headway_router_adapter_loads",
        "headway_router_event_errors",
        "headway_router_prediction",
        "headway_router_queued_requests",
        "headway_router_transfer",
    }
)
"""Names of what else they do."""

END = "# EOF"
"""The last line in OpenMetrics."""

Ask = Callable[..., Awaitable[tuple[Sequence[Page], Sequence[str]]]]
"""A method of all gateways, with its arguments; a line for each that does not answer. SourceDownError."""

Document = Mapping[str, Any]
Judged = Mapping[str, tuple[float, float]]


class GatewayUnread(Fault):
    """Another gateway of this node does not answer."""

    status, code = 503, "gateway_unread"

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after_s=1.0)


class Labelled(Collector):
    """What this gateway counts, with its name; with `alike` also what all of them show."""

    def __init__(self, shown: CollectorRegistry, name: str, *, alike: bool) -> None:
        self._shown, self._name, self._alike = shown, name, alike

    def collect(self) -> Iterator[Metric]:
        """The families of the registry."""
        for family in self._shown.collect():
            found = Metric(family.name, family.documentation, family.type, family.unit)
            found.samples = list(self._named(family))
            if found.samples:
                yield found

    def _named(self, family: Metric) -> Iterator[Sample]:
        for sample in family.samples:
            if family.name not in ALIKE and not OF_REPLICAS & sample.labels.keys():
                yield sample._replace(labels={**sample.labels, GATEWAY: self._name})
            elif self._alike:
                yield sample


class Fleet(Collector):
    """This gateway and, once it has joined, the others; as a collector what its page has of its own."""

    def __init__(self, registry: CollectorRegistry, metrics: GatewayMetrics, records: RecentRequests) -> None:
        self._registry, self._metrics, self._records = registry, metrics, records
        self._ask: Ask | None = None
        self._name = self._node = ""
        self._nodes: dict[str, str] = {}
        self._changed_s = 0.0
        self._others: dict[str, Document] = {}

    def join(self, name: str, node: str, ask: Ask) -> None:
        """Be one of several, under this name on this node."""
        self._name, self._node, self._ask, self._changed_s = name, node, ask, time.time()

    def collect(self) -> Iterator[Metric]:
        """The families, as they are shown while this is so."""
        if self._ask is None:
            return iter(self._registry.collect())
        return Labelled(self._registry, self._name, alike=True).collect()

    def counted(self, accept: str) -> bytes:
        """What this gateway counts, in the form that is accepted, for another's page."""
        encoder, _ = choose_encoder(accept)
        registry = CollectorRegistry()
        registry.register(Labelled(self._registry, self._name, alike=False))
        return encoder(registry)

    async def with_others(self, own: Response, accept: str) -> Response:
        """A page of metrics with what the others of this node count. GatewayUnread."""
        if self._ask is None:
            return own
        pages = await self._of_node(self._ask, "counted", accept)
        text = joined([bytes(own.body).decode(), *(page.text for page in pages)])
        return Response(text, headers={"content-type": own.headers["content-type"]})

    async def requests(self, seconds: float) -> RequestList:
        """The requests of the last `seconds` of this node's gateways. GatewayUnread.

        None is missing since the last of them began, or one was gone.
        """
        own = self._metrics.log.recent(seconds)
        if self._ask is None:
            return own
        pages = await self._of_node(self._ask, "recent", seconds)
        found = merged([own, *(decode(page.text) for page in pages)], own.now_s)
        return found._replace(whole_since_s=max(found.whole_since_s, self._changed_s))

    def kept(self, request_id: str) -> bytes:
        """This gateway's records of a request, for another's answer."""
        return json.dumps([{**each, GATEWAY: self._name} for each in self._records.find(request_id)]).encode()

    async def records(self, request_id: str) -> Sequence[Document]:
        """The records of requests with this id, in order of arrival.

        GatewayUnread: none, as far as is known.
        """
        if self._ask is None:
            return self._records.find(request_id)
        try:
            pages, faults = await self._ask("kept", request_id)
        except SourceDownError as error:
            pages, faults = (), [str(error)]
        others = [page.text for page in pages if page.process != self._name]
        found: list[Document] = [
            each for text in (self.kept(request_id).decode(), *others) for each in json.loads(text)
        ]
        if faults and not found:
            raise GatewayUnread(
                f"a gateway does not answer, and the others have no such request: {faults[0]}"
            )
        return sorted(found, key=lambda each: each["arrived_at"])

    def figures(self, routing: Document) -> bytes:
        """What the live page shows of this gateway, for another's."""
        outcomes = {str(outcome): count for outcome, count in self._metrics.requests.items()}
        return json.dumps(
            {"judged": self._metrics.judged_by_class(), "outcomes": outcomes, "routing": routing}
        ).encode()

    def with_others_figures(
        self, ask: Callable[[], Awaitable[Document]]
    ) -> Callable[[], Awaitable[Document]]:
        """`ask` that reads the figures of the others first."""

        async def asked() -> Document:
            document, _ = await asyncio.gather(ask(), self._read())
            return document

        return asked

    def judged(self) -> Judged:
        """By class, the requests of all gateways that met and that missed their SLO so far."""
        total: dict[str, tuple[float, float]] = {}
        for each in (self._metrics.judged_by_class(), *(other["judged"] for other in self._others.values())):
            for name, (met, missed) in each.items():
                before = total.get(name, (0.0, 0.0))
                total[name] = before[0] + met, before[1] + missed
        return total

    def outcomes(self) -> Mapping[str, int]:
        """How many requests of all gateways have ended how."""
        own = {str(outcome): count for outcome, count in self._metrics.requests.items()}
        return summed([own, *(other["outcomes"] for other in self._others.values())])

    def routing(self, own: Document) -> Document:
        """What the router counts, with the sheds and fallbacks of all gateways."""
        others = [other["routing"] for other in self._others.values()]
        if not others:
            return own
        turned = {key: summed([own[key], *(each[key] for each in others)]) for key in ("sheds", "fallbacks")}
        return {**own, **turned}

    async def _read(self) -> None:
        """The figures of the others; of one that does not answer the last ones."""
        if self._ask is None:
            return
        try:
            pages, faults = await self._ask("figures")
        except SourceDownError:
            return
        read = {page.process: json.loads(page.text) for page in pages if page.process != self._name}
        self._others = {**self._others, **read} if faults else read

    async def _of_node(self, ask: Ask, method: str, *args: object) -> Sequence[Page]:
        """The pages of the others of this node."""
        try:
            pages, faults = await ask(method, *args)
        except SourceDownError as error:
            raise GatewayUnread(f"the gateways of this node cannot be read: {error}") from error
        nodes = {page.process: page.node for page in pages}
        missing = [name for name, node in self._nodes.items() if node == self._node and name not in nodes]
        if faults and missing:
            raise GatewayUnread(f"a gateway of this node does not answer: {faults[0]}")
        if missing:
            self._changed_s = time.time()
        self._nodes = {**self._nodes, **nodes} if faults else nodes
        return [page for page in pages if page.node == self._node and page.process != self._name]


def summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The counts by name; one that is 0 stays."""
    total: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            total[name] = total.get(name, 0) + count
    return total


def joined(pages: Iterable[str]) -> str:
    """Expositions as one, in which all samples of a metric stand together."""
    heads: dict[str, dict[str, None]] = {}
    samples: dict[str, list[str]] = {}
    ends: list[str] = []
    for page in pages:
        name = ""
        for line in page.splitlines():
            if line == END:
                ends = [END]
            elif line.startswith("# "):
                name = line.split(" ", 3)[2]
                heads.setdefault(name, {})[line] = None
            else:
                samples.setdefault(name, []).append(line)
    lines = (line for name, head in heads.items() for line in (*head, *samples.get(name, ())))
    return "\n".join([*lines, *ends, ""])
