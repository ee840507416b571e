"""`headway attach`: a fleet that Headway did not start, watched and planned for by the control plane alone.

The engines are doubles (`tests.vllm_double`): real HTTP servers with vLLM's metric names. The Prometheus, Ray
and the command are real.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPException
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve

from actors import control_plane, names
from tests.ports import free_port
from tests.prometheus_process import PrometheusProcess
from tests.ray.clusters import headway, wait_until
from tests.vllm_double import vllm_doubles

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
PLANNED_S = 90.0
THERE = {"pools": {"mixed": {"ready": 3}}}
SETTINGS = """
model: {model}
slo: {{ttft_ms: 500, itl_ms: 30}}
engine: {{profile: llama-3.1-8b_h100_tp1}}
pools: {{mixed: {{min_replicas: 1, max_replicas: 6}}}}
metrics: {{{metrics}}}
connector: {{kind: virtual}}
planner: {{dry_run: true, adjustment_interval_s: 3}}
gateway: {{port: {port}}}
"""


@contextmanager
def traffic(servers: Sequence[str], rate_rps: float) -> Iterator[None]:
    """Requests of 200 words and 20 tokens, to one server after the other."""
    stopped = threading.Event()
    body = json.dumps({"model": MODEL, "prompt": "word " * 200, "max_tokens": 20}).encode()

    def one(server: str) -> None:
        request = urllib.request.Request(f"http://{server}/v1/completions", data=body)
        # The servers may end before the answer.
        with suppress(OSError, HTTPException), urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()

    def send() -> None:
        for server in cycle(servers):
            if stopped.wait(1.0 / rate_rps):
                return
            threading.Thread(target=one, args=(server,), daemon=True).start()

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        stopped.set()
        sender.join()


def get(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path, timeout=10) as answer:
        return json.load(answer)


@contextmanager
def attached(
    environment: dict[str, str], folder: Path, metrics: str
) -> Iterator[tuple[str, "subprocess.CompletedProcess[str]"]]:
    """The control plane's address, and what the command said.

    It starts a Ray head of its own, and `headway down` ends it: that is what the command promises.
    """
    port = free_port()
    config = folder / "attach.yaml"
    config.write_text(SETTINGS.format(model=MODEL, metrics=metrics, port=port), encoding="utf-8")
    started = headway(environment, "attach", config, "--detach")
    try:
        assert started.returncode == 0, started.stderr
        yield f"http://127.0.0.1:{port}", started
    finally:
        ended = headway(environment, "down")
    assert ended.returncode == 0, ended.stderr


def decided(url: str, requests: float) -> dict[str, Any]:
    """The first decision that was made on so many measured requests."""

    def found() -> list[dict[str, Any]]:
        try:
            records = get(url, "/v1/control/decisions?limit=1000")["decisions"]
        except urllib.error.HTTPError as error:
            # A planner that loads its libraries on a busy machine does not answer yet.
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            return []
        return [each for each in records if (each["measured"]["requests"] or 0) >= requests]

    wait_until(lambda: bool(found()), PLANNED_S)
    return found()[0]


def post(url: str, path: str, body: object) -> Any:
    kind = {"content-type": "application/json"}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), kind, method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def decisions(url: str, status: str) -> list[dict[str, Any]]:
    """Those that the connector answered so."""
    made = get(url, "/v1/control/decisions?limit=1000")["decisions"]
    return [each for each in made if each["connector"]["status"] == status]


def acts(url: str, environment: dict[str, str]) -> None:
    """Nothing is set that nobody reported; then an outside system reports, and starts a fourth server."""
    changed = headway(environment, "set", "planner.dry_run=false", "pools.mixed.min_replicas=4", "--url", url)
    assert changed.returncode == 0, changed.stderr
    wait_until(lambda: bool(decisions(url, "refused")))
    assert "nobody has reported" in decisions(url, "refused")[0]["connector"]["detail"]["error"]
    post(url, "/v1/scaling/report", THERE)
    decision = get(url, "/v1/scaling/decisions/next?timeout_s=60")
    assert 4 <= decision["targets"]["mixed"] <= 6
    with vllm_doubles(decision["targets"]["mixed"] - 3, MODEL):
        answer = post(url, f"/v1/scaling/decisions/{decision['decision_id']}/complete", {})
        assert answer == {"decision_id": decision["decision_id"], "counted": True}
        report = {"pools": {"mixed": {"ready": decision["targets"]["mixed"]}}}
        post(url, "/v1/scaling/report", report)
        wait_until(lambda: bool(decisions(url, "sent")) and decisions(url, "sent")[0]["reached_at"])
    assert decisions(url, "sent")[0]["pools"]["mixed"]["ready"] == 3


def test_a_fleet_behind_a_prometheus_is_adopted(tmp_path: Path, environment: dict[str, str]) -> None:
    with vllm_doubles(3, MODEL) as servers:
        prometheus = PrometheusProcess(tmp_path, *servers)
        metrics = f"source: prometheus, preset: vllm, url: '{prometheus.url}', stale_after_s: 5"
        try:
            with traffic(servers, 12.0), attached(environment, tmp_path, metrics) as (url, started):
                checked = headway(environment, "check", "--attach", tmp_path / "attach.yaml")
                assert f"source: prometheus {prometheus.url}, preset vllm: " in checked.stdout
                assert MODEL in checked.stdout
                assert "target: virtual: an outside system" in checked.stdout
                refused = headway(environment, "check", tmp_path / "attach.yaml")
                assert "use headway attach" in refused.stderr
                assert f"Control     {url}/v1/control/status" in started.stdout
                assert get(url, "/health") == {"status": "ok"}
                # Nobody reports anything: Prometheus shows three engines.
                decision = decided(url, 24.0)
                assert decision["pools"]["mixed"] == {"desired": 3, "starting": 0, "ready": 3, "draining": 0}
                assert decision["measured"]["requests"] == pytest.approx(36.0, abs=15.0)
                assert decision["measured"]["isl_tokens"] == pytest.approx(200.0)
                assert decision["measured"]["osl_tokens"] == pytest.approx(20.0)
                assert decision["measured"]["load"]["mixed"]["running"] > 0.5
                assert (decision["dry_run"], decision["connector"]["status"]) == (True, "dry_run")
                assert get(url, "/ready") == {"status": "ready"}
                status = get(url, "/v1/control/status")
                assert status["engine"] == {"kind": "external", "simulated": False, "time_scale": 1.0}
                # No Predictor: the policy does not ask it.
                assert set(status["components"]) == {"MetricCollector", "Interpolator", "Connector"}
                shown = headway(environment, "status", "--url", url).stdout
                assert "SIMULATED" not in shown
                assert "dry run" in shown
                changed = headway(environment, "set", "slo.ttft_ms=400", "--url", url)
                assert json.loads(changed.stdout)["slo.ttft_ms"] == 400
                acts(url, environment)
                again = headway(environment, "up")
                assert "already up" in again.stderr
        finally:
            prometheus.stop()


def test_what_was_set_outlives_a_crash(tmp_path: Path, environment: dict[str, str]) -> None:
    with vllm_doubles(1, MODEL) as servers:
        metrics = f"source: engines, preset: vllm, engines: {{mixed: {{addresses: {json.dumps(servers)}}}}}"
        with attached(environment, tmp_path, metrics) as (url, started):
            assert started.stdout.startswith("Watches only (planner.dry_run)\n")
            changed = headway(environment, "set", "planner.dry_run=false", "--url", url)
            assert changed.returncode == 0, changed.stderr
            (state,) = tmp_path.rglob("up.json")
            os.kill(json.loads(state.read_text())["pid"], signal.SIGKILL)
            wait_until(lambda: shown(url) == {})
            again = headway(environment, "attach", tmp_path / "attach.yaml", "--detach")
            assert again.returncode == 0, again.stderr
            kept, acts_now, *_ = again.stdout.splitlines()
            assert kept.startswith("Kept        planner.dry_run false (headway set")
            assert kept.endswith("headway set planner.dry_run=true goes back to the file)")
            assert acts_now == "Sets replica counts (no planner.dry_run)"
            assert shown(url)["planner"]["dry_run"] is False


def serve_run(address: str, environment: dict[str, str], *words: str) -> None:
    """`serve run` as users type it, on the Ray that is there; back when the application serves."""
    serve_command = str(Path(sys.executable).with_name("serve"))
    options = ("--non-blocking", "--address", address, "--name", "headway")
    subprocess.run([serve_command, "run", *options, *words], env=environment, check=True, timeout=PLANNED_S)


def test_serve_run_starts_the_control_plane_alone_which_reads_engines_itself(
    ray_cluster: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    ports, port = [free_port() for _ in range(3)], free_port()
    url, addresses = f"http://127.0.0.1:{port}", [f"127.0.0.1:{each}" for each in ports]
    engines = f"engines: {{mixed: {{addresses: {json.dumps(addresses)}}}}}"
    metrics = f"source: engines, preset: vllm, stale_after_s: 5, {engines}"
    config = tmp_path / "headway.yaml"
    unprofiled = SETTINGS.replace("engine: {{profile: llama-3.1-8b_h100_tp1}}\n", "")
    config.write_text(unprofiled.format(model=MODEL, metrics=metrics, port=port), encoding="utf-8")
    serve_run(ray_cluster, environment | {"HEADWAY_CONFIG": str(config)}, "serve_apps.control:app")
    try:
        wait_until(lambda: "nobody has reported" in unready(url), PLANNED_S)
        post(url, "/v1/scaling/report", THERE)
        wait_until(lambda: "none of 3 engines answers" in unready(url), PLANNED_S)
        assert get(url, "/v1/control/status")["planner"]["state"] == "waiting"
        with vllm_doubles(3, MODEL, ports) as servers, traffic(servers, 12.0):
            decision = decided(url, 24.0)
            assert decision["measured"]["requests"] == pytest.approx(36.0, abs=15.0)
            assert decision["measured"]["isl_tokens"] == pytest.approx(200.0)
            assert decision["measured"]["load"]["mixed"]["running"] > 0.5
            assert decision["measured"]["counted"]["input_tokens"]["bounds"]
            # No profile is given: the path of the weights says what to begin with, asked again if need be.
            wait_until(lambda: "estimated for /models/Llama-3.1-8B, 8B on" in shown(url)["guess"], PLANNED_S)
            # The other form, with a file and settings over its own, takes the place of the first.
            changed = (f"config={config}", "slo.ttft_ms=400")
            serve_run(ray_cluster, environment, "serve_apps.control:build", *changed)
            wait_until(lambda: shown(url).get("slo", {}).get("ttft_ms") == 400, PLANNED_S)
            planned_before = newest(shown(url))
            wait_until(lambda: newest(shown(url)) > planned_before, PLANNED_S)
            assert shown(url)["measured"]["requests"] == pytest.approx(36.0, abs=15.0)
            # Ray does not start an actor again that was ended like this, nor one whose constructor raised.
            planned_before = newest(shown(url))
            ray.kill(ray.get_actor(names.PLANNER, namespace=names.NAMESPACE), no_restart=True)
            # One may have come between the two.
            wait_until(lambda: newest(shown(url)) > planned_before + 1, PLANNED_S)
        # Gone engines are no silence: demand is unknown, and then nothing is known.
        wait_until(lambda: get(url, "/v1/control/status")["measured"]["health"]["status"] == "down")
        assert get(url, "/v1/control/status")["measured"]["requests"] is None
        assert list(serve.status().applications["headway"].deployments) == ["ControlPlane"]
    finally:
        serve.delete("headway")
    wait_until(lambda: not control_plane.running())


def shown(url: str) -> dict[str, Any]:
    """The status document; {} while nobody answers."""
    try:
        document: dict[str, Any] = get(url, "/v1/control/status")
    except OSError:
        return {}
    return document


def newest(status: dict[str, Any]) -> int:
    """The id of the last decision; -1 before the first."""
    return int((status.get("last_decision") or {}).get("id", -1))


def unready(url: str) -> str:
    """Why it does not plan; empty while it does."""
    try:
        get(url, "/ready")
    except urllib.error.HTTPError as error:
        return str(json.load(error)["reason"])
    return ""
