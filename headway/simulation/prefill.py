"""Prompt work of a replica: which tokens the next iteration carries, how long they take, what follows."""

import numpy as np

from headway.engine.rules import kv_transfer_s
from headway.engine.surfaces import work_until_s
from headway.simulation import prefix
from headway.simulation.batch import dequeue, fits, join, reserve, unreserve
from headway.simulation.events import push
from headway.simulation.layout import (
    COMPLETED,
    DRAINING,
    MIXED,
    NONE,
    PREFILL,
    PREFILLED,
    SERVING,
    TRANSFERRED,
    World,
)
from headway.simulation.records import count_first_token, end_request, free_slot, notify
from interp.jit import compiled
from interp.kernels import ttft_at

transfer_s = compiled(kv_transfer_s)


@compiled
def prefill_time_s(world: World, tokens: float) -> float:
    """TTFT of a prompt of `tokens` uncached tokens on an idle engine, as the profile has it."""
    linear, quadratic = world.surfaces.growth
    return ttft_at(tokens, world.prefill_tokens, world.prefill_s, linear, quadratic)


@compiled
def iteration_s(world: World, replica: int, batch_s: float, chunk_s: float) -> float:
    """Seconds of an iteration with the planned chunk, beside a batch whose own iteration takes `batch_s`."""
    unit = world.replicas[replica]
    if unit.running > 0:
        return batch_s + chunk_s
    if world.settings[0].chunk_tokens == 0:
        return prefill_time_s(world, unit.chunk_last_tokens)
    return world.surfaces.work_s[0] + chunk_s


@compiled
def plan_chunk(world: World, replica: int) -> float:
    """Choose the prompt tokens of the next iteration; seconds that their work adds to it."""
    unit, rules = world.replicas[replica], world.settings[0]
    budget = rules.chunk_tokens if rules.chunk_tokens > 0 else np.iinfo(np.int64).max
    unit.chunk_requests = 0
    added_s = 0.0
    request = unit.head
    while request != NONE and budget > 0:
        asked = world.requests[request]
        if unit.role != PREFILL and asked.reserved == 0:
            if unit.arrived_head != NONE or not fits(world, replica, request, unit.chunk_requests):
                break
            reserve(world, replica, request)
        if asked.prefill_started_s < 0.0:
            asked.prefill_started_s = world.clock[0].now_s
            asked.cached_tokens = prefix.cached_tokens(world, replica, request)
        left = asked.input_tokens - asked.cached_tokens - asked.prefilled_tokens
        tokens = min(left, budget)
        done = asked.prefilled_tokens
        added_s += work_until_s(world.surfaces, done + tokens) - work_until_s(world.surfaces, done)
        unit.chunk_requests += 1
        unit.chunk_last_tokens = tokens
        budget -= tokens
        if tokens < left or rules.chunk_tokens == 0:
            break
        request = asked.next
    return added_s


@compiled
def is_up(world: World, replica: int, serial: int) -> bool:
    """Whether the replica that had this slot and serial still works."""
    unit = world.replicas[replica]
    return unit.serial == serial and (unit.state == SERVING or unit.state == DRAINING)  # noqa: PLR1714 - compiled


@compiled
def _send(world: World, replica: int, request: int) -> None:
    """Let the KV of a computed prompt travel to where the request decodes.

    A mixed replica that has leading blocks of the prompt cached takes only the rest; here the KV is free at
    once.
    """
    unit, asked = world.replicas[replica], world.requests[request]
    clock, rules = world.clock[0], world.settings[0]
    moved = asked.input_tokens
    if unit.role == MIXED:
        unreserve(world, replica, request)
        if is_up(world, asked.decode_replica, asked.decode_serial):
            moved -= prefix.cached_tokens(world, asked.decode_replica, request)
        asked.external_tokens = moved
    delay_s = transfer_s(rules.transfer_latency_s, rules.transfer_s_per_token, moved)
    push(clock, world.events, clock.now_s + delay_s, TRANSFERRED, request, asked.version)
    notify(world, PREFILLED, request, asked.number, 0)


@compiled
def drop_abandoned(world: World, replica: int, request: int) -> None:
    """The iteration that still computed a withdrawn prompt is over, or its replica died."""
    unit = world.replicas[replica]
    unit.prompt_tokens -= world.requests[request].input_tokens
    unreserve(world, replica, request)
    free_slot(world, request)


@compiled
def _finish_prefill(world: World, replica: int) -> None:
    """The prompt at the head of the queue is computed: transfer its KV, or go on here."""
    request = dequeue(world, replica)
    unit, asked = world.replicas[replica], world.requests[request]
    clock = world.clock[0]
    if asked.abandoned == 1:
        drop_abandoned(world, replica, request)
        return
    asked.prefill_finished_s = clock.now_s
    unit.prompt_tokens -= asked.input_tokens
    prefix.insert(world, replica, request)
    if unit.role == PREFILL or asked.decode_replica != replica:
        _send(world, replica, request)
        return
    count_first_token(world, request, clock.now_s)
    asked.decode_ready_s = clock.now_s
    if asked.output_tokens == 1:
        unit.reserved_tokens -= asked.input_tokens + asked.output_tokens
        end_request(world, request, COMPLETED)
    else:
        join(world, replica, request)


@compiled
def finish_chunk(world: World, replica: int) -> None:
    """The iteration that carried prompt tokens is over: prompts that are complete move on."""
    unit = world.replicas[replica]
    for _ in range(unit.chunk_requests - 1):
        _finish_prefill(world, replica)
    asked = world.requests[unit.head]
    asked.prefilled_tokens += unit.chunk_last_tokens
    if asked.abandoned == 1 or asked.prefilled_tokens >= asked.input_tokens - asked.cached_tokens:
        _finish_prefill(world, replica)
