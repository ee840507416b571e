"""`headway gpu-plan`: table, JSON, intervals, and input that cannot be used."""

import ctypes
import json
import os

import pytest

from headway_studies.commands.gpu_plan import stdout_of_c_to_stderr
from tests.cli.cli_cases import headway

LOAD = "steady:rate_rps=40,duration_s=300,input_tokens=1200,output_tokens=100,seed=5"
TYPES = """\
slo: {{ttft_ms: 500, itl_ms: 30}}
gpu_types:
  small: {{profile: llama-3.1-8b_h100_tp1, price_per_gpu_hour: 2.0{small}}}
  large: {{profile: qwen3-32b_h100_tp2, price_per_gpu_hour: 3.0}}
"""


@pytest.fixture
def config(tmp_path):
    def write(small=""):
        path = tmp_path / "gpus.yaml"
        path.write_text(TYPES.format(small=small), encoding="utf-8")
        return path

    return write


def test_the_plan_on_the_terminal(capsys, config):
    ended = headway(capsys, "gpu-plan", LOAD, "--config", config())
    assert ended.code == 0, ended
    for words in ("cheapest mix", "rounded fractions", "only small", "only large", "prefill alone"):
        assert words in ended.out


def test_the_document(capsys, config):
    command = ("gpu-plan", LOAD, "--config", config(), "--interval", "150", "--json", "-")
    ended = headway(capsys, *command)
    document = json.loads(ended.out)
    plan, alternatives = document["plan"], {row["name"]: row for row in document["alternatives"]}
    assert set(plan["replicas"]) == {"prefill", "decode"}
    costs = [row["cost_per_hour"] for row in alternatives.values() if row["cost_per_hour"] is not None]
    assert len(costs) >= 2
    assert plan["cost_per_hour"] <= min(costs) + 1e-6
    assert plan["cost_per_hour"] == pytest.approx(
        sum(gpus * document["gpu_types"][name]["price_per_gpu_hour"] for name, gpus in plan["gpus"].items())
    )
    starts, requests = zip(*((row["start_s"], row["requests"]) for row in document["intervals"]), strict=True)
    assert starts == (0.0, 150.0)
    assert sum(requests) == document["trace"]["requests"]
    assert headway(capsys, *command).out == ended.out


def test_the_page_is_drawn_again_from_the_document(capsys, config, tmp_path):
    result, drawn, again = tmp_path / "plan.json", tmp_path / "plan.html", tmp_path / "again.html"
    outputs = ("--interval", "150", "--json", result, "--report", drawn)
    assert headway(capsys, "gpu-plan", LOAD, "--config", config(), *outputs).code == 0
    assert headway(capsys, "report", result, "--output", again).code == 0
    page = again.read_text()
    assert page == drawn.read_text()
    plan = json.loads(result.read_text())["plan"]
    gpus = " + ".join(f"{count} {name}" for name, count in plan["gpus"].items() if count)
    for words in (f"{plan['cost_per_hour']:.4g}: {gpus} GPUs", "only large", "2 intervals"):
        assert words in page


def test_the_request_at_the_very_end_is_part_of_the_last_interval(capsys, config, tmp_path):
    trace = tmp_path / "even.csv"
    rows = "".join(f"{time_s},1000,100\n" for time_s in (0, 100, 200, 300))
    trace.write_text(f"timestamp_s,input_tokens,output_tokens\n{rows}", encoding="utf-8")
    ended = headway(capsys, "gpu-plan", trace, "--config", config(), "--interval", "100", "--json", "-")
    assert [row["requests"] for row in json.loads(ended.out)["intervals"]] == [1, 1, 2]


def test_stock_that_is_not_enough_is_named(capsys, config):
    ended = headway(capsys, "gpu-plan", LOAD, "--config", config(", max_gpus: 1"), "--max-types", "2")
    assert ended.code == 0, ended
    short = headway(
        capsys, "gpu-plan", LOAD, "--config", config(", max_gpus: 1"), "--max-gpu-budget", "2"
    ).complaint()
    assert "are not enough" in short


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--interval", "0"], "--interval: must be above 0"),
        (["--interval", "1e-6"], "--interval: the trace has more than"),
        (["--max-types", "0"], "max-types: 0 is below 1"),
        (["--switching", "1"], "switching: 1.0 is not"),
        (["--ttft-ms", "-1"], "slo.ttft_ms"),
        (["--ttft-ms", "0.001"], "no GPU type keeps it for any"),
    ],
)
def test_flags_without_meaning(capsys, config, flags, words):
    assert words in headway(capsys, "gpu-plan", LOAD, "--config", config(), *flags).complaint()


def test_check_knows_the_types(capsys, config):
    assert "GPU types of gpu-plan: small, large" in headway(capsys, "check", config()).out


def test_files_without_use(capsys, tmp_path):
    path = tmp_path / "none.yaml"
    path.write_text("model: x\n", encoding="utf-8")
    assert "gpu_types: there are none" in headway(capsys, "gpu-plan", LOAD, "--config", path).complaint()
    path.write_text("gpu_types: {a: {profile: nowhere, price_per_gpu_hour: 1}}\n", encoding="utf-8")
    assert "gpu_types.a.profile" in headway(capsys, "gpu-plan", LOAD, "--config", path).complaint()
    assert "gpu_types.a.profile" in headway(capsys, "check", path).complaint()
    path.write_text("gpu_types: {a: {profile: nowhere, price_per_gpu_hour: 0}}\n", encoding="utf-8")
    assert "price_per_gpu_hour" in headway(capsys, "gpu-plan", LOAD, "--config", path).complaint()


def test_what_a_solver_prints_is_not_among_the_results(capfd):
    with stdout_of_c_to_stderr():
        ctypes.CDLL(None).puts(b"noise")
        os.write(1, b"more\n")
    os.write(1, b"result\n")
    ended = capfd.readouterr()
    assert ended.out == "result\n"
    assert set(ended.err.split()) == {"noise", "more"}
