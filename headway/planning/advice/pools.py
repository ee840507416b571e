"""Pools of a replay that goes on from interval to interval while replicas come and go.

The rules are those of `headway.planning.replay`: whole prompts in order of arrival to the replica that is
free first, everything else to the replica with the fewest requests. A replica that is released takes no new
request and is gone when its last one has ended; the emptiest goes first. Requests that come while a pool has
no replica wait for the next one.

Pools are changed in place: they hold requests under way and engines' batches. `run` goes up to a time and
returns what has left the pool by then.
"""

from math import inf
from typing import Any, Protocol

import numpy as np

from headway.planning.replay.engine import ReplayEngine, prompt_s
from headway.planning.replay.fleet import NONE, REPLICA, PoolArrivals, ReplayState, make_state
from headway.planning.replay.loops import go_on_decoding, go_on_mixed, waits_from
from headway.planning.replay.requests import Requests
from headway.planning.types import NAN, BoolArray, FloatArray, IntArray, PoolState

NOTHING = Requests(np.zeros(0), np.zeros(0), np.zeros(0))


class Passed:
    """Requests that have left a pool, f8[N] each: `first_s` first token or end of the prompt, `finish_s`."""

    def __init__(self, requests: Requests, first_s: FloatArray, finish_s: FloatArray) -> None:
        self.requests, self.first_s, self.finish_s = requests, first_s, finish_s


class ReplayedPool(Protocol):
    """One pool of the replay."""

    def resize(self, replicas: int, now_s: float) -> None:
        """Let so many replicas serve from now on; those beyond drain."""

    def offer(self, requests: Requests, ready_s: FloatArray) -> None:
        """Let requests come at `ready_s`, f8[N] ascending, not before the time run to."""

    def run(self, until_s: float) -> Passed:
        """Let everything happen by then; what has passed."""

    def drained_s(self) -> float:
        """Replica-seconds that draining replicas took since this was last asked."""

    def state(self, desired: int, starting: int) -> PoolState:
        """Counts, and the load of the replicas that serve, as of the time run to."""


class PromptPool:
    """Prefill replicas that compute whole prompts, one after another."""

    def __init__(self, engine: ReplayEngine, now_s: float) -> None:
        self._engine, self._now_s = engine, now_s
        self._free_s = np.zeros(0)
        self._draining_s: list[float] = []
        self._drained_s = 0.0
        self._held = NOTHING
        self._under_way = Passed(NOTHING, np.zeros(0), np.zeros(0))

    def use(self, engine: ReplayEngine) -> None:
        """Go on with this engine."""
        self._engine = engine

    def resize(self, replicas: int, now_s: float) -> None:
        """See ReplayedPool."""
        there = len(self._free_s)
        if replicas > there:
            self._free_s = np.sort(np.append(self._free_s, np.full(replicas - there, now_s)))
        elif replicas < there:
            busy_s = np.sort(self._free_s)
            self._draining_s += busy_s[: there - replicas].tolist()
            self._free_s = busy_s[there - replicas :]
        if replicas and len(self._held.arrival_s):
            held, self._held = self._held, NOTHING
            self.offer(held, np.full(len(held.arrival_s), now_s))

    def offer(self, requests: Requests, ready_s: FloatArray) -> None:
        """See ReplayedPool."""
        if len(ready_s) == 0:
            return
        if len(self._free_s) == 0:
            self._held = self._held.followed_by(requests)
            return
        seconds = prompt_s(self._engine, requests.on(len(self._free_s)))
        begun_s = ready_s + waits_from(self._free_s, ready_s, seconds)
        before = self._under_way
        self._under_way = Passed(
            before.requests.followed_by(requests),
            np.append(before.first_s, begun_s),
            np.append(before.finish_s, begun_s + seconds),
        )

    def run(self, until_s: float) -> Passed:
        """See ReplayedPool; first_s and finish_s are the prompt's end."""
        for end_s in self._draining_s:
            self._drained_s += max(0.0, min(end_s, until_s) - self._now_s)
        self._draining_s = [end_s for end_s in self._draining_s if end_s > until_s]
        self._now_s = until_s
        all_of_it = self._under_way
        done = all_of_it.finish_s <= until_s
        self._under_way = _chosen(all_of_it, ~done)
        passed = _chosen(all_of_it, done)
        return Passed(passed.requests, passed.finish_s, passed.finish_s)

    def drained_s(self) -> float:
        """See ReplayedPool."""
        seconds, self._drained_s = self._drained_s, 0.0
        return seconds

    def state(self, desired: int, starting: int) -> PoolState:
        """See ReplayedPool; a prompt that is being computed runs."""
        running = np.count_nonzero(self._under_way.first_s <= self._now_s)
        waiting = len(self._under_way.first_s) - running + len(self._held.arrival_s)
        return PoolState(
            desired=desired,
            starting=starting,
            ready=len(self._free_s),
            draining=len(self._draining_s),
            running=float(running),
            waiting=float(waiting),
            kv_usage=NAN,
        )


def _chosen(passed: Passed, chosen: BoolArray) -> Passed:
    return Passed(passed.requests.where(chosen), passed.first_s[chosen], passed.finish_s[chosen])


class BatchPool:
    """Replicas that run batches: decode, mixed, or prefill in chunks of several prompts (`prompts_only`)."""

    def __init__(
        self, engine: ReplayEngine, now_s: float, *, mixed: bool = False, prompts_only: bool = False
    ) -> None:
        self._mixed, self._prompts_only = mixed or prompts_only, prompts_only
        self._now_s = now_s
        self._held = self._requests = NOTHING
        self._stopped_s = np.zeros(0)
        self._drained_s = 0.0
        self._new = 0
        self.use(engine)

    def use(self, engine: ReplayEngine) -> None:
        """Go on with this engine."""
        self._engine = engine
        fresh = make_state(engine, _coming(NOTHING, np.zeros(0)), 0)
        known: ReplayState | None = getattr(self, "_state", None)
        surfaces = fresh.surfaces
        if self._prompts_only:
            surfaces = surfaces._replace(itl=surfaces.itl._replace(capacity_tokens=inf))
        self._state = (known or fresh)._replace(surfaces=surfaces)
        if known is None:
            wide = np.zeros((0, engine.max_batch_size))
            self._state = self._state._replace(finish_iteration=wide, finish_request=wide.astype(np.int64))

    def resize(self, replicas: int, now_s: float) -> None:
        """See ReplayedPool."""
        serving = np.flatnonzero(np.isinf(self._stopped_s))
        if replicas > len(serving):
            self._grow(replicas - len(serving))
        elif replicas < len(serving):
            load = self._state.load[serving]
            released = serving[np.argsort(load, kind="stable")][: len(serving) - replicas]
            self._stopped_s[released] = now_s
            self._state.load[released] = np.inf
        if replicas and len(self._held.arrival_s):
            held, self._held = self._held, NOTHING
            self.offer(held, np.full(len(held.arrival_s), now_s))

    def offer(self, requests: Requests, ready_s: FloatArray) -> None:
        """See ReplayedPool."""
        if len(ready_s) == 0:
            return
        replicas = int(np.count_nonzero(np.isinf(self._stopped_s)))
        if replicas == 0:
            self._held = self._held.followed_by(requests)
            return
        state, count = self._state, len(ready_s)
        found = requests.on(replicas) if self._mixed else requests
        cached = np.zeros(count) if found.cached_tokens is None else found.cached_tokens
        outputs = np.maximum(1.0, np.rint(requests.output_tokens))
        columns: dict[str, Any] = {
            "ready_s": ready_s,
            "input_tokens": requests.input_tokens,
            "computed_tokens": cached,
            "output_tokens": np.ones(count) if self._prompts_only else outputs,
            "weight": requests.input_tokens if self._prompts_only else np.ones(count),
            "judged": np.zeros(count, np.bool_),
            "following": np.full(count, NONE),
            "first_s": np.full(count, np.inf),
            "finish_s": np.full(count, np.inf),
        }
        if self._prompts_only:
            columns["input_tokens"], columns["computed_tokens"] = found.uncached_tokens, np.zeros(count)
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(state, name), added]) for name, added in columns.items()
        }
        self._state = state._replace(**joined)
        self._requests = self._requests.followed_by(requests)
        self._new += count

    def run(self, until_s: float) -> Passed:
        """See ReplayedPool."""
        go_on = go_on_mixed if self._mixed else go_on_decoding
        if len(self._state.replicas):
            go_on(self._state, len(self._state.ready_s) - self._new, until_s)
            self._new = 0
        self._drain(until_s)
        self._now_s = until_s
        return self._pass()

    def drained_s(self) -> float:
        """See ReplayedPool."""
        seconds, self._drained_s = self._drained_s, 0.0
        return seconds

    def state(self, desired: int, starting: int) -> PoolState:
        """See ReplayedPool."""
        serving = np.isinf(self._stopped_s)
        units, count = self._state.replicas[serving], int(np.count_nonzero(serving))
        there = float(self._state.load[serving].sum())
        running = float(units["running"].sum() + units["chunk_requests"].sum())
        waiting = NAN if self._prompts_only else max(0.0, there - running) + len(self._held.arrival_s)
        return PoolState(
            desired=desired,
            starting=starting,
            ready=count,
            draining=len(serving) - count,
            running=running,
            waiting=waiting,
            kv_usage=float(units["kv_tokens"].sum()) / (self._engine.kv_capacity_tokens * max(1, count)),
        )

    def _grow(self, count: int) -> None:
        state = self._state
        units = np.zeros(count, REPLICA)
        units["head"], units["tail"] = NONE, NONE
        units["time_s"] = self._now_s
        heaps = (count, state.finish_iteration.shape[1])
        self._stopped_s = np.append(self._stopped_s, np.full(count, np.inf))
        self._state = state._replace(
            replicas=np.concatenate([state.replicas, units]),
            next_s=np.append(state.next_s, np.full(count, np.inf)),
            load=np.append(state.load, np.zeros(count)),
            finish_iteration=np.concatenate([state.finish_iteration, np.zeros(heaps)]),
            finish_request=np.concatenate([state.finish_request, np.zeros(heaps, np.int64)]),
        )

    def _drain(self, until_s: float) -> None:
        """Count what draining replicas took, and let those that are empty go."""
        state, stopped = self._state, np.isfinite(self._stopped_s)
        if not stopped.any():
            return
        idle = stopped & np.isinf(state.next_s) & (state.replicas["head"] == NONE)
        ends_s = np.where(idle, np.minimum(until_s, state.replicas["time_s"]), until_s)
        since_s = np.maximum(self._stopped_s, self._now_s)
        self._drained_s += float(np.maximum(0.0, ends_s - since_s)[stopped].sum())
        kept = ~idle
        self._stopped_s = self._stopped_s[kept]
        names = ("replicas", "next_s", "load", "finish_iteration", "finish_request")
        columns: dict[str, Any] = {name: getattr(state, name)[kept] for name in names}
        self._state = state._replace(**columns)

    def _pass(self) -> Passed:
        """Take out the requests that have ended."""
        state = self._state
        done = np.isfinite(state.finish_s)
        if not done.any():
            return Passed(NOTHING, np.zeros(0), np.zeros(0))
        passed = Passed(self._requests.where(done), state.first_s[done], state.finish_s[done])
        kept = ~done
        place: IntArray = np.where(kept, np.cumsum(kept) - 1, NONE)
        units = state.replicas.copy()
        for name in ("head", "tail"):
            units[name] = np.where(units[name] == NONE, NONE, place[units[name]])
        within = np.arange(state.finish_request.shape[1]) < units["running"][:, None]
        heaps = np.where(within, place[np.where(within, state.finish_request, 0)], 0)
        following = np.where(state.following == NONE, NONE, place[state.following])
        names = ("ready_s", "input_tokens", "computed_tokens", "output_tokens", "weight", "judged")
        left: dict[str, Any] = {name: getattr(state, name)[kept] for name in names}
        self._state = state._replace(
            replicas=units,
            finish_request=heaps,
            following=following[kept],
            first_s=state.first_s[kept],
            finish_s=state.finish_s[kept],
            **left,
        )
        self._requests = self._requests.where(kept)
        return passed


def _coming(requests: Requests, ready_s: FloatArray) -> PoolArrivals:
    nothing = np.zeros(len(ready_s))
    return PoolArrivals(ready_s, requests.input_tokens, nothing, nothing, nothing > 0.0)
