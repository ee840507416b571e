"""`headway check --cluster` as typed, on a real Ray that believes in two GPUs."""

import socket
import subprocess
import sys
from pathlib import Path

from tests.ports import free_port

VLLM = """
model: m
engine: {kind: vllm, vllm: {model: MODEL, device: cuda}}
pools:
  prefill: {gpus_per_replica: 1, max_replicas: 1}
  decode: {gpus_per_replica: GPUS, max_replicas: 1, resources: {fast: 1}}
gateway: {port: PORT}
"""


OTHER_RAY = """
import ray
ray.__version__ = "2.0.0"
from headway_cli.main import main
main()
"""
"""Our command on a Ray that calls itself another one."""


def check(address: str, path: Path, program: tuple[str, str] = ("-m", "headway_cli")) -> tuple[int, str]:
    command = [sys.executable, *program, "check", str(path), "--cluster", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def test_faults_and_what_is_well(ray_cluster: str, tmp_path: Path) -> None:
    fits, not_so = tmp_path / "fits.yaml", tmp_path / "not_so.yaml"
    fits.write_text(
        f"pools: {{prefill: {{resources: {{CPU: 1}}}}, decode: {{}}}}\ngateway: {{port: {free_port()}}}\n"
    )
    code, said = check(ray_cluster, fits)
    assert (code, "FAULT" in said) == (0, False), said
    assert "ok: 1 node: 4 CPU, 2 GPU" in said
    code, said = check(ray_cluster, fits, ("-c", OTHER_RAY))
    assert (code, said.count("\n")) == (2, 1), said
    assert "Version mismatch: The cluster was started with: Ray: " in said
    assert said.endswith(": run Headway with the Ray and Python of the cluster\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = VLLM.replace("MODEL", str(tmp_path)).replace("GPUS", "4").replace("PORT", str(port))
        not_so.write_text(text)
        code, said = check(ray_cluster, not_so)
    assert code == 2, said
    assert f"gateway.port: {port} is taken on " in said
    assert "decode: a replica needs fast: 1, which no node has" in said or "needs 4 GPUs on one node" in said
    assert "the plan may ask for 5 GPUs, the cluster has 2" in said
    assert "holds no config.json" in said or "vLLM is not installed" in said
