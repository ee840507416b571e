"""Several simulations in parallel processes; each opens the trace once and keeps it for its next job."""

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any

from headway.workload import Trace, TraceOptions, open_trace
from headway_cli.errors import CliError
from headway_cli.job import Job, simulate_plan


def work(job: Job) -> dict[str, Any]:
    """One job in a process that does several; its document carries the job's label."""
    plan = job.warmed_plan()
    return {"label": job.label, **simulate_plan(plan, opened(job.trace, job.options), job)}


@lru_cache(maxsize=1)
def opened(trace: str, options: TraceOptions) -> Trace:
    """The trace, opened once per process."""
    return open_trace(trace, options)


@contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes, which end with this block, also when it is interrupted."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(max_workers=count, mp_context=context, initializer=_prepare)
    try:
        yield pool
        pool.shutdown()
    except BrokenProcessPool as error:
        raise CliError("a simulation process died (out of memory?)") from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()


@contextmanager
def sheltered() -> Iterator[None]:
    """Processes that are started in this block see no interrupt, not even while they still import.

    For this process it waits until the block ends.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def gather(futures: Sequence[Future[Any]], finished: Callable[[], None]) -> list[Any]:
    """All results in order, the first error as soon as it comes."""
    for future in as_completed(futures):
        future.result()
        finished()
    return [future.result() for future in futures]


def _prepare() -> None:
    """An interrupt is the parent's business; being ended still removes the trace's temporary files."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
