"""Advice on a live fleet of simulated engines against what acting makes meanwhile: two fleets side by side.

    python -m benchmarks advice_live [--quick]

Two deployments, each on a local Ray of its own, begin with the same replicas and get the same requests at the
same time. One stands fixed under a dry run, the other one's planner acts. What the dry run forecasts and what
the acting planner takes are held against each other over the intervals that the ledger of the dry run has:
ticks that a busy machine misses are in neither.

    stood        GPU-seconds of the fixed fleet, sampled; the ledger's own figure beside it
    forecast     1 - planned / stood of the ledger
    made         1 - GPU-seconds sampled of the acting fleet (starting and draining ones too) / stood

Engines are slowed down so that two cores carry both fleets, and so are the planner's times. Surfaces are not
corrected by traffic: on a busy machine that is the machine's hiccups, which no two fleets share. --quick: no
live fleet, but the same load and settings simulated on generated requests of several seeds.
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
from dataclasses import dataclass, field, replace
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.advice import DryRun, compared, watch
from benchmarks.policies.recording import read
from headway.config import load_config
from headway.planning import Role
from headway.planning.advice.ledger import summarise
from headway.simulation.build import make_plan, make_scenario, run
from headway.workload import TraceOptions

FLEET = {"prefill": 2, "decode": 4}
INTERVAL_S, DURATION_S, SAMPLE_S, READY_S = 4.0, 300.0, 0.5, 150.0
SCALE, SEEDS = 0.05, range(5, 13)


def load(seed: int, scale: float = 1.0) -> str:
    """The requests, with all times multiplied."""
    return (
        f"diurnal:rate_rps={2.0 / scale:g},amplitude=0.8,period_s={150.0 * scale:g},"
        f"duration_s={DURATION_S * scale:g},input_tokens=400,output_tokens=40,seed={seed}"
    )


SETTINGS: Mapping[str, Any] = {
    "engine.profile": "llama-3.1-8b_h100_tp1",
    "engine.time_scale": SCALE,
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
        """Note the replicas that there are."""
        pools = self.get("/v1/control/status")["pools"]
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
    verb = [sys.executable, "-m", "headway_cli", "load", load(SEEDS[0]), "--url", system.url]
    limits = ["--ttft-ms", str(SETTINGS["slo.ttft_ms"]), "--itl-ms", str(SETTINGS["slo.itl_ms"])]
    process = subprocess.Popen([*verb, *limits, "--json", str(output)], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def compare(watched: Live, acting: Live) -> dict[str, Any]:
    """Both under the same load, and what came of it."""
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
        kept = [json.loads(output.read_text()) for output in outputs]
    advice = watched.get("/v1/control/advice")
    points = [each for each in advice["points"] if began_s < each["end_at"] <= began_s + DURATION_S]
    return {
        "load_average": os.getloadavg(),
        "points": points,
        "window": advice["window"],
        "attained": [each["attainment"] for each in kept],
        "requests": [each["requests"] for each in kept],
        "seen": [system.seen for system in systems],
        "decisions": [system.get("/v1/control/decisions?limit=1000") for system in systems],
        **figures(watched, acting, points),
    }


def figures(watched: Live, acting: Live, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """GPU-seconds of both over the same intervals."""
    spans = [(each["start_at"], each["end_at"]) for each in points]
    spent = {
        fleet: sum(each[f"{fleet}_gpus"] * (each["end_at"] - each["start_at"]) for each in points)
        for fleet in ("stood", "planned")
    }
    stood, acted = watched.replica_s(spans), acting.replica_s(spans)
    forecast, made = 1.0 - spent["planned"] / spent["stood"], 1.0 - acted / stood
    return {
        "covered_s": sum(end - begin for begin, end in spans),
        **{f"ledger_{name}_s": value for name, value in spent.items()},
        "stood_s": stood,
        "acted_s": {phase: acting.replica_s(spans, [phase]) for phase in UP},
        "forecast": forecast,
        "made": made,
        "error": forecast / made - 1.0,
    }


def simulated(seed: int) -> dict[str, Any]:
    """The same on simulated fleets, whose engines run at full speed: all times are scaled with them."""
    times = ("slo.ttft_ms", "slo.itl_ms", "planner.adjustment_interval_s")
    times += tuple(f"planner.headway.{name}_s" for name in ("lead", "hold", "half_life"))
    settings = {
        "engine.profile": SETTINGS["engine.profile"],
        **{name: SETTINGS[name] * SCALE for name in times},
        **{f"pools.{role}.max_replicas": 2 * count for role, count in FLEET.items()},
        "simulation.start_up_delay_s": SETTINGS["planner.advice.start_up_s"] * SCALE,
    }
    plan = make_plan(load_config(None, settings))
    static = {"planner.policy": "static", **{f"planner.static.{role}": n for role, n in FLEET.items()}}
    acting = make_plan(load_config(None, {**settings, **static})).policy
    trace = read(load(seed, SCALE), TraceOptions())
    setting = replace(make_scenario(plan, trace), initial={Role(role): n for role, n in FLEET.items()})
    dry_run = DryRun(plan, settings["simulation.start_up_delay_s"])
    stood, dry_run = watch(dry_run, plan, acting, (setting, trace))
    summary = summarise(dry_run.ledger.since(0.0), start_up_known=True)
    assert summary is not None
    return compared(summary, stood, run(plan, setting, trace), plan)


def main(data: Path | None, output: Path | None = None, *, quick: bool = False) -> int:
    """Both fleets, and what was forecast beside what was made."""
    del data
    if quick:
        for seed in SEEDS:
            found = simulated(seed)
            forecast, made = found["forecast"][0], found["saved"]
            print(
                f"seed {seed}: forecast {forecast:.1%}, made {made:.1%}: off by {forecast / made - 1.0:+.1%}"
            )
        return 0
    with live(2) as (watched, acting):
        found = compare(watched, acting)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(found), encoding="utf-8")
    print("\n".join(table(found)))
    return 0


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """The comparison."""
    acted = ", ".join(f"{seconds:,.0f} {phase}" for phase, seconds in found["acted_s"].items())
    load = found["load_average"][1]
    yield f"{found['covered_s']:.0f} of {DURATION_S:.0f} s, load of the machine {load:.1f}"
    yield f"stood: {found['stood_s']:,.0f} replica-seconds (the ledger has {found['ledger_stood_s']:,.0f})"
    yield f"planned: {found['ledger_planned_s']:,.0f}; acted: {acted}"
    saved = f"forecast {found['forecast']:.1%}, made {found['made']:.1%}"
    yield f"saved: {saved}: off by {found['error']:+.1%}"
    kept = found["window"]["planned"]["attainment"]["value"]
    watched, acted_share = found["attained"]
    yield (
        f"in time: forecast {kept:.2%}, really {acted_share:.2%} of {found['requests'][1]} "
        f"(the fixed fleet {watched:.2%})"
    )
