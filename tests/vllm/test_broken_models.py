"""A model that can't be loaded: the deployment fails with the reason, `headway check` says it beforehand."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ray import serve
from ray.serve.schema import ApplicationStatus, DeploymentStatus

from headway.config import load_config
from tests.vllm.served import APP, NAME, STARTED_WITHIN_S, TINY


def broken(model: Path, place: Path) -> Path:
    shutil.copytree(model, place)
    return place


def test_the_deployment_fails_with_the_reason(ray_cluster: str, model: Path, tmp_path: Path) -> None:
    from headway_cli.deployment import why_not_up
    from serve_apps.builders import application

    short = broken(model, tmp_path / "short")
    with (short / "model.safetensors").open("r+b") as weights:
        weights.truncate(1_000_000)
    config = load_config(None, TINY | {"engine.vllm.model": str(short), "gateway.port": 0})
    with pytest.raises(RuntimeError, match="failed"):
        serve.run(application(config, control_plane=False), name=APP, external_scaler_enabled=True)
    try:
        found = serve.status().applications[APP]
        assert found.status is ApplicationStatus.DEPLOY_FAILED
        failed = [one for one in found.deployments.values() if one.status is DeploymentStatus.DEPLOY_FAILED]
        reason = f"engine.vllm.model: {short}: model.safetensors has 1,000,000 bytes, but its header tells of"
        assert failed
        assert all(reason in one.message for one in failed)
        assert why_not_up().startswith(f"headway.config.base.ConfigError: {reason}")
        assert "\n" not in why_not_up()
    finally:
        serve.delete(APP)


def test_check_names_the_architecture_that_vllm_does_not_know(model: Path, tmp_path: Path) -> None:
    unknown = broken(model, tmp_path / "unknown")
    described = json.loads((unknown / "config.json").read_text(encoding="utf-8"))
    described["architectures"] = ["NobodyKnowsForCausalLM"]
    (unknown / "config.json").write_text(json.dumps(described), encoding="utf-8")
    config = tmp_path / "vllm.yaml"
    engine = load_config(None, TINY | {"engine.vllm.model": "unknown"}).engine
    config.write_text(yaml.safe_dump({"model": NAME, "engine": engine.model_dump(mode="json")}))
    ended = subprocess.run(
        [sys.executable, "-m", "headway_cli", "check", config],
        check=False,
        capture_output=True,
        text=True,
        timeout=STARTED_WITHIN_S,
    )
    assert ended.returncode == 2
    (complaint,) = [line for line in ended.stderr.splitlines() if line.startswith("headway: ")]
    assert complaint.startswith(f"headway: {config}: engine.vllm: {unknown} can't be loaded: Model architec")
    assert "NobodyKnowsForCausalLM" in complaint
    assert ended.stdout == ""
