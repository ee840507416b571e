"""The small verbs: help, check, schema, generate, report, demo, estimate."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from cli_cases import LOAD, headway

from headway.workload import open_trace
from headway_cli.app import GROUPS, VERBS
from headway_studies.estimator import estimate as estimator
from headway_studies.estimator.request import EstimateRequest, Estimates


def test_help_lists_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("--help",)):
        ended = headway(capsys, *arguments)
        assert ended.code == 0
        assert all(f"  {verb} " in ended.out for verb in VERBS)
        headings = [line for line in ended.out.splitlines() if line and not line.startswith((" ", "Usage"))]
        assert headings == ["Options:", *(f"{title}:" for title in GROUPS)]
        assert max(map(len, ended.out.splitlines())) <= 110


def test_help_loads_no_heavy_library() -> None:
    code = (
        "import sys; from headway_cli.app import run; run(['--help']); "
        "print(sorted({'numpy', 'pandas', 'pydantic', 'ray', 'rich', 'scipy'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    ended = headway(capsys, "--version")
    assert (ended.code, ended.out) == (0, f"headway {version('headway')}\n")


def test_check_says_what_was_read_for_gpu_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile, path = tmp_path / "l20.json", tmp_path / "mine.yaml"
    profile.write_text('{"indexes": [[100], [1000]], "tputs": [[3.0]], "e2e": [[1.0]]}', encoding="utf-8")
    path.write_text(
        f"routing: {{gpu_profiles: {{H100: qwen3-32b_h100_tp2, L20: {profile}}}}}\n", encoding="utf-8"
    )
    ended = headway(capsys, "check", path)
    assert ended.code == 0, ended.err
    assert "GPU type H100: latency and capacity by surfaces, from qwen3-32b_h100_tp2" in ended.out
    assert "GPU type L20: AIBrix capacity of mixed replicas, no latency prediction, from " in ended.out


def test_the_example_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "headway.yaml"
    ended = headway(capsys, "check", example)
    assert ended.code == 0
    assert "ok, headway policy" in ended.out


def test_schema_is_a_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads(headway(capsys, "schema").out)
    assert schema["additionalProperties"] is False
    assert {"slo", "planner", "simulation"} < set(schema["properties"])


@pytest.mark.parametrize("name", ["made.csv", "made.csv.gz"])
def test_generated_trace_is_the_load_it_was_made_from(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    assert headway(capsys, "generate", LOAD, "--output", path).code == 0
    with open_trace(LOAD) as made, open_trace(path) as read:
        assert read.request_count == made.request_count
        assert read.stats.isl_mean == made.stats.isl_mean


def test_report_of_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, page, again = (tmp_path / name for name in ("a.json", "a.html", "b.html"))
    assert headway(capsys, "simulate", LOAD, "--json", result, "--report", page).code == 0
    assert headway(capsys, "report", result, "--output", again).code == 0
    assert again.read_bytes() == page.read_bytes()


def test_estimate_passes_everything_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[EstimateRequest] = []

    def nothing(request: EstimateRequest, progress: object) -> Estimates:
        asked.append(request)
        return Estimates(profiles=(), skipped={4: "does not fit"})

    monkeypatch.setattr(estimator, "estimate", nothing)
    flags = (
        "--model",
        "m",
        "--system",
        "h100_sxm",
        "--tp",
        "2, 4",
        "--max-isl",
        "4096",
        "--batch-points",
        "5",
    )
    ended = headway(capsys, "estimate", *flags, "--output", tmp_path)
    assert "skipped tp 4: does not fit" in ended.out
    expected = EstimateRequest(model="m", system="h100_sxm", tps=(2, 4), max_isl_tokens=4096, batch_points=5)
    assert asked == [expected]


@pytest.mark.parametrize("tp", ["two", "", "1,,2", "0", "1,1"])
def test_estimate_refuses_sizes_that_are_none(
    tp: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--model", "m", "--system", "s", "--tp", tp, "--output", tmp_path)
    assert "tp" in headway(capsys, "estimate", *flags).complaint()
