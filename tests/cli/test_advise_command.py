"""`headway advise` against a real server: the table, the page, and what cannot be told."""

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from cli_cases import headway
from control_server import AT, Control, controlling
from rich.console import Console

HOUR_S = 3600.0


def spread(value: float | None, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high}


def window(hours: float, saved: float = 0.3, **changes: Any) -> dict[str, Any]:
    stood = 10.0 * hours
    return {
        "start_at": AT - hours * HOUR_S,
        "end_at": AT,
        "covered_s": hours * HOUR_S,
        "requests": 1000.0 * hours,
        "stood": {"gpu_hours": stood, "attainment": spread(0.9991), "cost": 2.5 * stood},
        "planned": {
            "gpu_hours": stood * (1.0 - saved),
            "attainment": spread(0.9944, 0.991, 0.998),
            "cost": 2.5 * stood * (1.0 - saved),
        },
        "saved_gpu_hours": spread(stood * saved, stood * (saved - 0.05), stood * (saved + 0.05)),
        "saved_share": spread(saved, saved - 0.05, saved + 0.05),
        "saved_cost": spread(2.5 * stood * saved, 2.5 * stood * (saved - 0.05), 2.5 * stood * (saved + 0.05)),
        "measured": True,
        "replay_error": 0.0004,
        **changes,
    }


def point(number: int) -> dict[str, Any]:
    return {
        "start_at": AT - HOUR_S + number * 600.0,
        "end_at": AT - HOUR_S + (number + 1) * 600.0,
        "requests": 600.0,
        "stood_gpus": 10.0,
        "planned_gpus": 6.0 + number % 3,
        "stood_attainment": 1.0,
        "planned_attainment": 0.99,
        "stood_replicas": {"prefill": 6.0, "decode": 4.0},
        "planned_replicas": {"prefill": 4.0, "decode": 2.0 + number % 3},
    }


def advice(**changes: Any) -> dict[str, Any]:
    return {
        "acting": False,
        "price_per_gpu_hour": 2.5,
        "currency": "$",
        "start_up_s": {"prefill": 45.0, "decode": 45.0},
        "start_up_known": True,
        "pools": {"prefill": {"desired": 4}, "decode": {"desired": 3}},
        "hour": window(1.0),
        "day": window(24.0),
        "start": window(100.0),
        "model": "llama-3.1-8b",
        "slo": {"ttft_ms": 500.0, "itl_ms": 20.0, "attainment": 0.99},
        "policy": "headway",
        "window": window(24.0),
        "points": [point(number) for number in range(6)],
        **changes,
    }


@pytest.fixture
def control() -> Iterator[Control]:
    with controlling() as server:
        server.advice = advice()
        yield server


def test_the_table_says_what_would_have_been_saved(
    control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    said = headway(capsys, "advise", "--url", control.url, "--since", "24h")
    assert said.code == 0, said.err
    assert control.asked == ["/v1/control/advice?since=24h"]
    text = " ".join(said.out.split())
    assert text.startswith(
        "Headway would have saved 30.0 % of the GPU-hours ($180) in 24 h, "
        "with 99.44 % of requests within their SLO instead of 99.91 %"
    )
    assert "last 24 h" in text
    assert "last hour" in text
    assert "since the start" in text
    assert "last day" not in text
    assert "Plan now prefill 4, decode 3 (policy headway)" in text


@pytest.mark.parametrize("width", [80, 120])
def test_no_cell_of_the_table_is_folded_or_cut(
    width: int, control: Control, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway_cli.advise.console", lambda: Console(width=width, highlight=False))
    lines = headway(capsys, "advise", "--url", control.url).out.splitlines()
    assert max(map(len, lines)) <= width
    for cell in ("since the start", "within SLO:", "(99.10 to 99.80 %)", "($150 to $210)"):
        assert any(cell in line for line in lines), cell


def test_a_plan_that_takes_more_says_so(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    control.advice = advice(window=window(2.0, saved=-0.25), currency="EUR")
    out = " ".join(headway(capsys, "advise", "--url", control.url).out.split())
    assert control.asked == ["/v1/control/advice"]
    assert "would have taken 25.0 % more the GPU-hours" not in out
    assert out.startswith("Headway would have taken 25.0 % more GPU-hours (12.50 EUR) in 2 h")


def test_the_page_of_a_plan_that_takes_more_counts_upwards(
    control: Control, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    control.advice, place = advice(window=window(2.0, saved=-0.25)), tmp_path / "more.html"
    out = " ".join(headway(capsys, "advise", "--url", control.url, "--page", place).out.split())
    assert "-$12.50" in out
    page = place.read_text(encoding="utf-8")
    for shown in ("GPU-hours more", "20.0 to 30.0 %", "Cost more", "$10.00 to $15.00"):
        assert shown in page


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"window": window(72.0)}, "in 3 days, with"),
        ({"window": window(24.0, covered_s=20.0 * HOUR_S)}, "in 20 h measured of 24 h, with"),
        ({"window": window(0.5, saved_share=spread(0.3))}, "in 30 min (too short to judge by), with"),
        ({"model": "qwen3-32b"}, "Model qwen3-32b"),
    ],
)
def test_the_sentence_says_of_which_time_and_model_it_is(
    changes: dict[str, Any], said: str, control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    control.advice = advice(**changes)
    assert said in " ".join(headway(capsys, "advise", "--url", control.url).out.split())


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"start_up_known": False}, "45 s are assumed"),
        ({"window": window(24.0, measured=False)}, "both attainments are simulated"),
        ({"window": window(24.0, replay_error=-0.04)}, "4.0 % fewer of the requests met their SLO"),
        ({"window": window(24.0, replay_error=None)}, "no stretch without queues yet"),
        ({"window": window(24.0, covered_s=20.0 * HOUR_S)}, "4 h of 24 h were not measured"),
        ({"window": window(24.0, saved_share=spread(0.3))}, "too short for an interval"),
        ({"price_per_gpu_hour": None}, "planner.advice.price_per_gpu_hour is not set"),
        ({"acting": True}, "the planner acts, nothing is added"),
    ],
)
def test_what_the_figures_rest_on_is_said(
    changes: dict[str, Any], note: str, control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    control.advice = advice(**changes)
    assert note in " ".join(headway(capsys, "advise", "--url", control.url).out.split())


def acted(**changes: Any) -> dict[str, Any]:
    """What acting saved, beside an earlier dry run."""
    before = {"hour": window(1.0, 0.4), "day": window(24.0, 0.4), "start": window(30.0, 0.4)}
    figures = {**before, "against": {"prefill": 8, "decode": 8}}
    course = {"window": window(24.0, 0.4), "points": [point(number) for number in range(6)]}
    return advice(acting=True, pools={}, acted={**figures, **course, **changes})


def test_once_it_acts_what_was_saved_is_told_beside_the_fleet_of_before(
    control: Control, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    control.advice, place = acted(), tmp_path / "advice.html"
    said = headway(capsys, "advise", "--url", control.url, "--since", "24h", "--page", place)
    text = " ".join(said.out.split())
    assert text.startswith("Headway saved 40.0 % of the GPU-hours ($240) in 24 h, with 99.44 % of requests")
    assert "Before prefill 8, decode 8, constant" in text
    assert "Dry run Headway would have saved 30.0 % of the GPU-hours" in text
    assert "nothing is added" not in text
    page = place.read_text(encoding="utf-8")
    assert "compared with a constant prefill 8, decode 8" in page
    assert "Within SLO, Headway" in page
    assert "a dry run of" not in page
    control.status["advice"] = {
        name: value for name, value in acted().items() if name not in {"window", "points"}
    }
    said = headway(capsys, "status", "--url", control.url)
    assert "Headway saved 40.0 % of the GPU-hours ($240) in 24 h" in " ".join(said.out.split())
    assert "would have" not in said.out


def test_an_acting_planner_that_took_more_than_the_fleet_of_before_says_so(
    control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    control.advice = acted(window=window(2.0, saved=-0.25))
    out = " ".join(headway(capsys, "advise", "--url", control.url).out.split())
    assert out.startswith("Headway took 25.0 % more GPU-hours ($12.50) in 2 h")


def test_a_fleet_without_requests_has_no_share_in_time(
    control: Control, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    idle = window(2.0, requests=0.0, measured=False, replay_error=None)
    for fleet in ("stood", "planned"):
        idle[fleet] = {**idle[fleet], "attainment": spread(None)}
    control.advice, place = advice(window=idle), tmp_path / "idle.html"
    out = " ".join(headway(capsys, "advise", "--url", control.url, "--page", place).out.split())
    assert out.startswith(
        "Headway would have saved 30.0 % of the GPU-hours ($15.00) in 2 h, without a request"
    )
    assert "instead of n/a" not in out
    assert "both attainments are simulated" not in out
    assert '<div class="card bad">' not in place.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("acting", "line"), [(True, "the planner acts"), (False, "has not watched a whole interval")]
)
def test_without_advice_one_line_says_why(
    acting: bool, line: str, control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    control.advice = advice(acting=acting, window=None, hour=None, day=None, start=None, points=[])
    assert line in headway(capsys, "advise", "--url", control.url).complaint()


def test_json_is_the_document_as_it_came(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    said = headway(capsys, "advise", "--url", control.url, "--json")
    assert json.loads(said.out) == control.advice


class Parts(HTMLParser):
    """Ids, scripts and addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_is_whole_and_says_the_same(
    control: Control, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    control.advice = advice(model="<b>&model")
    place = tmp_path / "advice.html"
    assert headway(capsys, "advise", "--url", control.url, "--page", place).code == 0
    text = place.read_text(encoding="utf-8")
    parts = Parts(text)
    assert parts.addresses == []
    assert parts.tags.count("table") == 1
    assert "<b>&model" not in text
    assert "&lt;b&gt;&amp;model: a dry run of 24 h" in text
    assert "Headway would have saved 30.0 % of the GPU-hours ($180) in 24 h" in text
    for shown in ("GPU-hours saved", "25.0 to 35.0 %", "$150 to $210", "99.10 to 99.80 %", "target 99.00 %"):
        assert shown in text
    headway(capsys, "advise", "--url", control.url, "--page", place)
    assert place.read_text(encoding="utf-8") == text


def test_a_page_that_cannot_be_written(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    fault = headway(capsys, "advise", "--url", control.url, "--page", "/nowhere/a.html").complaint()
    assert "--page: /nowhere/a.html cannot be written: no directory /nowhere" in fault
    assert control.asked == []


def test_status_and_a_decision_say_it_in_a_line(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    control.status["advice"] = {
        name: value for name, value in advice().items() if name not in {"window", "points"}
    }
    said = " ".join(headway(capsys, "status", "--url", control.url).out.split())
    assert (
        "Its plan would have saved 30.0 % of the GPU-hours ($180) in 24 h, with 99.44 % of requests" in said
    )
    control.decisions[7]["advice"] = point(0)
    story = " ".join(headway(capsys, "decisions", "--url", control.url, "--id", "7").out.split())
    assert "planned fleet 6 GPUs (prefill 4, decode 2), 99 % within SLO; real fleet 10 GPUs" in story
