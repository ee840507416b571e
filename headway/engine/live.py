"""The engine model one iteration at a time: one live replica, on whatever clock its driver reads.

The rules are those of the compiled kernel (`headway.engine.kernel.replica`). What differs is the grain: the
kernel closes a stretch of iterations in one event, here each iteration ends on its own, because its tokens
are to be sent.

A replica may do a part of a request only. Computing a prompt for another replica needs KV room for the
prompt; it leaves without a token. A prefilled request, whose KV comes from another replica, needs room in the
batch and the KV. It joins before the next chunk is chosen, so it waits for no prompt that is under way, and
while it waits for room no prompt is begun that could take it. Its first token comes with its first iteration,
and its blocks are cached from then on as if they had been computed here. Of its KV only `missing_tokens` had
to come: what is cached when it sets out is not sent.

    submit(…, at_s)         a request, now or later (its KV is still on the way until then)
    next_boundary_s         when something happens next; None while there is nothing to do
    advance(now_s)          what happened up to now, one `Boundary` per iteration that ended, in order

Time only comes in as an argument, and a boundary lies where the model puts it, however late `advance` is
called: a driver that wakes up late catches up without slowing the engine down.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple

from headway.config import Role
from headway.engine.live_batch import IterationTimes, JobStage, LiveBatch, LiveJob, PrefixCache
from headway.engine.rules import EngineRules
from interp import Profile


class Boundary(NamedTuple):
    """An iteration ended at `at_s`: who got a token, whose prompt is computed, who has all tokens."""

    at_s: float
    emitted: tuple[str, ...]
    """Each of these requests got one token."""
    prefilled: tuple[str, ...]
    finished: tuple[str, ...]
    left: tuple[str, ...] = ()
    """Those of `prefilled` that go on elsewhere; they are no longer here."""


_NOBODY: tuple[str, ...] = ()


Slowness = Callable[[], tuple[float, float]]
"""By how many times longer than profiled prefill and decode take now."""


class LiveEngine:
    """One replica of `role`, as fast as profiled but for `slowness`.

    Not safe for threads; times must not be NaN.
    """

    def __init__(
        self, profile: Profile, rules: EngineRules, role: Role, slowness: Slowness | None = None
    ) -> None:
        self._slowness = slowness
        self.role, self.rules, self.times = role, rules, IterationTimes(profile)
        self.capacity_tokens = int(profile.decode.table.max_kv_tokens)
        self.prompt_tokens = self.cached_tokens = self.external_tokens = 0
        """Totals of prompts begun with or received: all tokens, those in the prefix cache, those received."""
        # A replica that computes no prompts has no use for a cache of them.
        blocks = 0 if role is Role.DECODE else rules.prefix_cache_tokens // rules.block_tokens
        self._cache = PrefixCache(blocks, rules.block_tokens)
        self._jobs: dict[str, LiveJob] = {}
        self._coming: list[tuple[float, int, LiveJob]] = []
        self._prompts: deque[LiveJob] = deque()
        self._ready: deque[LiveJob] = deque()
        self._batch = LiveBatch()
        self._chunk: list[tuple[LiveJob, int]] = []
        self._order = count()
        self._reserved_tokens = 0
        self._now_s = -inf
        self._boundary_s: float | None = None
        self._idle = True
        self._begun_s = self._busy_s = 0.0

    @property
    def running(self) -> int:
        """Requests in the batch, and those whose prompts the iteration under way computes."""
        return len(self._batch) + sum(job.stage is JobStage.QUEUED for job, _ in self._chunk)

    @property
    def waiting(self) -> int:
        """All other requests, those whose KV is on its way included."""
        return len(self._jobs) - self.running

    @property
    def kv_tokens(self) -> int:
        """Tokens of the batch."""
        return self._batch.kv_tokens

    @property
    def kv_usage(self) -> float:
        """Tokens of the batch over the KV capacity, in [0, 1]."""
        return self._batch.kv_tokens / self.capacity_tokens

    def busy_s(self, now_s: float) -> float:
        """Seconds spent in iterations until `now_s`, the one under way included."""
        if self._idle or self._boundary_s is None:
            return self._busy_s
        return self._busy_s + max(0.0, min(now_s, self._boundary_s) - self._begun_s)

    def can_ever_fit(self, input_tokens: int, output_tokens: int) -> bool:
        """True if an empty engine could take such a request."""
        return input_tokens + output_tokens <= self.capacity_tokens

    def missing_tokens(self, input_tokens: int, blocks: Sequence[int]) -> int:
        """Tokens of a prompt that the prefix cache does not have; at least one."""
        return input_tokens - self._cache.cached_tokens(blocks, input_tokens) if blocks else input_tokens

    def clear_cache(self) -> None:
        """Forget all prefixes."""
        self._cache.clear()

    def submit(
        self,
        request_id: str,
        input_tokens: int,
        output_tokens: int,
        *,
        at_s: float,
        prefilled: bool = False,
        prefill_only: bool = False,
        blocks: Sequence[int] = (),
    ) -> LiveJob:
        """Take in a request that is here from `at_s` on; a time that is already accounted for means now.

        `prefilled` requests come with their KV; of `prefill_only` ones the prompt is computed and no more, as
        of all on a prefill replica. `blocks` are the prompt's keys for the prefix cache. Raises ValueError
        for what this role does not do, for lengths below 1 or beyond the KV capacity, and for a request that
        is already here.
        """
        prefill_only |= self.role is Role.PREFILL
        if (prefilled and prefill_only) or (self.role is Role.DECODE and not prefilled):
            raise ValueError(f"{request_id}: not what a {self.role} replica takes")
        if min(input_tokens, output_tokens) < 1 or not self.can_ever_fit(input_tokens, output_tokens):
            raise ValueError(f"{request_id}: {input_tokens} + {output_tokens} tokens never fit")
        if request_id in self._jobs:
            raise ValueError(f"{request_id}: already here")
        job = LiveJob(request_id, input_tokens, output_tokens, prefilled, prefill_only, blocks)
        if prefilled:
            job.cached_tokens = input_tokens - self.missing_tokens(input_tokens, blocks)
        self._jobs[request_id] = job
        job.came_s = max(at_s, self._now_s)
        heappush(self._coming, (job.came_s, next(self._order), job))
        return job

    def abort(self, request_id: str) -> bool:
        """Forget a request and free what it holds; False if it is not here. The iteration goes on."""
        job = self._jobs.get(request_id)
        if job is None:
            return False
        if job.stage is JobStage.QUEUED:
            self._queue_of(job).remove(job)
        elif job.stage is JobStage.RUNNING:
            self._batch.leave(job)
        self._release(job)
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
            # What comes at the very moment of a boundary is seen by the iteration that begins there.
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
        while self._coming and self._coming[0][2].stage is JobStage.GONE:
            heappop(self._coming)
        return self._coming[0][0] if self._coming else inf

    def _arrive(self, at_s: float) -> None:
        """Queue the first of those to come; an idle replica starts as soon as all of that moment are here."""
        _, _, job = heappop(self._coming)
        job.stage = JobStage.QUEUED
        self._queue_of(job).append(job)
        self._now_s = at_s
        if self._idle:
            self._boundary_s = at_s

    def _queue_of(self, job: LiveJob) -> deque[LiveJob]:
        return self._ready if job.prefilled else self._prompts

    def _start_iteration(self) -> None:
        """Begin the next iteration, or fall idle."""
        if self._ready:
            self._admit_prefilled()
        added_s = self._plan_chunk() if self._prompts else 0.0
        batch = len(self._batch)
        self._idle = not batch and not self._chunk
        self._begun_s = self._now_s
        self._boundary_s = None if self._idle else self._now_s + self._iteration_s(batch, added_s)

    def _admit_prefilled(self) -> None:
        """Prefilled requests join in order; a prompt that is partly computed keeps its place in the batch."""
        under_way = int(bool(self._prompts) and self._prompts[0].reserved)
        while self._ready and self._fits(self._ready[0], under_way):
            job = self._ready.popleft()
            job.begun_s = self._now_s
            self._reserve(job)
            self._count_prompt(job)
            self.external_tokens += job.left_tokens
            if job.blocks:
                self._cache.insert(job.blocks)
            self._batch.join(job, produced=0)

    def _plan_chunk(self) -> float:
        """Choose the prompt tokens of the next iteration; seconds that their work adds to it."""
        budget, added_s = self.rules.chunk_tokens or inf, 0.0
        for job in self._prompts:
            if budget == 0:
                break
            if self.role is not Role.PREFILL and not job.reserved:
                if self._ready or not self._fits(job, len(self._chunk)):
                    break
                self._reserve(job)
            if job.cached_tokens < 0:
                job.begun_s = self._now_s
                job.cached_tokens = job.input_tokens - self.missing_tokens(job.input_tokens, job.blocks)
                self._count_prompt(job)
            tokens = int(min(job.left_tokens, budget))
            added_s += self.times.work_s(job.done_tokens + tokens) - self.times.work_s(job.done_tokens)
            self._chunk.append((job, tokens))
            budget -= tokens
            if self.rules.chunk_tokens == 0:
                break
        return added_s

    def _count_prompt(self, job: LiveJob) -> None:
        self.prompt_tokens += job.input_tokens
        self.cached_tokens += job.cached_tokens

    def _iteration_s(self, batch: int, added_s: float) -> float:
        prefill, decode = (1.0, 1.0) if self._slowness is None else self._slowness()
        if batch:
            return self.times.itl_s(batch, self._batch.kv_tokens) * decode + added_s * prefill
        if self.rules.chunk_tokens == 0:
            return self.times.ttft_s(self._chunk[0][1]) * prefill
        return (self.times.empty_s + added_s) * prefill

    def _end_iteration(self) -> Boundary:
        """The iteration under way ends now: tokens leave, prompts are done, sequences finish."""
        self._busy_s += self._now_s - self._begun_s
        emitted, prefilled, finished, left = self._batch.step(), _NOBODY, _NOBODY, _NOBODY
        if self._chunk:
            computed = self._finish_chunk()
            staying = [job for job in computed if not job.prefill_only]
            prefilled, left = _names(computed), _names([job for job in computed if job.prefill_only])
            emitted += _names(staying)
            finished = _names([job for job in staying if job.output_tokens == 1])
        if done := self._batch.take_finished():
            for job in done:
                self._release(job)
            finished += _names(done)
        return Boundary(self._now_s, emitted, prefilled, finished, left)

    def _finish_chunk(self) -> Sequence[LiveJob]:
        """Prompts that are complete leave the queue, for another replica or for the batch here."""
        computed = []
        for job, tokens in self._chunk:
            job.done_tokens += tokens
            if job.stage is JobStage.GONE or job.left_tokens > 0:
                continue
            self._prompts.popleft()
            if job.blocks:
                self._cache.insert(job.blocks)
            computed.append(job)
            if job.prefill_only or job.output_tokens == 1:
                self._release(job)
            else:
                self._batch.join(job, produced=1)
        self._chunk = []
        return computed

    def _fits(self, job: LiveJob, joining: int) -> bool:
        return (
            len(self._batch) + joining < self.rules.max_batch_size
            and self._reserved_tokens + job.need_tokens <= self.capacity_tokens
        )

    def _reserve(self, job: LiveJob) -> None:
        job.reserved = True
        self._reserved_tokens += job.need_tokens

    def _release(self, job: LiveJob) -> None:
        """The request is no longer here."""
        job.stage = JobStage.GONE
        del self._jobs[job.request_id]
        if job.reserved:
            self._reserved_tokens -= job.need_tokens


def _names(jobs: Sequence[LiveJob]) -> tuple[str, ...]:
    return tuple([job.request_id for job in jobs])
