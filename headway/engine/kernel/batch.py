"""A replica's decode batch and queue: which requests are in, how far they are, which may join."""

from typing import Any

from headway.engine.kernel.layout import COMPLETED, DECODING, ITL, NONE, KernelState
from headway.engine.kernel.state import add_range, count_first_token, end_request
from headway.engine.surfaces import (
    admits,
    duration_s,
    find_cell,
    iterations_in_cell,
    iterations_until,
    itl_at,
    pop_sequence,
    push_sequence,
    stretch_s,
)
from interp.jit import compiled


@compiled
def first_tokens(state: KernelState, replica: int, at_s: float) -> int:
    """Newcomers prefilled elsewhere get their first token with their first iteration; their number."""
    unit = state.replicas[replica]
    request, count = unit.fresh_head, 0
    while request != NONE:
        count_first_token(state, request, at_s)
        count += 1
        request = state.requests[request].next
    unit.fresh_head = NONE
    return count


@compiled
def account(state: KernelState, replica: int, iterations: float) -> None:
    """Move the batch on by `iterations` whole iterations since the checkpoint and count their tokens."""
    unit, window = state.replicas[replica], state.window[0]
    batch = unit.running
    left, slowness = iterations, unit.decode_slowness
    while left > 0.0:
        tokens = float(unit.kv_tokens)
        cell = find_cell(state.itl, batch, tokens)
        step = min(left, iterations_in_cell(cell, batch, tokens))
        first = itl_at(cell, tokens) * slowness
        last = itl_at(cell, tokens + (step - 1.0) * batch) * slowness
        fresh = first_tokens(state, replica, unit.checkpoint_s + first)
        gaps = batch * int(step) - fresh
        gap_s = batch * stretch_s(cell, batch, tokens, step) * slowness - fresh * first
        window.gaps += gaps
        window.gap_s += gap_s
        unit.gaps += gaps
        unit.gap_s += gap_s
        add_range(state.histograms[ITL], first, last, gaps)
        unit.kv_tokens += int(step) * batch
        left -= step
    unit.iteration += int(iterations)


@compiled
def catch_up(state: KernelState, replica: int) -> None:
    """Account the iterations that ended by now, so that a reader in mid-stretch sees the true state."""
    unit, now_s = state.replicas[replica], state.clock[0].now_s
    if unit.phase != DECODING:
        return
    elapsed_s = (now_s - unit.checkpoint_s) / unit.decode_slowness
    done, ends_s = iterations_until(state.itl, unit.running, unit.kv_tokens, elapsed_s, unit.planned)
    # The last iteration of a stretch belongs to its boundary event, which is still to come.
    if ends_s > elapsed_s or done == unit.planned:
        done -= 1.0
    if done > 0.0:
        length_s = duration_s(state.itl, unit.running, unit.kv_tokens, done)
        account(state, replica, done)
        unit.checkpoint_s += length_s * unit.decode_slowness
        unit.planned -= done


@compiled
def need_tokens(state: KernelState, replica: int, request: int) -> int:
    """KV tokens that the request will fill here in the end: no output where it only computes its prompt."""
    asked = state.requests[request]
    if asked.decode_replica == replica:
        return asked.input_tokens + asked.output_tokens
    return asked.input_tokens


@compiled
def fits(state: KernelState, replica: int, request: int, joining: int) -> bool:
    """True if the request can be admitted while `joining` others are about to be: batch limit and KV."""
    unit, rules = state.replicas[replica], state.settings[0]
    reserved_tokens = unit.reserved_tokens + need_tokens(state, replica, request)
    return admits(unit.running + joining, rules.max_batch, reserved_tokens, rules.kv_capacity_tokens)


@compiled
def dequeue(state: KernelState, replica: int) -> int:
    """Take the first request out of the queue."""
    unit = state.replicas[replica]
    request = unit.head
    unit.head = state.requests[request].next
    if unit.head == NONE:
        unit.tail = NONE
    unit.waiting -= 1
    return request


@compiled
def reserve(state: KernelState, replica: int, request: int) -> None:
    """Set KV aside for all tokens that the request will have here; once."""
    asked = state.requests[request]
    if asked.reserved == 0:
        asked.reserved = 1
        state.replicas[replica].reserved_tokens += need_tokens(state, replica, request)


@compiled
def unreserve(state: KernelState, replica: int, request: int) -> None:
    """Give back what was set aside, if anything."""
    asked = state.requests[request]
    if asked.reserved == 1:
        asked.reserved = 0
        state.replicas[replica].reserved_tokens -= need_tokens(state, replica, request)


@compiled
def join(state: KernelState, replica: int, request: int) -> None:
    """Add a prefilled request to the decode batch, keyed by the iteration at which it finishes."""
    unit, asked = state.replicas[replica], state.requests[request]
    asked.decode_started_s = state.clock[0].now_s
    produced = 1
    if asked.first_token_s < 0.0:
        produced = 0
        asked.next = unit.fresh_head
        unit.fresh_head = request
    key = unit.iteration + asked.output_tokens - produced
    push_sequence(state.finish_iteration[replica], state.finish_request[replica], unit.running, key, request)
    unit.running += 1
    unit.kv_tokens += asked.input_tokens + produced


@compiled
def finish_decodes(state: KernelState, replica: int) -> None:
    """End the sequences that have all their tokens."""
    unit = state.replicas[replica]
    while unit.running > 0 and state.finish_iteration[replica, 0] <= unit.iteration:
        request = pop_sequence(state.finish_iteration[replica], state.finish_request[replica], unit.running)
        unit.running -= 1
        asked = state.requests[request]
        unit.kv_tokens -= asked.input_tokens + asked.output_tokens
        unit.reserved_tokens -= asked.input_tokens + asked.output_tokens
        if asked.prefill_replica == replica:
            show_prefill(unit, asked)
        end_request(state, request, COMPLETED)


@compiled
def show_prefill(unit: Any, asked: Any) -> None:  # noqa: ANN401 - records
    """Count what the prompt of a request took here; engines show it as the request leaves them."""
    unit.prompts += 1
    unit.shown_tokens += asked.input_tokens - asked.cached_tokens
    unit.prefill_s += asked.prefill_finished_s - asked.prefill_started_s
