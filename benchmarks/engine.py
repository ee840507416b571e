"""Cost of a simulated engine on the real clock: the model alone, streams on an event loop, its start.

    python -m benchmarks engine

CPU times of this process, so that a busy machine matters little. The data directory is not needed.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path

import uvloop

from headway.config import HeadwayConfig
from headway.engine import LiveEngine, engine_profile, engine_rules
from headway.planning.types import Role
from serve_apps.engines import make_engine
from serve_apps.engines.protocol import EngineRequest, KvHandle

BATCHES = (1, 16, 64, 256)
ITERATIONS = 5_000
TOKENS = 200
STARTS = 5
INPUT_TOKENS = 500

START = """
import resource, time
wall, cpu = time.perf_counter(), time.process_time()
from headway.config import HeadwayConfig
from headway.planning.types import Role
from serve_apps.engines import make_engine
make_engine(HeadwayConfig(), Role.DECODE, "decode-1")
kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(time.perf_counter() - wall, time.process_time() - cpu, kilobytes / 1024)
"""


def main(data: Path | None) -> int:
    print(
        "model alone, a request leaves and one joins every few iterations: microseconds of CPU per iteration"
    )
    for batch in BATCHES:
        print(f"  batch {batch:4d}  {_model_us(batch):6.1f}")
    print(f"a timer's wake-up on this machine: {uvloop.run(_wake_up()):.0f} microseconds of CPU")
    print(
        f"streams of {TOKENS} tokens on uvloop: microseconds of CPU per token, wake-ups and reader included"
    )
    for batch in BATCHES:
        cpu_us, chunks = uvloop.run(_streams(batch))
        print(f"  {batch:4d} streams  {cpu_us:6.1f}  ({chunks:.3f} chunks per token)")
    wall_s, cpu_s, megabytes = (statistics.median(column) for column in zip(*_starts(), strict=True))
    print(f"fresh process, imports and profile: {wall_s:.2f} s, {cpu_s:.2f} s of CPU, {megabytes:.0f} MB")
    return 0


def _model_us(batch: int) -> float:
    config = HeadwayConfig()
    profile = engine_profile(config)
    engine, number = LiveEngine(profile, engine_rules(config, profile), Role.DECODE), 0
    begun_s = time.process_time()
    for _ in range(ITERATIONS):
        while engine.running + engine.waiting < batch:
            engine.submit(str(number), INPUT_TOKENS, TOKENS + number % 101, prefilled=True, at_s=0.0)
            number += 1
        engine.advance(engine.next_boundary_s() or 0.0)
    return 1e6 * (time.process_time() - begun_s) / ITERATIONS


async def _wake_up() -> float:
    begun_s = time.process_time()
    for _ in range(TOKENS):
        await asyncio.sleep(0.005)
    return 1e6 * (time.process_time() - begun_s) / TOKENS


async def _streams(count: int) -> tuple[float, float]:
    engine = make_engine(HeadwayConfig(), Role.DECODE, "decode-1")

    async def read(number: int) -> int:
        name, chunks = str(number), 0
        asked = EngineRequest(
            request_id=name, model="m", prompt=name, input_tokens=INPUT_TOKENS, max_tokens=TOKENS
        )
        kv = KvHandle(request_id=name, engine_id="prefill-1", input_tokens=INPUT_TOKENS)
        async for _ in engine.decode(asked, kv):
            chunks += 1
        return chunks

    begun_s = time.process_time()
    chunks = sum(await asyncio.gather(*(read(number) for number in range(count))))
    tokens = count * TOKENS
    return 1e6 * (time.process_time() - begun_s) / tokens, chunks / tokens


def _starts() -> list[list[float]]:
    command = [sys.executable, "-c", START]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(STARTS)]
    return [[float(part) for part in run.stdout.split()] for run in runs]
