"""Loss curves of recent requests: per pool, how many of them n replicas would have served too late.

    prefill   lost if it waits longer than the TTFT SLO leaves after prompt, transfer and the first token of a
              well used decode replica (`FIRST_TOKEN`). Where nothing is left any wait is too long.
    decode    lost if TPOT is above the ITL SLO, or the first token late though the prompt did not wait.
    mixed     lost if TTFT or TPOT is.

So the losses of a prefill and of a decode pool add up, roughly, to those of both together. The replay runs
from `since_s` on, with what is decoding by then under way (`underway`); requests before `judged_from` warm
the fleet up. Decoding lasts beyond the last arrival; so that the last requests do not decode in batches that
run empty, the latest ones come again and again until all judged ones have ended: the judged ones, and as many
before them as decode at the same time (at most as many again as came). Requests that no engine has room for
take no part.

Whole prompts wait FIFO for the replica that is free first. Waits follow Kiefer and Wolfowitz: the workload
vector of a G/G/n queue, here as a heap of the times at which the replicas become free, so a request costs
log n steps.
"""

from collections.abc import Callable
from math import ceil

import numpy as np

from headway.planning.replay.curve import LossCurve, class_curves, loss_curve
from headway.planning.replay.engine import (
    TOLERANCE,
    ReplayEngine,
    Requests,
    Targets,
    attainable,
    busy_iteration_s,
    decode_seconds,
    fits,
    mixed_seconds,
    prefill_seconds,
    prompt_s,
    targets,
    transfer_s,
    under_way,
)
from headway.planning.replay.fleet import (
    IntArray,
    PoolArrivals,
    ReplayState,
    make_state,
    replay,
)
from interp.arrays import BoolArray, FloatArray
from interp.jit import compiled

FIRST_TOKEN = 1.5
"""Iterations from arrival at a decode replica to the first token: half of that under way, and one's own."""

SPARE = 1.02
"""Replicas must exceed the mean work by this factor to keep up."""


def prefill_losses(
    engine: ReplayEngine, requests: Requests, judged_from: int, guess: int, since_s: float = -np.inf
) -> LossCurve:
    """Losses among requests[judged_from:] by replicas of a prefill pool, searched from `guess` replicas."""
    begun = int(np.searchsorted(requests.arrival_s, since_s, side="right"))
    requests = requests.where(slice(begun, None))
    requests, judged = _taken(engine, requests, judged_from - begun, mixed=False)
    if not judged.any():
        return LossCurve(0, np.zeros(1, np.int64))
    waits = _chunked_waits if engine.chunk_tokens else _whole_waits
    ttft_s, prompts_s = targets(engine, requests).ttft_s, prompt_s(engine, requests)
    own = requests.where(judged)
    other_s = transfer_s(engine, own) + FIRST_TOKEN * busy_iteration_s(engine, requests)
    promised_s = targets(engine, own).ttft_s * TOLERANCE

    def lose(replicas: int) -> BoolArray:
        there = requests.on(replicas)
        alone_s = prompts_s if there is requests else prompt_s(engine, there)
        patience_s = np.maximum(0.0, promised_s - (alone_s[judged] + other_s))
        late = waits(engine, there, alone_s, replicas)[judged] > patience_s
        if there is not requests:
            late |= ~attainable(engine, there.where(judged))
        return late

    work_s = prefill_seconds(engine, requests) if engine.chunk_tokens else prompts_s
    least = _least(requests, work_s, _longest(ttft_s) + float(np.average(work_s, weights=work_s)))
    return _searched(lose, own, least, guess)


def decode_losses(
    engine: ReplayEngine, requests: Requests, judged_from: int, guess: int, since_s: float = -np.inf
) -> LossCurve:
    """Losses among requests[judged_from:] by replicas of a decode pool, searched from `guess` replicas."""
    return _decoding_losses(engine, requests, judged_from, guess, since_s, mixed=False)


def mixed_losses(
    engine: ReplayEngine, requests: Requests, judged_from: int, guess: int, since_s: float = -np.inf
) -> LossCurve:
    """Losses among requests[judged_from:] by mixed replicas, searched from `guess` replicas."""
    return _decoding_losses(engine, requests, judged_from, guess, since_s, mixed=True)


def _decoding_losses(
    engine: ReplayEngine, requests: Requests, judged_from: int, guess: int, since_s: float, *, mixed: bool
) -> LossCurve:
    requests, judged = _taken(engine, requests, judged_from, mixed=mixed)
    if not judged.any():
        return LossCurve(0, np.zeros(1, np.int64))
    requests, left = under_way(engine, requests, since_s)
    judged = judged[left]
    coming, source = _continued(engine, requests, judged, since_s, mixed=mixed)
    own = requests.where(source[coming.judged])
    promised = targets(engine, own)

    def lose(replicas: int) -> BoolArray:
        there = requests.on(replicas) if mixed else requests
        found = coming
        if there is not requests:
            found = coming._replace(computed_tokens=_computed(there, since_s)[source])
        state = make_state(engine, found, replicas)
        replay(state, mixed)
        return _missed(promised, state, own.arrival_s)

    work_s = (mixed_seconds if mixed else decode_seconds)(engine, requests)
    decode_s = float(np.average(busy_iteration_s(engine, requests) * requests.output_tokens, weights=work_s))
    least = _least(requests, work_s, _longest(targets(engine, requests).ttft_s) + decode_s)
    return _searched(lose, own, least, guess)


def _longest(ttft_s: FloatArray | float) -> float:
    """The longest TTFT that anybody is promised; a request without a limit waits as long as others."""
    return (
        ttft_s if isinstance(ttft_s, float) else float(np.max(ttft_s, initial=0.0, where=np.isfinite(ttft_s)))
    )


def _searched(lose: Callable[[int], BoolArray], judged: Requests, least: int, guess: int) -> LossCurve:
    """The curve of the judged ones of which `lose(n)` says which are, and where they have classes of each."""
    if judged.slo_class is None:
        count = len(judged.arrival_s)
        return loss_curve(lambda replicas: int(np.count_nonzero(lose(replicas))), count, least, guess)
    classes = judged.slo_class.astype(np.int64)
    count = int(classes.max()) + 1

    def lose_of_each(replicas: int) -> IntArray:
        return np.bincount(classes[lose(replicas)], minlength=count)

    return class_curves(lose_of_each, np.bincount(classes, minlength=count), least, guess)


def _computed(requests: Requests, since_s: float) -> FloatArray:
    """Prompt tokens that need not be computed: cached ones, and all of what is under way at `since_s`."""
    cached = 0.0 if requests.cached_tokens is None else requests.cached_tokens
    return np.where(requests.arrival_s <= since_s, requests.input_tokens, cached)


def _missed(promised: Targets, state: ReplayState, arrival_s: FloatArray) -> BoolArray:
    """Which judged ones missed an SLO, by the times in `state`; all that have not ended did."""
    columns = (state.output_tokens, state.first_s, state.finish_s)
    output_tokens, first_s, finish_s = (column[state.judged] for column in columns)
    decoded, ended = np.maximum(output_tokens - 1.0, 1.0), np.isfinite(finish_s)
    tpot_s = np.where(ended, finish_s, 0.0) - np.where(ended, first_s, 0.0)
    late = first_s - arrival_s > promised.ttft_s * TOLERANCE
    slow = (tpot_s > promised.itl_s * TOLERANCE * decoded) & (output_tokens > 1.0)
    missed: BoolArray = late | slow | ~ended
    return missed


def _taken(
    engine: ReplayEngine, requests: Requests, judged_from: int, *, mixed: bool
) -> tuple[Requests, BoolArray]:
    """The requests that take part, and which of them are judged."""
    inside = fits(engine, requests)
    first, requests = int(np.count_nonzero(inside[:judged_from])), requests.where(inside)
    judged = np.zeros(len(requests.arrival_s), np.bool_)
    judged[first:] = attainable(engine, requests.where(slice(first, None)), mixed=mixed)
    return requests, judged


def _continued(
    engine: ReplayEngine, requests: Requests, judged: BoolArray, since_s: float, *, mixed: bool
) -> tuple[PoolArrivals, IntArray]:
    """What comes to the pool, and which request each is: all, then the latest again."""
    count, first = len(judged), int(np.argmax(judged))
    found = requests.arrival_s <= since_s
    ready_s = requests.arrival_s
    if not mixed:
        coming_s = prompt_s(engine, requests) + transfer_s(engine, requests)
        ready_s = ready_s + np.where(found, 0.0, coming_s)
    lasting_tokens = np.average(requests.output_tokens, weights=requests.output_tokens)
    latest_s = requests.arrival_s[-1] - lasting_tokens * busy_iteration_s(engine, requests)
    latest = np.searchsorted(requests.arrival_s, max(latest_s, since_s), side="right")
    again, later_s = _repeats(requests.arrival_s, min(first, int(latest)))
    source = np.concatenate([np.arange(count), again])
    delay_s = np.concatenate([np.zeros(count), later_s])
    order = np.argsort(ready_s[source] + delay_s, kind="stable")
    source, delay_s, own = source[order], delay_s[order], order < count
    coming = PoolArrivals(
        ready_s=ready_s[source] + delay_s,
        input_tokens=requests.input_tokens[source],
        computed_tokens=_computed(requests, since_s)[source],
        output_tokens=np.maximum(1.0, np.rint(requests.output_tokens[source])),
        judged=judged[source] & own,
    )
    return coming, source


def _repeats(arrival_s: FloatArray, first: int) -> tuple[FloatArray, FloatArray]:
    """Which requests come again after the last one, and how much later: those from `first` on, in turns."""
    count, begun = len(arrival_s), max(0, first - 1)
    span_s, gaps = arrival_s[-1] - arrival_s[begun], count - 1 - begun
    if span_s <= 0.0:
        return np.zeros(0, np.int64), np.zeros(0)
    turn, place = np.divmod(np.arange(count), gaps)
    return begun + 1 + place, (turn + 1) * span_s


@compiled
def _fifo_waits(arrival_s: FloatArray, prompt_s: FloatArray, replicas: int) -> FloatArray:
    """Seconds that each prompt waits for one of `replicas`, f8[N], which are idle at first."""
    free_s = np.full(replicas, -np.inf)
    wait_s = np.empty(len(arrival_s))
    for request in range(len(arrival_s)):
        start_s = max(arrival_s[request], free_s[0])
        wait_s[request] = start_s - arrival_s[request]
        _replace_least(free_s, start_s + prompt_s[request])
    return wait_s


@compiled
def _replace_least(heap: FloatArray, value: float) -> None:
    place, size = 0, len(heap)
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if value <= heap[child]:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = value


def _whole_waits(engine: ReplayEngine, requests: Requests, alone_s: FloatArray, replicas: int) -> FloatArray:
    return _fifo_waits(requests.arrival_s, alone_s, replicas)


def _chunked_waits(
    engine: ReplayEngine, requests: Requests, alone_s: FloatArray, replicas: int
) -> FloatArray:
    """Seconds by which, later than alone, each prompt is computed where iterations carry chunks of several.

    Each goes to the replica with the fewest prompt tokens.
    """
    ones = np.ones(len(alone_s))
    coming = PoolArrivals(
        requests.arrival_s, requests.uncached_tokens, np.zeros(len(alone_s)), ones, ones > 0.0
    )
    state = make_state(engine, coming, replicas)
    unbounded = state.surfaces._replace(itl=state.surfaces.itl._replace(capacity_tokens=np.inf))
    state = state._replace(surfaces=unbounded, weight=requests.input_tokens)
    replay(state, True)
    return np.maximum(0.0, state.first_s - requests.arrival_s - alone_s)


def _least(requests: Requests, work_s: FloatArray, patience_s: float) -> int:
    """Replicas that the mean work keeps busy, up to `patience_s` after the last arrival."""
    span_s = float(requests.arrival_s[-1] - requests.arrival_s[0]) + patience_s
    return ceil(SPARE * float(work_s.sum()) / span_s)
