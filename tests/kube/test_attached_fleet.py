"""Two Deployments in one fleet file on a real API server, behind a real Prometheus: one budget, and one of
them sleeps until requests wait at the router in front.

The engines' pages are those of `tests.vllm_double`, and there while the Deployment has a ready replica. The
router is a gauge.
"""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from tests.http_thread import served
from tests.kube.cluster import NAMESPACE, KubeCluster, Kubelet, Objects, settled, wait_until
from tests.kube.resources import Manifest, collection, deployment, path
from tests.kube.test_targets import replicas
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.prometheus_process import PrometheusProcess, need_prometheus
from tests.ray.clusters import headway
from tests.vllm_double import Server

MODELS = {"chat": "chat-8b", "rare": "rare-8b"}
GPUS = 2
WITHIN_S = PATIENCE_S


@dataclass
class World:
    """What others run: ready replicas by name, and requests at the router for the model of `rare`."""

    ready: dict[str, int] = field(default_factory=dict)
    waiting: int = 0

    def settle(self, manifest: Manifest) -> dict[str, Any]:
        self.ready[manifest["metadata"]["name"]] = manifest["spec"]["replicas"]
        return settled(manifest)

    def router(self) -> web.Application:
        async def show(_: web.Request) -> web.Response:
            return web.Response(text=f'router_waiting{{model="{MODELS["rare"]}"}} {self.waiting}\n')

        return _pages(show)

    def engine(self, name: str) -> web.Application:
        server = Server(MODELS[name])

        async def show(request: web.Request) -> web.Response:
            if not self.ready.get(name):
                raise web.HTTPServiceUnavailable
            return await server.show(request)

        app = _pages(show)
        app.router.add_post("/v1/completions", server.complete)
        return app


def _pages(show: Any) -> web.Application:
    app = web.Application()
    app.router.add_get("/metrics", show)
    return app


def settings(prometheus: str, port: int) -> dict[str, Any]:
    return {
        "fleet": {"gpus": GPUS},
        "slo": {"ttft_ms": 500, "itl_ms": 30},
        "engine": {"profile": "llama-3.1-8b_h100_tp1"},
        "pools": {"mixed": {"min_replicas": 1, "max_replicas": 2}},
        "planner": {"adjustment_interval_s": 3, "tick_deadline_s": 60, "headway": {"lead_s": 5}},
        "gateway": {"port": port},
        "metrics": {
            "source": "prometheus",
            "url": prometheus,
            "preset": "vllm",
            "stale_after_s": 5,
            "wake": 'sum(router_waiting{model="$model"})',
        },
        "connector": {"kind": "kubernetes", "kubernetes": {"target": "scale", "namespace": NAMESPACE}},
        "deployments": {
            name: {
                "model": model,
                "pools": {"mixed": {"min_replicas": int(name == "chat")}},
                "connector": {"kubernetes": {"objects": {"mixed": {"name": name}}}},
            }
            for name, model in MODELS.items()
        },
    }


@pytest.fixture
def environment(tmp_path: Path, cluster: KubeCluster) -> dict[str, str]:
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "KUBECONFIG": cluster.kubeconfig("headway")}
    return {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")} | state


@contextmanager
def attached(environment: dict[str, str], file: Path) -> Iterator["subprocess.CompletedProcess[str]"]:
    started = headway(environment, "attach", file, "--detach")
    try:
        assert started.returncode == 0, started.stderr
        yield started
    finally:
        ended = headway(environment, "down")
    assert ended.returncode == 0, ended.stderr


def get(url: str) -> Any:
    """A planner that is too busy to answer (503) is asked again."""
    end_s = time.monotonic() + WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > end_s:
                raise
            time.sleep(0.5)


def test_one_budget_and_a_model_that_sleeps_until_requests_wait_at_its_router(
    cluster: KubeCluster, admin: Objects, environment: dict[str, str], tmp_path: Path
) -> None:
    need_prometheus()
    fleet = {name: deployment(name, 1) for name in MODELS}
    for name, manifest in fleet.items():
        manifest["spec"]["template"]["spec"]["containers"][0]["args"] = ["serve", MODELS[name]]
        admin.create(collection(manifest), manifest)
    world, port = World(), free_port()
    url, file = f"http://127.0.0.1:{port}", tmp_path / "fleet.yaml"
    # With a connection of its own.
    kubelet = Kubelet(cluster.objects(), [path(one) for one in fleet.values()], world.settle)

    def of_each(key: str) -> list[dict[str, Any]]:
        """Empty for one whose planner is too busy to answer."""
        return [each[key] or {} for each in get(f"{url}/v1/fleet")["deployments"]]

    def states() -> list[str]:
        return [each["state"] for each in get(f"{url}/v1/models")["data"]]

    def all_well() -> bool:
        return all(each.get("well") for each in of_each("verdict"))

    def decisions(name: str) -> list[dict[str, Any]]:
        found = get(f"{url}/deployments/{name}/v1/control/decisions?limit=1000")
        return list(found["decisions"])

    with ExitStack() as stack:
        stack.enter_context(kubelet.working())
        pages = [world.router(), *map(world.engine, MODELS)]
        addresses = [stack.enter_context(served(page))[0] for page in pages]
        prometheus = PrometheusProcess(tmp_path, *(each.removeprefix("http://") for each in addresses))
        stack.callback(prometheus.stop)
        file.write_text(yaml.safe_dump(settings(prometheus.url, port)))
        started = stack.enter_context(attached(environment, file))
        assert f"Deployment  rare: {url}/deployments/rare/" in started.stdout

        wait_until(lambda: replicas(admin, fleet["rare"]) == 0, WITHIN_S)
        assert replicas(admin, fleet["chat"]) == 1
        # Its series are gone, and it is known all the same that nothing was served.
        asleep = decisions("rare")[-1]["id"]
        wait_until(lambda: decisions("rare")[-1]["id"] > asleep + 3, WITHIN_S)
        wait_until(lambda: decisions("rare")[-1]["measured"]["requests"] == 0, WITHIN_S)
        last = decisions("rare")[-1]
        wait_until(all_well, WITHIN_S)
        wait_until(lambda: states() == ["ready", "asleep"], WITHIN_S)
        checked = headway(environment, "check", "--attach", file)
        assert checked.returncode == 0, checked.stderr
        assert "wake: 0 requests wait" in checked.stdout

        world.waiting = 3
        wait_until(lambda: replicas(admin, fleet["rare"]) > 0, WITHIN_S)
        later = [each for each in decisions("rare") if each["id"] > last["id"]]
        woke = next(each for each in later if each["targets"]["mixed"])
        assert "3 requests held for the first replica of a pool" in woke["notes"]
        assert woke["reasons"]["grant"]["gpus"] == 1
        body = json.dumps({"model": MODELS["rare"], "prompt": "word " * 50, "max_tokens": 5}).encode()
        world.waiting = 0
        wait_until(lambda: world.ready["rare"] > 0, WITHIN_S)
        with urllib.request.urlopen(f"{addresses[-1]}/v1/completions", data=body, timeout=30) as answer:
            assert answer.status == 200
        wait_until(lambda: states() == ["ready", "ready"] and all_well(), WITHIN_S)
        wait_until(lambda: [each.get("holds") for each in of_each("budget")] == [1, 1], WITHIN_S)
        shown = headway(environment, "status", "--url", url)
        assert f"2 deployments at {url}" in shown.stdout
    kubelet._objects.close()
