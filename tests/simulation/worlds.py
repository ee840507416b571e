"""Small worlds for the simulator's tests: profiles by formula, traces from arrays, a scripted policy."""

from collections.abc import Iterator, Mapping, MutableSequence
from dataclasses import dataclass, field

import numpy as np

from headway.engine import EngineRules
from headway.planning.types import Decision, Observation, PoolLimits, Role, Slo
from headway.simulation.scenario import Scenario
from headway.simulation.simulate import Watchers, simulate
from headway.workload import RequestChunk
from interp import DecodeSamples, PrefillSamples, Profile, build_profile

SLO = Slo(ttft_s=0.5, itl_s=0.03)


def roofline_profile(
    base_s=0.008, per_token_s=4e-8, per_sequence_s=6e-5, capacity=100_000, prefill_s_per_token=4e-5
) -> Profile:
    """ITL = base + per_token K + per_sequence n on a grid of kv usage and context; TTFT nearly linear."""
    contexts = np.array([64.0, 256.0, 1024.0, 4096.0])
    usage = np.array([0.01, 0.1, 0.3, 0.6, 1.0])
    kv, context = (axis.ravel() for axis in np.meshgrid(usage, contexts))
    tokens = kv * capacity
    itl_s = base_s + per_token_s * tokens + per_sequence_s * tokens / context
    isl = np.array([16.0, 128.0, 1024.0, 8192.0])
    ttft_s = 0.004 + prefill_s_per_token * isl + 1e-10 * isl**2
    return build_profile(
        PrefillSamples(isl_tokens=isl, ttft_s=ttft_s, throughput_per_gpu=isl / ttft_s),
        DecodeSamples(
            kv_usage=kv,
            context_tokens=context,
            itl_s=itl_s,
            throughput_per_gpu=tokens / context / itl_s,
            max_kv_tokens=float(capacity),
        ),
    )


def constant_profile(itl_s: float, prefill_s_per_token: float, capacity=10**12) -> Profile:
    """ITL the same for every batch; TTFT = tokens × prefill_s_per_token from one token on."""
    isl = np.array([1.0, 1e7])
    return build_profile(
        PrefillSamples(
            isl_tokens=isl,
            ttft_s=isl * prefill_s_per_token,
            throughput_per_gpu=np.full(2, 1 / prefill_s_per_token),
        ),
        DecodeSamples(
            kv_usage=np.array([1e-9, 1.0]),
            context_tokens=np.array([1.0, 1.0]),
            itl_s=np.full(2, itl_s),
            throughput_per_gpu=np.array([1e-9, 1.0]) * capacity / itl_s,
            max_kv_tokens=float(capacity),
        ),
    )


@dataclass
class ArrayTrace:
    """A trace that lies in memory."""

    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    prompts: list[list[int]] = field(default_factory=list)
    rows: int = 65536

    @property
    def duration_s(self) -> float:
        return float(self.arrival_s[-1]) if len(self.arrival_s) else 0.0

    @property
    def blocks(self) -> np.ndarray:
        return np.array([block for prompt in self.prompts for block in prompt], np.int64)

    def chunks(self) -> Iterator[RequestChunk]:
        count = len(self.arrival_s)
        lengths = np.array([len(p) for p in self.prompts] or np.zeros(count), np.int32)
        starts = (
            np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
            if count
            else np.zeros(0, np.int64)
        )
        for first in range(0, count, self.rows):
            part = slice(first, first + self.rows)
            yield RequestChunk(
                arrival_s=self.arrival_s[part],
                input_tokens=np.asarray(self.input_tokens[part], np.int64),
                output_tokens=np.asarray(self.output_tokens[part], np.int64),
                block_start=starts[part],
                block_count=lengths[part],
                copy=np.zeros(len(self.arrival_s[part]), np.int32),
            )


def growing_prompts(generator, count: int, more: int = 4) -> list[list[int]]:
    """Prompts of blocks, each of which goes on from a random earlier one with fewer than `more` new ones."""
    prompts, fresh = [[0]], iter(range(1, 10**6))
    for _ in range(count - 1):
        parent = prompts[generator.integers(len(prompts))]
        kept = parent[: generator.integers(1, len(parent) + 1)]
        prompts.append(kept + [next(fresh) for _ in range(generator.integers(0, more))])
    return prompts


def poisson_trace(seed: int, count: int, rate_rps: float, isl_mean=600, osl_mean=120) -> ArrayTrace:
    """Poisson arrivals, exponential lengths."""
    generator = np.random.default_rng(seed)
    return ArrayTrace(
        np.cumsum(generator.exponential(1 / rate_rps, count)),
        1 + generator.exponential(isl_mean, count).astype(np.int64),
        1 + generator.exponential(osl_mean, count).astype(np.int64),
    )


def sparse_trace(until_s: float) -> ArrayTrace:
    """A short request each second."""
    times = np.arange(0.0, until_s + 0.5, 1.0)
    return ArrayTrace(times, np.full(len(times), 50), np.full(len(times), 5))


@dataclass
class Schedule:
    """A policy that follows a list of targets, one a tick, and keeps every observation."""

    targets: list[Mapping[Role, int]]
    interval_s: float = 60.0
    name: str = "schedule"
    seen: MutableSequence[Observation] = field(default_factory=list)

    def initial_state(self) -> int:
        return 0

    def plan(self, observation: Observation, state: int) -> Decision:
        self.seen.append(observation)
        targets = self.targets[min(state, len(self.targets) - 1)]
        return Decision(targets=targets, next_state=state + 1, reasons={})


def fleet(prefill: int, decode: int) -> dict[Role, int]:
    return {Role.PREFILL: prefill, Role.DECODE: decode}


def points(series, column: str) -> list[tuple[float, int]]:
    """When a count of replicas changed, and to what."""
    return list(zip(series.time_s, getattr(series, column), strict=True))


def scenario(profile: Profile, initial: Mapping[Role, int], **changes) -> Scenario:
    return Scenario(
        **{
            "profile": profile,
            "slo": SLO,
            "pools": {role: PoolLimits() for role in initial},
            "initial": initial,
            "engine": EngineRules(max_batch_size=64),
            **changes,
        }
    )


def run(setting: Scenario, trace: ArrayTrace, policy=None):
    """The result, and all finished records in order of the trace."""
    records = []
    result = simulate(
        setting, trace, policy or Schedule([setting.initial]), watchers=Watchers(finished=records.append)
    )
    joined = np.concatenate(records) if records else np.zeros(0)
    return result, joined[np.argsort(joined["number"])] if len(joined) else joined
