"""The engine model one iteration at a time: one live replica, on whatever clock its driver reads.

The rules are those of the compiled kernel (`engine`, `batch`, `prefill`): a FIFO queue, a decode batch, at
most one chunk of prefill work; admission at the end of an iteration, within the batch limit and the KV
capacity, with KV reserved for input + output tokens. What differs is the grain: the kernel closes a stretch
of iterations in one event, here each iteration ends on its own, because its tokens are to be sent. Prefix
caches are not modelled: every prompt is computed whole.

    submit(…, at_s)         a request, now or later (its KV is still on the way until then)
    next_boundary_s         when something happens next; None while there is nothing to do
    advance(now_s)          what happened up to now, one `Boundary` per iteration that ended, in order

Time only comes in as an argument, and a boundary lies where the model puts it, however late `advance` is
called: a driver that wakes up late catches up without slowing the engine down. An iteration costs O(1) here
and a change of the batch O(log n), but for the tuple of names that a boundary carries, O(n) per change.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple

from headway.planning.types import Role
from headway.simulation.rules import EngineRules
from headway.simulation.tempo import Tempo
from interp import Profile

FEW = 64
"""Aborted requests that the heap of finishes may hold besides as many as the batch has."""


class Boundary(NamedTuple):
    """An iteration ended at `at_s`: who got a token, whose prompt is computed, who has all tokens."""

    at_s: float
    emitted: tuple[str, ...]
    """Each of these requests got one token."""
    prefilled: tuple[str, ...]
    finished: tuple[str, ...]


class _Place(Enum):
    """Where a request is."""

    COMING = auto()
    QUEUED = auto()
    RUNNING = auto()
    GONE = auto()


@dataclass(slots=True, eq=False)
class _Job:
    """One request in the engine."""

    request_id: str
    input_tokens: int
    output_tokens: int
    prefilled: bool
    place: _Place = _Place.COMING
    done_tokens: int = 0
    reserved: bool = False
    finish_iteration: int = 0

    @property
    def need_tokens(self) -> int:
        """KV tokens that it will fill in the end."""
        return self.input_tokens + self.output_tokens


class Stepper:
    """One replica of `role`. Not safe for threads; times must not be NaN."""

    def __init__(self, profile: Profile, rules: EngineRules, role: Role) -> None:
        self.role, self.rules, self.tempo = role, rules, Tempo(profile)
        self.capacity_tokens = int(profile.decode.table.max_kv_tokens)
        self.kv_tokens = 0
        self._jobs: dict[str, _Job] = {}
        self._coming: list[tuple[float, int, _Job]] = []
        self._queue: deque[_Job] = deque()
        self._batch: dict[str, _Job] = {}
        self._names: tuple[str, ...] | None = ()
        self._finishing: list[tuple[int, int, _Job]] = []
        self._chunk: list[tuple[_Job, int]] = []
        self._order = count()
        self._reserved_tokens = self._iteration = 0
        self._now_s = -inf
        self._boundary_s: float | None = None
        self._idle = True

    @property
    def running(self) -> int:
        """Requests in the batch, and those whose prompts the iteration under way computes."""
        return len(self._batch) + sum(job.place is _Place.QUEUED for job, _ in self._chunk)

    @property
    def waiting(self) -> int:
        """All other requests, those whose KV is on its way included."""
        return len(self._jobs) - self.running

    @property
    def kv_usage(self) -> float:
        """Tokens of the batch over the KV capacity, in [0, 1]."""
        return self.kv_tokens / self.capacity_tokens

    def can_ever_fit(self, input_tokens: int, output_tokens: int) -> bool:
        """Whether an empty engine could take such a request."""
        return input_tokens + output_tokens <= self.capacity_tokens

    def submit(
        self, request_id: str, input_tokens: int, output_tokens: int, *, prefilled: bool, at_s: float
    ) -> None:
        """Take in a request that is here from `at_s` on; a time that is already accounted for means now.

        A decode replica takes prefilled requests, the others prompts. Raises ValueError for the wrong kind,
        for lengths below 1 or beyond the KV capacity, and for a request that is already here.
        """
        if prefilled != (self.role is Role.DECODE):
            raise ValueError(f"{request_id}: not what a {self.role} replica takes")
        if min(input_tokens, output_tokens) < 1 or not self.can_ever_fit(input_tokens, output_tokens):
            raise ValueError(f"{request_id}: {input_tokens} + {output_tokens} tokens never fit")
        if request_id in self._jobs:
            raise ValueError(f"{request_id}: already here")
        job = _Job(request_id, input_tokens, output_tokens, prefilled)
        self._jobs[request_id] = job
        heappush(self._coming, (max(at_s, self._now_s), next(self._order), job))

    def abort(self, request_id: str) -> bool:
        """Forget a request and free what it holds; False if it is not here. The iteration goes on."""
        job = self._jobs.get(request_id)
        if job is None:
            return False
        if job.place is _Place.QUEUED:
            self._queue.remove(job)
        elif job.place is _Place.RUNNING:
            produced = job.output_tokens - (job.finish_iteration - self._iteration)
            self._leave_batch(job, job.input_tokens + produced)
        self._release(job)
        self._forget_aborted()
        return True

    def next_boundary_s(self) -> float | None:
        """When the next thing happens: an iteration ends or a request comes in."""
        coming_s = self._next_coming_s()
        at_s = coming_s if self._boundary_s is None else min(coming_s, self._boundary_s)
        return None if at_s == inf else at_s

    def advance(self, now_s: float) -> list[Boundary]:
        """Everything up to and including `now_s`. Who comes in at a boundary's very moment is part of it."""
        ended: list[Boundary] = []
        while True:
            coming_s = self._next_coming_s()
            boundary_s = inf if self._boundary_s is None else self._boundary_s
            if min(coming_s, boundary_s) > now_s:
                break
            if coming_s <= boundary_s:
                self._arrive(coming_s)
            else:
                self._now_s = boundary_s
                if not self._idle:
                    ended.append(self._end_iteration())
                self._start_iteration()
        self._now_s = max(self._now_s, now_s)
        return ended

    def _next_coming_s(self) -> float:
        while self._coming and self._coming[0][2].place is _Place.GONE:
            heappop(self._coming)
        return self._coming[0][0] if self._coming else inf

    def _arrive(self, at_s: float) -> None:
        """Queue the first of those to come; an idle replica starts as soon as all of that moment are here."""
        _, _, job = heappop(self._coming)
        job.place = _Place.QUEUED
        self._queue.append(job)
        self._now_s = at_s
        if self._idle:
            self._boundary_s = at_s

    def _start_iteration(self) -> None:
        """Begin the next iteration, or fall idle."""
        added_s = 0.0
        if self.role is Role.DECODE:
            self._admit_prefilled()
        else:
            added_s = self._plan_chunk()
        self._idle = not (self._batch or self._chunk)
        self._boundary_s = None if self._idle else self._now_s + self._iteration_s(added_s)

    def _admit_prefilled(self) -> None:
        while self._queue and self._fits(self._queue[0], 0):
            job = self._queue.popleft()
            self._reserve(job)
            self._join(job, produced=0)

    def _plan_chunk(self) -> float:
        """Choose the prompt tokens of the next iteration; seconds that their work adds to it."""
        budget, added_s = self.rules.chunk_tokens or inf, 0.0
        for job in self._queue:
            if budget == 0:
                break
            if self.role is not Role.PREFILL and not job.reserved:
                if not self._fits(job, len(self._chunk)):
                    break
                self._reserve(job)
            left = job.input_tokens - job.done_tokens
            tokens = int(min(left, budget))
            added_s += self.tempo.work_s(job.done_tokens + tokens) - self.tempo.work_s(job.done_tokens)
            self._chunk.append((job, tokens))
            budget -= tokens
            if self.rules.chunk_tokens == 0:
                break
        return added_s

    def _iteration_s(self, added_s: float) -> float:
        if self._batch:
            return self.tempo.itl_s(len(self._batch), self.kv_tokens) + added_s
        if self.rules.chunk_tokens == 0:
            return self.tempo.ttft_s(self._chunk[0][1])
        return self.tempo.empty_s + added_s

    def _end_iteration(self) -> Boundary:
        """The iteration under way ends now: tokens leave, prompts are done, sequences finish."""
        if self._names is None:
            self._names = tuple(self._batch)
        emitted, finished = self._names, list[str]()
        self.kv_tokens += len(emitted)
        self._iteration += 1
        prefilled = self._finish_chunk(finished) if self._chunk else ()
        if self.role is Role.MIXED:
            emitted += prefilled
        while self._finishing and self._finishing[0][0] <= self._iteration:
            job = heappop(self._finishing)[2]
            if job.place is _Place.RUNNING:
                self._leave_batch(job, job.need_tokens)
                self._release(job)
                finished.append(job.request_id)
        return Boundary(self._now_s, emitted, prefilled, tuple(finished))

    def _finish_chunk(self, finished: list[str]) -> tuple[str, ...]:
        """Prompts that are complete leave the queue, for the decode pool or for the batch here."""
        prefilled = []
        for job, tokens in self._chunk:
            job.done_tokens += tokens
            if job.place is _Place.GONE or job.done_tokens < job.input_tokens:
                continue
            self._queue.popleft()
            prefilled.append(job.request_id)
            if self.role is Role.MIXED and job.output_tokens > 1:
                self._join(job, produced=1)
                continue
            self._release(job)
            if self.role is Role.MIXED:
                finished.append(job.request_id)
        self._chunk = []
        return tuple(prefilled)

    def _fits(self, job: _Job, joining: int) -> bool:
        return (
            len(self._batch) + joining < self.rules.max_batch_size
            and self._reserved_tokens + job.need_tokens <= self.capacity_tokens
        )

    def _reserve(self, job: _Job) -> None:
        job.reserved = True
        self._reserved_tokens += job.need_tokens

    def _join(self, job: _Job, produced: int) -> None:
        job.place = _Place.RUNNING
        job.finish_iteration = self._iteration + job.output_tokens - produced
        heappush(self._finishing, (job.finish_iteration, next(self._order), job))
        self._batch[job.request_id] = job
        self._names = None
        self.kv_tokens += job.input_tokens + produced

    def _leave_batch(self, job: _Job, held_tokens: int) -> None:
        del self._batch[job.request_id]
        self._names = None
        self.kv_tokens -= held_tokens

    def _forget_aborted(self) -> None:
        """Keep what aborted requests leave in the heap of finishes from growing."""
        if len(self._finishing) > 2 * len(self._batch) + FEW:
            self._finishing = [entry for entry in self._finishing if entry[2].place is _Place.RUNNING]
            heapify(self._finishing)

    def _release(self, job: _Job) -> None:
        """The request is no longer here."""
        job.place = _Place.GONE
        del self._jobs[job.request_id]
        if job.reserved:
            self._reserved_tokens -= job.need_tokens
