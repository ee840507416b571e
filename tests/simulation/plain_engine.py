"""The engine model a second time, token by token in plain Python: what the compiled kernel is held against.

Deliberately simple and slow: every iteration of every replica is a step of a loop, durations come from the
profile's public surfaces, and nothing is shared with the kernel.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np


@dataclass
class Rules:
    max_batch: int
    capacity: float
    chunk_tokens: int = 0
    transfer_latency_s: float = 0.0
    transfer_s_per_token: float = 0.0


@dataclass
class Job:
    number: int
    ready_s: float
    input_tokens: int
    output_tokens: int
    context: int = 0
    left: int = 0
    done: int = 0
    first_token_s: float = -1.0
    finished_s: float = -1.0
    gaps: list = None


def prefill_replica(jobs: list[Job], profile) -> None:
    """FIFO, one prompt at a time."""
    free_s = 0.0
    for job in sorted(jobs, key=lambda j: (j.ready_s, j.number)):
        free_s = max(free_s, job.ready_s) + profile.prefill.ttft_s(job.input_tokens)
        job.ready_s = free_s


def decode_replica(jobs: list[Job], profile, rules: Rules) -> None:
    """Continuous batching; a job is admitted at the end of an iteration if batch and KV have room."""
    coming = deque(sorted(jobs, key=lambda j: (j.ready_s, j.number)))
    waiting, running = deque(), []
    now_s = 0.0
    while coming or waiting or running:
        now_s = _arrive(coming, waiting, running, now_s)
        while waiting and _fits(waiting[0], running, rules):
            _join(waiting.popleft(), running)
        now_s = _iterate(running, now_s, _itl_s(running, profile, rules))


def mixed_replica(jobs: list[Job], profile, rules: Rules) -> None:
    """Prefill chunks and decodes share iterations."""
    coming = deque(sorted(jobs, key=lambda j: (j.ready_s, j.number)))
    waiting, running = deque(), []
    now_s = 0.0
    while coming or waiting or running:
        now_s = _arrive(coming, waiting, running, now_s)
        budget, chunk, touched, added_s = rules.chunk_tokens, [], list(running), 0.0
        for job in waiting:
            if budget == 0 or not _fits(job, touched, rules):
                break
            touched.append(job)
            tokens = min(budget, job.input_tokens - job.done)
            added_s += _work(profile, job.done + tokens) - _work(profile, job.done)
            budget -= tokens
            chunk.append((job, tokens))
        base_s = _itl_s(running, profile, rules) if running else _work(profile, 0)
        now_s = _iterate(running, now_s, base_s + added_s)
        for job, tokens in chunk:
            job.done += tokens
            if job.done == job.input_tokens:
                waiting.popleft()
                job.first_token_s = now_s
                if job.output_tokens == 1:
                    job.finished_s = now_s
                else:
                    _join(job, running)


def _arrive(coming: deque[Job], waiting: deque[Job], running: list[Job], now_s: float) -> float:
    """Queue what has arrived by now, or by the next arrival if there is nothing to do before; the time."""
    if not waiting and not running:
        now_s = max(now_s, coming[0].ready_s)
    while coming and coming[0].ready_s <= now_s:
        waiting.append(coming.popleft())
    return now_s


def _work(profile, tokens: int) -> float:
    """TTFT's running maximum over the samples, down to 0 tokens with the slope of the first segment."""
    isl, ttft = profile.prefill.samples.isl_tokens, np.maximum.accumulate(profile.prefill.samples.ttft_s)
    if tokens > isl[-1]:
        return float(profile.prefill.ttft_s(float(tokens)))
    start = max(0.0, ttft[0] - (ttft[1] - ttft[0]) / (isl[1] - isl[0]) * isl[0])
    return float(np.interp(tokens, [0.0, *isl], [start, *ttft]))


def _fits(job: Job, running: list[Job], rules: Rules) -> bool:
    reserved = sum(other.input_tokens + other.output_tokens for other in running)
    return (
        len(running) < rules.max_batch and reserved + job.input_tokens + job.output_tokens <= rules.capacity
    )


def _join(job: Job, running: list[Job]) -> None:
    produced = int(job.first_token_s >= 0)
    job.context, job.left, job.gaps = job.input_tokens + produced, job.output_tokens - produced, []
    running.append(job)


def _itl_s(running: list[Job], profile, rules: Rules) -> float:
    tokens = sum(job.context for job in running)
    return float(profile.decode.itl_s(tokens / rules.capacity, tokens / len(running))) if running else 0.0


def _iterate(running: list[Job], now_s: float, iteration_s: float) -> float:
    end_s = now_s + iteration_s
    for job in list(running):
        if job.first_token_s < 0:
            job.first_token_s = end_s
        else:
            job.gaps.append(iteration_s)
        job.context += 1
        job.left -= 1
        if job.left == 0:
            job.finished_s = end_s
            running.remove(job)
    return end_s


def disaggregated(trace, profile, rules: Rules, prefills: int, decodes: int) -> list[Job]:
    """Round robin over prefill replicas by arrival, over decode replicas by end of transfer."""
    columns = zip(trace.arrival_s, trace.input_tokens, trace.output_tokens, strict=True)
    jobs = [Job(i, float(at), int(isl), int(osl)) for i, (at, isl, osl) in enumerate(columns)]
    for turn in range(prefills):
        prefill_replica([job for job in jobs if (job.number + 1) % prefills == turn], profile)
    for job in jobs:
        job.ready_s += rules.transfer_latency_s + rules.transfer_s_per_token * job.input_tokens
    arrived = sorted(jobs, key=lambda job: job.ready_s)
    for turn in range(decodes):
        decode_replica([job for i, job in enumerate(arrived) if (i + 1) % decodes == turn], profile, rules)
    return jobs


def aggregated(trace, profile, rules: Rules, replicas: int) -> list[Job]:
    """Round robin over mixed replicas by arrival."""
    columns = zip(trace.arrival_s, trace.input_tokens, trace.output_tokens, strict=True)
    jobs = [Job(i, float(at), int(isl), int(osl)) for i, (at, isl, osl) in enumerate(columns)]
    for turn in range(replicas):
        mixed_replica([job for job in jobs if (job.number + 1) % replicas == turn], profile, rules)
    return jobs


def gaps_of(jobs: list[Job]) -> np.ndarray:
    return np.array([gap for job in jobs for gap in job.gaps or []])
