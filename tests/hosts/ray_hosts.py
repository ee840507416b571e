"""A Ray of several hosts with Headway on it, as `cluster.yaml` would start it; and its faults.

The Serve file is `examples/serve/cluster.yaml` with small changes: shorter intervals, slower engines.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import yaml

from tests.hosts.namespaces import ROOT, THREADS, Host, network

GCS_PORT, REDIS_PORT, GATEWAY = 6379, 6380, "http://127.0.0.1:8000"
REDIS = shutil.which("redis-server")
GCS_SERVER = str(Path(ray.__file__).parent / "core/src/ray/gcs/gcs_server")
RAYLET = str(Path(ray.__file__).parent / "core/src/ray/raylet/raylet")
BIN = Path(sys.executable).parent
POLL_S = 0.25
COMMAND_S = 240.0
DEADLINE_S = 60.0
"""Of a request."""
NAMES = ("head", "prefill", "decode")
RESOURCES = {"head": {"gateway": 1}, "prefill": {"prefill": 2}, "decode": {"decode": 2}}


def cluster_environment() -> dict[str, str]:
    """The environment that cluster.yaml gives Ray's processes, as far as it is about faults."""
    options = yaml.safe_load((ROOT / "cluster.yaml").read_text())["docker"]["run_options"]
    words = [word for option in options if option.startswith("--env ") for word in option.split()[1:2]]
    return dict(word.split("=", 1) for word in words if word.startswith("RAY_") and "AUTH" not in word)


def serve_file(folder: Path, change: Callable[[dict[str, Any]], None] = lambda application: None) -> Path:
    """`examples/serve/cluster.yaml` for this machine, further changed by `change`."""
    document = yaml.safe_load((ROOT / "examples/serve/cluster.yaml").read_text())
    application = document["applications"][0]
    args = application["args"]
    args["engine"] |= {"time_scale": 0.5, "start_up_s": 0.5}
    args["planner"] |= {"adjustment_interval_s": 5, "headway": {"lead_s": 5}}
    args["gateway"] |= {"request_timeout_s": DEADLINE_S}
    change(application)
    path = folder / f"serve-{time.monotonic_ns()}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


class RayHosts:
    """A Ray cluster on hosts; its GCS keeps what it knows in a Redis on the head, where there is one."""

    def __init__(self, hosts: Mapping[str, Host], folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.hosts, self.head, self.folder = hosts, hosts["head"], folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.env = {
            "PYTHONPATH": str(ROOT),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "GRPC_ENABLE_FORK_SUPPORT": "0",
            # Ray's own 30 s are too few on a loaded machine.
            "RAY_raylet_start_wait_time_s": "90",
            "RAY_agent_register_timeout_ms": "90000",
            **cluster_environment(),
            **(env or {}),
        }

    @property
    def gcs(self) -> str:
        return f"{self.head.address}:{GCS_PORT}"

    def start(self) -> None:
        """Ray on all hosts."""
        if REDIS is not None:
            words = [
                REDIS,
                "--port",
                str(REDIS_PORT),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--protected-mode",
                "no",
            ]
            self._processes.append(self.head.start(words, {}, self.folder / "redis.log"))
            self.env["RAY_REDIS_ADDRESS"] = f"127.0.0.1:{REDIS_PORT}"
        for name in self.hosts:
            self.start_ray(name)

    def mend(self) -> list[str]:
        """Plug cables in, and start Ray where it has ended, as a supervisor does; those hosts."""
        ended = []
        for name, host in self.hosts.items():
            host.mend()
            if not host.processes(RAYLET):
                host.kill_all()
                self.start_ray(name)
                ended.append(name)
        return ended

    def start_ray(self, name: str) -> None:
        """`ray start` on one host."""
        host = self.hosts[name]
        common = [
            f"--node-ip-address={host.address}",
            "--num-cpus=2",
            f"--resources={json.dumps(RESOURCES[name])}",
            "--object-store-memory=100000000",
            "--disable-usage-stats",
        ]
        if name == "head":
            place = ["--head", f"--port={GCS_PORT}", "--dashboard-host=127.0.0.1", f"--temp-dir={host.mount}"]
        else:
            place = [f"--address={self.gcs}"]
        words = [str(BIN / "ray"), "start", *place, *common]
        try:
            host.run(words, self.env, COMMAND_S)
        except AssertionError:
            if name == "head":
                raise
            # A raylet gives up where its agents are slow to start. A supervisor would start it again.
            host.kill_all()
            host.run(words, self.env, COMMAND_S)

    def reap(self) -> None:
        """Wait for what was started, once its hosts are gone and it with them."""
        for process in self._processes:
            process.wait(timeout=30)

    def end_gcs(self) -> Callable[[], object]:
        """`kill -9` of the GCS; the answer starts it again, as whoever watches over the head would."""
        (pid,) = self.head.processes(GCS_SERVER)
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
        found = Path(f"/proc/{pid}/environ").read_bytes().rstrip(b"\0").decode().split("\0")
        env = dict(entry.split("=", 1) for entry in found if "=" in entry)
        os.kill(pid, signal.SIGKILL)
        return lambda: self._processes.append(self.head.start(words, env, self.folder / "gcs.log"))

    def deploy(self, file: Path) -> None:
        """`serve deploy` on the head, as cluster.yaml does."""
        self.head.run(
            [str(BIN / "serve"), "deploy", "--address", "http://127.0.0.1:8265", str(file)],
            self.env,
            COMMAND_S,
        )

    def get(self, path: str, timeout_s: float = 5.0) -> Any:
        """A document of the gateway, asked on the head."""

        def ask() -> Any:
            with urllib.request.urlopen(GATEWAY + path, timeout=timeout_s) as answer:
                return json.load(answer)

        return self.head.call(ask)

    def status(self) -> dict[str, Any]:
        """The status document; {} while there is none."""
        try:
            found: dict[str, Any] = self.get("/v1/control/status")
        except (OSError, ValueError):
            return {}
        return found

    def planner(self) -> dict[str, Any]:
        """The planner's part of the status; {} while there is none."""
        found: dict[str, Any] = self.status().get("planner", {})
        return found

    def newest(self) -> int:
        """The id of the newest decision; -1 while there is none, or no status."""
        return int((self.status().get("last_decision") or {}).get("id", -1))

    def python(self, module: str, *words: str) -> str:
        """The output of one of our modules, run on the head (`join`)."""
        env = {**self.env, "HOSTS_GCS": self.gcs, "HOSTS_SELF": self.head.address}
        return self.head.run([sys.executable, "-m", module, *words], env)

    def headway(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of ours on the head."""
        return subprocess.run(
            self.head.command([sys.executable, "-m", "headway_cli", *words]),
            check=False,
            cwd=ROOT,
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )

    def complete(self, timeout_s: float = DEADLINE_S + 30.0, max_tokens: int = 4) -> int:
        """The status of one completion; 0 where the connection is refused or there is no answer."""
        body = {"model": "llama-3.1-8b", "prompt": "Which host?", "max_tokens": max_tokens}

        def ask() -> int:
            request = urllib.request.Request(
                f"{GATEWAY}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as refusal:
                return refusal.code
            except OSError:
                return 0

        return self.head.call(ask)

    def wait_until(self, what: str, holds: Callable[[], object], timeout_s: float) -> float:
        """Seconds until it held; AssertionError with the status where it never did."""
        began_s = time.monotonic()
        while not holds():
            if time.monotonic() - began_s > timeout_s:
                raise AssertionError(
                    f"not within {timeout_s:g} s: {what}; {json.dumps(self.status())[:3000]}"
                )
            time.sleep(POLL_S)
        return time.monotonic() - began_s

    def where(self, title: str) -> list[str]:
        """The hosts that run a process of that title, such as `ray::Planner`."""
        return [name for name, host in self.hosts.items() if host.processes(title)]


def join() -> None:
    """Connect a process that `python` runs."""
    address, own = os.environ["HOSTS_GCS"], os.environ["HOSTS_SELF"]
    ray.init(address=address, _node_ip_address=own, log_to_driver=False, logging_level="error")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request: when it was sent, how long its answer took, and the status, 0 for none."""

    at_s: float
    took_s: float
    status: int


class Load:
    """Requests at a steady rate from clients on the head, while the block lasts; then their answers."""

    def __init__(self, cluster: RayHosts, rate_rps: float) -> None:
        self._cluster, self._period_s = cluster, 1.0 / rate_rps
        self._ended = threading.Event()
        self.asked: list[Asked] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def statuses(self, since_s: float = 0.0) -> Counter[int]:
        """How many of the requests sent since then were answered how."""
        return Counter(each.status for each in self.asked if each.at_s >= since_s)

    def _run(self) -> None:
        with ThreadPoolExecutor(THREADS) as clients:
            due_s = time.monotonic()
            while not self._ended.wait(max(0.0, due_s - time.monotonic())):
                due_s += self._period_s
                clients.submit(self._ask)

    def _ask(self) -> None:
        at_s = time.time()
        status = self._cluster.complete()
        self.asked.append(Asked(at_s=at_s, took_s=time.time() - at_s, status=status))


@contextmanager
def ray_hosts(folder: Path, env: Mapping[str, str] | None = None) -> Iterator[RayHosts]:
    """Three hosts with Ray on them."""
    started: list[RayHosts] = []
    try:
        with network(NAMES) as hosts:
            started.append(RayHosts(hosts, folder, env))
            started[0].start()
            yield started[0]
    finally:
        for cluster in started:
            cluster.reap()
