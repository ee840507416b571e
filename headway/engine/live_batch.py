"""Requests of one live replica, and its decode batch: who is in, how far each is, who has all tokens.

As in the compiled kernel (`batch`), an iteration moves the whole batch on without touching its members: it is
a heap by the iteration at which they finish. An iteration costs O(1), a change of the batch O(log n), but for
the tuple of names that an iteration hands out, O(n) per change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

FEW = 64
"""Aborted requests that the heap of finishes may hold besides as many as the batch has."""


class JobStage(Enum):
    """Where a request is."""

    COMING = auto()
    QUEUED = auto()
    RUNNING = auto()
    GONE = auto()


@dataclass(slots=True, eq=False)
class LiveJob:
    """One request in the engine. `prefilled`: its KV comes from elsewhere; `prefill_only`: it goes there."""

    request_id: str
    input_tokens: int
    output_tokens: int
    prefilled: bool
    prefill_only: bool
    blocks: Sequence[int]
    stage: JobStage = JobStage.COMING
    cached_tokens: int = -1
    """Prompt tokens that need not be computed or sent; negative until the prefix cache was asked."""
    done_tokens: int = 0
    """Prompt tokens computed so far."""
    reserved: bool = False
    finish_iteration: int = 0

    @property
    def need_tokens(self) -> int:
        """KV tokens that it will fill here in the end."""
        return self.input_tokens if self.prefill_only else self.input_tokens + self.output_tokens

    @property
    def left_tokens(self) -> int:
        """Prompt tokens still to compute, or to be sent, once the prefix cache was asked."""
        return self.input_tokens - self.cached_tokens - self.done_tokens


class JobState(NamedTuple):
    """How far a request is: whether its prompt is computed, here or elsewhere, and its output tokens."""

    request_id: str
    computed: bool
    output_tokens: int
    prefilled_elsewhere: bool
    prefill_only: bool


class LiveBatch:
    """The sequences that decode together."""

    __slots__ = ("_finishing", "_iteration", "_members", "_names", "_order", "kv_tokens")

    def __init__(self) -> None:
        self.kv_tokens = 0
        """Tokens that they hold together."""
        self._members: dict[str, LiveJob] = {}
        self._names: tuple[str, ...] | None = ()
        self._finishing: list[tuple[int, int, LiveJob]] = []
        self._order = count()
        self._iteration = 0

    def __len__(self) -> int:
        return len(self._members)

    def join(self, job: LiveJob, produced: int) -> None:
        """Take in a request that has `produced` output tokens already."""
        job.stage = JobStage.RUNNING
        job.finish_iteration = self._iteration + job.output_tokens - produced
        heappush(self._finishing, (job.finish_iteration, next(self._order), job))
        self._members[job.request_id] = job
        self._names = None
        self.kv_tokens += job.input_tokens + produced

    def leave(self, job: LiveJob) -> None:
        """Let go of one that has not finished."""
        self._remove(job)
        if len(self._finishing) > 2 * len(self._members) + FEW:
            self._finishing = [entry for entry in self._finishing if entry[2].stage is JobStage.RUNNING]
            heapify(self._finishing)

    def state(self, job: LiveJob) -> JobState:
        """How far a request of this replica is, whether it is in the batch or not."""
        running = job.stage is JobStage.RUNNING
        return JobState(
            request_id=job.request_id,
            computed=running or job.prefilled,
            output_tokens=self._produced(job) if running else 0,
            prefilled_elsewhere=job.prefilled,
            prefill_only=job.prefill_only,
        )

    def step(self) -> tuple[str, ...]:
        """An iteration ends: one token for each of these."""
        names = self._names
        if names is None:
            names = self._names = tuple(self._members)
        self.kv_tokens += len(names)
        self._iteration += 1
        return names

    def take_finished(self) -> Sequence[LiveJob]:
        """Members that have all their tokens; they are no longer in."""
        finishing = self._finishing
        if not finishing or finishing[0][0] > self._iteration:
            return ()
        finished = []
        while finishing and finishing[0][0] <= self._iteration:
            job = heappop(finishing)[2]
            if job.stage is JobStage.RUNNING:
                self._remove(job)
                finished.append(job)
        return finished

    def _produced(self, job: LiveJob) -> int:
        return job.output_tokens - (job.finish_iteration - self._iteration)

    def _remove(self, job: LiveJob) -> None:
        self.kv_tokens -= job.input_tokens + self._produced(job)
        job.stage = JobStage.GONE
        del self._members[job.request_id]
        self._names = None
