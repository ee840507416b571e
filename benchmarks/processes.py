"""CPU time of processes, from /proc (Linux), and jobs that run in several processes."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Job(Protocol):
    """What makes figures, and the file that keeps them."""

    @property
    def path(self) -> Path: ...

    def found(self) -> Mapping[str, Any]: ...


def keep(job: Job) -> None:
    """Run a job, and write what it found."""
    found = job.found()
    job.path.parent.mkdir(parents=True, exist_ok=True)
    job.path.write_text(json.dumps(found), encoding="utf-8")


def run_missing(all_jobs: Sequence[Job], workers: int | None) -> None:
    """Run the jobs without a result in so many processes, one a core by default, and say how many are done.

    Each process compiles once, and keeps what it has read for the last job.
    """
    jobs = [job for job in all_jobs if not job.path.is_file()]
    with get_context("spawn").Pool(workers or os.cpu_count() or 1) as pool:
        for number, _ in enumerate(pool.imap_unordered(keep, jobs), 1):
            print(f"{number} of {len(jobs)} done", flush=True)


def descendants(root: int) -> Mapping[int, str]:
    """Every process below `root`, with the name it gave itself."""
    parents = {pid: parent for pid in _pids() if (parent := _parent(pid)) is not None}
    found: dict[int, str] = {}
    frontier = {root}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier}
        found |= {pid: _title(pid) for pid in frontier}
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """User and system time of the processes so far, all their threads, in seconds."""
    return sum(_ticks(pid) for pid in pids) / TICKS_PER_S


def rss_bytes(pids: Iterable[int]) -> int:
    """Memory of the processes that is resident now."""
    pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold spaces; none when it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _parent(pid: int) -> int | None:
    fields = _fields(pid)
    return int(fields[1]) if fields else None


def _ticks(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[11]) + int(fields[12]) if fields else 0


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
