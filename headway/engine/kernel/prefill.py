"""Prompt work of a replica: the tokens of the next iteration, their time, and the caches that save some.

A prefix cache is an LRU list of block keys with an open-addressing table, all in flat arrays. A prompt is a
list of block keys (Mooncake's `hash_ids`); its longest run of leading blocks that are present is cached. On
insertion the last block is touched first, so that a prompt loses its tail before its head. Keys of superposed
trace copies are kept apart by `copy`.
"""

import numpy as np

from headway.engine.kernel import layout
from headway.engine.kernel.batch import dequeue, fits, join, reserve, show_prefill, unreserve
from headway.engine.kernel.layout import NONE, KernelState, push
from headway.engine.kernel.state import count_first_token, end_request, free_slot, notify
from headway.engine.rules import kv_transfer_s
from headway.engine.surfaces import chunk_work_s
from interp.jit import compiled
from interp.kernels import ttft_at

COPY_SHIFT = 40
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@compiled
def _home(key: int, size: int) -> int:
    return int((np.uint64(key) * MULTIPLIER) >> np.uint64(33)) & (size - 1)


@compiled
def _find(state: KernelState, replica: int, key: int) -> int:
    """Position in the table at which `key` stands or would stand."""
    lookup, keys = state.prefix.lookup, state.prefix.key
    size = lookup.shape[1]
    place = _home(key, size)
    while lookup[replica, place] != NONE and keys[replica, lookup[replica, place]] != key:
        place = (place + 1) & (size - 1)
    return place


@compiled
def _remove(state: KernelState, replica: int, place: int) -> None:
    """Empty one place of the table and close the gap behind it."""
    lookup, keys = state.prefix.lookup, state.prefix.key
    size = lookup.shape[1]
    # Backward-shift deletion: a gap would end the search for keys that were pushed past it.
    hole = place
    following = (place + 1) & (size - 1)
    while lookup[replica, following] != NONE:
        home = _home(keys[replica, lookup[replica, following]], size)
        if ((following - home) & (size - 1)) >= ((following - hole) & (size - 1)):
            lookup[replica, hole] = lookup[replica, following]
            hole = following
        following = (following + 1) & (size - 1)
    lookup[replica, hole] = NONE


@compiled
def _unlink(state: KernelState, replica: int, node: int) -> None:
    record, caches = state.replicas[replica], state.prefix
    newer, older = caches.newer[replica, node], caches.older[replica, node]
    if newer == NONE:
        record.cache_head = older
    else:
        caches.older[replica, newer] = older
    if older == NONE:
        record.cache_tail = newer
    else:
        caches.newer[replica, older] = newer


@compiled
def _link_first(state: KernelState, replica: int, node: int) -> None:
    record, caches = state.replicas[replica], state.prefix
    caches.newer[replica, node] = NONE
    caches.older[replica, node] = record.cache_head
    if record.cache_head == NONE:
        record.cache_tail = node
    else:
        caches.newer[replica, record.cache_head] = node
    record.cache_head = node


@compiled
def _touch(state: KernelState, replica: int, key: int) -> None:
    """Make `key` the most recent block, evicting the oldest when the cache is full."""
    record, caches = state.replicas[replica], state.prefix
    place = _find(state, replica, key)
    node = caches.lookup[replica, place]
    if node != NONE:
        _unlink(state, replica, node)
    elif record.cache_blocks < state.settings[0].cache_capacity_blocks:
        node = record.cache_blocks
        record.cache_blocks += 1
    else:
        node = record.cache_tail
        _unlink(state, replica, node)
        _remove(state, replica, _find(state, replica, caches.key[replica, node]))
        place = _find(state, replica, key)
    caches.key[replica, node] = key
    caches.lookup[replica, place] = node
    _link_first(state, replica, node)


@compiled
def clear_cache(state: KernelState, replica: int) -> None:
    """Forget everything that the replica had cached."""
    record = state.replicas[replica]
    record.cache_head, record.cache_tail, record.cache_blocks = NONE, NONE, 0
    state.prefix.lookup[replica, :] = NONE


@compiled
def cached_tokens(state: KernelState, replica: int, request: int) -> int:
    """Leading prompt tokens of `request` that `replica` need not compute; at least one token is computed.

    Without a prefix cache these are what is known of the request.
    """
    asked, caches = state.requests[request], state.prefix
    if state.settings[0].cache_capacity_blocks == 0:
        return asked.cached_tokens
    hits, salt = 0, asked.copy << COPY_SHIFT
    for i in range(asked.block_count):
        key = caches.blocks[asked.block_start + i] + salt
        if caches.lookup[replica, _find(state, replica, key)] == NONE:
            break
        hits += 1
    return min(hits * state.settings[0].block_tokens, asked.input_tokens - 1)


@compiled
def remember_prompt(state: KernelState, replica: int, request: int) -> None:
    """Remember the prompt of `request` on `replica`."""
    if state.settings[0].cache_capacity_blocks > 0:
        asked = state.requests[request]
        salt = asked.copy << COPY_SHIFT
        for i in range(asked.block_count - 1, -1, -1):
            _touch(state, replica, state.prefix.blocks[asked.block_start + i] + salt)


transfer_s = compiled(kv_transfer_s)


@compiled
def prefill_time_s(state: KernelState, tokens: float) -> float:
    """TTFT of a prompt of `tokens` uncached tokens on an idle engine, as the profile has it."""
    work = state.work
    return ttft_at(
        tokens, state.prefill_tokens, state.prefill_s, work.linear_s_per_token, work.quadratic_s_per_token2
    )


@compiled
def iteration_s(state: KernelState, replica: int, batch_s: float, chunk_s: float) -> float:
    """Seconds of an iteration with the planned chunk, beside a batch whose own iteration takes `batch_s`.

    `chunk_s` are seconds of an engine that runs as profiled.
    """
    unit = state.replicas[replica]
    if unit.running > 0:
        return batch_s + chunk_s * unit.prefill_slowness
    if state.settings[0].chunk_tokens == 0:
        return prefill_time_s(state, unit.chunk_last_tokens) * unit.prefill_slowness
    return (state.work.seconds[0] + chunk_s) * unit.prefill_slowness


@compiled
def plan_chunk(state: KernelState, replica: int) -> float:
    """Choose the prompt tokens of the next iteration; seconds that their work adds to it."""
    unit, rules = state.replicas[replica], state.settings[0]
    budget = rules.chunk_tokens if rules.chunk_tokens > 0 else np.iinfo(np.int64).max
    unit.chunk_requests = 0
    added_s = 0.0
    request = unit.head
    while request != NONE and budget > 0:
        asked = state.requests[request]
        if unit.role != layout.PREFILL and asked.reserved == 0:
            if unit.arrived_head != NONE or not fits(state, replica, request, unit.chunk_requests):
                break
            reserve(state, replica, request)
        if asked.prefill_started_s < 0.0:
            asked.prefill_started_s = state.clock[0].now_s
            asked.cached_tokens = cached_tokens(state, replica, request)
        left = asked.input_tokens - asked.cached_tokens - asked.prefilled_tokens
        tokens = min(left, budget)
        added_s += chunk_work_s(state.work, asked.prefilled_tokens, tokens)
        unit.chunk_requests += 1
        unit.chunk_last_tokens = tokens
        budget -= tokens
        if tokens < left or rules.chunk_tokens == 0:
            break
        request = asked.next
    return added_s


@compiled
def is_up(state: KernelState, replica: int, serial: int) -> bool:
    """True if the replica that had this slot and serial still works."""
    unit = state.replicas[replica]
    return unit.serial == serial and (unit.state == layout.SERVING or unit.state == layout.DRAINING)  # noqa: PLR1714 - compiled


@compiled
def _send(state: KernelState, replica: int, request: int) -> None:
    """Let the KV of a computed prompt travel to where the request decodes.

    A mixed replica that has leading blocks of the prompt cached takes only the rest; here the KV is free at
    once.
    """
    unit, asked = state.replicas[replica], state.requests[request]
    clock, rules = state.clock[0], state.settings[0]
    moved = asked.input_tokens
    if unit.role == layout.MIXED:
        unreserve(state, replica, request)
        if is_up(state, asked.decode_replica, asked.decode_serial):
            moved -= cached_tokens(state, asked.decode_replica, request)
        asked.external_tokens = moved
    delay_s = transfer_s(rules.transfer_latency_s, rules.transfer_s_per_token, moved)
    push(clock, state.events, clock.now_s + delay_s, layout.TRANSFERRED, request, asked.version)
    notify(state, layout.PREFILLED, request, asked.number, 0)


@compiled
def drop_abandoned(state: KernelState, replica: int, request: int) -> None:
    """The iteration that still computed a withdrawn prompt is over, or its replica died."""
    unit = state.replicas[replica]
    unit.prompt_tokens -= state.requests[request].input_tokens
    unreserve(state, replica, request)
    free_slot(state, request)


@compiled
def _finish_prefill(state: KernelState, replica: int) -> None:
    """The prompt at the head of the queue is computed: transfer its KV, or go on here."""
    request = dequeue(state, replica)
    unit, asked = state.replicas[replica], state.requests[request]
    clock = state.clock[0]
    if asked.abandoned == 1:
        drop_abandoned(state, replica, request)
        return
    asked.prefill_finished_s = clock.now_s
    unit.prompt_tokens -= asked.input_tokens
    unit.first_tokens += 1
    unit.computed_tokens += asked.input_tokens - asked.cached_tokens
    remember_prompt(state, replica, request)
    if unit.role == layout.PREFILL or asked.decode_replica != replica:
        show_prefill(unit, asked)
        _send(state, replica, request)
        return
    count_first_token(state, request, clock.now_s)
    asked.decode_ready_s = clock.now_s
    if asked.output_tokens == 1:
        unit.reserved_tokens -= asked.input_tokens + asked.output_tokens
        show_prefill(unit, asked)
        end_request(state, request, layout.COMPLETED)
    else:
        join(state, replica, request)


@compiled
def finish_chunk(state: KernelState, replica: int) -> None:
    """The iteration that carried prompt tokens is over: prompts that are complete move on."""
    unit = state.replicas[replica]
    for _ in range(unit.chunk_requests - 1):
        _finish_prefill(state, replica)
    asked = state.requests[unit.head]
    asked.prefilled_tokens += unit.chunk_last_tokens
    if asked.abandoned == 1 or asked.prefilled_tokens >= asked.input_tokens - asked.cached_tokens:
        _finish_prefill(state, replica)
