"""A real vLLM server, as others start them: read without a Prometheus, and adopted behind a real one."""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from actors.collector.interval import HealthStatus
from actors.metric_collector import MetricCollector
from headway.config import HeadwayConfig
from headway.planning import Role
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.prometheus_process import PrometheusProcess
from tests.ray.clusters import headway, wait_until
from tests.stores import MemoryStore
from tests.vllm.served import NAME, STARTED_WITHIN_S

ASKED_FOR_S = 180.0
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
ARGUMENTS = (
    *("--served-model-name", NAME, "--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager"),
    *("--max-model-len", "2048", "--max-num-seqs", "16", "--block-size", "32"),
    *("--kv-cache-memory-bytes", str(64 << 20)),
)
ADOPTED = """
model: tiny-llama
slo: {{ttft_ms: 2000, itl_ms: 500}}
pools: {{mixed: {{min_replicas: 1, max_replicas: 4}}}}
metrics: {{source: prometheus, preset: vllm, url: '{prometheus}', stale_after_s: 5}}
connector: {{kind: virtual}}
planner: {{dry_run: true, adjustment_interval_s: 5}}
gateway: {{port: {port}}}
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[str]:
    """The `host:port` of a server."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    # Without what an engine of this process has set for itself.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "UCX_"))}
    process = subprocess.Popen(
        [*command, *ARGUMENTS, "--port", address.rpartition(":")[2]],
        env={**own, **ENVIRONMENT},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: process.poll() is not None or answers(address), STARTED_WITHIN_S)
        assert process.poll() is None, "vLLM did not start"
        yield address
    finally:
        process.terminate()
        process.wait()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/health", timeout=2):
            return True
    except OSError:
        return False


def complete(address: str, tokens: int) -> int:
    """The prompt's tokens, as vLLM counts them."""
    body = {"model": NAME, "prompt": "Why is the sky blue?", "max_tokens": tokens, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://{address}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        usage = json.load(answer)["usage"]
    assert usage["completion_tokens"] == tokens
    return int(usage["prompt_tokens"])


def completed(address: str) -> int:
    """Requests that have ended, as the server has heard from its engine, which is a moment later."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return sum(
        int(sample.value)
        for family in families
        for sample in family.samples
        if sample.name == "vllm:request_success_total"
    )


@pytest.mark.anyio
async def test_the_collector_counts_what_vllm_served(server: str) -> None:
    settings = {
        "model": NAME,
        "pools": {"mixed": {}},
        "metrics": {
            "source": "engines",
            "preset": "vllm",
            "scrape_interval_s": 3600.0,
            "engines": {"mixed": {"addresses": [server]}},
        },
    }
    config = HeadwayConfig.model_validate(settings)
    collector = MetricCollector(config.model_dump_json(), "", MemoryStore())
    try:
        assert await collector.ready() == (True, "")
        assert await collector.engines() == {"mixed": 1}
        complete(server, 4)
        wait_until(lambda: completed(server) == 1)
        began_s = time.time()
        await collector.collect(1.0)
        prompts = [complete(server, tokens) for tokens in (8, 16, 24)]
        wait_until(lambda: completed(server) == 4)
        found = await collector.collect(time.time() - began_s)
    finally:
        await collector.close()
    assert (found.health.status, found.health.detail) == (HealthStatus.OK, "")
    assert (found.requests, found.completed) == (3.0, 3.0)
    assert found.isl_tokens == pytest.approx(sum(prompts) / 3)
    assert found.osl_tokens == pytest.approx(16.0)
    assert found.ttft_s.count == 3
    assert 0.0 < found.itl_s.mean < found.ttft_s.mean + found.request_duration_s
    assert found.itl_s.count == 3 * 15
    assert found.load[Role.MIXED].running == pytest.approx(0.0)
    assert found.counted is not None
    assert found.counted.input_tokens.bounds


@contextmanager
def traffic(server: str) -> Iterator[None]:
    """A client that sends one request after the other, with time for others between."""
    stopped = threading.Event()

    def send() -> None:
        while not stopped.wait(0.3):
            complete(server, 16)

    client = threading.Thread(target=send)
    client.start()
    try:
        yield
    finally:
        stopped.set()
        client.join()


def control(url: str, path: str, body: object = None) -> Any:
    """An answer of the control API; with a body a POST of it. It is asked again where it says when.

    A vLLM server leaves a planner that loads its libraries little of two cores: it may not answer in time.
    """
    data = None if body is None else json.dumps(body).encode()
    kind = {"content-type": "application/json"}
    deadline_s = time.monotonic() + ASKED_FOR_S
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url + path, data, kind), timeout=90) as answer:
                # 204: a long poll has waited, and no decision has come yet.
                if answer.status != 204 or time.monotonic() > deadline_s:
                    return json.load(answer)
        except urllib.error.HTTPError as error:
            again_s, said = error.headers["retry-after"], error.read().decode()
            if again_s is None or time.monotonic() > deadline_s:
                raise AssertionError(f"{path}: {error.code} {said}") from error
            time.sleep(float(again_s))


def test_a_server_behind_a_prometheus_is_adopted_watched_and_scaled(
    server: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    port = free_port()
    url, config = f"http://127.0.0.1:{port}", tmp_path / "headway.yaml"
    with ExitStack() as stack:
        prometheus = PrometheusProcess(tmp_path, server)
        stack.callback(prometheus.stop)
        config.write_text(ADOPTED.format(prometheus=prometheus.url, port=port), encoding="utf-8")
        started = headway(environment, "attach", config, "--detach")
        try:
            assert started.returncode == 0, started.stderr
            stack.enter_context(traffic(server))
            wait_until(lambda: len(measured(url)) > 1)
            watched = measured(url)[-1]
            assert watched["pools"]["mixed"] == {"desired": 1, "starting": 0, "ready": 1, "draining": 0}
            assert (watched["dry_run"], watched["connector"]["status"]) == (True, "dry_run")
            assert watched["measured"]["osl_tokens"] == pytest.approx(16.0)
            assert watched["measured"]["itl_s"]["mean"] > 0
            changed = headway(
                environment, "set", "planner.dry_run=false", "pools.mixed.min_replicas=2", "--url", url
            )
            assert changed.returncode == 0, changed.stderr
            control(url, "/v1/scaling/report", {"pools": {"mixed": {"ready": 1}}})
            wanted = control(url, "/v1/scaling/decisions/next?timeout_s=60")
            assert wanted["targets"]["mixed"] >= 2
            answer = control(url, f"/v1/scaling/decisions/{wanted['decision_id']}/complete", {})
            assert answer == {"decision_id": wanted["decision_id"], "counted": True}
        finally:
            ended = headway(environment, "down")
    assert ended.returncode == 0, ended.stderr


def measured(url: str) -> list[dict[str, Any]]:
    """The decisions made on requests that a whole interval had, oldest first."""
    records = control(url, "/v1/control/decisions?limit=1000")["decisions"]
    return [each for each in records if each["measured"]["requests"]]
