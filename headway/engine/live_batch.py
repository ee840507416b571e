"""Parts of one live replica: its requests, their decode batch, its prefix cache, and iterations' durations.

As in the compiled kernel (`surfaces`), an iteration moves the whole batch on without touching its
members: it is a heap by the iteration at which they finish. An iteration costs O(1), a change of the batch
O(log n), but for the tuple of names that an iteration hands out, O(n) per change.

The prefix cache is an LRU of block keys, as the kernel's. A prompt is a list of block keys, each standing for
`block_tokens` tokens and for all before it; its longest run of leading blocks that are present is cached. A
look-up changes nothing. Remembering a prompt touches its last block first, so that it loses its tail before
its head.

Plain Python: a replica's process should start without a compiler.

Durations are looked up in the same surfaces as the compiled kernel's (`IterationTimes`), one number at a
time, where a call into compiled code costs as much as the look-up. Lists and bisection; a look-up takes about
a microsecond.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from itertools import count

from interp import DecodeTable, PrefillTable, Profile

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

    def clear(self) -> None:
        """Forget them."""
        self._blocks.clear()

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


class IterationTimes:
    """Seconds per iteration of the engine that `profile` describes."""

    def __init__(self, profile: Profile) -> None:
        self._prefill = PrefillTimes(profile.prefill.table)
        self.itl_s = DecodeTimes(profile.decode.table).itl_s
        self.ttft_s = self._prefill.ttft_s
        self.work_s = self._prefill.work_s
        self.empty_s = self._prefill.work_s(0)
        """An iteration that no decode batch pays for, without its work."""


class PrefillTimes:
    """TTFT of whole prompts, and the work curve of chunks (see `surfaces`)."""

    def __init__(self, table: PrefillTable) -> None:
        self._tokens, self._seconds = table.isl_tokens.tolist(), table.ttft_s.tolist()
        nodes, seconds = table.work_nodes()
        self._work_tokens, self._work_s = nodes.tolist(), seconds.tolist()
        self._linear, self._quadratic = table.linear_s_per_token, table.quadratic_s_per_token2

    def ttft_s(self, tokens: int) -> float:
        """Seconds that a prompt of `tokens` takes on an idle engine."""
        return self._at(self._tokens, self._seconds, tokens)

    def work_s(self, tokens: int) -> float:
        """W at `tokens`; the difference of two values is what the tokens between them add."""
        return self._at(self._work_tokens, self._work_s, tokens)

    def _at(self, axis: Sequence[float], seconds: Sequence[float], tokens: int) -> float:
        last = axis[-1]
        if tokens > last:
            return seconds[-1] + (tokens - last) * (self._linear + self._quadratic * (tokens + last))
        cell, part = _locate(axis, tokens)
        return seconds[cell] + part * (seconds[cell + 1] - seconds[cell])


class DecodeTimes:
    """ITL of a batch: bilinear in KV usage and in one over the mean context, held at the table's edges."""

    def __init__(self, table: DecodeTable) -> None:
        self._kv, self._inverse = table.kv.tolist(), table.inv_context.tolist()
        self._itl: list[list[float]] = table.itl_s.tolist()
        self._capacity = table.max_kv_tokens

    def itl_s(self, batch: int, kv_tokens: int) -> float:
        """Seconds of one iteration of `batch` sequences that hold `kv_tokens` together."""
        column, along = _locate(self._kv, kv_tokens / self._capacity)
        row, down = _locate(self._inverse, batch / kv_tokens)
        upper, lower = self._itl[row], self._itl[row + 1]
        left = upper[column] + down * (lower[column] - upper[column])
        right = upper[column + 1] + down * (lower[column + 1] - upper[column + 1])
        return left + along * (right - left)


def _locate(axis: Sequence[float], value: float) -> tuple[int, float]:
    """The cell of ascending `axis` (two nodes or more) that holds `value`, and how far along, in [0, 1]."""
    if value <= axis[0]:
        return 0, 0.0
    if value >= axis[-1]:
        return len(axis) - 2, 1.0
    cell = bisect_right(axis, value) - 1
    return cell, (value - axis[cell]) / (axis[cell + 1] - axis[cell])
