"""The engines that are compared, under which load, with which profile.

A profile of vLLM is made of as many sweeps as there are repeats, each on an engine of its own and right
before a live replay on the same one, and every point has the runs of all of them: what slows the machine for
a while then slows both sides, a sample is the median over minutes, and no sweep finds an engine that has met
its lengths before.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.fidelity.figures import Figures, words
from benchmarks.fidelity.replays import live, simulated
from headway.config import HeadwayConfig
from headway.planning.types import Role
from headway.profiling.sweep import (
    Limits,
    Measured,
    SweepOptions,
    SweepPoint,
    Target,
    add_measured,
    open_measurements,
    sweep,
    sweep_points,
    swept_tables,
)
from headway.workload import open_trace
from headway_cli.profile_targets import EngineTarget
from interp import save_profile
from serve_apps.arguments import beside
from serve_apps.engines import make_engine

BUDGET_S = 60.0
"""Of one sweep, as `headway profile --budget 1` has it."""
VLLM = str(Path(__file__).parents[2] / "examples" / "vllm-cpu.yaml")
ONE_REPLICA: Mapping[str, Any] = {
    "engine.chunk_tokens": 2048,
    "pools": {"mixed": {"min_replicas": 1, "max_replicas": 1}},
    "planner.policy": "static",
    "routing.profile": "least_load",
}
BURST = "steady:rate_rps=10000,duration_s=0.01,seed=1"
VLLM_LOADS = {
    "steady": "steady:rate_rps=8,duration_s=20,seed=1,input_tokens=800,input_cv=0.3,output_tokens=100",
    "burst": f"{BURST},input_tokens=800,input_cv=0.3,output_tokens=100",
}
SIMULATED_LOADS = {
    "steady": "steady:rate_rps=4,duration_s=20,seed=1,input_tokens=3000,output_tokens=150",
    "burst": f"{BURST},input_tokens=3000,output_tokens=150",
}

Live = Mapping[str, Sequence[Figures]]
"""By load: one entry per repeat."""
Simulated = Mapping[str, Figures]
Points = Mapping[SweepPoint, Measured]


async def of_vllm(repeats: int, folder: Path) -> tuple[Live, Simulated]:
    """The tiny vLLM live, and simulated with the profile that is measured meanwhile; files go to `folder`."""
    from serve_apps.engines.vllm.tiny import build

    build(folder / "model")
    settings = {**ONE_REPLICA, "engine.vllm.model": str(folder / "model")}
    sweeps, played = list[Points](), {name: list[Figures]() for name in VLLM_LOADS}
    for repeat in range(repeats):
        async with vllm(beside(VLLM, settings)) as (target, limits):
            sweeps.append(await swept(target, limits, folder / f"{repeat}.jsonl", seed=repeat))
            await play(target, VLLM_LOADS, repeat, played)
    tables = swept_tables(merged(sweeps), gpus=1, max_kv_tokens=limits.max_kv_tokens)
    save_profile(folder / "profile", tables.prefill, tables.decode)
    return played, simulate(beside(VLLM, {**settings, "engine.profile": str(folder / "profile")}), VLLM_LOADS)


async def of_simulated(repeats: int) -> tuple[Live, Simulated]:
    """The simulated engine live, and the simulator, both with the default profile."""
    config, played = beside(None, ONE_REPLICA), {name: list[Figures]() for name in SIMULATED_LOADS}
    target = EngineTarget(make_engine(config, Role.MIXED, "fidelity"), config.model)
    for repeat in range(repeats):
        await play(target, SIMULATED_LOADS, repeat, played)
    return played, simulate(config, SIMULATED_LOADS)


@asynccontextmanager
async def vllm(config: HeadwayConfig) -> AsyncIterator[tuple[Target, Limits]]:
    """A vLLM engine in this process, and what it holds."""
    from serve_apps.engines.vllm.engine import VllmEngine

    engine = VllmEngine(config, Role.MIXED, "fidelity")
    try:
        holds = engine.sizes()
        limits = Limits(
            max_request_tokens=holds.request_tokens, max_kv_tokens=holds.kv_tokens, max_batch=holds.batch
        )
        yield EngineTarget(engine, config.model), limits
    finally:
        engine.close()


async def swept(target: Target, limits: Limits, path: Path, seed: int) -> Points:
    """The points of one sweep."""
    clock = asyncio.get_running_loop().time
    options = SweepOptions(clock=clock, progress=lambda *_: None, seed=seed, ends_s=clock() + BUDGET_S)
    measurements = open_measurements(path, {})
    await sweep(target, sweep_points(limits), measurements, options)
    return measurements.points


def merged(sweeps: Sequence[Points]) -> Points:
    """Every point with the runs of all sweeps; one that no sweep could measure stays unmeasurable."""
    found = dict[SweepPoint, Measured]()
    for point, measured in chain.from_iterable(points.items() for points in sweeps):
        add_measured(found, point, measured)
    return found


async def play(
    target: Target, loads: Mapping[str, str], repeat: int, played: Mapping[str, list[Figures]]
) -> None:
    """One live repeat of every load."""
    for name, spec in loads.items():
        with open_trace(spec) as trace:
            played[name].append(await live(target, trace, seed=1000 + repeat))
        load = f"load average {os.getloadavg()[0]:.1f}"
        print(f"  {name:8} {words(played[name][-1])}, {load}", flush=True)


def simulate(config: HeadwayConfig, loads: Mapping[str, str]) -> Simulated:
    """Every load once: the simulator is deterministic."""
    found = dict[str, Figures]()
    for name, spec in loads.items():
        with open_trace(spec) as trace:
            found[name] = simulated(config, trace)
    return found
