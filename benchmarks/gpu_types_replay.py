"""Replays of pools of several GPU types, to check plans against. The router knows the types, as ours does.

    prefill   to the least capable type that still keeps the TTFT SLO there, and of it to the replica that is
              done first; where none does, to the replica that is done first
    decode    to the replica with the least load by capacity, of the types that can keep the request at all

Requests that none of the fleet's types can keep go to any. Lost are those that some type could have kept.
"""

from collections.abc import Mapping

import numpy as np

from headway.planning.replay import ReplayEngine, Requests, attainable
from headway.planning.replay.engine import TOLERANCE, busy_iteration_s, fits, prompt_s, transfer_s
from headway.planning.replay.fleet import PoolArrivals, enqueue, make_state
from headway.planning.replay.loops import LAST_S, decode_until, least_loaded, wake
from headway.planning.replay.losses import FIRST_TOKEN
from interp.arrays import BoolArray

Engines = Mapping[str, ReplayEngine]
Fleet = Mapping[str, int]


def prefill_lost(engines: Engines, requests: Requests, fleet: Fleet, _: Mapping[str, float]) -> int:
    """Requests that a prefill pool of those replicas loses."""
    can, judged = _reachable(engines, requests, fleet)
    free_s = {name: np.zeros(count) for name, count in fleet.items()}
    prompts = {name: prompt_s(engines[name], requests) for name in fleet}
    rest = {name: _rest_s(engines[name], requests) for name in fleet}
    slo = next(iter(engines.values())).slo
    reach = {name: int(can[name].sum()) for name in fleet}
    lost = 0
    for number, arrival_s in enumerate(requests.arrival_s.tolist()):
        best: tuple[tuple[bool, int, float], str, int] | None = None
        for name in fleet:
            if not can[name][number]:
                continue
            place = int(free_s[name].argmin())
            done_s = max(arrival_s, free_s[name][place]) + prompts[name][number]
            patience_s = max(slo.ttft_s - rest[name][number], prompts[name][number])
            late = done_s - arrival_s > patience_s * TOLERANCE
            key = (late, 0 if late else reach[name], done_s)
            if best is None or key < best[0]:
                best = (key, name, place)
        if best is not None:
            (late, _, done_s), name, place = best
            free_s[name][place] = done_s
            lost += late and bool(judged[number])
    return lost


def decode_lost(engines: Engines, requests: Requests, fleet: Fleet, alone: Mapping[str, float]) -> int:
    """Requests that a decode pool of those replicas loses; `alone`: replicas of each type for all of it."""
    first = next(iter(engines.values()))
    ready_s = requests.arrival_s + prompt_s(first, requests) + transfer_s(first, requests)
    order = np.argsort(ready_s, kind="stable")
    ready_s, requests = ready_s[order], requests.where(order)
    can, judged = _reachable(engines, requests, fleet)
    outputs = np.maximum(1.0, np.rint(requests.output_tokens))
    coming = PoolArrivals(
        ready_s, requests.input_tokens, np.zeros(len(outputs)), outputs, np.ones(len(outputs), np.bool_)
    )
    worlds = {name: make_state(engines[name], coming, count) for name, count in fleet.items()}
    for number, now_s in enumerate(ready_s.tolist()):
        best: tuple[float, str, int] | None = None
        for name, state in worlds.items():
            decode_until(state, now_s)
            replica = least_loaded(state.load)
            load = (state.load[replica] + 1) * alone[name]
            if can[name][number] and (best is None or load < best[0]):
                best = (load, name, replica)
        if best is not None:
            _, name, replica = best
            enqueue(worlds[name], replica, number)
            wake(worlds[name], replica, number, now_s)
    kept = np.zeros(len(outputs), np.bool_)
    for name, state in worlds.items():
        decode_until(state, LAST_S)
        first_s = state.first_s - requests.arrival_s
        ended = np.isfinite(state.finish_s)
        decoding_s = np.where(ended, state.finish_s, 0.0) - np.where(ended, state.first_s, 0.0)
        slo = engines[name].slo
        smooth = decoding_s <= slo.itl_s * TOLERANCE * np.maximum(outputs - 1.0, 1.0)
        kept |= ended & smooth & (first_s <= slo.ttft_s * TOLERANCE)
    return int((judged & ~kept).sum())


def _rest_s(engine: ReplayEngine, requests: Requests) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Seconds from a prompt's end to its first token on a well used decode replica."""
    return transfer_s(engine, requests) + FIRST_TOKEN * busy_iteration_s(engine, requests)


def _reachable(
    engines: Engines, requests: Requests, fleet: Fleet
) -> tuple[Mapping[str, BoolArray], BoolArray]:
    """Which requests go to which type of the fleet, and which count."""
    can = {name: attainable(each, requests) for name, each in engines.items()}
    nowhere = ~np.logical_or.reduce([can[name] for name in fleet])
    judged: BoolArray = np.logical_or.reduce(list(can.values()))
    return {name: can[name] | (nowhere & fits(engines[name], requests)) for name in fleet}, judged
