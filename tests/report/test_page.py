"""The report page: whole without a network, escaped, and true to the document."""

import copy
import json
import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from headway.config import load_config
from headway.simulation.report import IntervalQuantiles, SimulationReport, parse_report
from headway_cli.job import Job, execute
from headway_cli.page.result import render
from headway_cli.page.result_charts import decisions, draw
from headway_cli.page.series import MOST_POINTS, gpu_hours, interval_columns

LOAD = "step:rate_rps=10,peak_rps=60,at_s=400,duration_s=900,input_tokens=800,output_tokens=60,seed=4"
SETTINGS = {
    "planner.policy": "reference",
    "planner.adjustment_interval_s": 60.0,
    "simulation.start_up_delay_s": 30.0,
}


@pytest.fixture(scope="module")
def report() -> SimulationReport:
    return execute(Job(trace=LOAD, config=load_config(None, SETTINGS)))


@pytest.fixture(scope="module")
def document(report: SimulationReport) -> dict[str, Any]:
    return report.document()


@pytest.fixture(scope="module")
def page(report: SimulationReport) -> str:
    return render(report)


class Tags(HTMLParser):
    """Collects opening tags, and checks that they close in order."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_loads_nothing(page: str) -> None:
    tags = Tags(page)
    assert not [attributes for _, attributes in tags.seen if "src" in attributes or "href" in attributes]
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert styles
    assert not any("url(" in style or "@import" in style for style in styles)


def test_a_page_is_small(page: str) -> None:
    assert len(page.encode()) < 500_000


def test_page_has_every_decision_with_its_reasons(page: str, document: dict[str, Any]) -> None:
    *decided, last = document["intervals"]
    assert last["reasons"] == {}
    assert len(re.findall(r"<td>\d+:\d\d:\d\d</td>", page)) == len(decided)
    for interval in decided:
        assert escape(interval["reasons"]["summary"]) in page


def test_a_decision_tells_its_reasons(report: SimulationReport) -> None:
    words = decisions(report.intervals, {})
    panels = draw(report, words)["panels"]
    marks = [one for panel in panels for one in panel["series"] if one["name"] == "decision"]
    assert len(marks) == len(report.replicas)
    for one in marks:
        for word in ("Forecast:", "Corrections:", "Need: prefill"):
            assert word in one["hover"][2]


def test_what_headway_planned_from_is_told() -> None:
    config = load_config(None, SETTINGS | {"planner.policy": "headway"})
    rows = execute(Job(trace=LOAD, config=config)).intervals
    text = " ".join(decisions(rows, {})[-1].lines)
    assert text.startswith("Prefill needs")
    for words in ("replicas is expected", "would have kept", "prefill: a new replica serves within"):
        assert words in text


def test_page_is_the_same_for_the_same_input(page: str, document: dict[str, Any]) -> None:
    other = {**copy.deepcopy(document), "wall_s": 123.0}
    assert render(parse_report(other)) == page
    assert render(parse_report(json.loads(json.dumps(document)))) == page


def test_text_from_outside_is_escaped(document: dict[str, Any]) -> None:
    evil = copy.deepcopy(document)
    evil["trace"]["name"] = "</title><script>alert(1)</script>"
    evil["notes"] = ["<img src=x onerror=alert(2)>"]
    evil["intervals"][0]["reasons"]["summary"] = "<script>alert(3)</script>"
    found = render(parse_report(evil))
    assert "alert(1)</script>" not in found
    assert "<img" not in found
    assert "<script>alert(3)" not in found


def test_gpu_hours_add_up(report: SimulationReport) -> None:
    times, spent = gpu_hours(report)
    assert times[-1] == report.simulated_s
    assert np.all(np.diff(spent) >= 0)
    assert spent[-1] == pytest.approx(report.gpu_hours, rel=1e-6)


def test_many_intervals_are_merged_without_losing_peaks(report: SimulationReport) -> None:
    many = [report.intervals[1]] * (3 * MOST_POINTS)
    many[4] = replace(many[4], ttft_s=IntervalQuantiles(mean=9.0, p50=9.0, p95=9.0, p99=9.0))
    columns = interval_columns(many)
    assert columns.merged == 3
    assert len(columns.requests) == MOST_POINTS
    assert columns.requests.sum() == sum(row.requests for row in many)
    assert columns.latencies["ttft_s"]["p99"][1] == 9.0


def test_result_without_any_interval(document: dict[str, Any]) -> None:
    short = {**copy.deepcopy(document), "intervals": []}
    Tags(render(parse_report(short)))


def test_result_without_measurements(document: dict[str, Any]) -> None:
    quiet = copy.deepcopy(document)
    for interval in quiet["intervals"]:
        interval["attainment"] = interval["forecast"] = None
        for latency in ("ttft_s", "itl_s"):
            interval[latency] = dict.fromkeys(interval[latency])
    for latency in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        quiet[latency] = dict.fromkeys(quiet[latency])
    quiet |= {"attainment": None, "fluid_bound_ratio": None}
    assert "n/a" in render(parse_report(quiet))


def test_the_forecast_of_headway_is_drawn_in_replicas() -> None:
    config = load_config(None, SETTINGS | {"planner.policy": "headway"})
    found = execute(Job(trace=LOAD, config=config))
    panels = draw(found, [])["panels"]
    work = [one for panel in panels for one in panel["series"] if one["name"] == "work forecast"]
    assert len(work) == len(found.replicas)
    need = found.document()["intervals"][-2]["reasons"]["needs"]["prefill"]
    assert work[0]["y"][-1] == pytest.approx(need["option"]["expected"])
    last_x = work[0]["x"][-1]
    assert last_x is not None
    assert last_x * 60.0 == pytest.approx(found.intervals[-2].end_s + need["lead_s"])


def test_the_cost_stands_where_a_price_is_known(report: SimulationReport, page: str) -> None:
    assert f"${2.0 * report.gpu_hours:,.2f}" in render(report, 2.0, "$")
    assert '<div class="name">Cost</div>' not in page


def test_one_request_is_no_plural(report: SimulationReport) -> None:
    assert "1 request in " in render(replace(report, requests=1))
    assert "2 requests in " in render(replace(report, requests=2))
