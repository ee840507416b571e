"""`headway up --detach`, requests, `headway down`. The cluster belongs to the `up` process alone: no other
test could show that it begins and ends with it.

Each command is a process of its own, as a user's are. What one does meanwhile is in test_one_system.py.
"""

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

from tests.ray.clusters import headway, wait_until

CONFIG = """
engine: {profile: llama-3.1-8b_h100_tp1}
planner: {policy: reference, predictor: constant, adjustment_interval_s: 2}
pools: {prefill: {max_replicas: 1}, decode: {max_replicas: 1}}
gateway: {port: 0}
"""
LOAD = "steady:rate_rps=5,duration_s=2,input_tokens=200,output_tokens=20,seed=1"


def test_up_use_down(tmp_path: Path, environment: dict[str, str]) -> None:
    config, result = tmp_path / "mine.yaml", tmp_path / "load.json"
    config.write_text(CONFIG, encoding="utf-8")
    started = headway(environment, "up", config, "--detach")
    try:
        assert started.returncode == 0, started.stderr
        state = json.loads((tmp_path / "state/headway/up.json").read_text(encoding="utf-8"))
        url = state["url"]
        assert f"OpenAI API  {url}/v1" in started.stdout

        again = headway(environment, "up", config)
        assert (again.returncode, again.stderr.count("\n")) == (2, 1)
        assert f"already up (process {state['pid']}) at {url}" in again.stderr

        loaded = headway(environment, "load", LOAD, "--url", url, "--json", result)
        assert loaded.returncode == 0, loaded.stderr
        outcome = json.loads(result.read_text(encoding="utf-8"))
        assert outcome["completed"] == outcome["requests"] == outcome["trace"]["requests"]

        def ready() -> dict[str, int | None]:
            status = document(headway(environment, "status", "--url", url, "--json"))
            assert status["engine"]["simulated"] is True
            return {role: pool["ready"] for role, pool in status["pools"].items()}

        wait_until(lambda: ready() == {"prefill": 1, "decode": 1})
    finally:
        ended = headway(environment, "down")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"ended (process {state['pid']})\n"
    assert not Path(state["directory"]).exists()
    assert not leftovers(state["directory"])
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as asking:
        assert asking.connect_ex((host, int(port))) != 0
    assert headway(environment, "down").stdout == "nothing is up\n"


def test_up_tells_why_it_cannot(tmp_path: Path, environment: dict[str, str]) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("gateway: {host: 0.0.0.0}\n", encoding="utf-8")
    for arguments in (("up", config), ("up", config, "--detach")):
        ended = headway(environment, *arguments)
        assert ended.returncode == 2
        assert "no API keys" in ended.stderr
    assert headway(environment, "down").stdout == "nothing is up\n"


def test_a_cluster_that_is_not_there(environment: dict[str, str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for verb in ("up", "down"):
        ended = headway(environment, verb, "--address", address)
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert f"--address {address}: cannot be reached" in ended.stderr


def document(ended: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def leftovers(directory: str) -> list[str]:
    """Processes that name the cluster's directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if directory in words:
            found.append(words)
    return found
