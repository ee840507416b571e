"""A real Prometheus as companies have it: behind a proxy with keys, tenants, TLS, redirects and limits."""

import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from actors.collector.exposition import SourceDownError
from actors.collector.interval import HealthStatus
from actors.collector.pages import TextReader
from actors.collector.presets import PRESETS
from actors.collector.prometheus_source import PrometheusSource
from headway.config.live import MetricsSettings
from tests.actors.collector_cases import serving
from tests.certificates import self_signed
from tests.patience import PATIENCE_S
from tests.prometheus_process import PrometheusProcess, fill

pytestmark = pytest.mark.anyio

MODEL = "m"
WHERE = f'model_name="{MODEL}",namespace="llm",job="pods",instance="a:1"'


class Filled(PrometheusProcess):
    """Two minutes of an engine with two requests a second, which began a while ago."""

    def __init__(self, folder) -> None:
        self.began_s = int(time.time()) - 200
        per_second = {"vllm:request_success_total": 2, "vllm:request_prompt_tokens_count": 2}
        per_second |= {"vllm:request_prompt_tokens_sum": 200}
        per_second |= dict.fromkeys(("vllm:num_requests_running", "vllm:num_requests_waiting"), 0)
        lines = [
            f'{name}{{{WHERE},engine="0"}} {count * second} {self.began_s + second}'
            for name, count in per_second.items()
            for second in range(0, 121, 5)
        ]
        lines += [f"up{{{WHERE}}} 1 {self.began_s + second}" for second in range(0, 121, 5)]
        fill(folder, lines)
        super().__init__(folder)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    process = Filled(tmp_path_factory.mktemp("prometheus"))
    yield process
    process.stop()


class Proxy:
    """Hands queries on, and keeps what it was asked; `also` goes into each answer."""

    def __init__(self, prometheus: Filled, **also: Any) -> None:
        self.url, self.also = prometheus.url, also
        self.asked: list[web.Request] = []
        self.queries: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        self.asked.append(request)
        self.queries.append(str(form["query"]))
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/api/v1/query", data=dict(form)) as answered,
        ):
            return web.json_response({**await answered.json(), **self.also}, status=answered.status)


@asynccontextmanager
async def source_of(url: str, **settings: Any) -> AsyncIterator[PrometheusSource]:
    given = MetricsSettings(source="prometheus", url=url, preset="vllm", **settings)
    source = PrometheusSource(
        url,
        PRESETS["vllm"],
        MODEL,
        timeout_s=PATIENCE_S,
        fresh_s=30.0,
        labels=given.labels,
        settings=given,
    )
    try:
        yield source
    finally:
        await source.close()


async def test_path_arguments_tenant_and_key_reach_the_other_side(prometheus, tmp_path):
    (tmp_path / "tenant").write_text("team\n")
    (tmp_path / "key").write_text("secret\n")
    proxy = Proxy(prometheus)
    given = {
        "headers": {"X-Scope-OrgID": f"@{tmp_path}/tenant", "X-More": "1"},
        "labels": {"namespace": "llm"},
    }
    async with (
        serving(proxy.answer) as url,
        source_of(f"{url}/base/?tenant=a", token_file=str(tmp_path / "key"), **given) as source,
    ):
        found = await source.collect(prometheus.began_s + 10, prometheus.began_s + 70)
        await source.engines()
        await source.probe()
        await source.inventory()
    assert (found.requests, found.isl_tokens) == (120.0, 100.0)
    for request in proxy.asked:
        assert (request.path, request.query_string) == ("/base/api/v1/query", "tenant=a")
        assert request.headers["X-Scope-OrgID"] == "team"
        assert request.headers["X-More"] == "1"
        assert request.headers["Authorization"] == "Bearer secret"
    assert all(q.count("{__name__") == q.count('namespace="llm"') > 0 for q in proxy.queries)


async def test_a_user_and_a_password_in_the_address_are_sent(prometheus):
    proxy = Proxy(prometheus)
    async with serving(proxy.answer) as url, source_of(url.replace("//", "//me:pass%3Aword@")) as source:
        await source.collect(prometheus.began_s + 10, prometheus.began_s + 70)
        assert "pass" not in str(source.status())
    sent = aiohttp.BasicAuth.decode(proxy.asked[0].headers["Authorization"])
    assert (sent.login, sent.password) == ("me", "pass:word")


async def test_an_offset_asks_for_what_was_so_long_ago(prometheus):
    async with source_of(prometheus.url, offset_s=45.0) as source:
        found = await source.collect(prometheus.began_s + 100.0, prometheus.began_s + 160.0)
    # A scrape before that, of which it has a sample on both sides.
    assert (found.start_s, found.end_s) == (prometheus.began_s + 50.0, prometheus.began_s + 110.0)
    assert found.requests == pytest.approx(120.0)
    async with source_of(prometheus.url) as source:
        health = (await source.collect(prometheus.began_s + 100.0, prometheus.began_s + 160.0)).health
    assert health.status is HealthStatus.STALE
    assert "40.0 s old" in health.detail
    assert "metrics.offset_s" in health.detail


@pytest.mark.parametrize(
    ("also", "said"),
    [
        ({"warnings": ["store down: no store matched"]}, "store down: no store matched"),
        ({"isPartial": True}, "isPartial"),
    ],
)
async def test_an_answer_of_a_part_of_the_data_is_no_demand(also, said, prometheus):
    async with serving(Proxy(prometheus, **also).answer) as url, source_of(url) as source:
        found = await source.collect(prometheus.began_s + 10, prometheus.began_s + 70)
    assert found.health.status is HealthStatus.PARTIAL
    assert f"a part of the data was not asked: {said}" in found.health.detail
    assert found.requests != 120.0


async def test_what_promql_says_of_a_query_is_no_fault(prometheus):
    also = {"warnings": ["PromQL info: metric might not be a counter"]}
    async with serving(Proxy(prometheus, **also).answer) as url, source_of(url) as source:
        assert (await source.collect(prometheus.began_s + 10, prometheus.began_s + 70)).requests == 120.0


async def test_the_reason_of_an_error_is_shown():
    async def limited(_request: web.Request) -> web.StreamResponse:
        error = {
            "status": "error",
            "errorType": "execution",
            "error": "the query time range exceeds the limit",
        }
        return web.json_response(error, status=422)

    async with serving(limited) as url, source_of(url) as source:
        assert "HTTP status 422: the query time range exceeds the limit" in (await source.probe()).detail


async def test_labels_that_up_lacks_hide_no_traffic(prometheus):
    async with source_of(prometheus.url, labels={"engine": "0"}) as source:
        assert (await source.collect(prometheus.began_s + 10, prometheus.began_s + 70)).requests == 120.0
        health = (await source.collect(prometheus.began_s - 30, prometheus.began_s + 30)).health
    assert health.status is HealthStatus.STARTING


async def test_a_clock_that_is_behind_is_named(prometheus, monkeypatch):
    # Ours shows the middle of the two minutes whose samples are all there.
    clock = SimpleNamespace(time=lambda: prometheus.began_s + 60.0)
    monkeypatch.setattr("actors.collector.prometheus_source.time", clock)
    async with source_of(prometheus.url) as source:
        health = (await source.collect(prometheus.began_s + 10, prometheus.began_s + 60)).health
    assert health.status is HealthStatus.STALE
    assert "are up to 60 s ahead of our clock: set the clocks" in health.detail


async def test_a_server_that_does_not_look_ahead_is_read_all_the_same(prometheus):
    proxy = Proxy(prometheus)

    async def without(request: web.Request) -> web.StreamResponse:
        if "offset -" in str((await request.post())["query"]):
            return web.json_response({"status": "error", "error": "negative offset is disabled"}, status=400)
        return await proxy.answer(request)

    async with serving(without) as url, source_of(url) as source:
        assert (await source.collect(prometheus.began_s + 10, prometheus.began_s + 70)).requests == 120.0


async def test_credentials_do_not_follow_a_redirect_to_another_host(prometheus):
    elsewhere = Proxy(prometheus)

    async def moved(request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect(f"{there.replace('127.0.0.1', 'localhost')}{request.path}")

    async with serving(elsewhere.answer) as there, serving(moved) as url, source_of(url) as source:
        detail = (await source.probe()).detail
    assert "redirects to http://localhost, which is not asked" in detail
    assert elsewhere.asked == []


async def test_a_redirect_within_the_host_is_followed_with_its_form(prometheus):
    proxy = Proxy(prometheus)

    async def moved(request: web.Request) -> web.StreamResponse:
        if request.path.startswith("/prometheus"):
            return await proxy.answer(request)
        raise web.HTTPFound(f"/prometheus{request.path}")

    async with serving(moved) as url, source_of(url) as source:
        assert (await source.collect(prometheus.began_s + 10, prometheus.began_s + 70)).requests == 120.0


async def test_an_answer_without_end_is_cut_off():
    written = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse()
        await response.prepare(request)
        while request.transport is not None and written < 2**30:
            await response.write(b'{"status": "success", "data": [' + b" " * 2**16)
            written += 2**16
        return response

    async with serving(endless) as url, source_of(url, max_answer_mib=1) as source:
        health = (await source.collect(0.0, 60.0)).health
    assert health.status is HealthStatus.DOWN
    assert "the answer is over 1 MiB (metrics.max_answer_mib)" in health.detail
    assert written < 2**28


async def read_over(url: str, **access: Any) -> str:
    reader = TextReader(PATIENCE_S, MetricsSettings(**{name: str(value) for name, value in access.items()}))
    try:
        return await reader.get(url)
    except SourceDownError as error:
        return f"down: {error}"
    finally:
        await reader.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_engines_behind_https_see_our_certificate_and_are_verified_as_the_settings_say(tmp_path):
    async def page(request: web.Request) -> web.Response:
        return web.Response(text=json.dumps(request.transport.get_extra_info("peercert")["subject"]))

    theirs, ours = self_signed(tmp_path, "engine", host="10.9.9.9"), self_signed(tmp_path, "ours")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ours.cert))
    context.load_cert_chain(theirs.cert, theirs.key)
    context.verify_mode = ssl.CERT_REQUIRED
    app = web.Application()
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}/metrics"
    shown = {"cert_file": ours.cert, "key_file": ours.key}
    try:
        assert "ertificate" in await read_over(url, ca_file=theirs.cert, **shown)
        assert "ours" in await read_over(url, ca_file=theirs.cert, verify="authority", **shown)
        assert "ertificate" in await read_over(url, verify="authority", **shown)
        assert "ours" in await read_over(url, verify="none", **shown)
        assert "down: " in await read_over(url, verify="none")
        lacking = await read_over(url, cert_file=tmp_path / "none")
        assert lacking == f"down: metrics.cert_file: {tmp_path / 'none'}: No such file or directory"
    finally:
        await runner.cleanup()
