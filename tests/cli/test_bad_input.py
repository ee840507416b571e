"""Every kind of wrong input ends with exit code 2, one line that says where, and nothing written."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_cases import DECODE, LOAD, headway, profile_copy, rewrite, trace

FLAGS = {
    "unknown policy": (["--policy", "bold"], ["planner.policy", "bold", "reference, static, threshold"]),
    "unknown predictor": (["--predictor", "oracle"], ["planner.predictor", "oracle", "kalman"]),
    "unknown routing": (["--routing", "nearest"], ["routing.profile", "nearest", "least_load"]),
    "unknown trace format": (["--format", "parquet"], ["parquet", "mooncake"]),
    "unknown profile": (["--profile", "llama-9"], ["engine.profile", "llama-9", "llama-3.1-8b_h100_tp1"]),
    "unknown flag": (["--polici", "static"], ["--polici"]),
    "negative target": (["--ttft-ms", "-1"], ["slo.ttft_ms", "-1"]),
    "target that is no number": (["--itl-ms", "fast"], ["--itl-ms", "number"]),
    "fleet that is no fleet": (["--static", "prefill:4"], ["--static", "prefill:4"]),
    "fleet with an unknown role": (["--static", "prefil=4,decode=2"], ["planner.static.prefil", "prefill"]),
    "fleet without a pool": (["--static", "prefill=4"], ["planner.static.decode", "missing"]),
    "fleet with a pool too many": (
        ["--static", "prefill=1,decode=1,mixed=1"],
        ["static.mixed", "no such pool"],
    ),
    "fleet above max_replicas": (["--static", "prefill=400,decode=1"], ["planner.static.prefill", "400"]),
    "fleet with another policy": (["--static", "prefill=1,decode=1", "--policy", "threshold"], ["--static"]),
    "first fleet": (["--initial", "some"], ["--initial", "some", "sized", "min"]),
    "first fleet above max_replicas": (["--initial", "prefill=99,decode=1"], ["initial.prefill", "99"]),
    "a speed that is none": (["--prefill-speed", "fast"], ["--prefill-speed", "0.7", "'fast'"]),
    "a speed of 0": (
        ["--decode-speed", "0"],
        ["options: simulation.engine.decode_speed: should be a number from 0.001", "not 0.0"],
    ),
    "a speed at no time": (
        ["--prefill-speed", "0:1,nan:2"],
        ["simulation.engine.prefill_speed: should be a number", "nan"],
    ),
    "a time given twice": (["--decode-speed", "0:1,0:2"], ["--decode-speed", "twice"]),
    "a step without a speed": (["--prefill-speed", "0:1,60"], ["--prefill-speed", "0:1,1800:0.7"]),
    "slow replicas without a speed": (["--slow-replicas", "0.1"], ["--slow-replicas", "SHARE:SPEED"]),
    "more slow replicas than all": (["--slow-replicas", "2:0.5"], ["simulation.engine.slow_replicas.share"]),
    "crash without a time": (["--crash", "prefill"], ["--crash", "prefill"]),
    "crash of an unknown role": (["--crash", "router@60"], ["simulation.crashes.0.role", "router"]),
    "crash of a pool that is not there": (["--crash", "mixed@60"], ["mixed", "no such role"]),
    "budget below the minimums": (["--max-gpu-budget", "1"], ["planner.max_gpu_budget", "2 GPUs"]),
    "step of nothing": (["--max-step", "0"], ["planner.max_step", "0"]),
    "capacity that is no number": (["--capacity-gpus", "many"], ["--capacity-gpus", "many", "0:40,1800:10"]),
    "capacity below none": (["--capacity-gpus", "-1"], ["simulation.capacity_gpus", "-1"]),
    "capacity before the beginning": (["--capacity-gpus", "-5:3"], ["simulation.capacity_gpus", "-5"]),
    "capacity twice": (["--capacity-gpus", "0:3,0:4"], ["--capacity-gpus", "0", "twice"]),
    "policy that needs other pools": (
        ["--aggregated", "--policy", "reference"],
        ["planner.policy", "prefill and decode"],
    ),
    "scale of zero": (["--rate-scale", "0"], ["rate_scale", "0"]),
    "start beyond the end": (["--start", "9000"], ["start_s", "9000"]),
    "output without a folder": (["--report", "no/such/page.html"], ["--report", "no/such"]),
    "output that is a folder": (["--report", "."], ["--report", "is a directory"]),
    "missing settings file": (["--config", "none.yaml"], ["none.yaml", "No such file"]),
    "missing warm-up trace": (
        ["--load-predictor-warmup-trace", "past.csv"],
        ["planner.load_predictor_warmup_trace: past.csv", "no such file"],
    ),
    "fleet with a role twice": (
        ["--static", "prefill=1,prefill=2,decode=1"],
        ["--static", "prefill", "twice"],
    ),
    "format of generated load": (["--format", "azure"], ["format azure", "generated load"]),
    "report on standard output": (["--report", "-"], ["--report", "only --json"]),
}

COMPARISONS = {
    "no policies": (["--policies", ","], ["--policies", "nothing given"]),
    "an empty list of policies": (["--policies", ""], ["--policies", "nothing given"]),
    "a policy twice": (["--policies", "threshold,threshold"], ["--policies", "twice"]),
    "an unknown policy": (["--policies", "threshold,bold"], ["planner.policy", "bold"]),
    "no key and value": (["--policies", "reference:kalman"], ["--policies", "KEY=VALUE", "kalman"]),
    "an unknown setting": (["--policies", "reference:predicter=arima"], ["planner.predicter", "predictor"]),
    "half a fleet": (["--policies", "static:prefill=2"], ["planner.static.decode", "missing"]),
    "a value that is no YAML": (
        ["--policies", "reference:predictor=[1"],
        ["--policies", "predictor", "'[1'"],
    ),
    "a date that is none": (["--policies", "reference:predictor=2020-99-99"], ["--policies", "2020-99-99"]),
    "no value": (["--policies", "reference:predictor="], ["--policies", "KEY=VALUE"]),
    "a setting twice": (["--policies", "static:prefill=1:decode=1:prefill=2"], ["static.prefill", "twice"]),
    "no processes": (["--jobs", "0"], ["--jobs", "0"]),
}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path, "0.0,100,10", "1.0,abc,10")
    said = headway(capsys, "simulate", path, "--json", "out.json", "--report", "out.html").complaint()
    assert all(word in said for word in ("trace.csv", "line 3", "input_tokens", "abc"))
    assert list(tmp_path.iterdir()) == [path]
    said = headway(capsys, "simulate", trace(tmp_path, "1,2", header="when,what")).complaint()
    assert "trace.csv: line 1" in said
    assert "burstgpt" in said


@pytest.mark.parametrize("case", FLAGS)
def test_flags(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags, words = FLAGS[case]
    said = headway(capsys, "simulate", LOAD, *flags, "--json", "out.json")
    assert all(word in said.complaint() for word in words), said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", COMPARISONS)
def test_comparisons(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags, words = COMPARISONS[case]
    said = headway(capsys, "compare", LOAD, *flags, "--json", "out.json")
    assert all(word in said.complaint() for word in words), said.err
    assert list(tmp_path.iterdir()) == []


def test_trace_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere.csv" in headway(capsys, "simulate", "nowhere.csv").complaint()


def test_generated_load(capsys: pytest.CaptureFixture[str]) -> None:
    said = headway(capsys, "simulate", "waves:rate_rps=1").complaint()
    assert "unknown generator 'waves'" in said
    assert "steady" in said


def test_profile_without_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = profile_copy(tmp_path)
    rewrite(profile / DECODE, drop="z_itl")
    said = headway(capsys, "simulate", LOAD, "--profile", profile).complaint()
    assert str(DECODE) in said
    assert "z_itl: missing" in said


def test_unknown_key_in_the_settings_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("planner: {max_gpus: 3}\n", encoding="utf-8")
    for verb in (["simulate", LOAD, "--config", path], ["check", path]):
        said = headway(capsys, *verb).complaint()
        assert "mine.yaml: planner.max_gpus: unknown key; did you mean 'max_gpu_budget'?" in said


def test_one_path_for_two_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    said = headway(capsys, "simulate", LOAD, "--json", "a.out", "--report", "./a.out").complaint()
    assert "--report" in said
    assert "--json" in said


def test_output_that_is_the_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path, "0.0,100,10", "1.0,100,10")
    before = path.read_bytes()
    assert "--json" in headway(capsys, "simulate", path, "--json", "./trace.csv").complaint()
    assert path.read_bytes() == before


def test_report_of_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    for text, word in (
        ("[1", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "no result of any verb"),
        ("{}", "no result of any verb"),
        ('{"policies": []}', "no result of headway compare: policies: has no row"),
        ('{"url": "", "outcomes": {}}', "no result of headway load: model is missing"),
        ('{"rows": [], "fleet": ""}', "no result of headway compare --routings: trace is missing"),
        ('{"gpus": 1, "deployments": [7]}', "no result of headway simulate --fleet"),
        ('{"setup": {}, "policies": [], "orders": {}}', "no result of headway queue-sim"),
        ('{"window": {}, "points": []}', "no result of headway advise: window."),
        ('{"candidates": [], "recommended": null}', "no result of headway recommend: trace is missing"),
    ):
        path.write_text(text, encoding="utf-8")
        assert word in headway(capsys, "report", path, "--output", "page.html").complaint()
    assert not Path("page.html").exists()


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("simulated_s",), None, "simulated_s is missing"),
        (("intervals", 0, "ttft_s"), None, "intervals.0.ttft_s is missing"),
        (("intervals", 0, "ttft_s"), {}, "intervals.0.ttft_s.mean is missing"),
        (("simulated_s",), "long", "simulated_s: input should be a valid number"),
        (("requests",), 10**400, "requests: "),
        (("trace", "name"), 7, "trace.name: "),
        (("replicas", "prefill", "ready"), [], "replicas.prefill.ready: "),
        (("replicas", "prefill", "ready"), [1.0] * 999, "replicas.prefill: lists of different lengths"),
        (("gpus_per_replica",), {"decode": 1}, "different roles"),
    ],
)
def test_report_of_half_a_result(
    place: tuple[str | int, ...],
    value: object,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = json.loads(headway(capsys, "simulate", LOAD, "--json", "-").out)
    node: Any = document
    *way, last = place
    for step in way:
        node = node[step]
    if value is None:
        del node[last]
    else:
        node[last] = value
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    said = headway(capsys, "report", path, "--output", "page.html").complaint()
    assert f"{path}: is no result of headway simulate: " in said
    assert words in said
    assert not Path("page.html").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("engine: {profile: nope}", ["engine.profile", "nope"]),
        ("routing: {gpu_profiles: {L20: nope}}", ["routing.gpu_profiles.L20", "nope"]),
        ("routing: {gpu_profiles: {L20: nope.json}}", ["routing.gpu_profiles.L20", "nope.json"]),
        ("routing: {fallback: slo}", ["routing.fallback", "slo", "least_load"]),
        (
            "routing: {scheduling_profiles: [{name: p, plugins: []}]}",
            ["routing.scheduling_profiles.p: no plugins"],
        ),
        ("routing: {offload: {heavy_tokens: 1024}}", ["routing.offload", "warm_tokens 1024", "heavy_tokens"]),
        ("routing: {prediction: {window_samples: 0}}", ["routing.prediction.window_samples", "0"]),
        ("simulation: {initial: {prefill: 99}}", ["simulation.initial.prefill", "99"]),
        ("planner: {load_predictor_warmup_trace: gone.csv}", ["planner.load_predictor_warmup_trace", "gone"]),
    ],
)
def test_check_refuses_what_simulate_refuses(
    settings: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(settings, encoding="utf-8")
    for verb in (["check", path], ["simulate", LOAD, "--config", path]):
        said = headway(capsys, *verb).complaint()
        assert all(word in said for word in ["mine.yaml", *words]), said


def test_check_names_what_is_wrong_in_each_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "wrong.yaml"
    settings.write_text(
        "planner: {policy: nosuch}\nengine: {profile: nosuch}\nrouting: {profile: xx}\n", encoding="utf-8"
    )
    ended = headway(capsys, "check", settings)
    assert ended.code == 2
    lines = ended.err.splitlines()
    assert [line.split(": ")[:3] for line in lines] == [
        ["headway", str(settings), key] for key in ("engine.profile", "planner.policy", "routing.profile")
    ]


def test_output_that_is_a_link_to_itself(capsys: pytest.CaptureFixture[str]) -> None:
    Path("loop").symlink_to("loop")
    assert "leads to itself" in headway(capsys, "generate", LOAD, "--output", "loop").complaint()
    assert Path("loop").is_symlink()


def test_generated_trace_needs_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--output" in headway(capsys, "generate", LOAD, "--output", "-").complaint()
    assert not Path("-").exists()


def test_command_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert "simulat" in headway(capsys, "simulat").complaint()
