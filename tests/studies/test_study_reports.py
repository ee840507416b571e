"""`headway report` on results of studies whose figures a script has changed: a page, or one line."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_cases import PROFILE, Ended, headway, in_this_process, put, zeros

LOAD = "steady:rate_rps=6,duration_s=20,input_tokens=800,output_tokens=80,seed=5"
VERBS: Mapping[str, tuple[str, ...]] = {
    "queue-sim": ("--seeds", "2", "--requests", "50"),
    "recommend": (LOAD, "--profiles", PROFILE, "--ttft-ms", "500", "--chunks", "2048", "--jobs", "1"),
}
WRITTEN: dict[str, Any] = {}
"""What each verb wrote, filled as tests ask."""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headway_studies.commands.recommend.workers", in_this_process)


def written(capsys: pytest.CaptureFixture[str], verb: str) -> Any:
    if verb not in WRITTEN:
        ended = headway(capsys, verb, *VERBS[verb], "--json", "-")
        assert ended.code == 0, ended
        WRITTEN[verb] = json.loads(ended.out)
    return copy.deepcopy(WRITTEN[verb])


def report(capsys: pytest.CaptureFixture[str], document: object) -> Ended:
    Path("a.json").write_text(json.dumps(document), encoding="utf-8")
    return headway(capsys, "report", "a.json", "--output", "page.html")


# Warnings are errors in tests: a division by zero in numpy fails too.
@pytest.mark.parametrize("verb", VERBS)
def test_zero_is_a_figure(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended = report(capsys, zeros(written(capsys, verb)))
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize(
    ("verb", "way", "value"),
    [
        ("queue-sim", ("policies", 0, "utilisation"), 7),
        ("queue-sim", ("setup", "patterns"), "x"),
        ("queue-sim", ("amount",), {}),
        ("recommend", ("candidates", 0, "fixed", "attainment"), None),
        ("recommend", ("recommended", "simulation", "slo"), 1),
        ("recommend", ("shown", 0, "candidate"), 99),
    ],
)
def test_a_value_of_the_wrong_kind_is_one_line_with_file_and_verb(
    verb: str, way: tuple[str | int, ...], value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    said = report(capsys, put(written(capsys, verb), value, *way)).complaint()
    assert said.startswith(f"a.json: is no result of headway {verb}: ")
