"""`headway share`: table, JSON, page, the split for comparison, and files that cannot be used."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headway_studies.commands.share import render
from headway_studies.commands.shared_budget import (
    SharedBudget,
    ShareReport,
    parse_shared,
    read_shared,
    run_shared,
    run_split,
)
from tests.cli.cli_cases import headway

LOAD = "steady:rate_rps=8,duration_s=240,input_tokens=3000,output_tokens=60"
GOOD = f"""\
gpus: 6
deployments:
  - {{name: chat, priority: 2, trace: "{LOAD},seed=1"}}
  - {{name: batch, trace: "{LOAD},seed=2", settings: {{slo.ttft_ms: 900}}}}
"""
FILES = {
    "empty": ("", ["gpus", "required"]),
    "no deployments": ("gpus: 4\ndeployments: []\n", ["deployments", "at least 1"]),
    "no GPUs": (GOOD.replace("gpus: 6", "gpus: 0"), ["gpus", "greater than 0"]),
    "unknown key": (GOOD.replace("priority", "prio"), ["deployments.0.prio: unknown key"]),
    "a name twice": (GOOD.replace("batch", "chat"), ["deployments", "'chat' is there twice"]),
    "weight of zero": (GOOD.replace("priority: 2", "weight: 0"), ["deployments.0.weight"]),
    "one part only": (GOOD.replace("priority: 2", "part: 2"), ["either all deployments have a part or none"]),
    "parts beyond the budget": (
        GOOD.replace("priority: 2", "part: 3").replace("name: batch", "name: batch, part: 4"),
        ["the parts are 7 GPUs, the budget is 6"],
    ),
    "floors beyond the budget": (
        GOOD.replace("priority: 2", "floor_gpus: 4").replace("name: batch", "name: batch, floor_gpus: 3"),
        ["6 GPUs do not hold the floors of all deployments (chat 4, batch 3)"],
    ),
    "a ceiling below the floor": (
        GOOD.replace("priority: 2", "floor_gpus: 4, ceiling_gpus: 3"),
        ["deployments.0", "ceiling_gpus 3 is below floor_gpus 4"],
    ),
    "more than all of a floor lent": (GOOD.replace("priority: 2", "lend: 1.5"), ["deployments.0.lend"]),
    "unknown setting": (GOOD.replace("slo.ttft_ms", "slo.ttft"), ["batch: slo.ttft: unknown key"]),
    "unknown profile": (GOOD.replace("slo.ttft_ms: 900", "engine.profile: none"), ["batch: ", "none"]),
    "missing settings file": (GOOD.replace("priority: 2", "config: no.yaml"), ["chat: no.yaml", "No such"]),
}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ShareReport:
    path = tmp_path_factory.mktemp("share") / "share.yaml"
    path.write_text(GOOD, encoding="utf-8")
    shared = read_shared(path)
    found = run_shared(shared, path)
    return ShareReport(gpus=shared.gpus, shared=found, split=run_split(shared, path, found))


@pytest.fixture(scope="module")
def document(report: ShareReport) -> dict[str, Any]:
    return report.document()


@pytest.mark.parametrize("case", FILES)
def test_wrong_files(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, words = FILES[case]
    (tmp_path / "share.yaml").write_text(text, encoding="utf-8")
    said = headway(capsys, "share", "share.yaml", "--json", "out.json")
    assert said.complaint().startswith("share.yaml: ")
    assert all(word in said.complaint() for word in words), said.err
    assert not Path("out.json").exists()


def test_minimums_beyond_the_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "share.yaml").write_text(GOOD.replace("gpus: 6", "gpus: 3"), encoding="utf-8")
    said = headway(capsys, "share", "share.yaml")
    assert "3 GPUs do not hold the minimums of all deployments (chat 2, batch 2)" in said.complaint()


def test_table_document_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "share.yaml").write_text(GOOD, encoding="utf-8")
    ended = headway(capsys, "share", "share.yaml", "--json", "out.json", "--report", "out.html")
    assert ended.code == 0, ended.err
    assert "2 deployments share 6 GPUs" in ended.out
    assert re.search(r"^ ?shared +batch +0 ", ended.out, re.M)
    found = json.loads(Path("out.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in found["deployments"]] == ["chat", "batch"]
    assert "split" not in found
    assert Path("out.html").read_text(encoding="utf-8") == render(parse_shared(found))


def test_targets_keep_the_budget_and_sums_are_those_of_the_rows(document: dict[str, Any]) -> None:
    assert document["most_gpus"] <= document["gpus"] == 6
    for way in (document, document["split"]):
        assert way["requests"] == sum(row["requests"] for row in way["deployments"])
        assert way["lost"] == sum(row["lost"] for row in way["deployments"])
        for row in way["deployments"]:
            assert row["lost"] == round(row["requests"] * (1 - row["attainment"]))
            assert all("grant" in one["reasons"] for one in row["intervals"][:-1]) == (way is document)


def test_floors_and_ceilings_hold_at_every_decision(tmp_path: Path) -> None:
    text = GOOD.replace("priority: 2", "priority: 2, ceiling_gpus: 3").replace(
        "name: batch", "name: batch, floor_gpus: 4, lend: 0"
    )
    (tmp_path / "share.yaml").write_text(text, encoding="utf-8")
    chat, batch = run_shared(read_shared(tmp_path / "share.yaml"), tmp_path / "share.yaml").deployments
    for one, low, high in ((chat, 0, 2), (batch, 4, 4)):
        for row in one.report.intervals[:-1]:
            grant = row.reasons["grant"]
            assert min(low, grant["wanted"]) <= grant["gpus"] <= high
            assert sum(row.targets.values()) <= grant["gpus"]


def test_what_is_split_is_the_budget(document: dict[str, Any]) -> None:
    assert sum(document["split"]["parts"].values()) == 6
    assert min(document["split"]["parts"].values()) >= 2


def test_parts_of_the_file_come_first() -> None:
    rows = [{"name": name, "trace": "x", "part": part} for name, part in (("a", 1), ("b", 3))]
    shared = SharedBudget.model_validate({"gpus": 9, "deployments": rows})
    assert shared.parts({"a": 1, "b": 1}, {"a": 1.0, "b": 1.0}) == {"a": 1, "b": 3}


def test_parts_without_the_file_follow_the_use() -> None:
    shared = SharedBudget.model_validate(
        {"gpus": 10, "deployments": [{"name": name, "trace": "x"} for name in "abc"]}
    )
    assert shared.parts({"a": 2, "b": 1, "c": 1}, {"a": 0.0, "b": 1.0, "c": 3.0}) == {"a": 2, "b": 3, "c": 5}


def test_the_page_shows_both_ways(report: ShareReport) -> None:
    page = render(report)
    for text in ("GPUs, shared", "GPUs, split in fixed parts", "budget 6", "chat", "batch"):
        assert text in page
    assert page == render(parse_shared(json.loads(json.dumps(report.document()))))
