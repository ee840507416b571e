"""Memory and ticks of one control plane that serves many applications, each of a model of its own.

    python -m benchmarks applications [--counts 1,10,30]

Each application has a page of metrics with two requests a second, and mixed replicas that are reported to the
virtual connector; no engine runs. Decisions are due every 15 s, each application's from its own start on. A
tick's time is its last one's, from its beginning to the connector's answer. Memory is what is resident of the
named actors, and so counts what they share once for each.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from threading import Event, Thread
from typing import Any
from unittest.mock import patch

from benchmarks.processes import cpu_s, rss_bytes
from headway.config import HeadwayConfig, load_config

INTERVAL_S, MEASURED_S, RATE_RPS = 15.0, 60.0, 2
INPUT_TOKENS, OUTPUT_TOKENS = 800.0, 20


def main(_: Path | None, counts: str = "1,10,30") -> int:
    """Run each number of applications on a Ray of its own and print its row."""
    print(
        "| applications | started in, s | resident, MiB | CPU, cores | tick, median and longest, s | late |"
    )
    print("|---|---|---|---|---|---|")
    for count in map(int, counts.split(",")):
        with tempfile.TemporaryDirectory(prefix="hw-", dir="/tmp", ignore_cleanup_errors=True) as folder:
            print(_row(count, folder), flush=True)
    return 0


def _row(count: int, folder: str) -> str:
    import ray

    from actors import control_plane, names
    from headway_cli.cluster import start_ray

    start_ray(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        _node_ip_address="127.0.0.1",
        _temp_dir=folder,
    )
    try:
        # No Serve runs: that none of its applications is there says nothing of them here.
        with _pages(count) as urls, patch.object(control_plane, "live", return_value=None):
            began_s = time.monotonic()
            started = control_plane.start(
                {f"app{number}": _settings(number, url) for number, url in enumerate(urls)}
            )
            assert all(isinstance(token, str) for token in started.values()), started
            for number in range(count):
                _report(number)
            started_s = time.monotonic() - began_s
            pids = _pids(names.ACTORS)
            cpu_before_s, began_s = cpu_s(pids), time.monotonic()
            while time.monotonic() < began_s + MEASURED_S:
                time.sleep(INTERVAL_S / 3.0)
                for number in range(count):
                    _report(number)
            cores = (cpu_s(pids) - cpu_before_s) / (time.monotonic() - began_s)
            planner = names.find_actor(names.PLANNER)
            asked = [planner.status.remote(application=f"app{number}") for number in range(count)]
            said = [each["planner"] for each in ray.get(asked)]
            ticks_s = [each["tick_s"] for each in said if each["tick_s"] is not None]
            median_s = quantiles(ticks_s, n=2)[0] if len(ticks_s) > 1 else ticks_s[0]
            late = f"{sum(each['late_ticks'] for each in said)} of {sum(each['ticks'] for each in said)}"
            return (
                f"| {count} | {started_s:.1f} | {rss_bytes(pids) / 2**20:,.0f} | {cores:.2f} | "
                f"{median_s:.2f}, {max(ticks_s):.2f} | {late} |"
            )
    finally:
        ray.shutdown()


def _settings(number: int, url: str) -> HeadwayConfig:
    return load_config(
        None,
        {
            "model": f"model{number}",
            "engine.profile": "llama-3.1-8b_h100_tp1",
            "metrics.url": url,
            "pools": {"mixed": {"max_replicas": 8}},
            "connector.kind": "virtual",
            "planner.adjustment_interval_s": INTERVAL_S,
            "routing.profile": "least_load",
        },
    )


def _report(number: int) -> None:
    from actors.virtual_connector import VirtualConnectorClient

    VirtualConnectorClient(application=f"app{number}").report({"mixed": {"ready": 1}})


def _pids(wanted: Sequence[str]) -> list[int]:
    from actors.compat_ray import actors_table

    alive = (each for each in actors_table().values() if each["State"] == "ALIVE")
    return [int(each["Pid"]) for each in alive if each["Name"] in wanted]


@contextmanager
def _pages(count: int) -> Iterator[list[str]]:
    """The addresses of so many pages, on which requests are counted as long as the block lasts."""
    from tests.exporter import Exporter

    pages, ended = [Exporter() for _ in range(count)], Event()
    for number, page in enumerate(pages):
        page.serve_model(f"model{number}")

    def count_requests() -> None:
        while not ended.wait(1.0):
            for page in pages:
                _count(page)

    counting = Thread(target=count_requests, daemon=True)
    counting.start()
    try:
        yield [page.url for page in pages]
    finally:
        ended.set()
        counting.join()
        for page in pages:
            page.stop()


def _count(page: Any) -> None:  # noqa: ANN401 - an exporter of the tests
    for _ in range(RATE_RPS):
        page.arrive(INPUT_TOKENS)
        page.end(0.05, [0.01] * OUTPUT_TOKENS)
