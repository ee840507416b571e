"""`headway report` on results whose figures a script has changed: a page, or one line with file and key."""

import copy
import json
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from cli_cases import figures, headway, in_this_process, put, zeros

LOAD = "steady:rate_rps=6,duration_s=20,input_tokens=800,output_tokens=80,seed=5"
FIXED = "static:prefill=1:decode=1"
VERBS: Mapping[str, tuple[str, ...]] = {
    "simulate": (LOAD,),
    "compare": (LOAD, "--policies", f"{FIXED},static:prefill=2:decode=1", "--jobs", "1"),
}
SIZES = ("mean", "p50", "p90", "p95", "p99")
SENT: dict[str, Any] = {
    "url": "http://127.0.0.1",
    "model": "m",
    "started_at": "today",
    "trace": {"name": "t", "rate_scale": 1.0},
    "slo": {"ttft_s": 0.5, "itl_s": 0.03, "attainment": 0.99},
    **dict.fromkeys(("requests", "completed"), 2),
    **dict.fromkeys(("shed", "failed"), 0),
    "attainment": 1.0,
    "goodput_rps": 1.0,
    "outcomes": {"ok": 2},
    **dict.fromkeys(("input_tokens", "output_tokens"), 9),
    **{key: dict.fromkeys(SIZES, 0.01) for key in ("ttft_s", "itl_s", "tpot_s", "e2e_s")},
    "send_lag_s": {"p99": 0.001, "max": 0.001},
    "duration_s": 2.0,
    "notes": [],
    "intervals": [
        {
            "start_s": 0.0,
            "end_s": 1.0,
            "requests": 2,
            "attainment": 1.0,
            "output_tokens": 9,
            "ttft_mean_s": 0.1,
            "ttft_p99_s": 0.1,
            "tpot_p99_s": 0.1,
        }
    ],
}


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """What each verb wrote, filled as tests ask."""
    return {"load": SENT}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headway_cli.job.workers", in_this_process)


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str], results: dict[str, dict[str, Any]]) -> Any:
    def of(verb: str) -> dict[str, Any]:
        if verb not in results:
            ended = headway(capsys, verb, *VERBS[verb], "--json", "-")
            assert ended.code == 0, ended
            results[verb] = json.loads(ended.out)
        return copy.deepcopy(results[verb])

    return of


def report(capsys: pytest.CaptureFixture[str], document: object) -> Any:
    Path("a.json").write_text(json.dumps(document), encoding="utf-8")
    return headway(capsys, "report", "a.json", "--output", "page.html")


# Warnings are errors in tests: a division by zero in numpy fails too.
@pytest.mark.parametrize("verb", [*VERBS, "load"])
def test_zero_is_a_figure(verb: str, capsys: pytest.CaptureFixture[str], written: Any) -> None:
    ended = report(capsys, zeros(written(verb)))
    assert (ended.code, ended.err) == (0, "")
    HTMLParser().feed(Path("page.html").read_text())


@pytest.mark.parametrize("verb", [*VERBS, "load"])
@pytest.mark.parametrize(
    ("value", "words"), [(1e308, "is beyond 1e+40"), (float("nan"), "is not a finite number")]
)
def test_figures_that_no_page_can_show(
    verb: str, value: float, words: str, capsys: pytest.CaptureFixture[str], written: Any
) -> None:
    places = list(figures(written(verb)))
    for way in (places[0], places[len(places) // 2], places[-1]):
        said = report(capsys, put(written(verb), value, *way)).complaint()
        assert said == f"a.json: is no result of headway {verb}: {'.'.join(map(str, way))}: {words}"


@pytest.mark.parametrize(
    ("verb", "way", "value", "words"),
    [
        ("load", ("trace", "rate_scale"), "x", "valid number"),
        ("compare", ("policies", 0, "replicas"), [], "should be an object of keys and values"),
    ],
)
def test_a_value_of_the_wrong_kind(
    verb: str,
    way: tuple[str | int, ...],
    value: object,
    words: str,
    capsys: pytest.CaptureFixture[str],
    written: Any,
) -> None:
    said = report(capsys, put(written(verb), value, *way)).complaint()
    assert said.startswith(f"a.json: is no result of headway {verb}: ")
    assert words in said
    assert str(way[-1]) in said


@pytest.mark.parametrize("document", [None, [1], "text", 7, {}, {"name": "other"}])
def test_what_no_verb_writes(document: object, capsys: pytest.CaptureFixture[str]) -> None:
    said = report(capsys, document).complaint()
    assert said.startswith("a.json: is no result of any verb")
    assert all(verb in said for verb in (*VERBS, "load", "advise", "recommend"))


def test_a_folder_that_is_no_profile(capsys: pytest.CaptureFixture[str]) -> None:
    Path("notes").mkdir()
    said = headway(capsys, "report", "notes", "--output", "page.html").complaint()
    assert said == "notes: is no profile directory"


def test_a_day_that_no_calendar_has(capsys: pytest.CaptureFixture[str]) -> None:
    span = {"value": 1.0, "low": None, "high": None}
    fleet = {"gpu_hours": 1.0, "attainment": span, "cost": None}
    window = {
        **{"start_at": 1e13, "end_at": 1e13 + 60.0, "covered_s": 60.0, "requests": 1.0},
        **{"stood": fleet, "planned": fleet, "saved_gpu_hours": span, "saved_share": span},
    }
    said = report(capsys, {"acting": False, "window": window, "points": []}).complaint()
    assert said.startswith("a.json: is no result of headway advise: ")
