"""The live page in a real Chromium, over a control plane that the tests write."""

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from serve_apps import control_metrics, live_page
from tests.gateway.serving import get
from tests.live.standing import INTERVAL_S, StandingPlane, decided, record, standing
from tests.patience import PATIENCE_S

PATIENCE_MS = 1000.0 * PATIENCE_S
MOST_BYTES = 300_000
HAVE_A_TILE = {"Measured", "Forecast", "Decision", "Why"}


def plane(count: int = 200, last: int = 199, **changes: Any) -> StandingPlane:
    """The decisions up to `last`, the newest some seconds ago."""
    now_s = time.time()
    numbers = range(last - count + 1, last + 1)
    records = [record(number, now_s - 3.0 - (last - number) * INTERVAL_S) for number in numbers]
    return StandingPlane(records=records, changes=changes)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page in which no script fails, and which asks no other host for anything."""
    context = browser.new_context(viewport={"width": 1360, "height": 900})
    faults: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda asked: faults.append(asked.url) if "127.0.0.1" not in asked.url else None)
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    yield page
    context.close()
    assert not faults


def test_what_stands_there_is_the_status(page: Page) -> None:
    with standing(plane(last=570)) as url:
        page.goto(url)
        status = get(f"{url}/v1/control/status").json()
        expect(page.locator("#verdict")).to_have_text(status["verdict"]["text"])
        expect(page.locator("#verdict")).to_have_class("burning")
        assert "prefill needs" in status["verdict"]["text"]
        expect(page.locator("h1")).to_have_text(status["model"])
        tiles = page.locator("#tiles")
        expect(tiles).to_contain_text("62 %")
        for role, pool in status["pools"].items():
            expect(tiles.locator(".tile", has_text=f"Replicas: {role}")).to_contain_text(
                f"{pool['ready']} ready"
            )
        expect(page.locator("#facts")).to_contain_text("takes 27 % longer than profiled")
        assert re.match("! .*burning", page.title())
        assert len(get(url).content) < MOST_BYTES


def test_latencies_stand_beside_their_targets_by_class(page: Page) -> None:
    with standing(plane(last=570)) as url:
        page.goto(url)
        status = get(f"{url}/v1/control/status").json()
        assert "TTFT of interactive p95 1,053 ms, target 500" in status["verdict"]["text"]
        table = page.locator("#latencies")
        expect(table).to_contain_text("80 % of mean TTFT is queueing")
        for name, found in {"all": status["measured"], **status["measured"]["classes"]}.items():
            cells = table.locator("tr", has_text=name).locator("td").all_inner_texts()
            for text, latency in ((cells[5], found["ttft_s"]), (cells[7], found["itl_s"])):
                shown = [float(each.replace(",", "")) for each in text.split(" / ")]
                known = [1000 * latency[each] for each in ("p50", "p95", "p99")]
                assert shown == pytest.approx(known, rel=0.01)
        assert table.locator("tr", has_text="batch").locator("td").nth(6).inner_text() == "5,000"
        records = get(f"{url}/v1/control/decisions?limit=1000").json()["decisions"]
        hour = [one["measured"]["classes"]["interactive"] for one in records[-120:]]
        missed = sum((1 - one["attainment"]) * one["judged"] for one in hour)
        burnt = table.locator("tr", has_text="interactive").locator("td").nth(4).inner_text()
        expected = missed / sum(one["judged"] for one in hour) / 0.01
        assert float(burnt.removesuffix(" %").replace(",", "")) == pytest.approx(100 * expected, rel=0.02)
        expect(page.locator(".chart", has_text="Time to first token by class")).to_contain_text("2.11 ×")


def test_the_cost_stands_beside_that_of_other_fleets(page: Page) -> None:
    with standing(plane(last=570)) as url:
        page.goto(url)
        status = get(f"{url}/v1/control/status").json()
        tiles = page.locator("#tiles")
        expect(tiles).to_contain_text("against the best fixed fleet")
        records = get(f"{url}/v1/control/decisions?limit=1000").json()["decisions"]
        gpus = [sum(pool["ready"] for pool in each["pools"].values()) for each in records]
        last = gpus[-status["alternatives"]["intervals"] :]
        fewer = round(100 * (1 - sum(last) / len(last) / status["alternatives"]["fixed"]["gpus"]))
        expect(tiles).to_contain_text(f"{fewer} % fewer")
        shown = page.locator(".tile", has_text="GPU-hours in").locator(".value").inner_text()
        cost = status["cost"]["price_per_gpu_hour"] * sum(gpus) * INTERVAL_S / 3600
        assert float(shown.removeprefix("$")) == pytest.approx(cost, rel=0.01)
        facts = page.locator("#facts")
        expect(facts).to_contain_text("shed (429)")
        expect(facts).to_contain_text("shed: no headroom")
        expect(facts).to_contain_text("prefill at 40 %, decode at 55 %")


def test_a_fleet_that_misses_the_target_is_no_measure(page: Page) -> None:
    late = {"gpus": 3.0, "lost": 0.27, "pools": {"prefill": 0.9, "decode": 0.9}}
    fixed = {"gpus": 12.0, "lost": 0.004, "pools": {"prefill": 4, "decode": 8}}
    others = {"intervals": 100, "requests": 45_000, "fixed": fixed, "threshold": late}
    for last, ours_keeps in ((199, ""), (570, "ours keeps")):
        with standing(plane(last=last, alternatives=others)) as url:
            page.goto(url)
            threshold = page.locator(".tile", has_text="against the best threshold")
            expect(threshold.locator(".value")).to_have_text("misses the target")
            expect(threshold).to_contain_text("mean 3 GPUs")
            expect(threshold).to_contain_text("it keeps 73 %")
            expect(threshold).to_contain_text("target 99 %")
            tile = page.locator(".tile", has_text="against the best fixed fleet")
            expect(tile.locator(".value")).to_have_text(re.compile("fewer$"))
            expect(tile).to_have_class("tile " if ours_keeps else "tile good")
            expect(tile).to_contain_text(ours_keeps)
            expect(page.locator("#facts td.bad", has_text="73 %")).to_be_visible()


def test_the_forecast_has_its_band_and_stands_beside_what_came(page: Page) -> None:
    with standing(plane()) as url:
        page.goto(url)
        status = get(f"{url}/v1/control/status").json()
        forecast = status["last_decision"]["forecast"]
        per_s = page.evaluate(
            "values => values.map((value) => digits(value / 30))",
            [forecast[name] for name in ("requests", "requests_low", "requests_high")],
        )
        tile = page.locator(".tile", has_text="Forecast, next interval")
        expect(tile).to_contain_text(f"{per_s[0]}/s")
        expect(tile).to_contain_text(f"90 % interval {per_s[1]} to {per_s[2]}; recent error 8 %")
        chart = page.locator(".chart").first
        expect(chart).to_contain_text(f"90 % interval {per_s[1]} to {per_s[2]}/s")
        # Beside what came in an interval stands what was said of it the interval before.
        chart.locator("canvas").focus()
        page.keyboard.press("End")
        before = page.evaluate("digits(rate(rows[rows.length - 2].forecast, rows[rows.length - 2]))")
        came = page.evaluate("digits(rate(rows[rows.length - 1].requests, rows[rows.length - 1]))")
        expect(chart).to_contain_text(
            re.compile(f"measured {re.escape(came)}/sforecast {re.escape(before)}/s")
        )


def test_the_facts_are_those_of_the_status(page: Page) -> None:
    restarts = {"Planner": {"count": 2, "at": time.time() - 5.0}, "Router": {"count": 1, "at": 1.7e9}}
    changes: dict[str, Any] = {
        "restarts": restarts,
        "changes": {"slo.ttft_ms": 500, "connector.yield_s": 60},
        "changed": {"slo.ttft_ms": {"by": "alice", "at": 1.7e9}},
        "components": {"MetricCollector": {"ok": False, "detail": "no data"}},
    }
    with standing(plane(**changes)) as url:
        page.goto(url)
        status = get(f"{url}/v1/control/status").json()
        expect(page.locator("#badges .badge")).to_have_text(re.compile("^Planner restarted [0-9]+ s ago$"))
        cells = [ageless(text) for text in page.locator("#facts > div").first.locator("td").all_inner_texts()]
        shown = [fact for fact in status["facts"] if fact["name"] not in HAVE_A_TILE]
        assert [*zip(cells[::2], cells[1::2], strict=True)] == [
            (fact["name"], ageless(fact["text"])) for fact in shown
        ]
        assert {"Planner", "Limits", "SLO", "Settings", "Components", "Restarts"} <= set(cells[::2])
        expect(page.locator("#facts td.bad", has_text="MetricCollector: no data")).to_be_visible()


def ageless(text: str) -> str:
    """A fact without its spans of time, which grow from look to look."""
    return re.sub(r"[0-9.]+ (s|min|h|days)\b", "", text)


def test_a_decision_tells_its_story_by_mouse_and_by_keys(page: Page) -> None:
    with standing(plane()) as url:
        page.goto(url)
        page.locator("#list tr").nth(1).click()
        number = page.locator("#list tr").nth(1).get_attribute("data-id")
        expect(page.locator("#storytitle")).to_contain_text(f"Decision {number} at")
        steps = page.locator("#steps dt")
        expect(steps).to_have_text(
            ["interval", "measured", "pools", "why", "targets", "connector", "reached"]
        )
        page.keyboard.press("Escape")
        expect(page.locator("#story")).to_be_hidden()
        canvas = page.locator(".chart canvas").first
        canvas.focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        expect(page.locator("#storytitle")).to_contain_text("Decision 197 at")
        assert "Requests per second: measured" in str(canvas.get_attribute("aria-label"))


@pytest.mark.slow
def test_new_decisions_appear_and_a_planner_that_is_away_is_said(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "ALIVE_S", 3.0)
    monkeypatch.setattr(control_metrics, "RETRY_S", 0.5)
    shown = plane()
    with standing(shown) as url:
        page.goto(url)
        expect(page.locator("#list tr").first).to_contain_text("#199")
        shown.records.append(record(200, time.time()))
        expect(page.locator("#list tr").first).to_contain_text("#200")
        shown.down = True
        expect(page.locator("#link")).to_contain_text("does not answer; last heard at")
        expect(page.locator("body")).to_have_class("stale")
        shown.down = False
        shown.records.append(record(201, time.time()))
        expect(page.locator("#list tr").first).to_contain_text("#201")
        expect(page.locator("#link")).to_contain_text("live")
    # The server has ended; the page says so, and finds the next one.
    expect(page.locator("#link")).to_have_class("lost")


def test_a_key_is_asked_for_and_stays_out_of_addresses(page: Page) -> None:
    secret = "a-key-of-an-operator"
    with standing(plane(), keys=[secret]) as url:
        assert get(f"{url}/v1/control/live").status_code == 401
        page.goto(url)
        expect(page.locator("#main")).to_be_hidden()
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#refused")).to_have_text("Unknown key.")
        page.fill("#key", secret)
        page.keyboard.press("Enter")
        expect(page.locator("#tiles .tile").first).to_be_visible()
        assert secret not in page.url
        other = page.context.new_page()
        other.goto(f"{url}/#key={secret}")
        expect(other.locator("#tiles .tile").first).to_be_visible()
        assert secret not in other.url


def test_hostile_names_are_text(page: Page) -> None:
    name = "<img src=x onerror=alert(1)>"
    with standing(plane(model=name, components={name: {"ok": False, "detail": name}})) as url:
        page.goto(url)
        expect(page.locator("h1")).to_have_text(name)
        expect(page.locator("#facts")).to_contain_text(name)
        assert page.locator("img").count() == 0


@pytest.mark.slow
def test_a_thousand_replicas_and_many_updates_leave_nothing_behind(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "PERIOD_S", 0.1)
    monkeypatch.setattr(control_metrics, "FRESH_S", 0.0)
    with standing(plane(), replicas=1000) as url:
        page.goto(url)
        expect(page.locator("#fleettext")).to_contain_text("1,000 replicas")
        page.evaluate(
            "() => { const draw = show; window.updates = 0; show = () => { draw(); updates += 1; }; }"
        )
        devtools = page.context.new_cdp_session(page)

        def held(updates: int) -> tuple[int, int]:
            """The least of ten looks after so many updates: one look may count nodes just replaced."""
            for _ in range(int(PATIENCE_MS / 100)):
                if page.evaluate("updates") >= updates:
                    break
                page.wait_for_timeout(100)
            else:
                pytest.fail(f"{page.evaluate('updates')} updates came, {updates} expected")
            looks = []
            for _ in range(10):
                page.wait_for_timeout(50)
                devtools.send("HeapProfiler.collectGarbage")
                found = devtools.send("Memory.getDOMCounters")
                looks.append((found["nodes"], int(devtools.send("Runtime.getHeapUsage")["usedSize"])))
            nodes, heaps = zip(*looks, strict=True)
            return min(nodes), min(heaps)

        nodes, heap = held(20)
        later_nodes, later_heap = held(120)
    assert later_nodes <= nodes + 20
    assert later_heap <= heap * 1.2 + 200_000


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_off_at_the_right(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    name = "http://prometheus.monitoring.svc.cluster.local:9090/select/0/prometheus/api/v1/query?" + "x" * 90
    with standing(plane(last=570, components={"MetricCollector": {"ok": False, "detail": name}})) as url:
        page.goto(url)
        expect(page.locator("#facts")).to_contain_text(name)
        for part in ("body", "#latencies .wide", "#decisions .wide", "#facts .wide"):
            for host in page.locator(part).all():
                assert host.evaluate("host => host.scrollWidth - host.clientWidth") <= 0, part
        # A phone has the figures of a class below each other, each with its name.
        shown = (
            page.locator("#latencies td")
            .nth(5)
            .evaluate("cell => getComputedStyle(cell, '::before').content")
        )
        assert shown == ("none" if width > 700 else '"TTFT p50 / p95 / p99"')


def test_decisions_that_changed_nothing_are_one_line_with_all_their_reasons(page: Page) -> None:
    shown = plane(count=60)
    quiet = {"previous_targets": decided(199), "connector": {"kind": "ray_serve", "status": "unchanged"}}
    for number, summary in ((200, "Needs 4; keeping 5."), (201, "Needs 3; keeping 5."), (202, "No metrics.")):
        end_s = time.time() - 3.0 - (202 - number) * INTERVAL_S
        shown.records.append(record(number, end_s, targets=decided(199), summary=summary, **quiet))
    with standing(shown) as url:
        page.goto(url)
        rows = page.locator("#list tr")
        expect(rows.first).to_contain_text("#202, the same since")
        expect(rows.first.locator("td").nth(2)).to_contain_text("Needs 3; keeping 5. Then: No metrics.")
        assert "Needs 4; keeping 5." not in rows.first.inner_text()
        before = rows.count()
        shown.records.append(record(203, time.time(), targets=decided(199), summary="No metrics.", **quiet))
        expect(rows.first).to_contain_text("#203, the same since")
        assert rows.count() == before


def test_a_young_system_fills_the_picture(page: Page) -> None:
    with standing(plane(count=4)) as url:
        page.goto(url)
        expect(page.locator("#list tr").first).to_contain_text("#199")
        share = page.evaluate("(rows[0].start - axis.from) / (axis.to - axis.from)")
        assert 0.0 < share < 0.05
        assert page.evaluate("Object.is(ticks(0, 6, 4)[0], 0)")
        page.get_by_role("button", name="6 h").click()
        assert page.evaluate("axis.to - axis.from") < 6 * INTERVAL_S
    with standing(plane()) as url:
        page.goto(url)
        expect(page.locator("#list tr").first).to_contain_text("#199")
        assert page.evaluate("axis.to - axis.from") == pytest.approx(3600.0)


def test_what_nobody_knows_is_not_in_a_legend_and_has_no_unit(page: Page) -> None:
    shown = plane(count=20)
    unknown = {"queue_s": None, "isl_tokens": None, "requests": None}
    shown.records = [
        each.model_copy(update={"forecast": None, "measured": each.measured.model_copy(update=unknown)})
        for each in shown.records
    ]
    shown.records[-1] = record(200, time.time() - 3.0, forecast=None, measured={})
    with standing(shown) as url:
        page.goto(url)
        expect(page.locator("#list tr").first).to_contain_text("#200")
        assert page.locator(".chart", has_text="Requests per second").locator("i:visible").count() == 0
        ttft = page.locator(".chart", has_text="Time to first token (ms)")
        expect(ttft).to_contain_text("p95 n/a")
        assert not ttft.get_by_text("mean queueing").is_visible()
        assert "mean queueing" not in str(ttft.locator("canvas").get_attribute("aria-label"))
        assert not re.search("n/a *(/s|ms|s|×|%|tokens|running|waiting)", page.locator("#main").inner_text())


def test_the_error_budget_weighs_what_ended(page: Page) -> None:
    shown = plane(count=2)
    # 100 arrive and 20 of them end, all late; then 20 arrive and the other 100 end, in time.
    rows = [(100, 20, 0.0), (20, 100, 1.0), (0, 80, 1.0)]
    now_s = time.time()
    shown.records = []
    for place, (came, ended, attained) in enumerate(rows):
        classes = {"batch": {"requests": came, "judged": ended, "attainment": attained}}
        figures = {"requests": came, "completed": ended, "attainment": attained, "classes": classes}
        shown.records.append(record(place, now_s - 3.0 - INTERVAL_S * (3 - place), measured=figures))
    with standing(shown) as url:
        page.goto(url)
        expect(page.locator("#list tr").first).to_contain_text("#2")
        # An interval weighs what came or ended, whichever is more, as the attainment in total does.
        assert page.evaluate("burn(3600)") == pytest.approx(100 / 280 / 0.01)
        assert page.evaluate("burn(3600, 'batch')") == pytest.approx(20 / 200 / 0.1)


def test_a_factor_below_1_has_its_band_from_low_to_high(page: Page) -> None:
    option = {"expected": 0.853, "factor": 0.7925}
    reasons = {"needs": {"decode": {"replicas": 1, "lead_s": 60.0, "option": option}}, "limits": []}
    shown = plane(count=3)
    shown.records.append(record(200, time.time() - 3.0, reasons=reasons))
    with standing(shown) as url:
        page.goto(url)
        chart = page.locator(".chart", has_text="Replicas: decode")
        expect(chart).to_contain_text("with safety factor 0.676 to 0.853")


def test_the_tile_of_a_dry_run_has_its_caveat(page: Page) -> None:
    fleet = {"gpu_hours": 0.2, "attainment": {"value": 0.99}}
    span = {"start_at": 0.0, "end_at": 180.0, "covered_s": 180.0, "requests": 10.0}
    day = {**span, "stood": fleet, "planned": fleet, "saved_gpu_hours": {}, "saved_share": {"value": 0.25}}
    with standing(plane(count=9, advice={"day": day})) as url:
        page.goto(url)
        tile = page.locator(".tile", has_text="Dry run, last day")
        expect(tile).to_contain_text("25 %")
        expect(tile).to_contain_text("too short to judge by")


def test_a_decision_is_reached_or_waits_or_needs_no_change(page: Page) -> None:
    now_s = time.time()
    still = {"previous_targets": decided(3)}
    answers = ({"status": "unchanged"}, {"status": "pending"}, {"status": "sent"}, {"status": "dry_run"})
    made = [still, still, {"previous_targets": {"decode": 9}}, {"dry_run": True}]
    shown = StandingPlane(
        records=[
            record(place, now_s - 33.0 + place, targets=decided(3), connector=answer, **changes)
            for place, (answer, changes) in enumerate(zip(answers, made, strict=True))
        ]
    )
    with standing(shown) as url:
        page.goto(url)
        page.locator("#every").check()
        expect(page.locator("#list tr")).to_have_count(4)
        done = [text.strip() for text in page.locator("#list td:nth-child(4)").all_inner_texts()]
        expected = ["dry run", "sent, reached after 19.6 s"]
        assert done == [*expected, "pending, not reached yet", "unchanged, no change needed"]
