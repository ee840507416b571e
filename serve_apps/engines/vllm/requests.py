"""The requests that are in a vLLM engine, by the ids that callers use, and vLLM's statistics of them.

vLLM gets an id of its own for every attempt: callers retry under the same id, and vLLM may still be ending
the attempt before. An attempt that is ended from elsewhere holds the error for its reader.

vLLM reports statistics only while it steps. So requests are counted by `Streams`, which hands them out, and
vLLM reports how many of them are in its batch; with none here there is no batch. Prompt tokens count when
their first token has come, which is when vLLM reports where each came from.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_apps.engines.protocol import (
    EngineError,
    EngineRequest,
    EngineStats,
    EngineTimes,
    LoadedAdapters,
)

if TYPE_CHECKING:
    from vllm.v1.metrics.loggers import StatLoggerBase
    from vllm.v1.metrics.stats import IterationStats, RequestStateStats, SchedulerStats


@dataclass(slots=True, kw_only=True, eq=False)
class Attempt:
    """One try at a request; `inner_ids` are those of vLLM's requests for it."""

    inner_ids: list[str]
    request: EngineRequest
    prefill_only: bool
    prefilled_elsewhere: bool
    began_s: float
    ended: EngineError | None = None
    times: EngineTimes | None = None

    def finished(self, metrics: "RequestStateStats | None") -> None:
        """Keep vLLM's times of one of its requests that has ended; the first one's counts.

        Its times are of this machine's monotonic clock. One whose KV comes is scheduled when that is there.
        """
        if metrics is None or self.times is not None:
            return
        begun_s = metrics.scheduled_ts - self.began_s
        self.times = EngineTimes(
            transferred_s=begun_s if self.prefilled_elsewhere else None,
            begun_s=begun_s,
            first_token_s=None if self.prefill_only else metrics.first_token_ts - self.began_s,
            ended_s=metrics.last_token_ts - self.began_s,
        )


class Streams:
    """The requests here in the order in which they came, and for how long there was any."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, adapters: LoadedAdapters | None = None
    ) -> None:
        """`adapters` are those that the engine has as it begins."""
        self._clock, self.adapters = clock, adapters or LoadedAdapters(None)
        self._attempts: dict[str, Attempt] = {}
        self._numbers = itertools.count()
        self._busy_s, self._busy_since = 0.0, 0.0

    def __len__(self) -> int:
        return len(self._attempts)

    def begin(self, request: EngineRequest, *, prefill_only: bool, prefilled_elsewhere: bool) -> Attempt:
        """A new attempt; the caller has ended an earlier one (`end`)."""
        if not self._attempts:
            self._busy_since = self._clock()
        attempt = Attempt(
            inner_ids=[] if request.call is not None else [f"{request.request_id}#{next(self._numbers)}"],
            request=request,
            prefill_only=prefill_only,
            prefilled_elsewhere=prefilled_elsewhere,
            began_s=self._clock(),
        )
        self._attempts[request.request_id] = attempt
        self.adapters.begin(request.adapter)
        return attempt

    def end(self, request_id: str, error: EngineError) -> Attempt | None:
        """Take an attempt out whose reader is to get `error`; None where there is none."""
        attempt = self._attempts.get(request_id)
        if attempt is not None:
            attempt.ended = error
            self.leave(attempt)
        return attempt

    def leave(self, attempt: Attempt) -> None:
        """The attempt is over; nothing happens where it was taken out before."""
        request_id = attempt.request.request_id
        if self._attempts.get(request_id) is attempt:
            del self._attempts[request_id]
            self.adapters.end(attempt.request.adapter)
            if not self._attempts:
                self._busy_s += self._clock() - self._busy_since

    def busy_s(self) -> float:
        """Seconds in which at least one request was here."""
        return self._busy_s + (self._clock() - self._busy_since if self._attempts else 0.0)


class Statistics:
    """The last state and the totals of one engine."""

    def __init__(self) -> None:
        self.running = 0
        self.kv_usage = 0.0
        self.prompt_tokens = self.cached_tokens = self.external_tokens = 0
        self.preemptions = self.output_tokens = 0

    def record(self, scheduler: "SchedulerStats | None", iteration: "IterationStats | None") -> None:
        """One step of the engine."""
        if scheduler is not None:
            self.running = scheduler.num_running_reqs
            self.kv_usage = scheduler.kv_cache_usage
        if iteration is not None:
            tokens = iteration.prompt_token_stats
            self.prompt_tokens += tokens.total
            self.cached_tokens += tokens.local_cache_hit
            self.external_tokens += tokens.external_kv_transfer
            self.preemptions += iteration.num_preempted_reqs
            self.output_tokens += iteration.num_generation_tokens

    def now(self, here: int, busy_s: float, adapters: LoadedAdapters | None = None) -> EngineStats:
        """The load with that many requests here."""
        running = min(self.running, here)
        return EngineStats(
            engine="vllm",
            running=running,
            waiting=here - running,
            kv_usage=self.kv_usage,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            external_tokens=self.external_tokens,
            preemptions=self.preemptions,
            output_tokens=self.output_tokens,
            busy_s=busy_s,
            adapters=None if adapters is None else adapters.names,
            adapter_room=None if adapters is None else adapters.room,
        )


def logger_of(statistics: Statistics) -> "Callable[..., StatLoggerBase]":
    """The factory that vLLM calls for a logger, which records there."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Recorder(StatLoggerBase):  # type: ignore[misc]
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def record(
            self,
            scheduler_stats: "SchedulerStats",
            iteration_stats: "IterationStats",
            *_: object,
            **__: object,
        ) -> None:
            statistics.record(scheduler_stats, iteration_stats)

        def log_engine_initialized(self) -> None:
            pass

    return Recorder
