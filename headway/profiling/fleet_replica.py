"""A replica of a fleet behind HTTP: what it says of its load, and the latencies that follow.

Latencies follow from readings a few seconds apart. Between two, Δ seconds apart, with P prompts begun and
finished of u tokens each on average (the surfaces so far give the work TTFT(u) - W(0) of each), G gaps
between tokens that took g seconds on average, and B requests running that hold K tokens:

    ITL   = g · (1 - P · work(u) / Δ)        each computed prompt stretches one gap of every running request
    TTFT  = first-token latency - ITL/2 - (ITL - W(0))·[B > 0]
                                             a prompt waits for half an iteration, and shares its own with
                                             the batch; only where nothing waited and nothing was cached

Readings during which nothing waited and prompts took less than BUSY of the time count. Reports are those of
`headway.engine.observed_latency`, as replicas of Headway make them of themselves, without these assumptions.

vLLM is read by its own metrics, or all of a deployment by Headway's gateway. Totals of an engine come from
its histograms; how many first tokens came in time follows by linear interpolation between the bounds of the
buckets. A quantity that a server does not report is 0 and shows nothing. Metrics of several engines in one
process add up, KV usage is their mean.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Self

import numpy as np

from headway.engine.observed_latency import LatencyReport, Phase
from headway.loadgen.client import Clock
from headway.loadgen.plan import LoadPlan, base_url
from headway.profiling import TargetError
from headway.profiling.sweep.endpoint import REFUSED, OpenAiTarget
from interp import Profile

BUSY = 0.4
LEAST_GAPS = 20.0


class ReplicaLoad(NamedTuple):
    """One reading: the load now, and totals since the replica began (seconds, tokens, requests)."""

    at_s: float
    running: float = 0.0
    waiting: float = 0.0
    kv_usage: float = 0.0
    prompts: float = 0.0
    """First tokens so far, and the sum of their latencies, and how many came within the SLO."""
    first_token_s: float = 0.0
    first_in_time: float = 0.0
    prompt_tokens: float = 0.0
    computed_tokens: float = 0.0
    """Of the prompts' tokens, those that were not found in a cache or fetched."""
    gaps: float = 0.0
    gap_s: float = 0.0


def prompt_work_s(profile: Profile, tokens: float) -> float:
    """Seconds that computing a prompt adds to iterations."""
    return max(0.0, float(profile.prefill.ttft_s(tokens)) - empty_s(profile))


def empty_s(profile: Profile) -> float:
    """W(0): an iteration without work."""
    return float(profile.prefill.table.work_nodes()[1][0])


def shown(profile: Profile, readings: Sequence[ReplicaLoad]) -> list[LatencyReport]:
    """The reports of one replica from its readings of a few seconds, in order; `profile` is what is known."""
    if len(readings) < 2:
        return []
    first, last = readings[0], readings[-1]
    seconds, prompts, gaps = last.at_s - first.at_s, last.prompts - first.prompts, last.gaps - first.gaps
    computed = last.computed_tokens - first.computed_tokens
    tokens = computed / prompts if prompts > 0 else 0.0
    share = prompts * prompt_work_s(profile, tokens) / seconds if tokens > 0 and seconds > 0 else 0.0
    if seconds <= 0 or min(prompts, gaps, computed) < 0 or share > BUSY:
        return []
    found, itl_s = list[LatencyReport](), None
    if gaps >= LEAST_GAPS and (place := batch_of(profile, readings)):
        batch, context = place
        itl_s = (last.gap_s - first.gap_s) / gaps * (1.0 - share)
        found.append(LatencyReport(Phase.DECODE, context, itl_s, batch))
    untouched = computed == last.prompt_tokens - first.prompt_tokens
    if tokens > 0 and untouched and not any(each.waiting for each in readings):
        seen_s = (last.first_token_s - first.first_token_s) / prompts
        beside_s = beside(profile, itl_s)
        if seen_s > beside_s:
            found.append(LatencyReport(Phase.PREFILL, tokens, seen_s - beside_s))
    return found


def beside(profile: Profile, itl_s: float | None) -> float:
    """What a batch with that ITL adds to the first token of a prompt that comes to it; None: no batch."""
    return 0.0 if itl_s is None else 0.5 * itl_s + max(0.0, itl_s - empty_s(profile))


def batch_of(profile: Profile, readings: Sequence[ReplicaLoad]) -> tuple[float, float] | None:
    """Mean batch and mean context of the readings in which anything ran; None where they show none."""
    busy = [each for each in readings if each.running >= 1 and each.kv_usage > 0]
    if 2 * len(busy) < len(readings) or not busy:
        return None
    batch = sum(each.running for each in busy) / len(busy)
    kv_tokens = sum(each.kv_usage for each in busy) / len(busy) * float(profile.decode.table.max_kv_tokens)
    return batch, max(1.0, kv_tokens / batch)


SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class MetricNames(NamedTuple):
    """The names by which a server says what a `ReplicaLoad` has; "" where it does not."""

    running: str
    waiting: str
    kv_usage: str
    first_token: str
    gap: str
    prompt_tokens: str = ""
    by_source: str = ""
    computed: str = ""
    """The value of the label `source` for prompt tokens that were computed."""


VLLM = MetricNames(
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    kv_usage="vllm:kv_cache_usage_perc",
    first_token="vllm:time_to_first_token_seconds",
    gap="vllm:inter_token_latency_seconds",
    prompt_tokens="vllm:prompt_tokens_total",
    by_source="vllm:prompt_tokens_by_source_total",
    computed="local_compute",
)
GATEWAY = MetricNames(
    running="headway_replica_running_requests",
    waiting="headway_replica_waiting_requests",
    kv_usage="headway_replica_kv_usage",
    first_token="headway_time_to_first_token_seconds",
    gap="headway_inter_token_latency_seconds",
)


@dataclass(frozen=True, slots=True)
class _Sample:
    labels: Mapping[str, str]
    value: float


def read_load(text: str, names: MetricNames, at_s: float, ttft_s: float) -> ReplicaLoad:
    """The load in a text of Prometheus' format; `ttft_s` is the SLO of first tokens in seconds."""
    found: dict[str, list[_Sample]] = {}
    for name, labels, value in SAMPLE.findall(text):
        found.setdefault(name, []).append(_Sample(dict(LABEL.findall(labels)), float(value)))

    def total(name: str, **where: str) -> float:
        return sum(sample.value for sample in found.get(name, ()) if where.items() <= sample.labels.items())

    usages = [sample.value for sample in found.get(names.kv_usage, ())]
    tokens = total(names.prompt_tokens)
    return ReplicaLoad(
        at_s=at_s,
        running=total(names.running),
        waiting=total(names.waiting),
        kv_usage=sum(usages) / len(usages) if usages else 0.0,
        prompts=total(f"{names.first_token}_count"),
        first_token_s=total(f"{names.first_token}_sum"),
        first_in_time=_within(found.get(f"{names.first_token}_bucket", ()), ttft_s),
        prompt_tokens=tokens,
        computed_tokens=total(names.by_source, source=names.computed) if names.by_source in found else tokens,
        gaps=total(f"{names.gap}_count"),
        gap_s=total(f"{names.gap}_sum"),
    )


def _within(buckets: Sequence[_Sample], bound: float) -> float:
    """Observations up to `bound`, by cumulative buckets."""
    counts: dict[float, float] = {}
    for bucket in buckets:
        upper = float(bucket.labels.get("le", "inf"))
        counts[upper] = counts.get(upper, 0.0) + bucket.value
    finite = sorted(upper for upper in counts if upper < inf)
    if not finite:
        return counts.get(inf, 0.0)
    return float(np.interp(bound, [0.0, *finite], [0.0, *(counts[upper] for upper in finite)]))


class EndpointReplica(OpenAiTarget):
    """The replica at `plan.url`; enter it before use. TTFT's SLO is the plan's."""

    def __init__(self, plan: LoadPlan, names: MetricNames, clock: Clock) -> None:
        super().__init__(plan, clock)
        self._names = names

    async def __aenter__(self) -> Self:
        """Open connections. Raises TargetError where the server has no metrics of these names."""
        await super().__aenter__()
        try:
            if self._names.first_token not in await self._metrics():
                raise TargetError(f"{self.plan.url}/metrics: has no {self._names.first_token}")
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def load(self) -> ReplicaLoad:
        """A reading now. Raises TargetError."""
        return read_load(await self._metrics(), self._names, self.clock(), self.plan.slo.ttft_s)

    async def _metrics(self) -> str:
        address = f"{base_url(self.plan.url)}/metrics"
        status, text = await self.request("GET", address)
        if status >= REFUSED:
            raise TargetError(f"{address}: answered with status {status}")
        return text
