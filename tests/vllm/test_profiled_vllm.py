"""`headway profile` on a real engine: it is quiet, and the planner sizes by what it writes."""

import subprocess
import sys
from math import ceil
from pathlib import Path

import pytest
import yaml

from headway.config import load_config
from headway.engine import engine_rules
from headway.planning import Observation, Role
from headway.simulation.build import make_plan
from interp import load_profile
from tests.planning.planning_cases import observed
from tests.vllm.served import STARTED_WITHIN_S, TINY

ISL, OSL, INTERVAL_S = 128.0, 32.0, 60.0
FEW = ("--isl-points", "2", "--kv-points", "2", "--context-points", "2", "--repeats", "1", "--budget", "5")
SETTINGS = TINY | {"engine.max_model_tokens": 512, "engine.max_batch_size": 4}
NOISE = ("INFO", "WARNING", "Exception ignored", "Traceback", "checkpoint shards", "Triton")


@pytest.fixture(scope="module")
def measured(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """What the command wrote, and all that it said."""
    folder = tmp_path_factory.mktemp("profile")
    settings = load_config(None, SETTINGS | {"engine.vllm.model": "beside/the/file"})
    config = folder / "vllm.yaml"
    config.write_text(yaml.safe_dump({"engine": settings.engine.model_dump(mode="json")}), encoding="utf-8")
    ended = profiled("--model", model, "--config", config, *FEW, "--kv-transfer", "--output", folder / "out")
    assert ended.returncode == 0, ended.stdout
    return folder / "out", ended.stdout


def profiled(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headway_cli", "profile", "--engine", "vllm", *arguments],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=STARTED_WITHIN_S,
    )


def test_the_command_says_what_it_recommends_and_vllm_says_nothing(measured: tuple[Path, str]) -> None:
    _, said = measured
    assert "prefill: TP 1, TTFT " in said
    assert "decode: TP 1, ITL " in said
    assert [noise for noise in NOISE if noise in said] == []


def test_a_model_that_is_not_on_this_machine_is_one_line_and_nothing_is_fetched(tmp_path: Path) -> None:
    ended = profiled("--model", "out/nothing", "--output", tmp_path / "out")
    assert ended.returncode == 2
    (line,) = ended.stdout.splitlines()
    assert "out/nothing: is not on this machine; `hf download out/nothing` fetches it" in line
    assert not (tmp_path / "out").exists()


def test_the_profile_loads_and_knows_its_engine(measured: tuple[Path, str]) -> None:
    profile = load_profile(measured[0] / "recommended")
    assert profile.meta["source"] == "measured by headway profile on vllm"
    assert profile.gpus_per_engine == 1
    assert profile.decode.samples.max_kv_tokens >= 4 * 512
    isl, ttft = profile.prefill.samples.isl_tokens, profile.prefill.samples.ttft_s
    assert list(isl) == sorted(isl)
    assert isl[-1] - isl[0] > 256
    assert (ttft > 0).all()
    assert (profile.decode.samples.itl_s > 0).all()


def test_the_kv_transfer_was_timed_between_two_engines(measured: tuple[Path, str]) -> None:
    profile = load_profile(measured[0] / "recommended")
    said = profile.meta["kv_transfer"]
    # K and V of 4 layers with 2 heads of 32 numbers of 4 bytes.
    assert profile.meta["kv_bytes_per_token"] == 2 * 4 * 2 * 32 * 4
    assert len(said["transfer_ms"]) == len(said["tokens"]) >= 3
    assert all(each > 0 for each in said["transfer_ms"])
    rules = engine_rules(load_config(), profile)
    assert rules.transfer_latency_s == pytest.approx(said["latency_ms"] / 1e3)


@pytest.mark.parametrize("share", [0.5, 2.5])
def test_the_planner_asks_for_replicas_by_what_was_measured(measured: tuple[Path, str], share: float) -> None:
    """A load of 2.5 times what one replica of the profile does takes three, by the table of each role."""
    place = measured[0] / "recommended"
    profile = load_profile(place)
    context = ISL + OSL / 2
    settings = {
        "slo.ttft_ms": 60_000,
        "slo.itl_ms": 60_000,
        "planner.policy": "reference",
        "planner.adjustment_interval_s": INTERVAL_S,
        "planner.no_correction": True,
        "engine.profile": str(place),
    }
    plan = make_plan(load_config(None, settings))
    one = {
        Role.PREFILL: float(profile.prefill.throughput_per_gpu(ISL)) / ISL,
        Role.DECODE: float(profile.decode.best_throughput_per_gpu(60.0, context).throughput_per_gpu) / OSL,
    }
    for role, requests_per_s in one.items():
        observation = load(share * requests_per_s)
        decision = plan.policy.plan(observation, plan.policy.initial_state())
        assert decision.targets[role] == ceil(share)
        requirement = decision.reasons["requirement"][role.value]
        assert requirement["replicas"] == pytest.approx(share)


def load(requests_per_s: float) -> Observation:
    return observed(
        interval_s=INTERVAL_S, requests=requests_per_s * INTERVAL_S, isl_tokens=ISL, osl_tokens=OSL
    )
