"""Gateways of one application as one of them shows them: added up on a node, and never a part of it."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from actors.collector.exposition import SourceDownError
from actors.collector.pages import Page
from actors.collector.request_list import ARRIVAL, decode, encode
from headway.config import HeadwayConfig
from serve_apps.gateway.app import GatewayApp, make_app
from serve_apps.gateway.slo_targets import SloTargets
from tests.gateway.doubles import LOADS, ScriptedBackend

OPENMETRICS = "application/openmetrics-text"
INTERACTIVE = SloTargets(slo_class="interactive", class_place=1)


class Node:
    """Gateways in this process, by name, with the nodes that they are on."""

    def __init__(self, **nodes: str) -> None:
        slo = {"classes": {"interactive": {"ttft_ms": 100, "tpot_ms": 10}}}
        config = HeadwayConfig.model_validate({"model": "m", "slo": slo})
        self.nodes = nodes
        self.apps = {name: make_app(config, ScriptedBackend(loads=LOADS)) for name in nodes}
        self.silent: set[str] = set()
        for name, app in self.apps.items():
            app.state.fleet.join(name, nodes[name], self.ask)

    async def ask(self, method: str, *args: Any) -> tuple[Sequence[Page], Sequence[str]]:
        answering = self.apps.keys() - self.silent
        if not answering:
            raise SourceDownError("nobody answers")
        pages = [Page(name, self.nodes[name], self._said(name, method, *args)) for name in answering]
        return pages, ["no answer within 2 s"] * len(self.silent)

    def _said(self, name: str, method: str, *args: Any) -> str:
        state = self.apps[name].state
        if method == "recent":
            return encode(state.metrics.log.recent(*args)).decode()
        if method == "figures":
            seen = {"queued": 3, "sheds": {"no_room": 2}, "fallbacks": {}, "predictions": {}}
            return state.fleet.figures(seen).decode()
        if method == "kept":
            return state.fleet.kept(*args).decode()
        return state.fleet.counted(*args).decode()


def got(app: GatewayApp, path: str, **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://g") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


@pytest.mark.parametrize(("accept", "parse"), [("", plain), (OPENMETRICS, openmetrics)])
def test_a_scrape_of_any_shows_all_of_the_node(accept: str, parse: Any) -> None:
    node = Node(a="one", b="one", c="two")
    for name, arrivals in (("a", 3), ("b", 4), ("c", 50)):
        for _ in range(arrivals):
            node.apps[name].state.metrics.arrived(100)
    for asked in "ab":
        families = list(parse(got(node.apps[asked], "/metrics", accept=accept).text))
        names = [family.name for family in families]
        assert len(names) == len(set(names)), "the samples of a metric stand together"
        samples = [sample for family in families for sample in family.samples]
        arrived = {
            sample.labels["gateway"]: sample.value
            for sample in samples
            if sample.name == "headway_request_arrivals_total"
        }
        assert arrived == {"a": 3.0, "b": 4.0}
        running = [s for s in samples if s.name == "headway_replica_running_requests"]
        assert [("gateway" in s.labels, s.labels["replica"]) for s in running] == [
            (False, "p#1"),
            (False, "d#1"),
        ]
        seen = [(s.name, tuple(sorted(s.labels.items()))) for s in samples]
        assert len(seen) == len(set(seen))


def test_the_requests_of_the_node_are_one_list() -> None:
    node = Node(a="one", b="one", c="two")
    for name in ("a", "b", "a", "c"):
        node.apps[name].state.metrics.arrived(7)
    listed = decode(got(node.apps["b"], "/metrics/requests?seconds=60").text)
    assert (listed.rows["output_tokens"] == ARRIVAL).sum() == 3
    assert (listed.rows["at_s"][1:] >= listed.rows["at_s"][:-1]).all()


def test_a_list_is_whole_only_since_the_last_gateway_went() -> None:
    node = Node(a="one", b="one")
    before = decode(got(node.apps["a"], "/metrics/requests?seconds=60").text)
    went_s = time.time()
    del node.apps["b"]
    after = decode(got(node.apps["a"], "/metrics/requests?seconds=60").text)
    assert before.whole_since_s < went_s <= after.whole_since_s
    again = decode(got(node.apps["a"], "/metrics/requests?seconds=60").text)
    assert again.whole_since_s == after.whole_since_s


@pytest.mark.parametrize("path", ["/metrics", "/metrics/requests"])
def test_a_part_is_no_answer(path: str) -> None:
    node = Node(a="one", b="one", c="two")
    assert got(node.apps["a"], path).status_code == 200
    node.silent = {"c"}
    assert got(node.apps["a"], path).status_code == 200, "it is on another node"
    node.silent = {"b"}
    refused = got(node.apps["a"], path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "gateway_unread")
    node.silent = {"a", "b", "c"}
    assert got(node.apps["a"], path).status_code == 503
    del node.apps["b"]
    node.silent = set()
    assert got(node.apps["a"], path).status_code == 200


def test_the_live_page_adds_up_those_of_all_nodes() -> None:
    node = Node(a="one", b="one", c="two")
    for name, met in (("a", 0.01), ("b", 0.01), ("c", 9.0)):
        metrics = node.apps[name].state.metrics
        metrics.requests["ok"] += 1
        metrics.judge("ok", (met, None), INTERACTIVE)
    fleet = node.apps["a"].state.fleet

    async def status() -> dict[str, Any]:
        return {}

    asyncio.run(fleet.with_others_figures(status)())
    assert fleet.outcomes()["ok"] == 3
    assert sum(fleet.judged()["interactive"]) == 3.0
    own = {"queued": 5, "sheds": {"no_room": 1}, "fallbacks": {"error": 1}, "predictions": {}}
    assert fleet.routing(own) == {**own, "sheds": {"no_room": 5}}
    node.silent = {"b"}
    asyncio.run(fleet.with_others_figures(status)())
    assert fleet.outcomes()["ok"] == 3, "what it said last"


def test_a_gateway_alone_has_no_such_label() -> None:
    app = make_app(HeadwayConfig.model_validate({"model": "m"}), ScriptedBackend(loads=LOADS))
    page = got(app, "/metrics")
    assert page.headers["content-type"] in (CONTENT_TYPE_LATEST, "text/plain; version=0.0.4; charset=utf-8")
    assert 'gateway="' not in page.text
    assert "headway_request_arrivals_total" in page.text
