"""What the live system promises, on one real local Ray and one application: scaling, deaths, page, status,
routing by SLO, and a configuration that is changed while it runs.

Nothing here depends on how fast the machine is: engines take twenty times as long as profiled, loads are far
above or below what replicas bear, and no wait is for a time. Each test finds what the one before it left.
"""

import asyncio
import itertools
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import openai
import pytest
import ray
from playwright.sync_api import Page, expect, sync_playwright

from actors.names import (
    INTERPOLATOR,
    LATENCY_TRAINER,
    METRIC_COLLECTOR,
    NAMESPACE,
    PLANNER,
    PREDICTOR,
    router,
)
from actors.virtual_connector import VirtualConnectorClient
from tests.live.conftest import CHROMIUM
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.ray.clusters import POLL_S, replicas, scale, wait_until
from tests.ray.live_system import (
    APPLICATION,
    SLOW,
    LiveSystem,
    alive_again,
    apply_file,
    headway,
    kill_nine,
    pids,
    system_of_a_file,
)
from tests.ray.routed_system import MODEL, Answered, Gateway, router_says

pytestmark = pytest.mark.essential

ROLES = ("prefill", "decode")
MOST = 2
"""Replicas of a pool."""
SETTINGS = {
    **SLOW,
    "gateway.port": free_port(),
    "planner.adjustment_interval_s": 2.0,
    # A busy machine is no reason to end a tick, to place without the router, or to plan for slower engines.
    "planner.tick_deadline_s": 60.0,
    "routing.call_timeout_ms": 10_000,
    "engine.refinement.enabled": False,
    "metrics.scrape_interval_s": 0.5,
    "metrics.timeout_s": 30.0,
    "routing.profile": "slo",
    "slo.classes": {
        "urgent": {"ttft_ms": 120_000, "tpot_ms": 20_000, "critical": True},
        "batch": {"ttft_ms": 8_000, "tpot_ms": 20_000},
    },
    "pools.prefill.max_replicas": MOST,
    "pools.decode.max_replicas": MOST,
}
PROMPT = 800
STEADY = f"steady:rate_rps=1,duration_s=1800,input_tokens={PROMPT},input_cv=0,output_tokens=40,seed=3"
CREST = f"steady:rate_rps=4,duration_s=1800,input_tokens={PROMPT},input_cv=0,output_tokens=40,seed=6"
"""Loads outlast what is done under them, on a slow machine too; each is cut where that ends."""
ONE_BEARS_RPS, ONE_IS_TOO_FEW_RPS = 1.5, 4.0
"""A prefill replica has 2.5 prompts a second."""
LIGHT = "steady:rate_rps=1,duration_s=1800,input_tokens=200,output_tokens=40,seed=4"
ENOUGH_SERVED = 10
"""Requests that end after a replica died and one runs again: the pool serves."""
PATIENCE_MS = PATIENCE_S * 1000
PROMISED_MS = 5000
"""As `headway set` says it, not the file."""


@pytest.fixture(scope="module")
def system(ray_cluster: object) -> Iterator[LiveSystem]:
    """On the Ray that all modules here share; a file, as its configuration is changed later."""
    with system_of_a_file(SETTINGS) as running:
        yield running


def test_replicas_follow_a_step_up_and_down_and_no_request_fails(system: LiveSystem) -> None:
    with system.under_load(STEADY) as under:
        wait_until(lambda: any(record["measured"]["requests"] for record in system.decisions()))
        with system.under_load(CREST) as over:
            wait_until(lambda: all(system.running(role) == MOST for role in ROLES))
        wait_until(lambda: all(system.running(role) == 1 for role in ROLES))
    for result in (under, over):
        assert not broken(result), broken(result)
        assert result["completed"] == result["requests"] > 0
    records = system.decisions()
    for role in ROLES:
        assert came_to_run(records, role)
    told = [record for record in records if record["measured"]["requests"] is not None]
    rise = next(place for place, record in enumerate(told) if record["targets"]["prefill"] == MOST)
    assert max(map(rate_rps, told[: rise + 1])) > ONE_BEARS_RPS
    high = [record for record in told if rate_rps(record) >= ONE_IS_TOO_FEW_RPS]
    assert {record["targets"]["prefill"] for record in high} <= {MOST}
    assert_single_requests_were_seen([record["measured"] for record in told])


def is_over(record: Mapping[str, Any]) -> bool:
    """Whether the interval had more than one replica bears."""
    return record["measured"]["requests"] is not None and rate_rps(record) > ONE_BEARS_RPS


def rate_rps(record: Mapping[str, Any]) -> float:
    """Requests a second in the interval of a decision."""
    interval = record["interval"]
    return float(record["measured"]["requests"] / (interval["end_s"] - interval["start_s"]))


def assert_single_requests_were_seen(measured: list[dict[str, Any]]) -> None:
    """The planner had the requests one by one, as many as were counted; borders may differ by a request."""
    told = [interval for interval in measured if interval["traffic"] is not None]
    assert len(told) > len(measured) / 2
    for kind, total in (("arrivals", "requests"), ("completions", "completed")):
        counted = sum(interval[total] for interval in told)
        assert counted > 0
        seen = sum(interval["traffic"][kind] for interval in told)
        assert abs(seen - counted) <= max(3, 0.05 * counted), kind


def broken(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The requests that did not end well, as the load generator wrote them down."""
    told = ("index", "outcome", "status", "detail", "intended_s")
    failed = [record for record in result["records"] if record["outcome"] != "ok"]
    return [{name: record.get(name) for name in told} for record in failed]


def came_to_run(records: list[dict[str, Any]], role: str) -> list[str]:
    """The replicas of that role that these decisions started and that came to run."""
    started = [replica for record in records for replica in record["replicas"] if replica["role"] == role]
    return [replica["replica"] for replica in started if replica["running_at"] is not None]


def said(system: LiveSystem, *words: str) -> str:
    """What a verb prints of this system."""
    command = [*headway(*words), "--url", system.url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout


def test_status_and_control_api_name_pools_attainment_and_the_last_decision(system: LiveSystem) -> None:
    before = system.newest()
    shown = " ".join(said(system, "status").split())
    document, after = system.status(), system.newest()
    (newest,) = map(int, re.findall(r"Decision\s*#(\d+),", shown))
    assert before <= newest <= after
    record = system.get(f"/v1/control/decisions/{newest}")
    assert ", ".join(f"{role} {record['targets'][role]}" for role in ROLES) in shown
    assert record["reasons"]["summary"].split()[0] in shown
    assert "simulated" in shown.lower()
    assert re.search(r"SLO .*\d ?% in total, target 99", shown)
    assert before <= document["last_decision"]["id"] <= after
    assert document["last_decision"]["summary"]
    assert 0 < document["attainment"]["total"] <= 1
    assert {role: pool["ready"] for role, pool in document["pools"].items()} == dict.fromkeys(ROLES, 1)


def asked(system: LiveSystem, **headers: str) -> Answered:
    """A short request with these headers."""

    async def scenario() -> Answered:
        async with aiohttp.ClientSession() as http:
            return await Gateway(system.url).ask(http, 100, 3, **headers)

    return asyncio.run(scenario())


def test_a_new_slo_reaches_planner_and_gateway_without_a_restart(system: LiveSystem) -> None:
    before = processes()
    said(system, "set", "slo.ttft_ms=1")
    wait_until(lambda: system.status()["slo"]["ttft_ms"] == 1)
    missed = system.counted("headway_slo_requests_total", 'met="false"')

    def is_missed() -> bool:
        assert asked(system).tokens == 3
        return system.counted("headway_slo_requests_total", 'met="false"') > missed

    wait_until(is_missed)
    assert processes() == before
    said(system, "set", f"slo.ttft_ms={PROMISED_MS}")
    wrong = [*headway("set", "engine.kind=vllm"), "--url", system.url]
    refused = subprocess.run(wrong, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert refused.returncode == 2
    assert "engine.kind" in refused.stderr


@pytest.mark.parametrize("stream", [False, True])
def test_separate_pools_serve_calls_with_several_outputs(system: LiveSystem, stream: bool) -> None:
    """They were refused: the KV of a prompt goes to one output, and each has its own now."""
    name, texts = f"several-{stream}", ["", "", "", ""]
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    with openai.OpenAI(base_url=f"{system.url}/v1", api_key="none", timeout=PATIENCE_S) as client:
        answer = client.completions.create(
            model=MODEL,
            prompt=["How many? " * 20, "Why? " * 20],
            n=2,
            max_tokens=3,
            seed=5,
            stream=stream,
            extra_headers={"x-request-id": name, "x-headway-slo-class": "urgent"},
            **options,
        )
        for part in answer if stream else [answer]:
            usage = part.usage
            for choice in part.choices:
                texts[choice.index] += choice.text
    assert texts == [" [simulated] bravo charlie"] * 4
    assert (usage.prompt_tokens, usage.completion_tokens) == (50 + 25, 12)
    records = system.get(f"/v1/requests/{name}")["requests"]
    assert [record["output"] for record in records] == [0, 1, 2, 3]
    for record in records:
        assert (record["outcome"], record["output_tokens"]) == ("ok", 3)
        assert {step["name"] for step in record["steps"]} == {"route", "prefill", "decode"}
        assert record["placement"]["prefill_replica"] != record["placement"]["decode_replica"]


def processes() -> set[int]:
    """Of the gateway, the engines and the planner."""
    parts = (GATEWAY, "Prefill", "Decode", PLANNER)
    return {pid for part in parts for pid in pids(actor_of(part)).values()}


CONTROLLER = "SERVE_CONTROLLER_ACTOR"
DEATHS = (
    (METRIC_COLLECTOR, PREDICTOR, INTERPOLATOR, LATENCY_TRAINER),
    *((PLANNER,), (router(MODEL),), (CONTROLLER,), ("Prefill",), ("Decode",)),
)
"""The parts that are killed at once, in the order of their deaths; the gateway comes last."""
GATEWAY = "Gateway"
STREAMS = 3
"""Under way in the gateway when it is killed."""


@dataclass(frozen=True)
class Survival:
    """What was seen while parts were killed under load, one after the other, the gateway last."""

    shown: Mapping[str, str]
    """What the page then said of each part."""
    load: Mapping[str, Any]
    """What became of its requests; it ended before the gateway was killed."""
    arrived: float
    """Requests that had come when the decode replica was killed."""
    placed_without: Answered
    """A request that came while the Router was away."""
    cut_off: Sequence[Answered | BaseException]
    """How the streams ended that the gateway had when it was killed."""
    learnt: tuple[int, int]
    """Intervals that the Predictor knew before its death, and after all."""
    faults: Sequence[str]
    """Of the page's scripts."""


@pytest.fixture(scope="module")
def survival(system: LiveSystem) -> Survival:
    """One pass over all parts, for what the loop, the clients and the page make of it."""
    shown, arrived, learnt = dict[str, str](), dict[str, float](), intervals()
    placed_without: list[Answered] = []
    with watching(system) as watch, ThreadPoolExecutor(1) as clients:
        begun = arrivals(system)
        with system.under_load(LIGHT) as load:
            for parts in DEATHS:
                wait_until(lambda: busy(system))
                with dying(system, watch, *parts):
                    arrived |= dict.fromkeys(parts, arrivals(system) - begun)
                    if parts == (router(MODEL),):
                        call = clients.submit(asked, system, x_headway_explain="true")
                        placed_without.append(call.result())
                shown |= {part: watch.told_of(part) for part in parts}
            served = system.counted("headway_slo_requests_total") + ENOUGH_SERVED
            watch.until(lambda: system.counted("headway_slo_requests_total") >= served)
        wait_until(lambda: system.counted("headway_requests_in_flight") == 0)
        streams = clients.submit(streamed, system)
        wait_until(lambda: system.counted("headway_requests_in_flight") >= STREAMS)
        with dying(system, watch, GATEWAY):
            cut_off = streams.result()
        shown[GATEWAY] = watch.told_of(GATEWAY)
    return Survival(
        shown, load, arrived["Decode"], placed_without[0], cut_off, (learnt, intervals()), watch.faults
    )


@contextmanager
def dying(system: LiveSystem, watch: "Watch", *parts: str) -> Iterator[None]:
    """The block runs while parts are away. Then they are back, the loop goes on, and the page shows both."""
    wait_until(lambda: all(pids(actor_of(part)) for part in parts))
    newest, told = system.newest(), {part: watch.told_of(part) for part in parts}
    killed = {part: kill_nine(actor_of(part)) for part in parts}
    yield
    watch.until(lambda: all(alive_again(actor_of(part), pid) for part, pid in killed.items()))
    watch.until(lambda: system.newest() > newest)
    if watch.page is not None and CONTROLLER not in parts:
        watch.until(lambda: all(restarted(watch.told_of(part), told[part]) for part in parts))
        watch.goes_on(newest)


def restarted(told: str, before: str) -> bool:
    """Whether the page's words on a part say so anew."""
    return "Restarts" in told and told != before


def streamed(system: LiveSystem) -> Sequence[Answered | BaseException]:
    """How streams end that nobody else ends."""

    async def scenario() -> Sequence[Answered | BaseException]:
        async with aiohttp.ClientSession() as http:
            calls = [Gateway(system.url).ask(http, 100, 5_000) for _ in range(STREAMS)]
            return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(scenario())


def arrivals(system: LiveSystem) -> float:
    return system.counted("headway_request_arrivals_total")


def intervals() -> int:
    """How many the Predictor has learnt from."""
    predictor = ray.get_actor(PREDICTOR, namespace=NAMESPACE)
    return int(ray.get(predictor.status.remote(), timeout=PATIENCE_S)["intervals"])


def actor_of(part: str) -> str:
    """What the GCS calls it: replicas by their deployment."""
    return f"#{part}#" if part in {GATEWAY, "Prefill", "Decode"} else part


def busy(system: LiveSystem) -> bool:
    """Whether some stream is under way."""
    return bool(system.status()["pools"]["decode"]["running"])


@dataclass(frozen=True)
class Watch:
    """The live page in a browser; without one, nothing is shown, and only the system is waited for."""

    page: Page | None
    faults: list[str]

    def told_of(self, part: str) -> str:
        """What the page's facts say of a part's restarts, without how long ago."""
        if self.page is None:
            return ""
        row = self.page.locator("#facts tr", has_text=re.compile(rf"Restarts\s*{re.escape(part)} "))
        return re.sub(r"[0-9.]+ \w+ ago", "", " ".join(row.all_inner_texts()))

    def goes_on(self, shown: int) -> None:
        """The page shows newer decisions than that, and calls itself live."""
        assert self.page is not None
        first, link = self.page.locator("#list tr").first, self.page.locator("#link")
        self.until(lambda: int(first.get_attribute("data-id") or -1) > shown)
        expect(link).to_contain_text("live,", timeout=PATIENCE_MS)

    def until(self, holds: Callable[[], bool]) -> None:
        """As `wait_until`, while the browser goes on."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, self.page and self.page.locator("body").inner_text()
            if self.page is None:
                time.sleep(POLL_S)
            else:
                self.page.wait_for_timeout(1000 * POLL_S)


@contextmanager
def watching(system: LiveSystem) -> Iterator[Watch]:
    if CHROMIUM is None:
        yield Watch(None, [])
        return
    with sync_playwright() as playwright:
        # As root Chromium has no sandbox; what it opens is ours.
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page, faults = chromium.new_page(), list[str]()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(system.url)
        for role in ROLES:
            tile = page.locator("#tiles .tile", has_text=role)
            expect(tile.locator(".value")).to_have_text("1 ready", timeout=PATIENCE_MS)
        expect(page.locator("#badges")).to_contain_text("SIMULATED")
        page.locator("#list tr").first.click()
        expect(page.locator("#steps")).to_contain_text("prefill 1, decode 1")
        yield Watch(page, faults)
        chromium.close()


def test_the_loop_outlives_every_part_and_ids_have_no_gap(system: LiveSystem, survival: Survival) -> None:
    assert set(survival.shown) == {*itertools.chain(*DEATHS), GATEWAY}
    records = system.decisions()
    ids, ticks = [record["id"] for record in records], [record["tick"] for record in records]
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    assert all(later > earlier for earlier, later in itertools.pairwise(ticks))
    before, after = survival.learnt
    assert after > before > 0
    assert system.status()["changes"] == {"slo.ttft_ms": PROMISED_MS}


def test_requests_under_deaths_are_served_or_end_with_a_clear_error(survival: Survival) -> None:
    load = survival.load
    assert load["requests"] == load["completed"] + load["failed"] + load["shed"]
    assert load["completed"] > ENOUGH_SERVED
    for record in broken(load):
        # Streams that had begun on the decode replica that was killed; all others were served.
        assert "lost after the first token" in record["detail"], record
        assert record["index"] < survival.arrived
    assert len(survival.cut_off) == STREAMS
    assert all(isinstance(ended, aiohttp.ClientError | OSError) for ended in survival.cut_off)


def test_nothing_of_a_dead_gateway_stays_in_engines_or_router(system: LiveSystem, survival: Survival) -> None:
    wait_until(
        lambda: not any(pool["running"] or pool["waiting"] for pool in system.status()["pools"].values())
    )
    wait_until(lambda: router_says(lambda status: (status["gateways"], status["running"]) == (1, 0)))


def test_requests_are_placed_without_the_router_and_by_the_next_one(
    system: LiveSystem, survival: Survival
) -> None:
    assert survival.placed_without.tokens == 3
    assert survival.placed_without.headers["x-headway-route-reason"] == "fallback"
    answers: list[Answered] = []

    def is_placed() -> bool:
        answers.append(asked(system, x_headway_explain="true", x_headway_slo_class="urgent"))
        assert answers[-1].tokens == 3
        return "x-headway-predicted-ttft-ms" in answers[-1].headers

    wait_until(is_placed)
    headers = answers[-1].headers
    assert headers["x-headway-prefill-replica"] in ids_of("Prefill")
    assert headers["x-headway-replica"] in ids_of("Decode")
    assert float(headers["x-headway-predicted-ttft-ms"]) > 0
    assert float(headers["x-headway-predicted-tpot-ms"]) > 0
    silent = asked(system, x_headway_slo_class="urgent")
    assert silent.tokens == 3
    assert "x-headway-replica" not in silent.headers


def ids_of(deployment: str) -> set[str]:
    return {one["replica_id"] for one in replicas(APPLICATION, deployment)}


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
def test_the_live_page_outlives_each_part_and_shows_it(survival: Survival) -> None:
    assert all("Restarts" in told for part, told in survival.shown.items() if part != CONTROLLER)
    assert not survival.faults


def test_critical_requests_keep_their_slo_at_overload_and_others_are_shed(system: LiveSystem) -> None:
    gateway = Gateway(system.url)

    async def scenario() -> tuple[list[Answered], list[Answered]]:
        async with aiohttp.ClientSession() as http:
            others = [send("batch", 1_500, http) for _ in range(60)]
            # As soon as one is turned away there is more than the pools bear.
            await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
            urgent = [send("urgent", 300, http) for _ in range(6)]
            return await asyncio.gather(*urgent), await asyncio.gather(*others)

    def send(slo_class: str, tokens: int, http: aiohttp.ClientSession) -> asyncio.Task[Answered]:
        return asyncio.create_task(gateway.ask(http, tokens, 5, x_headway_slo_class=slo_class))

    before = judged(system, "urgent")
    urgent, others = asyncio.run(scenario())
    assert [(answer.status, answer.tokens) for answer in urgent] == [(200, 5)] * 6
    # Clients have the last token before it is counted.
    wait_until(lambda: judged(system, "urgent") == before + 6)
    assert judged(system, "urgent", met="false") == 0
    assert set(statuses := Counter(answer.status for answer in others)) == {200, 429}
    assert statuses[429] >= 10
    assert all("retry-after" in answer.headers for answer in others if answer.status == 429)
    assert all(answer.tokens == 5 for answer in others if answer.status == 200)


def judged(system: LiveSystem, slo_class: str, met: str = "") -> float:
    """Requests of that class that have ended since the gateway's start."""
    labels = (f'class="{slo_class}"', f'met="{met}')
    return system.counted("headway_slo_class_requests_total", *labels)


def test_with_the_virtual_connector_an_outside_system_carries_decisions_out(system: LiveSystem) -> None:
    wait_until(lambda: all(system.running(role) == 1 for role in ROLES))
    newest, engines = system.newest(), ids_of("Prefill") | ids_of("Decode")
    apply_file(SETTINGS, {"connector": {"kind": "virtual"}})
    client = VirtualConnectorClient()
    first = client.wait(PATIENCE_S)
    assert first is not None
    assert {role.value: count for role, count in first.targets.items()} == dict.fromkeys(ROLES, 1)
    assert client.complete(first)
    wait_until(lambda: system.status()["connector"]["kind"] == "virtual")
    said(system, "set", "pools.decode.min_replicas=2")
    second = client.wait(PATIENCE_S)
    assert second is not None
    assert (second.decision_id, second.num_decode) == (first.decision_id + 1, 2)
    assert system.running("decode") == 1, "nobody but the outside system starts one"
    scale(APPLICATION, "Decode", second.num_decode)
    wait_until(lambda: len(ids_of("Decode")) == 2)
    assert client.complete(second)
    wait_until(lambda: system.running("decode") == 2)
    assert engines < ids_of("Prefill") | ids_of("Decode"), "a new connector restarts no engine"
    ids = [record["id"] for record in system.decisions()]
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    assert ids[-1] > newest
