"""vLLM's statistics, as it reports them with each step -> EngineStats.

vLLM speaks only while it steps. So what is here is counted by who hands out the requests (`streams`), and
vLLM says how many of them are in its batch; with nothing here there is no batch. Prompt tokens count when
their first token has come, which is when vLLM knows where each came from.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from serve_apps.engines.protocol import EngineStats

if TYPE_CHECKING:
    from vllm.v1.metrics.loggers import StatLoggerBase
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats


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

    def now(self, here: int, busy_s: float) -> EngineStats:
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
        )


def logger_of(statistics: Statistics) -> "Callable[..., StatLoggerBase]":
    """What vLLM calls to make a logger that records there."""
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
