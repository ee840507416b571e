"""The whole system as its users have it: Ray, Serve, gateway, engines, control plane, and load from outside.

    with live_system({"slo.itl_ms": 150}) as system, system.under_load("steady:rate_rps=2") as result:
        wait_until(lambda: system.running("decode") == 2)

The engine is slowed down so that two cores carry several replicas: one decode replica sustains some 100
tokens/s under the ITL target below, one prefill replica some 2.5 prompts of 800 tokens a second.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.schema import ServeDeploySchema

from headway.config import load_config
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.ray.clusters import PATIENT, controller, wait_until

APPLICATION = "headway"
INTERRUPTED = 130
"""Exit code of a command that was interrupted."""
SLOW = {
    "engine.profile": "llama-3.1-8b_h100_tp1",
    "engine.time_scale": 0.05,
    "engine.start_up_s": 0.5,
    "slo.ttft_ms": 4000.0,
    "slo.itl_ms": 136.0,
    "planner.policy": "reference",
    "planner.predictor": "constant",
    "planner.no_correction": True,
    "planner.adjustment_interval_s": 6.0,
    "pools.prefill.max_replicas": 4,
    "pools.decode.max_replicas": 4,
    "routing.queue.max_wait_s": 150.0,
}
"""The reference policy does not count what the Router holds: what a step up has left over waits, after the
step down, for the few replicas that stay, for most of a minute."""


@dataclass(frozen=True, kw_only=True)
class LiveSystem:
    url: str

    def get(self, path: str, timeout_s: float = 60.0) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=timeout_s) as answer:
            return json.load(answer)

    def status(self) -> dict[str, Any]:
        """A planner that is too busy to answer (503) is asked again, as a person would."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                document: dict[str, Any] = self.get("/v1/control/status")
            except urllib.error.HTTPError as error:
                if error.code != 503 or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return document

    def decisions(self) -> list[dict[str, Any]]:
        answer = self.get("/v1/control/decisions?limit=1000")
        return answer["decisions"] if isinstance(answer, Mapping) else answer

    def newest(self) -> int:
        """The id of the newest decision; -1 before the first, and while nobody answers."""
        try:
            return max((record["id"] for record in self.decisions()), default=-1)
        except OSError:
            return -1

    def counted(self, metric: str, *labels: str) -> float:
        """A metric of the gateway, summed over what has all these texts among its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=PATIENCE_S) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if line.startswith(metric) and all(text in line for text in labels)]
        return sum(float(line.split()[-1]) for line in found)

    def running(self, role: str) -> int:
        return self.status()["pools"][role]["ready"]

    @contextmanager
    def under_load(self, spec: str) -> Iterator[dict[str, Any]]:
        """The load runs beside the block, and is cut with it. Then the yielded dictionary holds its result.

        Requests that are under way at the end are not in it.
        """
        result: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as folder:
            output, records = Path(folder, "load.json"), Path(folder, "records.jsonl")
            process = subprocess.Popen(
                [*headway("load"), spec, "--url", self.url, "--json", str(output), "--records", str(records)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                yield result
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()
                process.wait()
            assert process.returncode in (0, INTERRUPTED), errors
            result.update(json.loads(output.read_text()))
            result["records"] = [json.loads(line) for line in records.read_text().splitlines()]


def headway(*verb: str) -> Sequence[str]:
    """The command of the interpreter that runs the tests."""
    return [sys.executable, "-m", "headway_cli", *verb]


@contextmanager
def live_system(overrides: Mapping[str, Any] | None = None) -> Iterator[LiveSystem]:
    """The disaggregated application on the cluster that is there; gone again at the end, actors and all."""
    from serve_apps.builders import application

    config = load_config(None, {**SLOW, "gateway.port": free_port(), **(overrides or {})})
    serve.run(application(config), name=APPLICATION, route_prefix="/", external_scaler_enabled=True)
    system = LiveSystem(url=f"http://127.0.0.1:{config.gateway.port}")
    try:
        wait_until(lambda: _plans(system))
        yield system
    finally:
        serve.delete(APPLICATION)


@contextmanager
def system_of_a_file(settings: Mapping[str, Any]) -> Iterator[LiveSystem]:
    """The same of a Serve config file, which can be changed and applied again; without `SLOW`."""
    apply_file(settings, {})
    system = LiveSystem(url=f"http://127.0.0.1:{settings['gateway.port']}")
    try:
        wait_until(lambda: _is_deployed() and _plans(system))
        yield system
    finally:
        serve.delete(APPLICATION)


def apply_file(settings: Mapping[str, Any], over: Mapping[str, Any]) -> None:
    """What `serve deploy` does with a file of these settings, and those for the control plane over them."""
    names = ("Gateway", "Prefill", "Decode", "ControlPlane")
    deployments = {name: {"name": name, "num_replicas": 1, **PATIENT} for name in names}
    deployments["ControlPlane"]["user_config"] = dict(over)
    application = {
        "name": APPLICATION,
        "import_path": "serve_apps.disagg:build",
        "route_prefix": "/",
        "external_scaler_enabled": True,
        "args": dict(settings),
        "deployments": list(deployments.values()),
    }
    file = {"proxy_location": "Disabled", "applications": [application]}
    ray.get(controller().apply_config.remote(ServeDeploySchema.model_validate(file)))


def _is_deployed() -> bool:
    found = serve.status().applications[APPLICATION]
    assert found.status != "DEPLOY_FAILED", found
    return found.status == "RUNNING"


def _plans(system: LiveSystem) -> bool:
    try:
        return system.get("/v1/control/status")["planner"]["state"] != "waiting"
    except OSError:
        return False


def pids(name_contains: str) -> dict[str, int]:
    """Process ids of living actors whose name contains that text, as the GCS knows them."""
    from ray._private.state import actors

    return {
        actor["Name"]: actor["Pid"]
        for actor in actors().values()
        if name_contains in actor["Name"] and actor["State"] == "ALIVE"
    }


def kill_nine(name_contains: str) -> int:
    """`kill -9` of the one actor with that name, or of the first of several; its process id."""
    # One that died just before may not be back yet.
    wait_until(lambda: bool(pids(name_contains)))
    found = pids(name_contains)
    pid = found[min(found)]
    os.kill(pid, signal.SIGKILL)
    return pid


def alive_again(name: str, old_pid: int) -> bool:
    """Whether the actor of that name lives in another process."""
    return any(pid != old_pid for pid in pids(name).values())
