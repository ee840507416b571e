"""The data path: Headway's, Ray Serve's default one and proxies of others, in one run.

    headway          gateway replica with its own HTTP server -> engine replica, placed by least load
    headway slo      the same with a class of SLOs on every request: gateway <-> Router, which predicts
    default          Serve's HTTP proxy -> FastAPI ingress -> handle -> worker   (`benchmarks.default_path`)
    haproxy, …       a proxy -> an HTTP engine                                   (`benchmarks.peers`)

All engines are ones that cost next to nothing (`benchmarks.free_engine`). Counted is user and system time
(/proc) of the path's own processes, what they do when idle included; of the engine's process only what Serve
and our transport take there, which for the peers is the engine's own HTTP server and not counted. Serve's
controller, raylet and GCS are left out. Each figure is the median of rounds, which alternate between the
paths, and their range.

Added latency is that of a path less that of the engine by itself, asked right before at the same rate, for
answers that the engine gives at once: with 4 clients that ask one request after the other, and at half of the
rate that 64 such clients reach, each request at its moment. Memory of a stream is what a process grows by
with 2,000 of them open, before it has served much else.
"""

import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from benchmarks.peers import MODEL, running
from benchmarks.processes import cpu_s, descendants, rss_bytes
from headway.config import HeadwayConfig
from tests.ports import free_port

ROUNDS, FEWER = 5, 3
OPEN, OPEN_TOKENS = 2000, 12
"""Streams at once, each of 12 tokens in 12 s."""
READY_WITHIN_S, IDLE_S = 60.0, 10.0
SETTINGS: Mapping[str, Any] = {
    "model": MODEL,
    # One replica, whatever a planner thinks.
    "pools": {"mixed": {"max_replicas": 1}},
    "gateway": {"port": 0, "max_requests": 4096},
    "routing": {"profile": "least_load"},
}
JUDGED: Mapping[str, Any] = {
    # Generous, so that nothing is held or shed.
    "slo": {"classes": {"interactive": {"ttft_ms": 60_000, "tpot_ms": 2_000}}},
    "routing": {"profile": "slo"},
}


@dataclass(frozen=True, slots=True)
class Case:
    """What one round asks for."""

    name: str
    requests: int
    clients: int
    tokens: int
    prompt_bytes: int = 1_000
    stream: bool = False
    brief: bool = False
    """In fewer rounds, and not on Serve's default path, which would take most of the time."""

    def arguments(self, requests: int, rate: int) -> Sequence[str]:
        """Of `benchmarks.streams`."""
        figures = (requests, self.clients, self.tokens, self.prompt_bytes, int(self.stream), rate)
        return [str(figure) for figure in figures]


CASES = (
    Case("unary 1 KB", 960, 16, 16),
    # Few enough that the Router, which takes engines for real ones, sees room for all in their KV caches.
    Case("unary 200 KB", 240, 4, 16, prompt_bytes=200_000),
    Case("64 chunks, 20 ms", 192, 64, 64, stream=True),
    *(
        Case("unary 1 KB, at once", min(1600, 400 * clients), clients, 1, brief=True)
        for clients in (1, 64, 512)
    ),
    Case("unary 20 KB", 480, 16, 16, prompt_bytes=20_000, brief=True),
    Case("unary 1 MB", 32, 2, 16, prompt_bytes=1_000_000, brief=True),
    Case("64 chunks, 20 ms", 512, 512, 64, stream=True, brief=True),
    Case("64 chunks, at once", 192, 16, 65, stream=True, brief=True),
    Case("1,000 chunks, 2 ms", 16, 16, 1000, stream=True, brief=True),
    Case("1,000 chunks, at once", 16, 4, 1001, stream=True, brief=True),
)
CLOSED = Case("4 clients", 600, 4, 1)
SATURATED = Case("64 clients", 2000, 64, 1)
HELD = Case("open", OPEN, OPEN, OPEN_TOKENS, stream=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of serving: where it answers, and the processes of each of its parts."""

    name: str
    url: str
    header: str = ""
    share: int = 1
    """Of the requests it gets one in so many: what takes long needs no more to be measured as well."""
    parts: Mapping[str, Sequence[int]]


def main(data: Path | None, peers: Path | None = None) -> int:
    """Print a table of all paths and cases."""
    del data  # needs none
    with (
        tempfile.TemporaryDirectory(prefix="hw-", dir="/tmp") as name,
        cluster(),
        running(Path(name), peers) as others,
    ):
        engine, *proxies = [Way(name=one.name, url=one.url, parts={"proxy": [one.pid]}) for one in others]
        ways = [*deploy(), *proxies]
        report_idle(ways)
        report_memory([way for way in ways if way.share == 1 and not way.header])
        for case in CASES:
            report(case, [way for way in ways if way.share == 1 or not case.brief])
        report_latency([way for way in ways if way.share == 1], engine)
    return 0


def report_idle(ways: Sequence[Way]) -> None:
    """What the processes take without any request: part of every figure below."""
    print(f"CPU ms a second at rest, over {IDLE_S:g} s")
    before = [{part: cpu_s(pids) for part, pids in way.parts.items()} for way in ways]
    time.sleep(IDLE_S)
    for way, then in zip(ways, before, strict=True):
        took = {part: 1e3 * (cpu_s(pids) - then[part]) / IDLE_S for part, pids in way.parts.items()}
        print(f"  {way.name:14} " + "   ".join(f"{part} {one:.1f}" for part, one in took.items()))


def report(case: Case, ways: Sequence[Way]) -> None:
    """One case on all paths."""
    for way in () if case.brief else ways:
        measure(way, case)
    rounds = [{way.name: measure(way, case) for way in ways} for _ in range(FEWER if case.brief else ROUNDS)]
    print(f"\n{case.name}: CPU ms a request, of {case.clients} clients", flush=True)
    for way in ways:
        print(f"  {way.name:14} {_spread([sum(one[way.name].values()) for one in rounds])}", end="")
        parts = {part: [one[way.name][part] for one in rounds] for part in way.parts}
        print("".join(f"   {part} {_spread(figures)}" for part, figures in parts.items()), flush=True)


def _spread(figures: Sequence[float]) -> str:
    return f"{statistics.median(figures):.2f} ({min(figures):.2f} to {max(figures):.2f})"


def measure(way: Way, case: Case) -> Mapping[str, float]:
    """CPU milliseconds per request of each part, in one round."""
    before = {part: cpu_s(pids) for part, pids in way.parts.items()}
    requests = case.requests // way.share
    with loaded(way, case, requests) as load:
        _said(load)
    return {part: 1e3 * (cpu_s(pids) - before[part]) / requests for part, pids in way.parts.items()}


def report_memory(ways: Sequence[Way]) -> None:
    """What an open stream takes in each process."""
    print(f"\nKB an open stream, {OPEN:,} at once", flush=True)
    for way in ways:
        measure(way, CASES[0])
        before = {part: rss_bytes(pids) for part, pids in way.parts.items()}
        most = dict(before)
        with loaded(way, HELD, OPEN) as load:
            while load.poll() is None:
                most = {part: max(most[part], rss_bytes(pids)) for part, pids in way.parts.items()}
                time.sleep(0.5)
            _said(load)
        took = {part: (most[part] - before[part]) / OPEN / 1e3 for part in before}
        print(f"  {way.name:14} " + "   ".join(f"{part} {one:.0f}" for part, one in took.items()), flush=True)


def report_latency(ways: Sequence[Way], engine: Way) -> None:
    """Milliseconds that each way adds to what the engine takes by itself."""
    print(
        "\nadded ms: p50 and p99 with 4 clients; requests/s of 64; p50 and p99 at half of these", flush=True
    )
    rounds: dict[str, list[Sequence[float]]] = {way.name: [] for way in ways}
    for _ in range(FEWER):
        for way in ways:
            closed = added_ms(way, engine, CLOSED)
            with loaded(way, SATURATED, SATURATED.requests) as load:
                rate = int(SATURATED.requests / _said(load)["wall_s"])
            rounds[way.name].append((*closed, rate, *added_ms(way, engine, SATURATED, rate // 2)))
    for name, figures in rounds.items():
        print(f"  {name:14} " + "   ".join(map(_spread, zip(*figures, strict=True))), flush=True)


def added_ms(way: Way, engine: Way, case: Case, rate: int = 0) -> Sequence[float]:
    """By the median request and the 99th of 100."""
    found = []
    for one in (engine, way):
        with loaded(one, case, case.requests, rate) as load:
            taken_s = sorted(_said(load)["taken_s"])
        found.append([1e3 * taken_s[int(share * len(taken_s))] for share in (0.5, 0.99)])
    return [after - before for before, after in zip(*found, strict=True)]


@contextmanager
def loaded(way: Way, case: Case, requests: int, rate: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """So many requests of a case, by a process of their own."""
    command = [sys.executable, "-m", "benchmarks.streams", way.url, MODEL, *case.arguments(requests, rate)]
    command += [way.header] if way.header else []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as load:
        yield load


def _said(load: subprocess.Popen[bytes]) -> Mapping[str, Any]:
    """What the load says at its end; it fails where a request does."""
    said, _ = load.communicate()
    if load.returncode:
        raise RuntimeError("a request was not answered")
    found: Mapping[str, Any] = json.loads(said)
    return found


def deploy() -> Sequence[Way]:
    """Headway's two, and Serve's default path, beside each other."""
    from ray import serve

    from benchmarks.default_path import default_path

    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    config = HeadwayConfig.model_validate(SETTINGS)
    serve.run(default_path(config), name="default", route_prefix="/default")
    least_load, judged = (headway(name, more) for name, more in (("plain", {}), ("slo", JUDGED)))
    replica = {"gateway": "{}:Gateway", "replica": "{}:Mixed"}
    return (
        Way(name="headway", url=least_load, parts=_parts(replica, "plain")),
        Way(
            name="headway slo",
            url=judged,
            header="x-headway-slo-class: interactive",
            parts=_parts(replica | {"router": "ray::Router"}, "slo"),
        ),
        Way(
            name="default",
            share=8,
            url=f"http://127.0.0.1:{port}/default/v1/completions",
            parts=_parts({"proxy": "ProxyActor", "ingress": "{}:Ingress", "worker": "{}:Worker"}, "default"),
        ),
    )


def headway(name: str, more: Mapping[str, Any]) -> str:
    """An application of ours; where it answers."""
    from ray import serve

    from benchmarks.free_engine import FreeEngine
    from serve_apps.builders import application

    config = HeadwayConfig.model_validate({**SETTINGS, **more})
    app = application(config, FreeEngine, control_plane=False)
    (address,) = serve.run(app, name=name, route_prefix=f"/{name}").addresses.remote().result()
    deadline_s = time.monotonic() + READY_WITHIN_S
    while not _ready(address):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{name} is not ready")
        time.sleep(0.1)
    return f"{address}/v1/completions"


def _ready(address: str) -> bool:
    """With a Router, once that has answered."""
    try:
        with urlopen(f"{address}/ready") as answer:
            return bool(answer.status == HTTPStatus.OK)
    except HTTPError:
        return False


def _parts(titles: Mapping[str, str], application: str) -> Mapping[str, Sequence[int]]:
    """The processes that call themselves so."""
    named = descendants(os.getpid())
    wanted = {part: title.replace("{}", f"ServeReplica:{application}") for part, title in titles.items()}
    found = {part: [pid for pid, name in named.items() if title in name] for part, title in wanted.items()}
    if missing := [part for part, pids in found.items() if not pids]:
        raise RuntimeError(f"no process is the {missing[0]} of {application!r}")
    return found


@contextmanager
def cluster() -> Iterator[None]:
    """A Ray of its own on this machine."""
    import ray
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="hw-", dir="/tmp") as folder:
        quiet = {"log_to_driver": False, "logging_level": "error"}
        ray.init(num_cpus=4, include_dashboard=False, _temp_dir=folder, **quiet)
        try:
            yield
        finally:
            serve.shutdown()
            ray.shutdown()
