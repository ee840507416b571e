"""Several simulations in parallel processes; each opens the trace once and keeps it for its next job."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing.process import BaseProcess
from typing import TypeVar

from headway.simulation.report import SimulationReport
from headway.workload import Trace, TraceOptions, open_trace
from headway_cli.errors import CliError
from headway_cli.job import Job, simulate_plan
from headway_cli.terminal import bar

Outcome = TypeVar("Outcome")

TIMES_TOLD, TOLD_EVERY_S = 10, 0.5


def run_all(calls: Sequence[Callable[[], Outcome]], processes: int) -> list[Outcome]:
    """The outcomes of calls that are made in so many processes, in their order; the first error at once."""
    with workers(processes) as pool, bar("comparing") as report:
        return gathered(pool, calls, lambda done: report(done, len(calls)) if report else None)


def gathered(
    pool: ProcessPoolExecutor, calls: Sequence[Callable[[], Outcome]], ended: Callable[[int], None]
) -> list[Outcome]:
    """The same in processes that go on after it; `ended` is told how many calls have ended."""
    with sheltered():
        futures = [pool.submit(call) for call in calls]
    for done, future in enumerate(as_completed(futures), start=1):
        future.result()
        ended(done)
    return [future.result() for future in futures]


def work(job: Job) -> SimulationReport:
    """One job in a process that does several."""
    return simulate_plan(job.warmed_plan(), opened(job.trace, job.options), job)


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
        _end(multiprocessing.active_children())


def _end(processes: Sequence[BaseProcess]) -> None:
    """Tell them to end until they have: one that is told in the middle of a call may take that for the call's
    error, and wait for the next call. Those that do not are killed."""
    for _ in range(TIMES_TOLD):
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(TOLD_EVERY_S)
        processes = [process for process in processes if process.is_alive()]
    for process in processes:
        process.kill()


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


def _prepare() -> None:
    """An interrupt is the parent's business; being ended still removes the trace's temporary files."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed tells nobody, and its processes would go on."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(TOLD_EVERY_S)
