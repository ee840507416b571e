"""`headway recommend`: table, JSON, page and configuration of a small load, and input that cannot be used."""

import json

import pytest
import yaml

from tests.cli.cli_cases import DECODE, headway, in_this_process, profile_copy, rewrite

SMALL, LARGE = "llama-3.1-8b_h100_tp1", "qwen3-32b_h100_tp2"
LOAD = "steady:rate_rps=6,duration_s=240,input_tokens=800,output_tokens=80,input_cv=1,seed=5"
ONE = ("--jobs", "1")
COMMAND = ("recommend", LOAD, "--profiles", f"{SMALL},{LARGE}", "--ttft-ms", "500", "--itl-ms", "30")


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "processes" not in request.node.name:
        monkeypatch.setattr("headway_studies.commands.recommend.workers", in_this_process)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tmp_path_factory.mktemp("recommend")


@pytest.fixture
def ended(capsys, files):
    outputs = ("--json", "-", "--report", files / "page.html", "--write", files / "best.yaml")
    return headway(capsys, *COMMAND, *ONE, "--chunks", "2048", "--rate-scale", "4", *outputs)


def test_everything_it_writes(capsys, ended, files):
    assert ended.code == 0, ended
    document = json.loads(ended.out)
    rows = {(row["profile"], row["mode"]): row for row in document["candidates"]}
    assert set(rows) == {(profile, mode) for profile in (SMALL, LARGE) for mode in ("mixed", "split")}
    assert {row["price_per_gpu_hour"] for row in rows.values()} == {1.0}
    best = document["recommended"]
    kept = [
        each["cost"]
        for row in rows.values()
        for each in (row["fixed"], row["headway"])
        if each is not None and each["attainment"] >= 0.99
    ]
    assert best["cost"] == pytest.approx(min(kept), rel=0.005)
    assert best["attainment"] >= 0.99

    drawn, drawn_again = (files / "page.html").read_text(), files / "again.html"
    (files / "result.json").write_text(ended.out)
    assert headway(capsys, "report", files / "result.json", "--output", drawn_again).code == 0
    assert drawn_again.read_text() == drawn
    assert best["sentences"]["Recommended"] in drawn
    for row in rows.values():
        for way in ("fixed", "headway"):
            assert row[way] is None or 0 < row[way]["attainment_half_width"] <= 1
        if row["fixed"] is not None:
            size = sum(row["fixed"]["replicas"].values())
            beside = [near for near in row["fixed"]["neighbours"] if sum(near["replicas"].values()) < size]
            assert len(beside) == sum(count > 1 for count in row["fixed"]["replicas"].values())
            assert all(near["attainment"] < 0.99 for near in beside)

    written = files / "best.yaml"
    assert yaml.safe_load(written.read_text()) == best["configuration"]
    checked = headway(capsys, "check", written)
    assert checked.code == 0, checked
    again = headway(capsys, "simulate", LOAD, "--rate-scale", "4", "--config", written, "--json", "-")
    figures = json.loads(again.out)
    assert (figures["attainment"], figures["gpu_hours"]) == (best["attainment"], best["gpu_hours"])
    assert figures["policy"] == best["policy"]
    assert f"headway simulate {LOAD} --rate-scale 4 --config" in written.read_text()

    page = (files / "page.html").read_text()
    assert "Recommendation for" in page
    assert "The recommended fleet over time" in page
    assert best["sentences"]["Recommended"] in page

    # The table, on standard error here, fits a terminal of 80 columns.
    lines = ended.err.splitlines()
    table = [line.rstrip() for line in lines if " mixed 2048 " in line or " split " in line[:12]]
    assert len(table) >= 2
    assert max(map(len, table)) <= 80
    for words in ("A  ", "B  ", "Recommended", " ± ", "attained", "GPU-hours"):
        assert words in ended.err


@pytest.mark.slow
def test_the_same_input_gives_the_same_document_in_however_many_processes(capsys):
    short = (*COMMAND, "--chunks", "2048", "--duration", "120", "--json", "-")
    first, second = (headway(capsys, *short, "--jobs", jobs) for jobs in ("1", "3"))
    assert first.code == 0, first
    assert first.out == second.out
    # One replica does here what takes two in split pools.
    best = json.loads(first.out)["recommended"]
    assert (best["profile"], best["mode"], best["replicas"]) == (SMALL, "mixed", {"mixed": 1})
    assert "2.00 × as many" in best["sentences"]["Split pools"]


def test_types_with_prices_of_a_configuration(capsys, tmp_path):
    path, written = tmp_path / "gpus.yaml", tmp_path / "best.yaml"
    path.write_text(
        "slo: {ttft_ms: 500, itl_ms: 30}\nmodel: mine\ngpu_types:\n"
        f"  dear: {{profile: {SMALL}, price_per_gpu_hour: 9.0}}\n"
        f"  cheap: {{profile: {LARGE}, price_per_gpu_hour: 1.0, max_gpus: 6}}\n",
        encoding="utf-8",
    )
    command = ("recommend", LOAD, "--config", path, "--modes", "mixed", "--chunks", "2048")
    ended = headway(capsys, *command, *ONE, "--duration", "120", "--write", written)
    assert ended.code == 0, ended
    assert "cheap: 2 GPUs a replica, 1 a GPU-hour" in ended.out
    assert "mixed replicas of cheap" in ended.out
    kept = yaml.safe_load(written.read_text())
    assert (kept["model"], kept["engine"]["profile"]) == ("mine", LARGE)
    assert kept["planner"]["max_gpu_budget"] == 6


def test_where_nothing_keeps_the_promise_it_says_why_and_writes_no_configuration(capsys, tmp_path):
    written, page = tmp_path / "best.yaml", tmp_path / "page.html"
    targets = ("--ttft-ms", "10", "--itl-ms", "30")
    command = ("recommend", LOAD, "--profiles", SMALL, *targets, "--write", written, "--report", page)
    ended = headway(capsys, *command, *ONE, "--json", "-")
    assert ended.code == 2
    assert "nothing that was tried meets TTFT 10 ms and ITL 30 ms for 99 % of requests" in ended.err
    assert "TTFT of 10 ms is missed by 73.93 % of requests" in ended.err
    assert json.loads(ended.out)["recommended"] is None
    assert not written.exists()
    assert "nothing that was tried meets" in page.read_text()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--profiles", "nowhere"], "--profiles: 'nowhere' is neither a directory nor a shipped profile"),
        (["--profiles", f"{SMALL},{SMALL}"], "comes twice"),
        (["--profiles", f"{SMALL},profiles/{SMALL}"], "comes twice"),
        (["--profiles", ","], "--profiles: nothing given"),
        (["--modes", "mixed,both"], "--modes: expected mixed, split or both, got 'mixed,both'"),
        (["--chunks", "512,0"], "--chunks: expected tokens such as 512,2048,8192, got '0'"),
        (["--chunks", "many"], "--chunks: expected tokens"),
        (["--gpu-prices", "h100_sxm"], "--gpu-prices: expected NAME=USD such as h100=3.0, got 'h100_sxm'"),
        (["--gpu-prices", "h100_sxm=-1"], "--gpu-prices: expected NAME=USD"),
        (["--gpu-prices", "h100_sxm=nan"], "--gpu-prices: expected NAME=USD"),
        (["--gpu-prices", "h100_sxm=1,h100_sxm=2"], "h100_sxm is given twice"),
        (["--gpu-prices", f"{SMALL}=2"], f"--gpu-prices: no price of {LARGE}"),
        (["--jobs", "0"], "--jobs: must be at least 1"),
        (["--ttft-ms", "-1"], "slo.ttft_ms"),
        (["--attainment", "99"], "slo.attainment"),
        (["--max-gpus", "0"], "planner.max_gpu_budget"),
        (["--rate-scale", "0"], "rate_scale"),
        (["--write", "-"], "--write: - is standard output, which only --json takes"),
        (["--config", "none.yaml"], "none.yaml"),
    ],
)
def test_flags_without_meaning(capsys, flags, words):
    assert words in headway(capsys, *COMMAND, *flags).complaint()


def test_no_profile_at_all(capsys):
    assert "--profiles: none given" in headway(capsys, "recommend", LOAD).complaint()


def test_a_profile_that_cannot_be_read_ends_the_command(capsys, tmp_path):
    broken = profile_copy(tmp_path)
    rewrite(broken / DECODE, drop="z_itl")
    said = headway(capsys, "recommend", LOAD, "--profiles", f"{SMALL},{broken}").complaint()
    assert str(broken) in said
    assert "z_itl: missing" in said
