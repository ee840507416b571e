"""The same trace on the same settings, on an engine of this process and in the simulator.

live        open loop: a request leaves when it is due, whatever became of those before it. No HTTP and no
            gateway: what is compared is the engine
simulated   one mixed replica, with the profile that the settings name
"""

import asyncio
from collections.abc import Sequence

import numpy as np

from benchmarks.fidelity.figures import Figures, figures_of
from headway.config import HeadwayConfig
from headway.profiling.sweep import StreamTimes, Target
from headway.profiling.sweep.measure import HIGHEST_ID, LOWEST_ID
from headway.simulation.build import make_plan, make_scenario, run
from headway.simulation.records import quantile
from headway.simulation.simulate import Watchers
from headway.workload import Trace


async def live(target: Target, trace: Trace, seed: int) -> Figures:
    """The trace on `target`. Each seed and trace has random prompts of its own, for prefix caches to miss."""
    requests = next(trace.chunks(trace.request_count))
    generator = np.random.default_rng((seed, trace.request_count))
    prompts = [generator.integers(LOWEST_ID, HIGHEST_ID, n).tolist() for n in requests.input_tokens]
    due_s = (asyncio.get_running_loop().time() + requests.arrival_s).tolist()
    outputs = requests.output_tokens.tolist()
    asked = zip(due_s, prompts, outputs, strict=True)
    return figures_of(await asyncio.gather(*(_at(due, target, *request) for due, *request in asked)))


def simulated(config: HeadwayConfig, trace: Trace) -> Figures:
    """The trace on the settings' fixed fleet; the replica has all the time that it needs to end."""
    plan, ended = make_plan(config), list[np.ndarray]()
    result = run(plan, make_scenario(plan, trace), trace, Watchers(finished=ended.append))
    records = np.concatenate(ended)
    window_s = records["finished_s"].max() - records["arrival_s"].min()
    return Figures(
        ttft_ms=1e3 * float(np.median(records["first_token_s"] - records["arrival_s"])),
        itl_ms=1e3 * quantile(result.tally.latencies["itl_s"].counts, 0.5),
        tokens_per_s=float(records["output_tokens"].sum() / window_s),
    )


async def _at(due_s: float, target: Target, prompt: Sequence[int], output_tokens: int) -> StreamTimes:
    await asyncio.sleep(due_s - asyncio.get_running_loop().time())
    return await target.stream(prompt, output_tokens)
