"""A well-behaved client beside hostile ones: its TTFT, and what the gateway holds afterwards.

    gateway      a process (`benchmarks.attacked`)
    attackers    a process that yields to the others (nice 10), an attack at a time (`benchmarks.attackers`)
    client       this process: a stream of 8 tokens on a new connection, 10 a second, and /ready as often

Quiet and attacked seconds alternate three times; figures are those of the middle round, as a machine that is
shared has bad seconds of its own. What is held is read when the attack is over and the gateway's times for
slow clients are past. A turn of the event loop takes the longest time between two looks at the clock, and
computes so much in it: the rest it waits for a processor. Serve's health check shares the loop; it may take
10 s.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.attackers import ATTACKS, completion, connected, head

ROUNDS = 3
QUIET_S, GATHER_S, ATTACK_S, PERIOD_S = 3.0, 2.0, 9.0, 0.1
SHARES = (0.5, 0.99)
SETTLED_WITHIN_S = 90.0
TOKENS = 8
LIMIT_S = 5.0
HELD = ("requests", "outputs", "body_bytes", "tasks", "fds")
MOST_RATIO, MOST_READY_S = 2.0, 0.5


@dataclass(slots=True)
class Seen:
    """What the client saw: seconds, and what went wrong."""

    ttft_s: list[float] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that runs."""

    port: int

    def probe(self) -> Mapping[str, float]:
        """What it holds."""
        found: Mapping[str, float] = httpx.get(f"http://127.0.0.1:{self.port}/probe", timeout=60.0).json()
        return found


@contextmanager
def gateway(limit_s: float) -> Iterator[Gateway]:
    """A gateway in a process of its own; clients that keep it waiting have `limit_s`."""
    command = [sys.executable, "-m", "benchmarks.attacked", str(limit_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield Gateway(json.loads(process.stdout.readline())["port"])
        finally:
            process.terminate()


@contextmanager
def attackers(name: str, port: int, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """The attackers in a process of their own."""
    attacker = [sys.executable, "-m", "benchmarks.attackers", name, str(port), str(seconds)]
    command = ["nice", "-n", "10", *attacker]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.terminate()


async def client(port: int, seconds: float) -> Seen:
    """A well-behaved client for so long."""
    seen = Seen()
    async with asyncio.TaskGroup() as group:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            group.create_task(_one(port, completion(TOKENS), seen.ttft_s, seen.faults))
            group.create_task(_one(port, head("/ready", method="GET"), seen.ready_s, seen.faults))
            await asyncio.sleep(PERIOD_S)
    return seen


async def _one(port: int, request: bytes, taken_s: list[float], faults: list[str]) -> None:
    """One request: the seconds to the first bytes of its answer, which is read to its end."""
    begun_s = time.perf_counter()
    try:
        with await connected(port) as connection:
            await connection.send(request)
            said = await connection.read()
            taken_s.append(time.perf_counter() - begun_s)
            if not said.startswith(b"HTTP/1.1 200"):
                faults.append(said[:12].decode(errors="replace"))
            elif b"event-stream" in said:
                while not said.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
                    more = await connection.read()
                    if not more:
                        faults.append("cut off")
                        return
                    said += more
    except OSError as error:
        faults.append(type(error).__name__)


def settled(running: Gateway, before: Mapping[str, float]) -> Mapping[str, float]:
    """What is held once nothing is left of the attack, or when that was waited for long enough."""
    end_s = time.monotonic() + SETTLED_WITHIN_S
    while any((after := running.probe())[name] > before[name] for name in HELD):
        if time.monotonic() > end_s:
            break
        time.sleep(0.5)
    return after


def _ms(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


@dataclass(frozen=True, slots=True)
class Round:
    """Quiet seconds, then attacked ones, and what is held before, during and after these."""

    quiet: Seen
    seen: Seen
    answers: Mapping[str, int]
    held: Sequence[Mapping[str, float]]

    def ratio(self, share: float) -> float:
        """Of the TTFTs."""
        return _ms(self.seen.ttft_s, share) / _ms(self.quiet.ttft_s, share)

    @property
    def kept(self) -> bool:
        """Whether nothing is left."""
        before, _, after = self.held
        return all(after[name] <= before[name] for name in HELD)


def one_round(name: str, running: Gateway) -> Round:
    """Of one attack."""
    quiet = asyncio.run(client(running.port, QUIET_S))
    before = running.probe()
    with attackers(name, running.port, ATTACK_S) as process:
        # What comes while the attackers gather is neither quiet nor attacked.
        time.sleep(GATHER_S)
        seen = asyncio.run(client(running.port, ATTACK_S - GATHER_S))
        during = running.probe()
        answers = json.loads(process.communicate()[0])
    return Round(quiet, seen, answers, (before, during, settled(running, before)))


def row(name: str, rounds: Sequence[Round]) -> tuple[str, bool]:
    """One line of the table; whether all is as it should be."""
    ratios = [statistics.median(each.ratio(share) for each in rounds) for share in SHARES]
    ready_s = statistics.median(max(each.seen.ready_s, default=float("inf")) for each in rounds)
    cpus = statistics.median((each.held[1]["cpu_s"] - each.held[0]["cpu_s"]) / ATTACK_S for each in rounds)
    faults = [fault for each in rounds for fault in each.seen.faults]
    good = max(ratios) <= MOST_RATIO and ready_s < MOST_READY_S and not faults
    good = good and all(each.kept for each in rounds)
    answers = sum((Counter(each.answers) for each in rounds), Counter())
    cells = [
        name,
        *(
            f"{statistics.median(_ms(of.ttft_s, share) for of in column):.0f}"
            for column in ([each.quiet for each in rounds], [each.seen for each in rounds])
            for share in SHARES
        ),
        *(f"{ratio:.2f}" for ratio in ratios),
        f"{1e3 * ready_s:.0f}",
        *(f"{1e3 * max(each.held[1][each_s] for each in rounds):.0f}" for each_s in ("stall_s", "work_s")),
        f"{cpus:.2f}",
        f"{len(faults)} of {sum(len(each.seen.ttft_s) + len(each.seen.ready_s) for each in rounds)}",
        *(
            f"{rounds[0].held[0][held]:.0f}, {max(each.held[1][held] for each in rounds):.0f},"
            f" {rounds[-1].held[2][held]:.0f}"
            for held in ("outputs", "tasks", "fds", "rss_mib")
        ),
        ", ".join(f"{answer} {count}" for answer, count in answers.items()),
        "yes" if good else "NO",
    ]
    return f"| {' | '.join(cells)} |", good


COLUMNS = (
    "attack | quiet p50 ms | p99 | attacked p50 | p99 | ratio p50 | p99 | /ready slowest ms"
    " | longest turn ms | of that CPU | CPUs | faults | outputs before, during, after | tasks | fds | RSS MiB"
    " | answers | good"
)


def main(data: Path | None, cells: str | None = None) -> int:
    """A line per attack; 0 when the client was served well beside all of them, and nothing was left."""
    del data  # needs none
    print(f"| {COLUMNS} |\n|{'---|' * (1 + COLUMNS.count('|'))}")
    all_good = True
    for name in cells.split(",") if cells else ATTACKS:
        with gateway(LIMIT_S) as running:
            line, good = row(name, [one_round(name, running) for _ in range(ROUNDS)])
        print(line, flush=True)
        all_good = all_good and good
    return 0 if all_good else 1
