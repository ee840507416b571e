"""Parts of one live replica: its requests, their decode batch, and its prefix cache.

As in the compiled kernel (`decode_batch`), an iteration moves the whole batch on without touching its
members: it is a heap by the iteration at which they finish. An iteration costs O(1), a change of the batch
O(log n), but for the tuple of names that an iteration hands out, O(n) per change.

The prefix cache is an LRU of block keys, as the kernel's. A prompt is a list of block keys, each standing for
`block_tokens` tokens and for all before it; its longest run of leading blocks that are present is cached. A
look-up changes nothing. Remembering a prompt touches its last block first, so that it loses its tail before
its head.

Plain Python: a replica's process should start without a compiler.
"""

from collections import OrderedDict
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
    came_s: float = 0.0
    """When it, or its KV, was here."""
    begun_s: float = 0.0
    """When it left the queue."""
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
    """Progress of a request: is its prompt computed, here or elsewhere, and its output tokens."""

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
        """Progress of a request of this replica, in the batch or not."""
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


class PrefixCache:
    """At most `capacity_blocks` blocks; none with a capacity of 0."""

    __slots__ = ("_block_tokens", "_blocks", "_capacity")

    def __init__(self, capacity_blocks: int, block_tokens: int) -> None:
        self._capacity, self._block_tokens = capacity_blocks, block_tokens
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def cached_tokens(self, blocks: Sequence[int], input_tokens: int) -> int:
        """Leading tokens of a prompt that need not be computed; at least one token is."""
        hits = 0
        for key in blocks:
            if key not in self._blocks:
                break
            hits += 1
        return min(hits * self._block_tokens, input_tokens - 1)

    def insert(self, blocks: Sequence[int]) -> None:
        """Remember a prompt; the blocks that were not used for longest make room."""
        if self._capacity == 0:
            return
        for key in reversed(blocks):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
            if len(self._blocks) > self._capacity:
                self._blocks.popitem(last=False)
