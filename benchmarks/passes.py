"""Mixed replicas as a peer's engine simulator seems to have them, beside our replay.

    python -m benchmarks passes --data DIR

Known of the peer are its ITL and what its fleets attained on mooncake_conversation at a TTFT of 500 ms and an
ITL of 50 ms, without a prefix cache. An engine of that family, as its sources describe it, works in passes:

    tokens      one of each sequence that decodes, then of prompts in order, up to 8,192 together
    a pass      F(its prompt tokens) + ITL(KV usage), if it has any of either
    F(t)        4.21e-7 t² + 0.01518 t + 16.50 ms: the constant beside a batch, too, and t from 0 in each pass
    KV usage    tokens of the sequences that get a token in the pass, over 1,048,576

Ours adds W(u + c) − W(u) for tokens u to u + c of a prompt, F itself for a whole prompt that is alone.
Requests are placed by one of three loads of a replica; attained are shares of all requests.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.policies.recording import read
from headway.planning.replay import ReplayEngine, Requests, mixed_losses
from headway.planning.types import FloatArray, Slo
from headway.workload import TraceOptions
from interp import DecodeSamples, PrefillSamples, Profile, build_profile
from interp.jit import compiled

TRACE = Path("traces/mooncake_conversation.csv.gz")
FLEETS = (4, 6, 8, 10, 12, 16)
PEER = (53.0, 72.4, 81.4, 84.8, 85.9, 86.8)
SLO = Slo(ttft_s=0.5, itl_s=0.05)
PASS_TOKENS, MOST_RUNNING, KV_TOKENS = 8192, 256, 1_048_576.0

COUNT, HELD, OUTSTANDING = range(3)
LOADS = {
    COUNT: "requests",
    HELD: "prompt tokens of requests that have not ended",
    OUTSTANDING: "these, and once more those of prompts that have not been computed",
}


@compiled
def prompt_s(tokens: float) -> float:
    """F, in seconds."""
    return (4.209989e-7 * tokens * tokens + 1.518344e-2 * tokens + 16.50142) * 1e-3


@compiled
def itl_s(usage: float) -> float:
    """Seconds that the decoding of a pass takes, by KV usage."""
    return (-25.74 * usage * usage + 54.01 * usage + 5.74) * 1e-3


class Passes(NamedTuple):
    """Requests f8[N] with their progress, and replicas: when the pass under way ends, queues, batches.

    `queue` i8[n, N] from `head` to `tail` i8[n]; `batch` i8[n, MOST_RUNNING], `running` i8[n] of them; the
    load and the KV set aside of each.
    """

    input_tokens: FloatArray
    output_tokens: FloatArray
    computed: FloatArray
    produced: FloatArray
    first_s: FloatArray
    finish_s: FloatArray
    ends_s: FloatArray
    queue: NDArray[np.int64]
    head: NDArray[np.int64]
    tail: NDArray[np.int64]
    batch: NDArray[np.int64]
    running: NDArray[np.int64]
    load: FloatArray
    reserved: FloatArray


def make_passes(requests: Requests, replicas: int) -> Passes:
    """Idle replicas, all requests to come."""
    count = len(requests.arrival_s)
    zeros, ints = np.zeros(replicas), np.zeros(replicas, np.int64)
    return Passes(
        requests.input_tokens,
        requests.output_tokens,
        *np.zeros((2, count)),
        *np.full((2, count), np.inf),
        zeros,
        np.zeros((replicas, count), np.int64),
        ints,
        ints.copy(),
        np.zeros((replicas, MOST_RUNNING), np.int64),
        ints.copy(),
        zeros.copy(),
        zeros.copy(),
    )


@compiled
def replay(state: Passes, arrival_s: FloatArray, load: int) -> None:
    """Serve all requests."""
    for request in range(len(arrival_s)):
        for replica in range(len(state.ends_s)):
            _run_until(state, replica, arrival_s[request], load)
        replica = int(np.argmin(state.load))
        state.queue[replica, state.tail[replica]] = request
        state.tail[replica] += 1
        weight = 1.0 if load == COUNT else state.input_tokens[request]
        state.load[replica] += 2.0 * weight if load == OUTSTANDING else weight
    for replica in range(len(state.ends_s)):
        _run_until(state, replica, np.inf, load)


@compiled
def _run_until(state: Passes, replica: int, now_s: float, load: int) -> None:
    while state.ends_s[replica] < now_s:
        if state.running[replica] == 0 and state.head[replica] == state.tail[replica]:
            state.ends_s[replica] = now_s
            return
        _pass(state, replica, load)


@compiled
def _pass(state: Passes, replica: int, load: int) -> None:
    """One pass: prompt tokens, then a token of each sequence whose prompt is computed."""
    prompt_tokens = _prompt_tokens(state, replica)
    took_s, tokens = 0.0, 0.0
    if prompt_tokens > 0.0:
        took_s += prompt_s(prompt_tokens)
    for place in range(state.running[replica]):
        request = state.batch[replica, place]
        if state.computed[request] >= state.input_tokens[request]:
            tokens += state.input_tokens[request] + state.produced[request]
    if tokens > 0.0:
        took_s += itl_s(tokens / KV_TOKENS)
    state.ends_s[replica] += took_s
    left = 0
    for place in range(state.running[replica]):
        request = state.batch[replica, place]
        if not _ended(state, replica, request, load):
            state.batch[replica, left] = request
            left += 1
    state.running[replica] = left


@compiled
def _prompt_tokens(state: Passes, replica: int) -> float:
    """Compute prompts as far as the pass has room, and let new ones in."""
    room, computed = float(PASS_TOKENS), 0.0
    for place in range(state.running[replica]):
        request = state.batch[replica, place]
        if state.computed[request] >= state.input_tokens[request]:
            room -= 1.0
    for place in range(MOST_RUNNING):
        if room <= 0.0:
            break
        if place == state.running[replica] and not _admit(state, replica):
            break
        request = state.batch[replica, place]
        tokens = min(room, state.input_tokens[request] - state.computed[request])
        state.computed[request] += tokens
        computed, room = computed + tokens, room - tokens
    return computed


@compiled
def _admit(state: Passes, replica: int) -> bool:
    if state.head[replica] == state.tail[replica]:
        return False
    request = state.queue[replica, state.head[replica]]
    needed = state.input_tokens[request] + state.output_tokens[request]
    if state.reserved[replica] + needed > KV_TOKENS:
        return False
    state.reserved[replica] += needed
    state.head[replica] += 1
    state.batch[replica, state.running[replica]] = request
    state.running[replica] += 1
    return True


@compiled
def _ended(state: Passes, replica: int, request: int, load: int) -> bool:
    """Give the sequence its token, if its prompt is computed; True if it was the last one."""
    if state.computed[request] < state.input_tokens[request]:
        return False
    state.produced[request] += 1.0
    if state.produced[request] == 1.0:
        state.first_s[request] = state.ends_s[replica]
        if load == OUTSTANDING:
            state.load[replica] -= state.input_tokens[request]
    if state.produced[request] < state.output_tokens[request]:
        return False
    state.finish_s[request] = state.ends_s[replica]
    state.load[replica] -= 1.0 if load == COUNT else state.input_tokens[request]
    state.reserved[replica] -= state.input_tokens[request] + state.output_tokens[request]
    return True


def attained(requests: Requests, replicas: int, load: int) -> float:
    """The share of all requests that keep their SLO."""
    state = make_passes(requests, replicas)
    replay(state, requests.arrival_s, load)
    in_time = state.first_s - requests.arrival_s <= SLO.ttft_s
    decoding_s = state.finish_s - state.first_s
    return float(np.mean(in_time & (decoding_s <= SLO.itl_s * (requests.output_tokens - 1.0))))


def profile() -> Profile:
    """F and ITL, sampled."""
    tokens = np.array([1.0, *2.0 ** np.arange(6, 18)])
    ttft_s = np.array([prompt_s(each) for each in tokens])
    usage, context = (
        axis.ravel() for axis in np.meshgrid(np.linspace(0.002, 1.0, 60), 4.0 ** np.arange(3, 10))
    )
    iteration_s = np.array([itl_s(each) for each in usage])
    return build_profile(
        PrefillSamples(isl_tokens=tokens, ttft_s=ttft_s, throughput_per_gpu=tokens / ttft_s),
        DecodeSamples(
            kv_usage=usage,
            context_tokens=context,
            itl_s=iteration_s,
            throughput_per_gpu=usage * KV_TOKENS / context / iteration_s,
            max_kv_tokens=KV_TOKENS,
        ),
    )


def ours(requests: Requests) -> Sequence[float]:
    """What our loss curve says, of all requests."""
    engine = ReplayEngine(
        profile=profile(),
        slo=SLO,
        max_batch_size=MOST_RUNNING,
        chunk_tokens=PASS_TOKENS,
        transfer_latency_s=0.0,
        transfer_s_per_token=0.0,
    )
    kept = []
    for replicas in FLEETS:
        curve = mixed_losses(engine, requests, 0, replicas)
        kept.append((curve.requests - curve.at(replicas)) / len(requests.arrival_s))
    return kept


def main(data: Path | None) -> int:
    """Print the table; 0 also without data."""
    if data is None or not (data / TRACE).is_file():
        print("needs traces: --data DIR")
        return 0
    trace = read(data / TRACE, TraceOptions())
    columns = (trace.arrival_s, trace.input_tokens, trace.output_tokens)
    requests = Requests(*(column.astype(np.float64) for column in columns))
    print(f"| replicas | {' | '.join(map(str, FLEETS))} |\n|{'---|' * (1 + len(FLEETS))}")
    _row("our replay, placed by requests", ours(requests))
    for load, name in LOADS.items():
        _row(f"passes, placed by {name}", [attained(requests, each, load) for each in FLEETS])
    _row("the peer", [share / 100.0 for share in PEER])
    return 0


def _row(name: str, shares: Sequence[float]) -> None:
    print(f"| {name} | {' | '.join(f'{share:.1%}' for share in shares)} |", flush=True)
