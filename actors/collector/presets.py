"""The meaning of metric names for each kind of system that we can read, and the series that follow from it.

A quantity is what an interval is asked for (`requests`, `ttft`, ...). A channel is one of the series behind
it: the count, the sum or the buckets. Both sources read this one table.

`NAME` of a histogram stands for `NAME_bucket`, `NAME_sum` and `NAME_count`. Where a system counts no
arrivals, they follow from conservation: arrivals = requests that ended + change of the requests in flight,
both read in one scrape.

Sources of the names:
    headway   our own gateway, `docs/reference.md`
    dynamo    ai-dynamo/dynamo, `prometheus_names.rs` and `http/service/metrics.rs`: input length and TTFT are
              observed at the first token, duration and output length of every request at its end, failed
              ones too; the model's name is in lower case
    vllm      vLLM 0.32 as run (`vllm:` names of its V1 engine); lengths are observed at a request's end
    sglang    sgl-project/sglang, `metrics_collector.py`; the two length histograms need
              `--collect-tokens-histogram` on versions that have that flag

vLLM and SGLang report per engine. With separate prefill and decode engines each request passes two of them
and would count twice: there, read the gateway in front. Roles of pools are known to headway (label `role`)
and SGLang (`engine_type`); vLLM engines count as mixed; Dynamo's frontend has no load of pools.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headway.planning import Role

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A counter, a gauge, or the base name of a histogram, and the labels that its samples must carry."""

    name: str
    where: Labels = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Gauges of the load of pools, and the label with their role (None: all are mixed)."""

    running: Series
    waiting: Series
    kv_usage: Series
    by_model: bool = True
    """False where these gauges lack the model's label."""
    role_label: str | None = None
    roles: Mapping[str, Role] = field(default_factory=lambda: {role.value: role for role in Role})


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Metric names of one kind of system.

    `requests` are counters and `in_flight` gauges; arrivals are the increase of the first plus the change of
    the second. `alive` is there as soon as the system runs.
    """

    name: str
    model_label: str
    lower_case_model: bool = False
    alive: Series
    requests: tuple[Series, ...]
    in_flight: tuple[Series, ...] = ()
    completed: Series
    met: Series | None = None
    missed: Series | None = None
    isl: Series
    osl: Series
    duration: Series
    ttft: Series
    itl: Series
    queue: Series | None = None
    cached: Series | None = None
    """A counter of prompt tokens that were not computed again."""
    load: Load | None = None

    def model(self, name: str) -> str:
        """The model's name as this system labels it."""
        return name.lower() if self.lower_case_model else name


def _series(name: str, **where: str) -> Series:
    return Series(name=name, where=tuple(where.items()))


HEADWAY = Preset(
    name="headway",
    model_label="model",
    alive=_series("headway_request_arrivals_total"),
    requests=(_series("headway_request_arrivals_total"),),
    completed=_series("headway_requests_total", outcome="ok"),
    met=_series("headway_slo_requests_total", met="true"),
    missed=_series("headway_slo_requests_total", met="false"),
    isl=_series("headway_arrival_input_tokens"),
    osl=_series("headway_request_output_tokens", outcome="ok"),
    duration=_series("headway_request_duration_seconds", outcome="ok"),
    ttft=_series("headway_time_to_first_token_seconds"),
    itl=_series("headway_inter_token_latency_seconds"),
    load=Load(
        running=_series("headway_replica_running_requests"),
        waiting=_series("headway_replica_waiting_requests"),
        kv_usage=_series("headway_replica_kv_usage"),
        by_model=False,
        role_label="role",
    ),
)

DYNAMO = Preset(
    name="dynamo",
    model_label="model",
    lower_case_model=True,
    alive=_series("dynamo_frontend_inflight_requests"),
    requests=(_series("dynamo_frontend_requests_total"),),
    in_flight=(_series("dynamo_frontend_inflight_requests"),),
    completed=_series("dynamo_frontend_requests_total", status="success"),
    isl=_series("dynamo_frontend_input_sequence_tokens"),
    osl=_series("dynamo_frontend_output_sequence_tokens"),
    duration=_series("dynamo_frontend_request_duration_seconds"),
    ttft=_series("dynamo_frontend_time_to_first_token_seconds"),
    itl=_series("dynamo_frontend_inter_token_latency_seconds"),
    cached=_series("dynamo_frontend_cached_tokens_sum"),
)

VLLM = Preset(
    name="vllm",
    model_label="model_name",
    alive=_series("vllm:num_requests_running"),
    requests=(_series("vllm:request_success_total"),),
    in_flight=(_series("vllm:num_requests_running"), _series("vllm:num_requests_waiting")),
    completed=_series("vllm:request_success_total"),
    isl=_series("vllm:request_prompt_tokens"),
    osl=_series("vllm:request_generation_tokens"),
    duration=_series("vllm:e2e_request_latency_seconds"),
    ttft=_series("vllm:time_to_first_token_seconds"),
    itl=_series("vllm:inter_token_latency_seconds"),
    queue=_series("vllm:request_queue_time_seconds"),
    cached=_series("vllm:prefix_cache_hits_total"),
    load=Load(
        running=_series("vllm:num_requests_running"),
        waiting=_series("vllm:num_requests_waiting"),
        kv_usage=_series("vllm:kv_cache_usage_perc"),
    ),
)

SGLANG = Preset(
    name="sglang",
    model_label="model_name",
    alive=_series("sglang:num_running_reqs"),
    requests=(_series("sglang:num_requests_total"),),
    in_flight=(_series("sglang:num_running_reqs"), _series("sglang:num_queue_reqs")),
    completed=_series("sglang:num_requests_total"),
    isl=_series("sglang:prompt_tokens_histogram"),
    osl=_series("sglang:generation_tokens_histogram"),
    duration=_series("sglang:e2e_request_latency_seconds"),
    ttft=_series("sglang:time_to_first_token_seconds"),
    itl=_series("sglang:inter_token_latency_seconds"),
    queue=_series("sglang:queue_time_seconds"),
    cached=_series("sglang:cached_tokens_total"),
    load=Load(
        running=_series("sglang:num_running_reqs"),
        waiting=_series("sglang:num_queue_reqs"),
        kv_usage=_series("sglang:token_usage"),
        role_label="engine_type",
        roles={"unified": Role.MIXED, "prefill": Role.PREFILL, "decode": Role.DECODE},
    ),
)

PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in (HEADWAY, DYNAMO, VLLM, SGLANG)}


class Quantity(StrEnum):
    """A figure that an interval is asked for."""

    REQUESTS = "requests"
    COMPLETED = "completed"
    MET = "met"
    MISSED = "missed"
    ISL = "isl"
    OSL = "osl"
    DURATION = "duration"
    TTFT = "ttft"
    ITL = "itl"
    QUEUE = "queue"
    CACHED = "cached"


class Part(StrEnum):
    """The part of a quantity that a series carries."""

    COUNT = "count"
    SUM = "sum"
    BUCKET = "bucket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """Samples called `name` with the labels `where` feed `part` of `quantity`.

    The change of a gauge may be negative; a counter that falls was reset.
    """

    quantity: Quantity
    part: Part
    name: str
    where: Labels
    gauge: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """Samples of one figure of the load of pools; replicas add up (`running`, `waiting`) or average."""

    figure: str
    name: str
    where: Labels
    averaged: bool


HISTOGRAMS = (
    Quantity.ISL,
    Quantity.OSL,
    Quantity.DURATION,
    Quantity.TTFT,
    Quantity.ITL,
    Quantity.QUEUE,
)
WITH_BUCKETS = frozenset({Quantity.TTFT, Quantity.ITL, Quantity.ISL, Quantity.OSL})


def channels(preset: Preset, model: str) -> tuple[Channel, ...]:
    """All series of one model that carry counts."""
    counters = [(Quantity.REQUESTS, series, False) for series in preset.requests]
    counters += [(Quantity.REQUESTS, series, True) for series in preset.in_flight]
    ended = {
        Quantity.COMPLETED: preset.completed,
        Quantity.MET: preset.met,
        Quantity.MISSED: preset.missed,
        Quantity.CACHED: preset.cached,
    }
    counters += [(quantity, series, False) for quantity, series in ended.items() if series is not None]
    table = [(quantity, Part.COUNT, series, series.name, gauge) for quantity, series, gauge in counters]
    for quantity in HISTOGRAMS:
        histogram: Series | None = getattr(preset, quantity.value)
        if histogram is None:
            continue
        parts = Part if quantity in WITH_BUCKETS else (Part.COUNT, Part.SUM)
        table += [(quantity, part, histogram, f"{histogram.name}_{part}", False) for part in parts]
    return tuple(
        Channel(quantity=quantity, part=part, name=name, where=matched(series, preset, model), gauge=gauge)
        for quantity, part, series, name, gauge in table
    )


def gauges(preset: Preset, model: str) -> tuple[Gauge, ...]:
    """All series of the load of pools."""
    if (load := preset.load) is None:
        return ()
    figures = {"running": load.running, "waiting": load.waiting, "kv_usage": load.kv_usage}
    return tuple(
        Gauge(
            figure=figure,
            name=series.name,
            where=matched(series, preset, model) if load.by_model else series.where,
            averaged=figure == "kv_usage",
        )
        for figure, series in figures.items()
    )


def matched(series: Series, preset: Preset, model: str) -> Labels:
    """The labels that this model's samples of the series carry."""
    return tuple(sorted({**dict(series.where), preset.model_label: preset.model(model)}.items()))
