"""A replica of a fleet behind HTTP: vLLM by its own metrics, or all of a deployment by Headway's gateway.

Totals of an engine come from its histograms; how many first tokens came in time follows by linear
interpolation between the bounds of the buckets. A quantity that a server does not report is 0 and shows
nothing. Metrics of several engines in one process add up, KV usage is their mean.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import NamedTuple, Self

import aiohttp
import numpy as np

from headway.loadgen.client import Clock
from headway.loadgen.plan import LoadPlan, authorisation, base_url
from headway.profiling import TargetError
from headway.profiling.fleet.loads import ReplicaLoad
from headway.profiling.sweep.endpoint import OpenAiTarget
from headway.profiling.sweep.measure import StreamTimes

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


class EndpointReplica:
    """The replica at `plan.url`; enter it before use. TTFT's SLO is the plan's."""

    def __init__(self, plan: LoadPlan, names: MetricNames, clock: Clock) -> None:
        self._plan, self._names, self._clock = plan, names, clock
        self._target = OpenAiTarget(plan, clock)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open connections. Raises TargetError where the server has no metrics of these names."""
        await self._target.__aenter__()
        timeout = aiohttp.ClientTimeout(total=self._plan.timeout_s)
        self._session = aiohttp.ClientSession(timeout=timeout, headers=authorisation(self._plan.api_key))
        text = await self._text()
        if self._names.first_token not in text:
            await self.__aexit__(None, None, None)
            raise TargetError(f"{self._plan.url}/metrics: has no {self._names.first_token}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
        await self._target.__aexit__(kind, error, trace)

    async def load(self) -> ReplicaLoad:
        """A reading now. Raises TargetError."""
        return read_load(await self._text(), self._names, self._clock(), self._plan.slo.ttft_s)

    async def stream(self, prompt: Sequence[int], output_tokens: int) -> StreamTimes:
        """Serve one request to its end."""
        return await self._target.stream(prompt, output_tokens)

    async def _text(self) -> str:
        if self._session is None:
            raise TargetError(f"{self._plan.url}: not connected")
        address = f"{base_url(self._plan.url)}/metrics"
        try:
            async with self._session.get(address) as response:
                if not response.ok:
                    raise TargetError(f"{address}: answered with status {response.status}")
                return await response.text()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise TargetError(f"{address}: {' '.join(str(error).split()) or type(error).__name__}") from error
