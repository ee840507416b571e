"""Server CPU per streamed request: the gateway's path against Ray Serve's default one, in one run.

    default    HTTP proxy -> FastAPI ingress -> handle -> worker              (`benchmarks.default_path`)
    headway    gateway replica with its own HTTP server -> prefill -> decode  (`serve_apps.disagg`)

Both stream 64 tokens, one a chunk, from the simulated engine at the same pace, to 8 clients at once; tokens
that come while a busy machine holds a stream up share a chunk, so the number of events is shown. Counted is
user and system time (/proc) of all processes that a request passes through, what they do when idle included:
proxy, ingress and worker; gateway, prefill and decode replicas. Serve's controller, the raylet and the GCS
are left out of both; what they took is shown beside it. Rounds of the two alternate, the first pair is not
counted, and a ratio is that of two neighbouring rounds.
"""

import json
import logging
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import cpu_s, descendants
from headway.config import HeadwayConfig

ROUNDS = 5
STREAMS = 64
CONCURRENCY = 8
TOKENS = 64
TARGET = 0.2

SETTINGS = {
    # About 20 ms a token.
    "engine": {"time_scale": 0.3},
    # One replica of each, whatever a planner thinks.
    "pools": {"prefill": {"max_replicas": 1}, "decode": {"max_replicas": 1}},
    "gateway": {"port": 0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One way of serving: where it answers, for which model, and how its processes call themselves."""

    name: str
    url: str
    model: str
    titles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """CPU seconds of one round: of the path's processes, and of everything else that belongs to Ray."""

    path_s: Mapping[str, float]
    others_s: float
    wall_s: float
    events: float

    @property
    def per_stream_ms(self) -> float:
        return 1e3 * sum(self.path_s.values()) / STREAMS


def main(data: Path | None) -> int:
    """Print both figures of each round and their ratio."""
    del data  # needs none
    config = HeadwayConfig.model_validate(SETTINGS)
    with cluster():
        found = ratios(*deploy(config))
    median = statistics.median(found)
    verdict = "met" if median <= TARGET else "MISSED"
    print(f"ratio {median:.3f} ({found[0]:.3f} to {found[-1]:.3f}), at most {TARGET:g}: {verdict}")
    return 0


def ratios(base: Route, other: Route) -> Sequence[float]:
    """CPU of `other` relative to that of `base` in each pair of neighbouring rounds, sorted; prints both."""
    paths = (base, other)
    for path in paths:
        measure(path)
    rounds = [[measure(path) for path in paths] for _ in range(ROUNDS)]
    for at, path in enumerate(paths):
        print_path(path, [both[at] for both in rounds])
    return sorted(theirs.per_stream_ms / ours.per_stream_ms for ours, theirs in rounds)


def print_path(path: Route, rounds: Sequence[Round]) -> None:
    figures = sorted(one.per_stream_ms for one in rounds)
    events = statistics.mean(one.events for one in rounds)
    print(
        f"{path.name:8} {statistics.median(figures):6.2f} ms CPU per stream"
        f" ({figures[0]:.2f} to {figures[-1]:.2f}), {events:.1f} events each,"
        f" {statistics.mean(one.wall_s for one in rounds):.1f} s a round"
    )
    for title in path.titles:
        share = statistics.median(1e3 * one.path_s[title] / STREAMS for one in rounds)
        print(f"{'':8} {share:6.2f} ms {title}")
    others = statistics.median(1e3 * one.others_s / STREAMS for one in rounds)
    print(f"{'':8} {others:6.2f} ms beside it: controller, raylet, GCS and the idle other path")


def measure(path: Route) -> Round:
    """One round of streams."""
    named = descendants(os.getpid())
    members = {title: [pid for pid, name in named.items() if title in name] for title in path.titles}
    if missing := [title for title, pids in members.items() if not pids]:
        raise RuntimeError(f"no process calls itself {missing[0]!r}")
    before = {title: cpu_s(pids) for title, pids in members.items()}
    others = set(named).difference(*members.values())
    others_before = cpu_s(others)
    load = ["benchmarks.streams", path.url, path.model, str(STREAMS), str(CONCURRENCY), str(TOKENS)]
    told = subprocess.run([sys.executable, "-m", *load], check=True, stdout=subprocess.PIPE)
    result = json.loads(told.stdout)
    return Round(
        path_s={title: cpu_s(pids) - before[title] for title, pids in members.items()},
        others_s=cpu_s(others) - others_before,
        wall_s=result["wall_s"],
        events=statistics.mean(result["events"]),
    )


def deploy(config: HeadwayConfig) -> tuple[Route, Route]:
    """Both applications beside each other."""
    from ray import serve

    from benchmarks.default_path import default_path
    from serve_apps.builders import application

    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(default_path(config), name="default", route_prefix="/default")
    ours = serve.run(application(config), name="headway", route_prefix="/headway")
    (address,) = ours.addresses.remote().result()
    return (
        Route(
            name="default",
            url=f"http://127.0.0.1:{port}/default/v1/completions",
            model=config.model,
            titles=("ProxyActor", "ServeReplica:default:Ingress", "ServeReplica:default:Worker"),
        ),
        Route(
            name="headway",
            url=f"{address}/v1/completions",
            model=config.model,
            titles=tuple(f"ServeReplica:headway:{name}" for name in ("Gateway", "Prefill", "Decode")),
        ),
    )


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
