"""What the live system promises, on a real local Ray with simulated engines: scaling, deaths, status."""

import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from actors.names import ACTORS, INTERPOLATOR, METRIC_COLLECTOR, PLANNER, PREDICTOR
from tests.live.conftest import CHROMIUM
from tests.ray.clusters import PATIENCE_S, wait_until
from tests.ray.live_system import LiveSystem, headway, kill_nine, live_system

STEADY = "steady:rate_rps=1,duration_s=900,input_tokens=800,output_tokens=40,seed=3"
CREST = "steady:rate_rps=5,duration_s=900,input_tokens=800,output_tokens=40,seed=6"
"""Together 4,800 prompt tokens and 240 output tokens a second. All loads here outlast what is done under
them, on a slow machine too; each is cut where that ends."""
ENOUGH = {"pools.prefill.max_replicas": 3, "pools.decode.max_replicas": 3}
ROLES = ("prefill", "decode")
PATIENCE_MS = PATIENCE_S * 1000
ENOUGH_SERVED = 30
"""Requests that end after a replica died and one runs again: the pool serves."""

CLOCKS_S = 1.0
"""The load's start is told in wall time, its requests on its own clock."""

LIGHT = "steady:rate_rps=2,duration_s=900,input_tokens=400,output_tokens=40,seed=4"


@pytest.fixture(scope="module")
def system(ray_cluster: object) -> Iterator[LiveSystem]:
    with live_system(ENOUGH) as running:
        yield running


def test_replicas_follow_a_step_up_and_down_and_no_request_fails(system: LiveSystem) -> None:
    before = {record["id"] for record in system.decisions()}

    def made() -> list[dict[str, Any]]:
        records = [record for record in system.decisions() if record["id"] not in before]
        return sorted(records, key=lambda record: record["id"])

    with system.under_load(STEADY, cut=True) as under:
        wait_until(lambda: any(record["measured"]["requests"] for record in made()))
        with system.under_load(CREST, cut=True) as over:
            wait_until(lambda: all(system.running(role) >= 3 for role in ROLES))
            down_s = time.time()
        wait_until(lambda: all(system.running(role) == 1 for role in ROLES))
    for result in (under, over):
        assert not broken(result), broken(result)
        assert result["completed"] == result["requests"] > 0
    records = made()
    up_s = datetime.fromisoformat(over["started_at"]).timestamp()
    for role in ROLES:
        assert came_to_run(records, role)
        # The first of them saw a part of the step.
        assert decisions_until(records, up_s, lambda record: record["targets"][role] >= 3) <= 3  # noqa: B023
        assert decisions_until(records, down_s, lambda record: record["targets"][role] == 1) <= 3  # noqa: B023
    assert_single_requests_were_seen([record["measured"] for record in records])


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


def decisions_until(records: list[dict[str, Any]], after_s: float, holds: Any) -> int:
    """How many decisions on measured intervals that end after that time were made until it holds."""
    seen = [each for each in records if each["interval"]["end_s"] > after_s and measured(each)]
    numbers = [number for number, record in enumerate(seen, start=1) if holds(record)]
    assert numbers, [record["targets"] for record in seen]
    return numbers[0]


def measured(record: dict[str, Any]) -> bool:
    """Whether the source said how many requests came in a decision's interval."""
    return record["measured"]["requests"] is not None


def came_to_run(records: list[dict[str, Any]], role: str) -> list[str]:
    """The replicas of that role that these decisions started and that came to run."""
    started = [replica for record in records for replica in record["replicas"] if replica["role"] == role]
    return [replica["replica"] for replica in started if replica["running_at"] is not None]


def test_the_loop_outlives_every_actor_and_the_serve_controller(system: LiveSystem) -> None:
    with system.under_load(LIGHT, cut=True) as result:
        for name in (METRIC_COLLECTOR, PREDICTOR, INTERPOLATOR, PLANNER, "SERVE_CONTROLLER_ACTOR"):
            ticks = newest(system)
            pid = kill_nine(name)
            wait_until(lambda: alive_again(name, pid) and newest(system) >= ticks + 1)  # noqa: B023
    assert not broken(result), broken(result)
    ids = [record["id"] for record in system.decisions()]
    assert ids == list(range(ids[0], ids[0] + len(ids)))


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
def test_the_live_page_outlives_each_part(system: LiveSystem) -> None:
    parts = (METRIC_COLLECTOR, PREDICTOR, INTERPOLATOR, PLANNER, "Gateway", "Prefill", "Decode")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(system.url)
        for part in parts:
            expect(page.locator("#list tr").first).to_be_visible(timeout=PATIENCE_MS)
            told, decided = told_of(page, part), newest_shown(page)
            kill_nine(part if part in ACTORS else f"#{part}#")
            watched_until(page, lambda: told_of(page, part) != told and "restarted" in told_of(page, part))  # noqa: B023
            watched_until(page, lambda: newest_shown(page) > decided)  # noqa: B023
            expect(page.locator("#link")).to_contain_text("live,", timeout=PATIENCE_MS)
        assert not faults
        chromium.close()


def told_of(page: Page, part: str) -> str:
    """What the page's list of parts says of one."""
    return " ".join(page.locator("#facts tr", has=page.get_by_text(part, exact=True)).all_inner_texts())


def newest_shown(page: Page) -> int:
    return int(page.locator("#list tr").first.get_attribute("data-id") or -1)


def watched_until(page: Page, holds: Callable[[], bool]) -> None:
    """As `wait_until`, while the browser goes on."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, page.locator("body").inner_text()
        page.wait_for_timeout(250)


def newest(system: LiveSystem) -> int:
    try:
        return max((record["id"] for record in system.decisions()), default=-1)
    except OSError:
        return -1


def alive_again(name: str, old_pid: int) -> bool:
    from tests.ray.live_system import pids

    return any(pid != old_pid for pid in pids(name).values())


def test_requests_on_a_killed_replica_end_clearly_or_are_served_elsewhere(system: LiveSystem) -> None:
    with system.under_load(LIGHT, cut=True) as result:
        for role, deployment in (("prefill", "#Prefill#"), ("decode", "#Decode#")):
            wait_until(lambda: busy(system, role))  # noqa: B023
            died_s = time.time()
            kill_nine(deployment)
            wait_until(lambda: system.running(role) >= 1)  # noqa: B023
            served = counted(system, "met=") + ENOUGH_SERVED
            wait_until(lambda: counted(system, "met=") >= served)  # noqa: B023
    assert result["requests"] == result["completed"] + result["failed"] + result["shed"]
    assert result["completed"] > ENOUGH_SERVED
    # Only streams that had begun on the killed decode replica may break; each says why.
    died_s -= datetime.fromisoformat(result["started_at"]).timestamp()
    for record in result["records"]:
        if record["outcome"] != "ok":
            assert "lost after the first token" in record["detail"]
            assert record["intended_s"] < died_s < record["intended_s"] + record["e2e_s"] + CLOCKS_S


def busy(system: LiveSystem, role: str) -> bool:
    pool = system.status()["pools"][role]
    return (pool["running"] or 0) + (pool["waiting"] or 0) > 0 or role == "prefill"


def test_status_shows_pools_attainment_and_the_last_decision_with_its_reason(system: LiveSystem) -> None:
    system.load("steady:rate_rps=2,duration_s=12,input_tokens=200,output_tokens=20,seed=5")
    wait_until(lambda: system.status()["attainment"]["total"] is not None)
    while True:
        before = system.status()["last_decision"]["id"]
        shown = subprocess.run(
            [*headway("status"), "--url", system.url], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        document = system.status()
        if before == document["last_decision"]["id"]:
            break
    assert "prefill" in shown
    assert "decode" in shown
    assert "simulated" in shown.lower()
    assert str(document["last_decision"]["id"]) in shown
    summary_words = document["last_decision"]["summary"].split()
    assert summary_words[0] in shown
    assert "SLO" in shown
    assert "aim 99" in shown


def test_a_new_slo_reaches_planner_and_gateway_without_a_restart(system: LiveSystem) -> None:
    command = [*headway("set"), "slo.ttft_ms=1", "--url", system.url]
    subprocess.run(command, check=True, timeout=60, capture_output=True)
    wait_until(lambda: system.status()["slo"]["ttft_ms"] == 1)
    missed = counted(system, 'met="false"')
    system.load("steady:rate_rps=2,duration_s=4,input_tokens=200,output_tokens=5,seed=9")
    assert counted(system, 'met="false"') > missed
    subprocess.run([*headway("set"), "slo.ttft_ms=4000", "--url", system.url], check=True, timeout=60)


def counted(system: LiveSystem, label: str) -> float:
    """The gateway's count of judged requests with that label."""
    with urllib.request.urlopen(f"{system.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("headway_slo_requests_total") and label in line]
    return sum(float(line.split()[-1]) for line in found)


def test_a_decision_can_be_traced_from_metrics_to_replicas(system: LiveSystem) -> None:
    if traced(system) is None:
        with system.under_load(CREST, cut=True):
            wait_until(lambda: traced(system) is not None)
    scaled = traced(system)
    assert scaled is not None
    shown = subprocess.run(
        [*headway("decisions"), "--url", system.url, "--id", str(scaled["id"])],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    for replica in scaled["replicas"]:
        assert replica["replica"] in shown
        assert scaled["created_at"] <= replica["running_at"]
    assert f"{scaled['measured']['requests']:.0f}" in shown


def traced(system: LiveSystem) -> dict[str, Any] | None:
    """A decision on a measured interval that started replicas, all of which came to run."""
    for record in system.decisions():
        times = [replica["running_at"] for replica in record["replicas"]]
        if times and None not in times and measured(record):
            return record
    return None
