"""`headway profile`: sweeps in virtual time, a real endpoint, and what is shown, compared and imported."""

import asyncio
import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from cli_cases import PROFILE, headway, profile_copy
from starlette.responses import JSONResponse
from starlette.routing import Route

from headway.config import HeadwayConfig, embedded_profiles, load_config, resolve_profile
from headway.engine import engine_rules
from headway_cli.profile_targets import ProfileOptions, configuration
from interp import load_profile, save_profile, scaled
from tests.engines import virtual_loop
from tests.gateway.one_engine import OneEngine
from tests.gateway.serving import serving
from tests.patience import with_longer_limits
from tests.profiling.fleet_cases import VllmServer

FEW = ("--isl-points", "3", "--kv-points", "2", "--context-points", "2", "--repeats", "1")
SMALL = (*FEW, "--max-tokens", "2048", "--max-batch", "4")
GATEWAY = HeadwayConfig.model_validate({"model": "m", "engine": {"time_scale": 0.5, "max_batch_size": 8}})


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "run", virtual_loop.run)


@pytest.fixture
def sizes(tmp_path: Path) -> str:
    """Two profiles to play: the second size is faster than the first, but less so than its GPUs cost."""
    profile = load_profile(resolve_profile(PROFILE))
    for tp, speed in ((1, 1.0), (2, 1.6)):
        faster = scaled(profile, speed)
        save_profile(tmp_path / f"p_tp{tp}", faster.prefill.samples, faster.decode.samples, {"tp": 1})
    return str(tmp_path / "p_tp{tp}")


def points(output: Path, tp: int = 1) -> list[str]:
    return (output / "measurements" / f"tp{tp}.jsonl").read_text().splitlines()


@pytest.mark.usefixtures("virtual_time")
def test_a_profile_of_two_sizes_and_what_is_recommended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sizes: str
) -> None:
    output = tmp_path / "out"
    arguments = ("--engine", "simulated", "--model", sizes, "--tp", "1,2", "--output", output, *SMALL)
    load = ("--isl", "1000", "--osl", "100", "--ttft-ms", "20", "--itl-ms", "50")
    ended = headway(capsys, "profile", *arguments, *load)
    assert ended.code == 0, ended
    assert "prefill: TP 2" in ended.out
    assert "decode: TP 1" in ended.out
    truth = load_profile(sizes.replace("{tp}", "2"))
    found = load_profile(output / "tp2")
    isl = found.prefill.samples.isl_tokens
    assert np.allclose(found.prefill.samples.ttft_s, truth.prefill.ttft_s(isl), rtol=0.005)
    assert found.gpus_per_engine == 2
    chosen = load_profile(output / "recommended")
    assert np.array_equal(chosen.prefill.samples.ttft_s, found.prefill.samples.ttft_s)
    assert np.array_equal(chosen.decode.samples.itl_s, load_profile(output / "tp1").decode.samples.itl_s)
    assert (chosen.prefill.gpus_per_engine, chosen.decode.gpus_per_engine) == (2, 1)
    assert chosen.meta["recommended_for"] == {
        "isl": 1000,
        "itl_ms": 50,
        "met": True,
        "osl": 100,
        "ttft_ms": 20,
    }
    page = (output / "report.html").read_text()
    assert "Recommended" in page
    assert "TP 2" in page

    # The page that is drawn of the directory later says the same.
    assert headway(capsys, "report", output, "--output", tmp_path / "again.html").code == 0
    again = (tmp_path / "again.html").read_text()
    title, subtitle, chosen_lines = (
        re.compile(form, re.DOTALL)
        for form in ("<h1>.*?</h1>", "</h1>.*?</p>", "<h2>Recommended</h2>.*?</ul>")
    )
    for form in (title, subtitle, chosen_lines):
        assert form.findall(again) == form.findall(page) != []
    assert '"group":"tp1"' in again
    assert '"group":"recommended"' not in again


@pytest.mark.usefixtures("virtual_time")
def test_another_start_goes_on_and_another_question_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    arguments = ("profile", "--engine", "simulated", "--model", PROFILE, "--output", output)
    ended = headway(capsys, *arguments, *SMALL, "--budget", "0.001")
    assert "at least" in ended.complaint() or "goes on" in ended.out
    begun = points(output)
    assert headway(capsys, *arguments, *SMALL).code == 0
    assert points(output)[: len(begun)] == begun
    everything = points(output)
    assert headway(capsys, *arguments, *SMALL).code == 0
    assert points(output) == everything
    refused = headway(capsys, *arguments, *SMALL, "--max-kv-tokens", "9999")
    assert "begun with limits" in refused.complaint()


def test_a_running_endpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def profiled(slower: float) -> None:
        """On a busy machine outputs that run together may not be seen to, unless they take longer."""
        output = tmp_path / f"{slower:g}"
        engine = GATEWAY.engine.model_copy(update={"time_scale": 0.5 / slower})
        config = GATEWAY.model_copy(update={"engine": engine})
        with serving(config, OneEngine(config)) as running:
            small = (*FEW, "--max-tokens", "600", "--max-batch", "2", "--max-kv-tokens", "100000")
            ended = headway(capsys, "profile", "--engine", running.url, "--output", output, *small)
            silent = headway(capsys, "profile", "--engine", running.url, "--output", tmp_path / "no", *FEW)
        assert ended.code == 0, ended
        profile = load_profile(output / "recommended")
        assert profile.prefill.samples.isl_tokens.tolist()[0] == 128
        assert profile.decode.table.max_kv_tokens == 100_000
        assert running.url in str(profile.meta["source"])
        assert silent.complaint().startswith("--max-kv-tokens: needed")

    with_longer_limits(profiled, 1.0, 10.0, 100.0)


def test_what_makes_no_sense_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    out, nobody = ("--output", tmp_path / "out"), ("--fleet", "http://127.0.0.1:9")
    cpu = tmp_path / "cpu.yaml"
    cpu.write_text("engine: {kind: vllm, vllm: {device: cpu}}", encoding="utf-8")
    cases = {
        "--engine: needed": (),
        "--output: needed": ("--engine", "simulated"),
        "--engine: 'trtllm' is neither": ("--engine", "trtllm", *out),
        "--tp: expected distinct sizes": ("--engine", "simulated", "--tp", "1,1", *out),
        "--tp: engines on CPUs are not split": ("--engine", "vllm", "--config", cpu, "--tp", "2", *out),
        "--tp: an endpoint has one size": ("--engine", "http://h", "--tp", "1,2", *out),
        "--budget: expected minutes above 0": ("--engine", "simulated", "--budget", "0", *out),
        "--repeats: expected at least 1": ("--engine", "simulated", "--repeats", "0", *out),
        "isl: expected a number above 0": ("--engine", "simulated", "--isl", "0", *out),
        "kv_points: expected at least 2": ("--engine", "simulated", "--kv-points", "1", *out),
        "http://127.0.0.1:9/v1/models:": ("--engine", "http://127.0.0.1:9", *out),
        f"--output: {tmp_path}/full is not empty": ("--engine", "simulated", "--output", tmp_path / "full"),
        "--decode: goes with --engine ADDRESS": ("--engine", "simulated", "--decode", "http://a", *out),
        "--kv-transfer: needs --decode ADDRESS": ("--engine", "http://a", "--kv-transfer", *out),
        "--fleet: 'a:1' is no address": ("--fleet", "a:1", *out),
        "--fleet: expected addresses": ("--fleet", ",", *out),
        f"--output: {tmp_path}/full exists": ("--fleet", "http://a", "--output", tmp_path / "full"),
        "--base: needed": (*nobody, *out),
        "http://127.0.0.1:9/v1/models: ": (*nobody, "--base", PROFILE, *out),
        "--base: 'nothing' is neither": ("--fleet", "http://a", "--base", "nothing", *out),
        "--engine: goes without --fleet": ("--fleet", "http://a", "--engine", "simulated", *out),
        "--budget: expected minutes above 0, got -1": ("--fleet", "http://a", "--budget", "-1", *out),
    }
    for complaint, arguments in cases.items():
        assert headway(capsys, "profile", *arguments).complaint().startswith(complaint)
    assert not (tmp_path / "out").exists()


def test_show_says_what_a_profile_holds_and_draws_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = headway(capsys, "profile", "show", PROFILE, "--plot", tmp_path / "p.html")
    assert "25 samples" in ended.out
    assert "432,992 tokens" in ended.out
    page = (tmp_path / "p.html").read_text()
    for words in ("Decode throughput", "SLO 300 ms", "operating point: decode TP 1"):
        assert words in page
    assert "within 300 ms" in ended.out
    where = resolve_profile(PROFILE)
    assert headway(capsys, "report", where, "--output", tmp_path / "again.html").code == 0
    assert (tmp_path / "again.html").read_text() == page


def test_show_finds_the_operating_point_for_a_load(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--isl", "60000", "--osl", "10", "--ttft-ms", "500", "--itl-ms", "30")
    out = " ".join(headway(capsys, "profile", "show", PROFILE, *flags).out.split())
    assert "At 60000 + 10 tokens" in out
    assert "MISSES 500 ms" in out
    assert "within 30 ms" in out
    assert "isl" in headway(capsys, "profile", "show", PROFILE, "--isl", "0").complaint()


def test_show_of_a_broken_profile_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = profile_copy(tmp_path)
    (broken / "selected_decode_interpolation" / "raw_data.npz").write_bytes(b"")
    complaint = headway(capsys, "profile", "show", broken).complaint()
    assert "selected_decode_interpolation/raw_data.npz: not a readable npz file" in complaint
    assert "nowhere" in headway(capsys, "profile", "show", "nowhere").complaint()


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str], sizes: str) -> None:
    one, two = (sizes.replace("{tp}", tp) for tp in "12")
    ended = headway(capsys, "profile", "compare", one, two, "--plot", tmp_path / "c.html")
    rows = {line.split()[0]: line.split() for line in ended.out.splitlines() if line.strip()}
    assert rows["TTFT"][1:4] == ["0.625"] * 3
    assert rows["ITL"][1:4] == ["0.625"] * 3
    assert (tmp_path / "c.html").is_file()


def test_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "gpu.json"
    content = {
        "indexes": [[100], [500, 1000]],
        "tputs": [[4, 2]],
        "ttft": [[0.2, 0.3]],
        "tpot": [[0.02, 0.03]],
    }
    source.write_text(json.dumps(content))
    output = tmp_path / "out"
    needed = headway(capsys, "profile", "import", source, "--output", output).complaint()
    assert needed.startswith("--max-kv-tokens: needed")
    arguments = ("profile", "import", source, "--output", output, "--max-kv-tokens", "50000")
    assert headway(capsys, *arguments).out == f"wrote {output}\n"
    assert load_profile(output).prefill.ttft_s(500) == 0.2
    assert "--overwrite replaces it" in headway(capsys, *arguments).complaint()
    assert headway(capsys, *arguments, "--overwrite").code == 0
    (tmp_path / "empty").mkdir()
    for place, says in (("empty", "holds neither a profile nor results"), ("nowhere", "no such file")):
        asked = headway(capsys, "profile", "import", tmp_path / place, "--output", tmp_path / "o")
        assert says in asked.complaint()


def test_a_profile_in_seconds_is_named_everywhere_and_import_repairs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, output = profile_copy(tmp_path), tmp_path / "right"
    right = load_profile(wrong)
    for file, key in (("prefill", "prefill_ttft"), ("decode", "z_itl")):
        path = wrong / f"selected_{file}_interpolation" / "raw_data.npz"
        with np.load(path) as archive:
            arrays = dict(archive)
        np.savez(path, **arrays | {key: arrays[key] / 1e3})
    settings = tmp_path / "c.yaml"
    settings.write_text(f"engine: {{profile: {wrong}}}", encoding="utf-8")
    advice = f"headway profile import {wrong} --reading prefill_ttft=s,z_itl=s --output NEW"
    load = "steady:rate_rps=1,duration_s=10"
    for arguments in (
        ("check", settings),
        ("profile", "show", wrong),
        ("simulate", load, "--config", settings),
    ):
        assert headway(capsys, *arguments).complaint().endswith(advice)
    repair = advice.removeprefix("headway ").replace("NEW", str(output)).split()
    assert headway(capsys, *repair).out == f"wrote {output}\n"
    assert load_profile(output).prefill.ttft_s(1000) == pytest.approx(right.prefill.ttft_s(1000))
    unknown = headway(
        capsys, "profile", "import", wrong, "--output", output, "--reading", "hours"
    ).complaint()
    assert unknown.startswith("--reading: unknown hours; known: prefill_ttft=s")


def test_a_file_that_is_no_profile_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"request_throughput": 1.0, "mean_ttft_ms": 2.0}))
    half = tmp_path / "prefill_raw_data.json"
    half.write_text('{"prefill_thpt_per_gpu": [1.0]}')
    for arguments, says in (
        (("profile", "show", result), "is a file, and a profile is a directory: headway profile import"),
        (("check", result), "taken for a result of vllm bench serve, not for a configuration"),
        (("simulate", result), "taken for a result of vllm bench serve, not for a trace"),
        (("profile", "import", half, "--output", tmp_path / "o"), "taken for one half of a profile"),
        (("profile", "import", result, "--output", tmp_path / "o"), "taken for a result of vllm bench serve"),
    ):
        assert says in headway(capsys, *arguments).complaint()


def test_import_of_a_pre_swept_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"tp": [[1], [4]]}
    prefill = {"prefill_isl": [[9.0, 99.0]] * 2, "prefill_ttft": [[1.0, 2.0]] * 2}
    np.savez(tmp_path / "prefill.npz", **rows, **prefill, prefill_thpt_per_gpu=[[9e3, 4e4]] * 2)  # type: ignore[arg-type]
    decode = {"max_kv_tokens": [[1000]] * 2, "x_kv_usage": [[0.5]] * 2, "y_context_length": [[100.0]] * 2}
    np.savez(tmp_path / "decode.npz", **rows, **decode, z_itl=[[5.0]] * 2, z_thpt_per_gpu=[[1e3]] * 2)  # type: ignore[arg-type]
    ended = headway(capsys, "profile", "import", tmp_path, "--output", tmp_path / "out")
    assert ended.out == f"wrote {tmp_path}/out/tp1\nwrote {tmp_path}/out/tp4\n"
    assert load_profile(tmp_path / "out" / "tp4").gpus_per_engine == 4


def test_the_model_of_vllm_is_looked_for_beside_the_settings_unless_a_flag_says_it(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    settings = tmp_path / "mine.yaml"
    settings.write_text("engine: {kind: vllm, vllm: {model: tiny}}", encoding="utf-8")
    asked = ProfileOptions(engine="vllm", output="out", config=str(settings))
    assert configuration(asked, 2).engine.vllm.model == str(tmp_path / "tiny")
    assert configuration(asked, 2).pools["mixed"].gpus_per_replica == 2
    assert configuration(asked, 2).engine.vllm.args == {"distributed_executor_backend": "mp"}
    assert configuration(asked, 1).engine.vllm.args == {}
    assert configuration(replace(asked, model="org/other"), 1).engine.vllm.model == "org/other"


def test_the_list_names_every_embedded_profile_once(capsys: pytest.CaptureFixture[str]) -> None:
    ended = headway(capsys, "profile", "list")
    assert ended.code == 0
    rows = {line.split()[0]: line.split() for line in ended.out.splitlines() if "AI Configurator" in line}
    assert set(rows) == set(embedded_profiles())
    assert rows["llama-3.1-8b_h100_tp1"][4:6] == ["1", "432,992"]


@pytest.mark.usefixtures("virtual_time")
def test_the_kv_transfer_is_timed_where_asked_for_and_stays_in_the_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, output = tmp_path / "engine.yaml", tmp_path / "out"
    config.write_text("engine: {kv_transfer: {latency_ms: 40, bandwidth_gb_s: 2}}")
    arguments = ("--engine", "simulated", "--model", PROFILE, "--config", config, "--output", output, *SMALL)
    assert headway(capsys, "profile", *arguments).code == 0
    assert (
        "KV transfer  not measured: taken as 5 ms and 25 GB/s"
        in headway(capsys, "profile", "show", output).out
    )
    for again in (("--kv-transfer",), ()):
        assert headway(capsys, "profile", *arguments, *again).code == 0
        found = load_profile(output / "recommended")
        rules = engine_rules(load_config(), found)
        assert rules.transfer_latency_s == pytest.approx(0.040, abs=2e-4)
        assert rules.transfer_bytes_per_s == pytest.approx(2e9, rel=0.02)
    assert "KV transfer  40" in headway(capsys, "profile", "show", output).out


SLOW = 0.1


# A busy machine sees too little of a fleet in these seconds.
@pytest.mark.slow
def test_the_profile_of_a_fleet_that_serves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "fleet"
    with VllmServer(PROFILE, max_batch_size=8, time_scale=SLOW).serving(rate_rps=0.5) as url:
        flags = (
            "--fleet",
            f"{url}, {url}",
            "--base",
            "llama-3.1-8b_a100_tp1",
            "--budget",
            "0.12",
            "--output",
            output,
        )
        ended = headway(capsys, "profile", *flags, "--max-batch", "8")
    assert ended.code == 0, ended
    assert "of the profile seen, probes were predicted within" in ended.out
    found = load_profile(output)
    assert found.meta["fleet"]["probes"] >= 1
    assert found.meta["fleet"]["replicas"] == 2
    truth, base = (load_profile(resolve_profile(name)) for name in (PROFILE, "llama-3.1-8b_a100_tp1"))
    assert found.decode.table.max_kv_tokens == truth.decode.table.max_kv_tokens
    # The engines are slower than the base by far, and two probes go some way to that.
    for isl in (256.0, 1024.0):
        seen, told, real = (float(one.prefill.ttft_s(isl)) for one in (found, base, truth))
        assert (seen - told) / (real / SLOW - told) > 0.2
    shown = headway(capsys, "profile", "show", output).out
    assert "a running fleet" in shown
    assert f"Fleet        {found.meta['fleet']['probes']} probes" in shown


# As above.
@pytest.mark.slow
def test_a_gateways_fleet_learns_by_itself_and_its_profile_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, learnt = tmp_path / "fleet", scaled(load_profile(resolve_profile(PROFILE)), 0.5)
    samples = {
        name: {key: np.asarray(value).tolist() for key, value in asdict(surface.samples).items()}
        for name, surface in (("prefill", learnt.prefill), ("decode", learnt.decode))
    }
    document = {**samples, "meta": {"source": "learnt"}}
    route = Route("/v1/control/profile", lambda _: JSONResponse(document))
    backend = OneEngine(GATEWAY)
    with serving(GATEWAY, backend, [route]) as running:
        flags = ("--fleet", running.url, "--budget", "0.1", "--max-tokens", "4096", "--output", output)
        ended = headway(capsys, "profile", *flags)
    assert ended.code == 0, ended
    assert "the profile is what the fleet's own replicas have reported" in ended.out
    found = load_profile(output)
    assert found.prefill.ttft_s(1000.0) == pytest.approx(learnt.prefill.ttft_s(1000.0))
    assert (found.meta["source"], "coverage" in found.meta["fleet"]) == ("learnt", False)
    assert found.meta["fleet"]["probes"] >= 1
    # Beside the probes, the greeting of one token.
    assert backend.engine.stats().prompt_tokens > 128 * found.meta["fleet"]["probes"] - 128
