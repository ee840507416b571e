"""`headway compare --routings`: the same requests for all, one fixed fleet, goodput over the same seconds."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_cases import headway, in_this_process, trace

from headway_cli.compare_routings import Lead, parse_loads
from headway_cli.routings_view import lead

LOAD = "steady:rate_rps=10,duration_s=20,input_tokens=1000,output_tokens=60,seed=1"
FLEET = ("--fleet", "mixed=1")
QUICK = (*FLEET, "--loads", "60,160", "--seeds", "2", "--jobs", "1")
CLASSES = """\
slo:
  ttft_ms: 1000
  itl_ms: 30
  classes:
    chat: {ttft_ms: 500, critical: true, share: 1}
    batch: {ttft_ms: 3000, tpot_ms: 100, share: 2}
pools:
  mixed: {min_replicas: 1, max_replicas: 4}
simulation: {initial: min, seed: 4}
routing: {prediction: {learn: false}}
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes on mixed replicas."""
    path = tmp_path_factory.mktemp("settings") / "classes.yaml"
    path.write_text(CLASSES, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "processes" not in request.node.name:
        monkeypatch.setattr("headway_cli.job.workers", in_this_process)


def compared(capsys: pytest.CaptureFixture[str], settings: Path, *flags: str | Path) -> dict[str, Any]:
    """The document."""
    command = ("compare", LOAD, "--config", settings, *flags, "--json", "-")
    ended = headway(capsys, *command)
    assert ended.code == 0, ended.err
    document: dict[str, Any] = json.loads(ended.out)
    return document


def test_document_table_page_and_goodput_over_the_same_seconds(
    capsys: pytest.CaptureFixture[str], settings: Path, tmp_path: Path
) -> None:
    page, place = tmp_path / "page.html", tmp_path / "result.json"
    flags = ("--routings", "random,slo", *QUICK, "--json", place, "--report", page)
    ended = headway(capsys, "compare", LOAD, "--config", settings, *flags)
    assert ended.code == 0, ended.err
    document = json.loads(place.read_text(encoding="utf-8"))
    rows = document["rows"]
    assert [(row["load"], row["routing"]) for row in rows] == [
        (0.6, "random"), (0.6, "slo"), (1.6, "random"), (1.6, "slo"),
    ]  # fmt: skip
    assert rows[2]["rate_scale"] == pytest.approx(rows[0]["rate_scale"] * 1.6 / 0.6)
    for before, after in ((0, 1), (2, 3)):
        assert rows[before]["requests"] == rows[after]["requests"]
    assert all(set(row["classes"]) == {"chat", "batch"} for row in rows)
    assert rows[2]["shed_share"]["mean"] == 0.0 < rows[3]["shed_share"]["mean"]
    assert rows[3]["attainment"]["mean"] > rows[2]["attainment"]["mean"]
    # A routing that sheds is done sooner; that is no gain in goodput.
    for row in rows:
        met = row["attainment"]["mean"] * row["requests"]
        assert row["goodput_rps"]["mean"] == pytest.approx(met / 20.0, rel=0.02)
    assert document["ahead"][1]["relative"] == pytest.approx(
        rows[3]["goodput_rps"]["mean"] / rows[2]["goodput_rps"]["mean"] - 1.0
    )
    assert "TTFT p99 of the requests that met their SLOs" in ended.out
    for word in ("160 %", "random", "chat attained", "Goodput of slo beside the others"):
        assert word in ended.out
        assert word in page.read_text(encoding="utf-8")


def test_the_tail_of_the_met_and_prefix_hits(capsys: pytest.CaptureFixture[str], settings: Path) -> None:
    """Those that met their SLOs waited no longer than these allow, whatever the others did."""
    load = f"{LOAD.replace('input_tokens=1000', 'input_tokens=300')},prefixes=3,prefix_tokens=1024"
    flags = (*FLEET, "--loads", "300", "--seeds", "1", "--jobs", "1", "--prefix-cache-tokens", "200000")
    command = ("compare", load, "--config", settings, "--routings", "random", *flags, "--json", "-")
    (row,) = json.loads(headway(capsys, *command).out)["rows"]
    assert row["attainment"]["mean"] < 0.9
    assert row["classes"]["chat"]["ttft_met_p99_s"]["mean"] <= 0.5 < row["ttft_p90_s"]["mean"]
    assert row["ttft_p90_s"]["mean"] < row["classes"]["batch"]["ttft_met_p99_s"]["mean"] <= 3.0
    assert row["prefix_hit_rate"]["mean"] == pytest.approx(1024 / 1324, abs=0.03)


def test_a_slow_spell_shows_minute_by_minute(capsys: pytest.CaptureFixture[str], settings: Path) -> None:
    """With a learned model: engines are slow from the second minute on, and healthy again from the fourth."""
    load = "steady:rate_rps=6,duration_s=300,input_tokens=500,output_tokens=60,seed=2"
    slow = ("--decode-speed", "0:1,60:0.1,180:1", "--loads", "40", "--seeds", "1", "--jobs", "1")
    command = (
        "compare",
        load,
        "--config",
        settings,
        "--routings",
        "least_load",
        *FLEET,
        *slow,
        "--json",
        "-",
    )
    (row,) = json.loads(headway(capsys, *command).out)["rows"]
    minutes = row["minutes"]
    assert sum(minutes["requests"]) == row["requests"] == sum(minutes["completed"])
    assert sum(minutes["met"]) == pytest.approx(row["attainment"]["mean"] * row["requests"])
    met = minutes["met"]
    assert met[0] > 0.9 * minutes["requests"][0]
    assert met[2] < 0.5 * minutes["requests"][2]
    assert met[4] > 0.9 * minutes["requests"][4]


@pytest.mark.slow
def test_a_row_is_that_of_a_single_simulation(capsys: pytest.CaptureFixture[str], settings: Path) -> None:
    """With the seed of the settings, and the fleet of --fleet from the start."""
    flags = ("--fleet", "mixed=2", "--loads", "130", "--seeds", "1", "--jobs", "1")
    document = compared(capsys, settings, "--routings", "slo", *flags)
    (row,) = document["rows"]
    assert document["ahead"] == []
    same = ("--policy", "static", "--static", "mixed=2", "--initial", "sized", "--routing", "slo")
    scale = ("--rate-scale", str(row["rate_scale"]), "--seed", "4")
    command = ("simulate", LOAD, "--config", settings, *same, *scale, "--json", "-")
    single = json.loads(headway(capsys, *command).out)
    assert row["requests"] == single["requests"]
    assert row["minutes"] == single["minutes"]
    assert row["attainment"] == {"mean": single["attainment"], "sd": None}
    assert row["shed_share"]["mean"] == single["shed"] / single["requests"]
    for name, of_class in single["classes"].items():
        assert row["classes"][name]["attainment"]["mean"] == of_class["attainment"]


@pytest.mark.slow
def test_the_same_bytes_however_many_processes(capsys: pytest.CaptureFixture[str], settings: Path) -> None:
    flags = ("--routings", "random,slo", *FLEET, "--loads", "120", "--seeds", "1")
    assert compared(capsys, settings, *flags, "--jobs", "1") == compared(
        capsys, settings, *flags, "--jobs", "2"
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--routings", "nope,slo", *FLEET), "no profile 'nope'; known: "),
        (("--routings", ",", *FLEET), "--routings: nothing given"),
        (("--routings", "slo,slo", *FLEET), "--routings: slo comes twice"),
        (("--routings", "slo"), "--routings: needs --fleet"),
        (("--routings", "slo", "--fleet", "decode=1"), "planner.static.mixed: missing"),
        (("--routings", "slo", "--fleet", "mixed=9"), "planner.static.mixed: 9 is outside"),
        (("--routings", "slo", "--policies", "threshold", *FLEET), "not policies"),
        (("--routings", "slo", *FLEET, "--seeds", "0"), "--seeds: must be at least 1"),
        (("--routings", "slo", *FLEET, "--report", "-"), "--report: - is standard output"),
        (FLEET, "--fleet: goes with --routings"),
        (("--loads", "70"), "--loads: goes with --routings"),
        (("--seeds", "2"), "--seeds: goes with --routings"),
        (("--routings", "slo", *FLEET, "--rate-scale", "2"), "--rate-scale: does not go with --routings"),
        (("--routings", "slo", *FLEET, "--initial", "min"), "--initial: does not go with --routings"),
        (("--routings", "slo", *FLEET, "--no-correction"), "--no-correction: does not go with --routings"),
        (("--routings", "slo", *FLEET, "--adjustment-interval", "60"), "nothing is planned"),
        (("--routings", "slo", "--fleet", "mixed=3", "--max-gpu-budget", "2"), "max_gpu_budget"),
    ],
)
def test_what_cannot_be_compared(
    flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str], settings: Path
) -> None:
    assert words in headway(capsys, "compare", LOAD, "--config", settings, *flags).complaint()


@pytest.mark.parametrize("loads", ["0", "-1", "nan", "inf", "abc", "", "70,70"])
def test_loads_that_are_none(loads: str, capsys: pytest.CaptureFixture[str], settings: Path) -> None:
    flags = ("--routings", "slo", *FLEET, "--loads", loads)
    assert "--loads: " in headway(capsys, "compare", LOAD, "--config", settings, *flags).complaint()


def test_loads_are_percent() -> None:
    assert parse_loads("70, 110") == (0.7, 1.1)


def test_requests_of_one_instant_are_no_load(
    capsys: pytest.CaptureFixture[str], settings: Path, tmp_path: Path
) -> None:
    single = trace(tmp_path, "7,500,20", "7,300,20")
    flags = ("--config", settings, "--routings", "slo", *QUICK)
    assert "no load to scale" in headway(capsys, "compare", single, *flags).complaint()


@pytest.mark.parametrize(
    ("relative", "half", "words"),
    [
        (0.151, 0.007, ("+15.1 %", "+14.4 to +15.8 %")),
        (19.99, 0.9, ("+2,000 %", "+1,910 to +2,090 %")),
        (-0.05, 0.05, ("-5 %", "-10 to +0 %")),
        (None, None, ("n/a", "n/a")),
    ],
)
def test_leads_are_plain_numbers(relative: float | None, half: float | None, words: tuple[str, str]) -> None:
    row = Lead(
        load=1.0,
        routing="slo",
        of="random",
        goodput_rps=1.5,
        half_width_rps=None,
        relative=relative,
        relative_half_width=half,
    )
    assert lead(row) == ("+1.5", *words)
