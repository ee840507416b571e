"""One gateway process and two on one port: CPU of a request, requests a second, and a kill.

    processes   gateways as Serve runs them (app, HTTP server, handed-over socket), each pinned to a core of
                its own, over a backend in the process that costs next to nothing: no Ray, no engines
    load        unary requests of 1 KB and one token, one under way on each connection, from one process that
                sends prepared bytes. It runs on the gateways' cores and takes its share of them (shown)
    rate        requests a second by the clock; and requests for each second of the gateways' own CPU time,
                times the number of gateways: what they do where nothing else is on their cores
    served      the same load through Ray Serve to a fast simulated engine: CPU of a request of the gateways
                alone, which share the cores with engine, Ray and load; a rate would say nothing
    kill        SIGKILL of one of two under that load, while one new connection after the other asks /health:
                until the first answer to one that began afterwards, and how many of those were not answered

Rounds of one and of two alternate; a ratio is that of two neighbouring rounds.
"""

import asyncio
import json
import logging
import multiprocessing
import os
import selectors
import signal
import socket
import statistics
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.processes import cpu_s, descendants
from headway.config import HeadwayConfig
from headway.words import plural
from serve_apps.engines.protocol import Aside, AsideAnswer, EngineRequest, TokenChunk
from serve_apps.gateway.backend import Readiness, ReplicaLoad, TakeChunk
from serve_apps.gateway.timeline import Timeline

ROUNDS = 5
ROUND_S = 4.0
CONNECTIONS = 32
KILLS = 5
AIM = 1.6
HOST = "127.0.0.1"
PATIENCE_S = 60.0
MODEL = "llama-3.1-8b"
BODY = json.dumps({"model": MODEL, "prompt": "x" * 1000, "max_tokens": 1}).encode()
REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
HEALTH = b"GET /health HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n"
OK = b"HTTP/1.1 200"


class NoEngine:
    """A backend that has one token at once."""

    async def generate(
        self, request: EngineRequest, timeline: Timeline | None = None, taker: TakeChunk | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        """One token."""
        del request, timeline, taker
        yield TokenChunk(b"{}", 1, "length")

    async def aside(self, question: Aside) -> AsideAnswer:
        """There is none."""
        raise NotImplementedError

    def complete(self, request_id: str) -> None:
        """Nobody wants to know."""

    def ready(self) -> Readiness:
        """Always."""
        return Readiness(ok=True)

    def replicas(self) -> Sequence[ReplicaLoad]:
        """None."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Requests of one round, CPU seconds of each gateway and of the load, seconds by the clock."""

    requests: int
    gateways_s: Sequence[float]
    load_s: float
    wall_s: float

    @property
    def rate(self) -> float:
        return self.requests / self.wall_s

    @property
    def per_request_ms(self) -> float:
        return 1e3 * sum(self.gateways_s) / self.requests

    @property
    def alone(self) -> float:
        """Requests a second of gateways that have their cores to themselves and are all busy."""
        return len(self.gateways_s) * self.requests / sum(self.gateways_s)


def main(data: Path | None) -> int:
    """Print the figures of one and of two gateways, and of the kills."""
    del data  # needs none
    rounds = [[measured(count) for count in (1, 2)] for _ in range(ROUNDS + 1)][1:]
    for place, count in enumerate((1, 2)):
        show(count, [both[place] for both in rounds])
    for name in ("rate", "alone"):
        ratios = sorted(getattr(two, name) / getattr(one, name) for one, two in rounds)
        said = "by the clock" if name == "rate" else "per CPU second of the gateways"
        print(f"{statistics.median(ratios):.2f} x ({ratios[0]:.2f} to {ratios[-1]:.2f}) {said}, aim {AIM:g}")
    for count in (1, 2):
        costs, shares = zip(*served(count), strict=True)
        said = ", ".join(f"{cost:.2f}" for cost in costs)
        least = 100 * statistics.median(shares)
        print(f"{plural(count, 'gateway')} of Serve: {said} ms CPU each, the idler one {least:.0f} % of it")
    kills = [killed() for _ in range(KILLS)]
    through = sorted(1e3 * each[0] for each in kills)
    asked, lost = sum(each[1] for each in kills), sum(each[2] for each in kills)
    print(
        f"kill: a new connection is answered after {statistics.median(through):.0f} ms ({through[0]:.0f} to"
        f" {through[-1]:.0f}); of {asked} new ones {lost} had no answer"
    )
    return 0


def show(count: int, rounds: Sequence[Round]) -> None:
    rates, costs = ([getattr(one, name) for one in rounds] for name in ("rate", "per_request_ms"))
    least = [min(one.gateways_s) / sum(one.gateways_s) for one in rounds]
    load = statistics.median(one.load_s / one.wall_s for one in rounds)
    busy = statistics.median(sum(one.gateways_s) / one.wall_s for one in rounds)
    print(
        f"{plural(count, 'gateway')}: {statistics.median(rates):.0f} requests/s"
        f" ({min(rates):.0f} to {max(rates):.0f}),"
        f" {statistics.median(costs):.3f} ms CPU each ({min(costs):.3f} to {max(costs):.3f});"
        f" they took {busy:.2f} cores, the idler one {100 * statistics.median(least):.0f} % of that;"
        f" the load {load:.2f}"
    )


def measured(count: int) -> Round:
    """One round of load on so many gateways."""
    with gateways(count) as (port, processes):
        pids = [process.pid for process in processes if process.pid is not None]
        flood(port, 0.5)
        before, own_s, began_s = [cpu_s([pid]) for pid in pids], time.process_time(), time.monotonic()
        requests = flood(port, ROUND_S)
        return Round(
            requests=requests,
            gateways_s=[cpu_s([pid]) - spent_s for pid, spent_s in zip(pids, before, strict=True)],
            load_s=time.process_time() - own_s,
            wall_s=time.monotonic() - began_s,
        )


def served(count: int) -> list[tuple[float, float]]:
    """Of each round on Serve, ms of the gateways' CPU for a request, and the part of the idler one."""
    from ray import serve

    from benchmarks.gateway import cluster
    from serve_apps.builders import application

    settings = {
        "model": MODEL,
        "engine": {"time_scale": 10.0},
        "pools": {"mixed": {"max_replicas": 1}},
        "gateway": {"port": free_port(), "replicas": count},
    }
    config, rounds = HeadwayConfig.model_validate(settings), []
    with cluster():
        serve.start(proxy_location="Disabled")
        serve.run(application(config, control_plane=False), name="headway")
        named = descendants(os.getpid())
        pids = [pid for pid, title in named.items() if "ServeReplica:headway:Gateway" in title]
        if len(pids) != count:
            raise RuntimeError(f"{len(pids)} processes are gateways, not {count}")
        for _ in range(ROUNDS + 1):
            before = [cpu_s([pid]) for pid in pids]
            requests = flood(config.gateway.port, ROUND_S)
            spent = [cpu_s([pid]) - spent_s for pid, spent_s in zip(pids, before, strict=True)]
            rounds.append((1e3 * sum(spent) / requests, min(spent) / sum(spent)))
    return rounds[1:]


def flood(port: int, seconds: float) -> int:
    """Keep a request under way on each connection for so long; how many were answered."""
    done, end_s, heard = 0, time.monotonic() + seconds, dict[int, bytes]()
    with selectors.DefaultSelector() as selector:
        for _ in range(CONNECTIONS):
            connection = socket.create_connection((HOST, port))
            selector.register(connection, selectors.EVENT_READ)
            connection.sendall(REQUEST)
        while time.monotonic() < end_s:
            for key, _ in selector.select(0.1):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                answer = heard.pop(key.fd, b"") + connection.recv(65_536)
                if not answer.startswith(OK):
                    raise RuntimeError(f"a request was not answered with 200: {answer[:100]!r}")
                if answer.endswith(b"}"):
                    done += 1
                    connection.sendall(REQUEST)
                else:
                    heard[key.fd] = answer
        for key in list(selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
    return done


def killed() -> tuple[float, int, int]:
    """Seconds from a kill to the first answer, new connections since, and how many of them had no answer."""
    with gateways(2) as (port, processes):
        context = multiprocessing.get_context("spawn")
        load = context.Process(target=_flood_through, args=(port, 3.0))
        load.start()
        time.sleep(1.5)
        victim = processes[0]
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        killed_s, first_s = time.monotonic(), 0.0
        asked = lost = 0
        while time.monotonic() < killed_s + 1.0:
            asked += 1
            if not healthy(port):
                lost += 1
            elif not first_s:
                first_s = time.monotonic() - killed_s
        load.join()
    return first_s or float("inf"), asked, lost


def healthy(port: int) -> bool:
    """Whether a new connection is answered."""
    try:
        with socket.create_connection((HOST, port), timeout=5.0) as connection:
            connection.sendall(HEALTH)
            return connection.recv(65_536).startswith(OK)
    except OSError:
        return False


def _flood_through(port: int, seconds: float) -> None:
    """Load that a kill breaks off and that begins again."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        with suppress(OSError, RuntimeError):
            flood(port, left_s)


@contextmanager
def gateways(count: int) -> Iterator[tuple[int, Sequence[BaseProcess]]]:
    """So many processes at one port that answer, each on a core of its own as far as there are cores."""
    context, port = multiprocessing.get_context("spawn"), free_port()
    cores = sorted(os.sched_getaffinity(0))
    processes: list[BaseProcess] = []
    try:
        for number in range(count):
            ready = context.Event()
            process = context.Process(target=_gateway, args=(port, count, cores[number % len(cores)], ready))
            process.start()
            processes.append(process)
            if not ready.wait(PATIENCE_S):
                raise RuntimeError("a gateway does not start")
        yield port, processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def _gateway(port: int, among: int, core: int, ready: "multiprocessing.synchronize.Event") -> None:
    import uvloop

    logging.disable(logging.WARNING)
    os.sched_setaffinity(0, {core})
    # As Ray's processes have it.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(port, among, ready))


async def _serve(port: int, among: int, ready: "multiprocessing.synchronize.Event") -> None:
    from serve_apps.gateway.app import make_app
    from serve_apps.gateway_host import HttpServer

    config = HeadwayConfig.model_validate({"model": MODEL, "gateway": {"max_requests": 4096}})
    server = HttpServer(make_app(config, NoEngine()), HOST, port, place=f"benchmark {port}", among=among)
    await server.start()
    ready.set()
    await asyncio.Event().wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
