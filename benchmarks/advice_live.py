"""Advice on a live fleet of simulated engines against what acting makes meanwhile: two fleets side by side.

    python -m benchmarks advice_live

Two deployments, each on a local Ray of its own, begin with the same replicas and get the same requests at the
same time. One stands fixed under a dry run, the other one's planner acts. What the dry run forecasts and what
the acting planner takes are held against each other over the intervals that the ledger of the dry run has:
ticks that a busy machine misses are in neither.

    stood        GPU-seconds of the fixed fleet, sampled; the ledger's own figure beside it
    forecast     1 - planned / stood of the ledger
    made         1 - GPU-seconds sampled of the acting fleet (starting and draining ones too) / stood

Engines are slowed down so that two cores carry both fleets, and so are the planner's times. Surfaces are not
corrected by traffic: on a busy machine that is the machine's hiccups, which no two fleets share.
`benchmarks.advice` does the same with simulated fleets.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from headway.config import load_config

FLEET = {"prefill": 2, "decode": 4}
INTERVAL_S, DURATION_S, SAMPLE_S, READY_S = 4.0, 300.0, 0.5, 300.0
LOAD = (
    f"diurnal:rate_rps=2,amplitude=0.8,period_s=150,duration_s={DURATION_S:g},"
    "input_tokens=400,output_tokens=40,seed=5"
)
SETTINGS: Mapping[str, Any] = {
    "engine.profile": "llama-3.1-8b_h100_tp1",
    "engine.time_scale": 0.05,
    "engine.start_up_s": 3.0,
    "engine.refinement.enabled": False,
    "slo.ttft_ms": 4000.0,
    "slo.itl_ms": 150.0,
    "planner.policy": "headway",
    "planner.adjustment_interval_s": INTERVAL_S,
    "planner.tick_deadline_s": 0.9 * INTERVAL_S,
    "planner.headway.lead_s": 6.0,
    "planner.headway.hold_s": 20.0,
    "planner.headway.half_life_s": 600.0,
    "planner.advice.start_up_s": 6.0,
    "planner.dry_run": True,
    **{f"pools.{role}.max_replicas": 2 * count for role, count in FLEET.items()},
    **{f"pools.{role}.min_replicas": count for role, count in FLEET.items()},
}
UP = ("starting", "ready", "draining")


@dataclass(slots=True)
class Live:
    """One deployment, over HTTP, and its replicas by role and phase as they were seen."""

    url: str
    seen: list[tuple[float, Mapping[str, Mapping[str, int]]]] = field(default_factory=list)

    def get(self, path: str) -> Any:  # noqa: ANN401 - any JSON
        with urllib.request.urlopen(self.url + path, timeout=20.0) as answer:
            return json.load(answer)

    def change(self, settings: Mapping[str, Any]) -> None:
        body, kind = json.dumps(settings).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{self.url}/v1/control/settings", data=body, headers=kind, method="PATCH"
        )
        urllib.request.urlopen(request, timeout=20.0).close()

    def look(self) -> None:
        """Note the replicas that there are; where a busy machine does not answer, those before stand."""
        try:
            pools = self.get("/v1/control/status")["pools"]
        except OSError:
            return
        counts = {role: {phase: pool[phase] or 0 for phase in UP} for role, pool in pools.items()}
        self.seen.append((time.time(), counts))

    def ready(self) -> bool:
        try:
            pools = self.get("/v1/control/status")["pools"]
        except OSError:
            return False
        return all(pools[role]["ready"] == count for role, count in FLEET.items())

    def replica_s(self, spans: Sequence[tuple[float, float]], phases: Sequence[str] = UP) -> float:
        """Replica-seconds in these spans; what is seen holds until it is looked again."""
        found = 0.0
        for (at_s, pools), (until_s, _) in pairwise([*self.seen, (float("inf"), {})]):
            count = sum(pool[phase] for pool in pools.values() for phase in phases)
            found += count * sum(max(0.0, min(until_s, end) - max(at_s, begin)) for begin, end in spans)
        return found


def _serve(pipe: Connection, number: int) -> None:
    """A deployment on a Ray of its own, until the pipe says that it is enough."""
    import ray
    from ray import serve

    from headway_cli.cluster import start_ray
    from serve_apps.builders import application
    from serve_apps.engines import make_engine
    from tests.ports import free_port

    with tempfile.TemporaryDirectory(prefix=f"hw{number}-", ignore_cleanup_errors=True) as folder:
        start_ray(
            address="local",
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        try:
            serve.start(proxy_location="Disabled")
            port = free_port()
            app = application(load_config(None, {**SETTINGS, "gateway.port": port}), make_engine)
            serve.run(app, name="headway", route_prefix="/", external_scaler_enabled=True)
            pipe.send(f"http://127.0.0.1:{port}")
            pipe.recv()
        finally:
            serve.shutdown()
            ray.shutdown()


@contextmanager
def live(count: int) -> Iterator[Sequence[Live]]:
    """Deployments in processes of their own, started at once, with their first replicas ready."""
    context = get_context("spawn")
    processes, pipes = [], []
    try:
        for number in range(count):
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=_serve, args=(theirs, number)))
            pipes.append(ours)
            processes[-1].start()
            theirs.close()
        systems = [Live(pipe.recv()) for pipe in pipes]
        give_up_s = time.monotonic() + READY_S
        while not all(system.ready() for system in systems):
            if time.monotonic() > give_up_s:
                raise TimeoutError(f"the fleets are not ready within {READY_S:g} s")
            time.sleep(SAMPLE_S)
        yield systems
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            with suppress(OSError):
                pipe.send("end")
            process.join()


@contextmanager
def loaded(system: Live, output: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The load runs beside the block."""
    verb = [sys.executable, "-m", "headway_cli", "load", LOAD, "--url", system.url]
    limits = ["--ttft-ms", str(SETTINGS["slo.ttft_ms"]), "--itl-ms", str(SETTINGS["slo.itl_ms"])]
    process = subprocess.Popen([*verb, *limits, "--json", str(output)], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def serve_both(watched: Live, acting: Live) -> tuple[float, Sequence[Mapping[str, Any]]]:
    """The same load on both at once: when it began, and what `headway load` tells of each."""
    free = {f"pools.{role}.min_replicas": 1 for role in FLEET}
    watched.change(free)
    acting.change({**free, "planner.dry_run": False})
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        outputs = [Path(folder, name) for name in ("watched.json", "acting.json")]
        systems = (watched, acting)
        loads = [stack.enter_context(loaded(*each)) for each in zip(systems, outputs, strict=True)]
        began_s = time.time()
        while any(load.poll() is None for load in loads):
            for system in systems:
                system.look()
            time.sleep(SAMPLE_S)
        return began_s, [json.loads(output.read_text()) for output in outputs]


def main(data: Path | None) -> int:
    """Both fleets, and what was forecast beside what was made."""
    del data
    with live(2) as (watched, acting):
        print(f"both fleets are ready; the load takes {DURATION_S:.0f} s", file=sys.stderr, flush=True)
        began_s, kept = serve_both(watched, acting)
        print("\n".join(compared(watched, acting, began_s, kept)))
    return 0


def compared(watched: Live, acting: Live, began_s: float, kept: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Replica-seconds of both over the same intervals, and requests in time, forecast and real."""
    advice = watched.get("/v1/control/advice")
    points = [each for each in advice["points"] if began_s < each["end_at"] <= began_s + DURATION_S]
    spans = [(each["start_at"], each["end_at"]) for each in points]
    ledger_stood, planned = (
        sum(each[f"{fleet}_gpus"] * (each["end_at"] - each["start_at"]) for each in points)
        for fleet in ("stood", "planned")
    )
    stood = watched.replica_s(spans)
    forecast, made = 1.0 - planned / ledger_stood, 1.0 - acting.replica_s(spans) / stood
    acted = ", ".join(f"{acting.replica_s(spans, [phase]):,.0f} {phase}" for phase in UP)
    covered_s = sum(end - begin for begin, end in spans)
    yield f"{covered_s:.0f} of {DURATION_S:.0f} s, load of the machine {os.getloadavg()[1]:.1f}"
    yield f"stood: {stood:,.0f} replica-seconds (the ledger has {ledger_stood:,.0f})"
    yield f"planned: {planned:,.0f}; acted: {acted}"
    yield f"saved: forecast {forecast:.1%}, made {made:.1%}: off by {forecast / made - 1.0:+.1%}"
    in_time = advice["window"]["planned"]["attainment"]["value"]
    yield (
        f"in time: forecast {in_time:.2%}, really {kept[1]['attainment']:.2%} of {kept[1]['requests']} "
        f"(the fixed fleet {kept[0]['attainment']:.2%})"
    )
