"""Probing replicas that serve: one request at a time, where little is known, while no SLO is at risk.

A probe is one prompt of random tokens with OUTPUT_TOKENS of output. Its length is the one with the fewest
reports so far. The load is read all along, and tells what the probe met:

    prefill    TTFT, where no other prompt was computed before its first token and nothing waited; beside a
               batch less what the batch adds (`beside`)
    decode     the median of its gaps, at the batch and KV usage as found

A probe is not begun

    - while anything waits at the replica, or, fleet-wide over the last RISK_S, first tokens in time are less
      than `attainment`, or the mean gap is above ITL_SHARE of its SLO;
    - longer than what takes TTFT_SHARE of the TTFT's SLO, or all of it where the replica is empty: no request
      is to wait longer than that for it;
    - before the last one's duration has passed 1 / DUTY times.

Evidence corrects a base profile (`refinement.gathered`), whose shape fills what was not seen. Before a probe
is learnt from, the profile so far predicts it: the median of |predicted / measured - 1| over the later half
is the error that is told, the noise of single probes included. Coverage is the share of the profile's samples
with a report within the reach of corrections: an octave of tokens, 0.15 of the KV cache.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, Protocol

import numpy as np

from headway.engine.observed_latency import LatencyReport, Phase
from headway.engine.refinement import gathered, refined, within_reach
from headway.planning.types import Slo
from headway.profiling import RequestError, TargetError, UnmeasurableError
from headway.profiling.fleet_replica import ReplicaLoad, batch_of, beside, prompt_work_s, shown
from headway.profiling.sweep.measure import HIGHEST_ID, LOWEST_ID, StreamTimes
from headway.profiling.sweep.points import MIN_TOKENS, Limits, log_spaced, sweep_points
from interp import DecodeSamples, PrefillSamples, Profile, build_profile

OUTPUT_TOKENS = 33
LENGTHS = 8
ENOUGH = 2 * LENGTHS
READ_S, WATCH_S, LOOK_S = 0.5, 0.05, 3.0
"""Seconds between readings of all replicas, of the one that is probed, and between looks at traffic."""
RISK_S = 15.0
LEAST_FIRST_TOKENS = 5.0
TTFT_SHARE, ITL_SHARE, DUTY = 0.5, 0.9, 0.1
STRETCHED = 0.25
"""Prompts of others over the gaps of a probe, up to which its gaps count."""


class Replica(Protocol):
    """One engine of the fleet."""

    async def load(self) -> ReplicaLoad:
        """A reading now. Raises TargetError."""

    async def stream(self, prompt: Sequence[int], output_tokens: int) -> StreamTimes:
        """Serve one request, times on the clock of the readings. TargetError, UnmeasurableError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """Options: the SLO that is not to be put at risk, `attainment` in [0, 1], and a clock of seconds."""

    slo: Slo
    attainment: float
    budget_s: float
    clock: Callable[[], float]
    probes: bool = True
    learns: bool = True
    """False: the fleet learns from what passes through it by itself; probes are only sent."""
    chunk_tokens: int = 2048
    """Prompt tokens of one iteration: longer prompts meet the batch several times."""
    seed: int = 0
    progress: Callable[[float, int], None] = lambda _seconds, _probes: None


@dataclass(slots=True, kw_only=True)
class FleetEvidence:
    """What was seen: reports of traffic and of probes, errors by phase, and why probes waited."""

    traffic: list[LatencyReport] = field(default_factory=list)
    probed: list[LatencyReport] = field(default_factory=list)
    errors: dict[Phase, list[float]] = field(default_factory=lambda: {phase: [] for phase in Phase})
    probes: int = 0
    held_back: dict[str, int] = field(default_factory=dict)
    probe_s: float = 0.0
    left_out: list[str] = field(default_factory=list)
    """Replicas that stopped to answer, each by its error."""

    @property
    def reports(self) -> list[LatencyReport]:
        """Of traffic and of probes; first tokens of traffic only until probes have seen ENOUGH prompts.

        Prompts wait for each other behind a batch, which readings do not show.
        """
        prompts = sum(report.phase is Phase.PREFILL for report in self.probed)
        seen = [each for each in self.traffic if prompts < ENOUGH or each.phase is not Phase.PREFILL]
        return [*seen, *self.probed]


def rebased(base: Profile, limits: Limits, gpus: int) -> Profile:
    """`base` at the points and with the KV cache of another engine: the same times by tokens and batch."""
    points = sweep_points(limits)
    isl = np.array([point.tokens for point in points if point.phase is Phase.PREFILL], np.float64)
    decode = [point for point in points if point.phase is Phase.DECODE]
    batch = np.array([point.batch for point in decode], np.float64)
    context = np.array([point.tokens for point in decode], np.float64)
    usage = np.minimum(1.0, batch * context / float(base.decode.table.max_kv_tokens))
    return build_profile(
        PrefillSamples.timed(isl, np.asarray(base.prefill.ttft_s(isl)), gpus),
        DecodeSamples.timed(
            batch,
            context,
            np.asarray(base.decode.itl_s(usage, context)),
            max_kv_tokens=limits.max_kv_tokens,
            gpus=gpus,
        ),
        {"gpus_per_engine": gpus, "max_batch_size": limits.max_batch},
    )


async def watch_fleet(
    replicas: Sequence[Replica], base: Profile, limits: Limits, options: FleetOptions
) -> FleetEvidence:
    """Watch and probe for `options.budget_s`. TargetError: no replica answers any more; RequestError."""
    if not replicas:
        raise RequestError("fleet: no replica")
    return await _Watch(replicas, base, limits, options).run()


def fleet_profile(base: Profile, evidence: FleetEvidence) -> Profile:
    """`base` corrected by all evidence."""
    return refined(base, gathered(base, evidence.reports))


def fleet_meta(base: Profile, evidence: FleetEvidence, replicas: int) -> Mapping[str, Any]:
    """What meta.json says of a fleet's profile: how much was seen, and how well it is known."""
    seen = within_reach(base, gathered(base, evidence.reports))
    usages = [
        report.batch * report.tokens / float(base.decode.table.max_kv_tokens)
        for report in evidence.reports
        if report.phase is Phase.DECODE
    ]
    notes = []
    if usages:
        notes.append(
            f"decode was seen at KV usages {min(usages):.2g} to {min(1.0, max(usages)):.2g}; "
            "elsewhere it has the shape of the base profile"
        )
    notes += [f"a replica was left out: {error}" for error in evidence.left_out]
    if evidence.held_back:
        reasons = ", ".join(f"{times} times {reason}" for reason, times in evidence.held_back.items())
        notes.append(f"no probe was begun {reasons}")
    return {
        "fleet": {
            "replicas": replicas,
            "probes": evidence.probes,
            "probe_seconds": evidence.probe_s,
            "reports": {"traffic": len(evidence.traffic), "probes": len(evidence.probed)},
            "coverage": {
                phase.value: float(np.mean(reached)) for phase, reached in zip(Phase, seen, strict=True)
            },
            "error": {
                phase.value: median(later) if (later := errors[len(errors) // 2 :]) else None
                for phase, errors in evidence.errors.items()
            },
        },
        "notes": notes,
    }


class _Watch:
    """One run."""

    def __init__(
        self, replicas: Sequence[Replica], base: Profile, limits: Limits, options: FleetOptions
    ) -> None:
        self._replicas, self._base, self._options = list(replicas), base, options
        longest = limits.longest_tokens - OUTPUT_TOKENS
        if longest <= MIN_TOKENS:
            raise RequestError(f"fleet: requests of {limits.longest_tokens} tokens are too short to probe")
        self._lengths = log_spaced(MIN_TOKENS, longest, LENGTHS)
        self._tries = dict.fromkeys(self._lengths, 0)
        self._rng = np.random.default_rng(options.seed)
        self._evidence, self._known = FleetEvidence(), base
        self._readings: list[list[ReplicaLoad]] = [[] for _ in replicas]
        self._recent: list[list[ReplicaLoad]] = [[] for _ in replicas]
        self._next_probe_s = self._looked_s = options.clock()

    async def run(self) -> FleetEvidence:
        options = self._options
        began_s = options.clock()
        while (elapsed_s := options.clock() - began_s) < options.budget_s:
            options.progress(elapsed_s, self._evidence.probes)
            await self._read()
            if options.clock() - self._looked_s >= LOOK_S:
                self._look()
            if options.probes and options.clock() >= self._next_probe_s:
                await self._try_probe()
            await asyncio.sleep(READ_S)
        self._look()
        return self._evidence

    async def _read(self) -> None:
        loads = await asyncio.gather(*(replica.load() for replica in self._replicas), return_exceptions=True)
        for at in reversed(range(len(loads))):
            load = loads[at]
            if isinstance(load, BaseException):
                self._leave_out(at, load)
                continue
            readings, recent = self._readings[at], self._recent[at]
            readings.append(load)
            recent.append(load)
            while recent[0].at_s < load.at_s - RISK_S:
                recent.pop(0)

    def _leave_out(self, at: int, error: BaseException) -> None:
        """Go on without a replica that does not answer; with none left, its error is raised."""
        if not isinstance(error, TargetError) or len(self._replicas) == 1:
            raise error
        for each in (self._replicas, self._readings, self._recent):
            del each[at]
        self._evidence.left_out.append(str(error))

    def _look(self) -> None:
        """Learn from the traffic since the last look."""
        for readings in self._readings:
            if self._options.learns:
                self._evidence.traffic += shown(self._known, readings)
            del readings[:-1]
        self._looked_s = self._options.clock()
        self._learn()

    def _learn(self) -> None:
        self._known = fleet_profile(self._base, self._evidence)

    def _risk(self) -> str:
        """Why no probe may be begun now; "" for no reason."""
        first = in_time = gaps = gap_s = 0.0
        for recent in self._recent:
            first += recent[-1].prompts - recent[0].prompts
            in_time += recent[-1].first_in_time - recent[0].first_in_time
            gaps += recent[-1].gaps - recent[0].gaps
            gap_s += recent[-1].gap_s - recent[0].gap_s
        slo = self._options.slo
        if first >= LEAST_FIRST_TOKENS and in_time < self._options.attainment * first:
            return "because first tokens came late"
        if gaps >= LEAST_FIRST_TOKENS and gap_s / gaps > ITL_SHARE * slo.itl_s:
            return "because the ITL was near its SLO"
        return ""

    async def _try_probe(self) -> None:
        reason = self._risk()
        free = [at for at, recent in enumerate(self._recent) if not recent[-1].waiting]
        if not reason and not free:
            reason = "because requests waited at every replica"
        if reason:
            self._evidence.held_back[reason] = self._evidence.held_back.get(reason, 0) + 1
            self._next_probe_s = self._options.clock() + LOOK_S
            return
        at = free[self._evidence.probes % len(free)]
        tokens = self._next_length(empty=not self._recent[at][-1].running)
        began_s = self._options.clock()
        try:
            await self._probe(at, tokens)
        except TargetError as error:
            self._leave_out(at, error)
        ended_s = self._options.clock()
        self._evidence.probe_s += ended_s - began_s
        self._next_probe_s = ended_s + (ended_s - began_s) * (1.0 / DUTY - 1.0)

    def _next_length(self, *, empty: bool) -> int:
        most_s = self._options.slo.ttft_s * (1.0 if empty else TTFT_SHARE)
        allowed = [
            tokens
            for tokens in self._lengths
            if prompt_work_s(self._known, tokens) <= most_s or tokens == self._lengths[0]
        ]
        return min(allowed, key=lambda tokens: (self._tries[tokens], tokens))

    async def _probe(self, at: int, tokens: int) -> None:
        replica = self._replicas[at]
        # A token less each time: prompts of one length in a row may find something prepared.
        length = tokens - self._tries[tokens] % (tokens // 8)
        prompt = self._rng.integers(LOWEST_ID, HIGHEST_ID, length).tolist()
        self._tries[tokens] += 1
        self._evidence.probes += 1
        readings = [await replica.load()]
        watching = asyncio.create_task(_readings_of(replica, readings))
        try:
            times = await replica.stream(prompt, OUTPUT_TOKENS)
        except UnmeasurableError:
            self._lengths = tuple(each for each in self._lengths if each < tokens) or self._lengths[:1]
            return
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        readings.append(await replica.load())
        if not self._options.learns:
            return
        reports = probe_reports(self._known, readings, times, length, self._options.chunk_tokens)
        for report in reports:
            self._evidence.errors[report.phase].append(_error(self._known, report))
        self._evidence.probed += reports
        self._learn()


async def _readings_of(replica: Replica, readings: list[ReplicaLoad]) -> None:
    while True:
        await asyncio.sleep(WATCH_S)
        readings.append(await replica.load())


def probe_reports(
    known: Profile, readings: Sequence[ReplicaLoad], times: StreamTimes, tokens: int, chunk_tokens: int
) -> list[LatencyReport]:
    """The reports of a probe of `tokens` tokens: its stream, and readings from before it until after it."""
    found, arrivals = list[LatencyReport](), times.arrivals
    gaps = [
        (later.at_s - earlier.at_s) / later.tokens
        for earlier, later in pairwise(arrivals)
        if later.tokens > 0
    ]
    first_s = arrivals[0].at_s
    during = [each for each in readings if each.at_s > first_s and each.at_s <= arrivals[-1].at_s]
    itl_s = median(gaps) if gaps else None
    others = max((each.running for each in readings), default=0.0) > 1
    # Beyond a few, gaps that prompts stretched would be in the median.
    stretched = during[-1].prompts - during[0].prompts if during else 0.0
    if (
        itl_s
        and stretched <= STRETCHED * len(gaps)
        and (place := batch_of(known, during) if others else (1.0, tokens + OUTPUT_TOKENS / 2))
    ):
        found.append(LatencyReport(Phase.DECODE, place[1], itl_s, place[0]))
    before = readings[0]
    after = next((each for each in readings if each.at_s > first_s), readings[-1])
    if not before.waiting and after.prompts - before.prompts <= 1:
        ttft_s = times.ttft_s
        if before.running:
            iterations = -(-tokens // chunk_tokens) - 1
            ttft_s -= beside(known, itl_s) + iterations * (itl_s or 0.0)
        found.append(LatencyReport(Phase.PREFILL, float(tokens), ttft_s))
    return [report for report in found if report.latency_s > 0]


def _error(known: Profile, report: LatencyReport) -> float:
    """|predicted / measured − 1| of a report."""
    if report.phase is Phase.PREFILL:
        expected_s = float(known.prefill.ttft_s(report.tokens))
    else:
        usage = min(1.0, report.batch * report.tokens / float(known.decode.table.max_kv_tokens))
        expected_s = float(known.decode.itl_s(usage, report.tokens))
    return abs(expected_s / report.latency_s - 1.0)
