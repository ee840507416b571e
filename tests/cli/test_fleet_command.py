"""`headway simulate --fleet`: table, JSON, page, fixed parts, and files that cannot be used."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headway.config import load_fleet
from headway_cli.errors import CliError
from headway_cli.fleet import FleetReport, parse_fleet
from headway_cli.fleet_runs import fleet_jobs, run_budgets, run_fleet, run_least, run_split
from headway_cli.fleet_view import render
from headway_cli.page.series import gpus_over_time
from tests.cli.cli_cases import headway

LOAD = "steady:rate_rps=8,duration_s=240,input_tokens=3000,output_tokens=60"
GOOD = f"""\
fleet: {{gpus: 6}}
deployments:
  chat: {{model: a, share: {{priority: 2}}, simulation: {{load: {{trace: "{LOAD},seed=1"}}}}}}
  batch: {{model: b, slo: {{ttft_ms: 900}}, simulation: {{load: {{trace: "{LOAD},seed=2"}}}}}}
"""
FILES = {
    "no requests": (
        GOOD.replace(f'trace: "{LOAD},seed=1"', ""),
        ["fleet.yaml: deployments.chat.simulation.load.trace: missing"],
    ),
    "requests that cannot be read": (
        GOOD.replace(f"{LOAD},seed=2", "none.csv"),
        ["fleet.yaml: deployments.batch.simulation.load: none.csv: no such file"],
    ),
    "unknown profile": (GOOD.replace("slo: {ttft_ms: 900}", "engine: {profile: none}"), ["batch: ", "none"]),
    "another policy": (
        GOOD.replace("slo: {ttft_ms: 900}", "planner: {policy: reference}"),
        ["planner.policy: only headway shares a budget, and batch has another"],
    ),
    "unlike intervals": (
        GOOD.replace("slo: {ttft_ms: 900}", "planner: {adjustment_interval_s: 60}"),
        ["planner.adjustment_interval_s: deployments that share a budget need the same"],
    ),
    "minimums beyond the budget": (
        GOOD.replace("gpus: 6", "gpus: 3"),
        ["fleet.gpus: 3 GPUs do not hold the minimums of all deployments (chat 2, batch 2)"],
    ),
}
FLAGS = {
    ("trace.csv", "--fleet", "fleet.yaml"): "TRACE: does not go with --fleet",
    ("--fleet", "fleet.yaml", "--config", "x.yaml"): "--config: does not go with --fleet; its file says it",
    (
        "--fleet",
        "fleet.yaml",
        "--max-replicas",
        "3",
    ): "--max-replicas: does not go with --fleet; its file says it",
    ("--fleet", "fleet.yaml", "--split", "chat=3"): (
        "--split: should name each deployment once, and batch is not in both"
    ),
    ("--fleet", "fleet.yaml", "--split", "chat=3,batch=4"): "--split: the parts are 7 GPUs, fleet.gpus is 6",
    ("--fleet", "fleet.yaml", "--split", "chat=6,batch=0"): "--split: batch has no GPU in it",
    (): "TRACE: missing; or --fleet FILE",
    (LOAD, "--split", "use"): "--split: goes with --fleet",
    (LOAD, "--least"): "--least: goes with --fleet",
    (LOAD, "--against", "fleet.yaml"): "--against: goes with --fleet",
    ("--fleet", "fleet.yaml", "--against", "none.yaml"): "none.yaml: cannot be read",
    ("--fleet", "fleet.yaml", "--least", "--split", "use"): "--least: does not go with --split",
}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def fleet(text: str) -> Any:
    """The jobs of a fleet, and its budget."""
    Path("fleet.yaml").write_text(text, encoding="utf-8")
    found = load_fleet("fleet.yaml")
    return fleet_jobs(found, Path("fleet.yaml")), found.common.fleet.gpus


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> FleetReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("fleet"))
        jobs, gpus = fleet(GOOD)
    found = run_fleet(jobs, gpus)
    return FleetReport(gpus=gpus, whole=found, beside=run_split(jobs, gpus, "use", found))


@pytest.fixture(scope="module")
def document(report: FleetReport) -> dict[str, Any]:
    return report.document()


def test_a_model_may_have_no_request_in_the_time_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    load = "simulation: {load: {trace: 'steady:rate_rps=0.00001,duration_s=240,seed=3'}}"
    asleep, ready = (
        f"  {name}: {{model: {name}, pools: {{mixed: {{min_replicas: {least}}}}}, {load}}}\n"
        for least, name in enumerate(("rare", "idle"))
    )
    Path("fleet.yaml").write_text(GOOD + asleep + ready, encoding="utf-8")
    flags = "--split", "use", "--json", "out.json", "--report", "out.html"
    assert headway(capsys, "simulate", "--fleet", "fleet.yaml", *flags).code == 0
    found = parse_fleet(json.loads(Path("out.json").read_text(encoding="utf-8")))
    assert found.beside is not None
    for use in (found.whole, found.beside):
        reports = {each.name: each.report for each in use.deployments if each.name in ("rare", "idle")}
        assert [(each.requests, each.simulated_s) for each in reports.values()] == [(0, 240.0)] * 2
        assert reports["idle"].gpu_hours == pytest.approx(240 / 3600)  # It keeps its minimum.


@pytest.mark.parametrize("case", FILES)
def test_fleets_that_cannot_be_simulated(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, words = FILES[case]
    Path("fleet.yaml").write_text(text, encoding="utf-8")
    said = headway(capsys, "simulate", "--fleet", "fleet.yaml", "--json", "out.json")
    assert all(word in said.complaint() for word in words), said.err
    assert not Path("out.json").exists()


@pytest.mark.parametrize("flags", FLAGS)
def test_flags_that_do_not_go_together(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    Path("fleet.yaml").write_text(GOOD, encoding="utf-8")
    assert FLAGS[flags] in headway(capsys, "simulate", *flags).complaint()


def test_table_document_and_page(capsys: pytest.CaptureFixture[str]) -> None:
    Path("fleet.yaml").write_text(GOOD, encoding="utf-8")
    outputs = "--json", "out.json", "--report", "out.html"
    ended = headway(capsys, "simulate", "--fleet", "fleet.yaml", "--duration", "120", *outputs)
    assert ended.code == 0, ended.err
    assert "2 deployments share 6 GPUs" in ended.out
    assert re.search(r"^ ?shared +batch +0 ", ended.out, re.M)
    found = json.loads(Path("out.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in found["deployments"]] == ["chat", "batch"]
    assert {row["trace"]["duration_s"] for row in found["deployments"]} == {120.0}
    assert "split" not in found
    assert Path("out.html").read_text(encoding="utf-8") == render(parse_fleet(found))


def test_a_fleet_is_shown_beside_another(capsys: pytest.CaptureFixture[str]) -> None:
    Path("fleet.yaml").write_text(GOOD, encoding="utf-8")
    Path("less.yaml").write_text(GOOD.replace("gpus: 6", "gpus: 4"), encoding="utf-8")
    command = ("simulate", "--fleet", "fleet.yaml", "--against", "less.yaml")

    said = headway(capsys, *command, "--json", "out.json", "--report", "out.html").out

    written = json.loads(Path("out.json").read_text())
    assert written["against"]["file"] == "less"
    assert written["lost"] < written["against"]["lost"]
    assert re.search(r"shared +batch .*\n +less +batch", said)
    assert parse_fleet(written).document() == written
    page = Path("out.html").read_text()
    assert "GPUs, less" in page
    assert page.count("budget 6") == 1, "the other has another one"


@pytest.mark.parametrize("name", ["shared", "split"])
def test_another_fleet_is_told_from_the_ways_to_use_a_budget(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in ("fleet.yaml", f"{name}.yaml"):
        Path(file).write_text(GOOD, encoding="utf-8")
    command = "simulate", "--fleet", "fleet.yaml", "--against", f"{name}.yaml", "--report", "out.html"
    said = headway(capsys, *command).out
    assert re.search(rf"Shared .*\n{name}\.yaml  ", said)
    assert f"GPUs, {name}.yaml" in Path("out.html").read_text(encoding="utf-8")


def test_what_stands_beside_a_fleet_is_checked_before_anything_is_simulated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Its requests cannot be read, which a simulation would say first.
    Path("fleet.yaml").write_text(GOOD.replace(f"{LOAD},seed=2", "none.csv"), encoding="utf-8")
    Path("other.yaml").write_text(GOOD.replace(f'trace: "{LOAD},seed=1"', ""), encoding="utf-8")
    for flags, fault in {
        ("--split", "chat=3"): "--split: should name each deployment once",
        ("--against", "other.yaml"): "other.yaml: deployments.chat.simulation.load.trace: missing",
    }.items():
        assert fault in headway(capsys, "simulate", "--fleet", "fleet.yaml", *flags).complaint()


def test_without_a_budget_each_is_simulated_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    Path("fleet.yaml").write_text(GOOD.replace("fleet:", "# fleet:"), encoding="utf-8")
    ended = headway(capsys, "simulate", "--fleet", "fleet.yaml", "--json", "out.json", "--report", "out.html")
    assert ended.code == 0, ended.err
    assert re.search(r"^ ?none +batch +0 ", ended.out, re.M)
    alone = headway(capsys, "simulate", f"{LOAD},seed=1", "--json", "chat.json")
    assert alone.code == 0, alone.err
    chat = json.loads(Path("out.json").read_text(encoding="utf-8"))["deployments"][0]
    expected = json.loads(Path("chat.json").read_text(encoding="utf-8"))
    assert chat["gpu_hours"] == expected["gpu_hours"]
    assert chat["attainment"] == expected["attainment"]


def test_targets_keep_the_budget_and_sums_are_those_of_the_rows(document: dict[str, Any]) -> None:
    assert document["most_gpus"] <= document["gpus"] == 6
    for way in (document, document["split"]):
        assert way["requests"] == sum(row["requests"] for row in way["deployments"])
        assert way["lost"] == sum(row["lost"] for row in way["deployments"])
        for row in way["deployments"]:
            assert row["lost"] == round(row["requests"] * (1 - row["attainment"]))
            assert all("grant" in one["reasons"] for one in row["intervals"][:-1]) == (way is document)


def test_floors_and_ceilings_hold_at_every_decision() -> None:
    text = GOOD.replace("priority: 2", "priority: 2, ceiling_gpus: 3")
    chat, batch = run_fleet(
        *fleet(text.replace("model: b", "model: b, share: {floor_gpus: 4, lend: 0}"))
    ).deployments
    for one, low, high in ((chat, 0, 2), (batch, 4, 4)):
        for row in one.report.intervals[:-1]:
            grant = row.reasons["grant"]
            assert min(low, grant["wanted"]) <= grant["gpus"] <= high
            assert sum(row.targets.values()) <= grant["gpus"]


SPILLING = f"""\
fleet: {{gpus: {{L40S: 2, H100: 6}}}}
pools: {{mixed: {{}}}}
slo: {{ttft_ms: 1000, itl_ms: 60}}
deployments:
  more: {{engine: {{gpu_type: H100}}}}
  chat:
    engine: {{gpu_type: L40S, profile: llama-3.1-8b_l40s_tp1}}
    spillover: more
    simulation: {{load: {{trace: "{LOAD},seed=1"}}}}
"""


def _by_name(text: str) -> Any:
    Path("fleet.yaml").write_text(text, encoding="utf-8")
    found = load_fleet("fleet.yaml")
    uses = run_budgets(fleet_jobs(found, Path("fleet.yaml")), found.budgets)
    return {use.name: use for use in uses.deployments}


def test_what_finds_no_place_is_served_on_gpus_of_another_type() -> None:
    by_name = _by_name(SPILLING)
    chat, more = by_name["chat"], by_name["more"]
    by_itself = SPILLING.replace("    spillover: more\n", "    routing: {profile: slo}\n")
    alone = _by_name(by_itself.replace("  more: {engine: {gpu_type: H100}}\n", ""))["chat"]

    assert chat.report.requests + more.report.requests == alone.report.requests, "each is counted once"
    assert more.report.requests == len(chat.spilled.records) > 100
    assert min(chat.attained, more.attained) > 0.97
    assert alone.attained < 0.9
    assert max(gpus_over_time(chat.report)[1]) <= 2


def test_the_least_fleet_is_the_cheapest_by_the_prices_that_are_known() -> None:
    def least(text: str) -> tuple[int | None, Sequence[str]]:
        Path("fleet.yaml").write_text(text, encoding="utf-8")
        settings = load_fleet("fleet.yaml")
        found = run_least(fleet_jobs(settings, Path("fleet.yaml")), settings.budgets)
        return found.gpus, found.least

    more, both = SPILLING.replace("L40S: 2", "L40S: 4").replace("rps=8", "rps=4"), "gpu_types: {%s}\n"
    small, large = (
        f"{name}: {{profile: llama-3.1-8b_{name.lower()}_tp1, price_per_gpu_hour: 1}}"
        for name in ("L40S", "H100")
    )

    assert "4 L40S GPUs as stated" in least(both % small + more)[1][1], "of the other no price is known"
    # At equal prices the fast one does with fewest of the slow ones, of which there must be one.
    gpus, (_, of_small) = least(both % f"{small}, {large}" + more)
    assert "cheapest with 1 L40S GPU: 2 an hour" in of_small
    assert gpus == 2


def test_nothing_spills_over_where_there_is_room() -> None:
    used = _by_name(SPILLING.replace("L40S: 2", "L40S: 8").replace("rate_rps=8", "input_cv=0,rate_rps=1"))

    assert len(used["chat"].spilled.records) == used["more"].report.requests == 0
    assert used["more"].report.gpu_hours == pytest.approx(240 / 3600, rel=0.01)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (
            "more: {engine",
            f"more: {{simulation: {{load: {{trace: '{LOAD}'}}}}, engine",
            "more.simulation.load",
        ),
        ("simulation: {load", "simulation: {clients: {retries: 1}, load", "chat.simulation.clients.retries"),
    ],
)
def test_spillover_that_is_not_simulated(old: str, new: str, fault: str) -> None:
    with pytest.raises(CliError, match=fault):
        _by_name(SPILLING.replace(old, new))


def test_what_is_split_is_the_budget(document: dict[str, Any]) -> None:
    assert sum(document["split"]["parts"].values()) == 6
    assert min(document["split"]["parts"].values()) >= 2


def test_stated_parts_bound_each(report: FleetReport) -> None:
    jobs, gpus = fleet(GOOD)
    chat, batch = run_split(jobs, gpus, "chat=2,batch=4", report.whole).deployments
    assert [sum(row.targets.values()) for row in chat.report.intervals[:-1]] == [2] * 8
    assert max(sum(row.targets.values()) for row in batch.report.intervals[:-1]) <= 4


def test_the_page_shows_both_ways(report: FleetReport) -> None:
    page = render(report)
    for text in ("GPUs, shared", "GPUs, split in fixed parts", "budget 6", "chat", "batch"):
        assert text in page
    assert page == render(parse_fleet(json.loads(json.dumps(report.document()))))


def test_the_least_budgets_are_those_with_a_gpu_less_of_which_somebody_misses() -> None:
    text = (
        GOOD.replace("rate_rps=8", "rate_rps=24")
        .replace("gpus: 6", "gpus: {H100: 9, L20: 9}")
        .replace("model: a", "model: a, engine: {gpu_type: H100}")
    )
    Path("fleet.yaml").write_text(text.replace("model: b", "model: b, engine: {gpu_type: L20}"))
    settings = load_fleet("fleet.yaml")
    jobs = fleet_jobs(settings, Path("fleet.yaml"))
    found = run_least(jobs, settings.budgets)
    alone = {use.name: use for use in run_fleet(jobs, None).deployments}
    assert all(use.keeps(alone[use.name]) for use in found.whole.deployments)
    for said, name in zip(found.least, jobs, strict=True):
        least = int(said.split()[0])
        (fewer,) = run_fleet({name: jobs[name]}, least - 1).deployments
        assert not fewer.keeps(alone[name])
        assert f"; with {least - 1}, {name} keeps " in said
    assert found.gpus == sum(int(said.split()[0]) for said in found.least)
    assert parse_fleet(found.document()).least == list(found.least)


def test_the_least_budget_is_that_of_what_is_kept_under_ceilings() -> None:
    text = GOOD.replace("rate_rps=8", "rate_rps=24").replace("priority: 2", "priority: 2, ceiling_gpus: 2")
    jobs, _ = fleet(text)
    found = run_least(jobs, {"": 9})
    alone = {use.name: use for use in run_fleet(jobs, None).deployments}
    chat, batch = found.whole.deployments
    assert (chat.keeps(alone["chat"]), batch.keeps(alone["batch"])) == (False, True)
    (said,) = found.least
    most = int(said.split("kept with ")[1].split(",")[0])
    assert f"chat keeps less on {most} than without a budget" in said
    assert int(said.split()[0]) == found.gpus < most
