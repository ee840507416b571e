"""The meaning of metric names for each kind of system that we can read, and the series that follow from it.

A quantity is what an interval is asked for (`requests`, `ttft`, ...). A channel is one of the series behind
it: the count, the sum or the buckets. Both sources read this one table.

`NAME` of a histogram stands for `NAME_bucket`, `NAME_sum` and `NAME_count`. Where a system counts no
arrivals, they follow from conservation: arrivals = requests that ended + change of the requests in flight,
both read in one scrape.

Sources of the names:
    headway   our own gateway, `docs/reference/metrics.md`
    dynamo    ai-dynamo/dynamo, `prometheus_names.rs` and `http/service/metrics.rs`: input length and TTFT are
              observed at the first token, duration and output length of every request at its end, failed
              ones too; the model's name is in lower case
    vllm      vLLM 0.32 as run (`vllm:` names of its V1 engine); lengths are observed at a request's end;
              names of versions before 0.11 as vLLM's pull requests 18354, 24110 and 29330 say (`former`)
    sglang    sgl-project/sglang, `metrics_collector.py`; the two length histograms need
              `--collect-tokens-histogram` on versions that have that flag
    llm-d     llm-d/llm-d-router, the endpoint picker's `llm_d_epp_` names as its documentation lists them,
              which count requests as they come; queue and load from the `vllm:` names of its engines
    ray-serve-llm    vLLM 0.32's `ray_wrappers.py` and Ray 2.60's dashboards for Serve LLM: vLLM's names with
              `ray_` in front, the colon as an underscore where Ray exports by OpenTelemetry

vLLM, SGLang and Ray Serve LLM report per engine. With separate prefill and decode engines each request passes
two of them. A `Selection` tells their series apart, and each quantity is then read where it is whole:

    queue, TTFT and cached tokens                       prefill engines
    what ends, lengths, duration and ITL                decode engines
    requests in flight, for arrivals                    both: a request is in one of them at a time

Without one each request would count twice: then read the gateway in front. Roles of pools are known to
headway (label `role`) and SGLang (`engine_type`); else vLLM engines count as mixed; Dynamo's frontend has no
load of pools.
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
    engine: bool = False
    """True if each engine has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The series that are meant: labels that all of them carry, and by role those of the role's engines.

    A label whose value begins with `~` is a regular expression to Prometheus.
    """

    labels: Labels = ()
    roles: Mapping[Role, Labels] = field(default_factory=dict)


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Gauges of the load of pools, and the label with their role (None: all are mixed)."""

    running: Series
    waiting: Series
    kv_usage: Series
    by_model: bool = True
    """False where these gauges lack the model's label: gateways show the replicas that they know."""
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


def _engine(name: str) -> Series:
    return Series(name=name, engine=True)


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


def _vllm(name: str, prefix: str) -> Preset:
    """vLLM's names behind a prefix."""
    running, waiting = _engine(f"{prefix}num_requests_running"), _engine(f"{prefix}num_requests_waiting")
    ended = _engine(f"{prefix}request_success_total")
    return Preset(
        name=name,
        model_label="model_name",
        alive=running,
        requests=(ended,),
        in_flight=(running, waiting),
        completed=ended,
        isl=_engine(f"{prefix}request_prompt_tokens"),
        osl=_engine(f"{prefix}request_generation_tokens"),
        duration=_engine(f"{prefix}e2e_request_latency_seconds"),
        ttft=_engine(f"{prefix}time_to_first_token_seconds"),
        itl=_engine(f"{prefix}inter_token_latency_seconds"),
        queue=_engine(f"{prefix}request_queue_time_seconds"),
        cached=_engine(f"{prefix}prefix_cache_hits_total"),
        load=Load(running=running, waiting=waiting, kv_usage=_engine(f"{prefix}kv_cache_usage_perc")),
    )


VLLM = _vllm("vllm", "vllm:")
RAY_SERVE_LLM = _vllm("ray-serve-llm", "ray_vllm:")

LLM_D = Preset(
    name="llm-d",
    model_label="model_name",
    # Its own counters begin with the first request.
    alive=VLLM.alive,
    requests=(_series("llm_d_epp_request_total"),),
    completed=_series("llm_d_epp_request_duration_seconds_count"),
    isl=_series("llm_d_epp_request_input_tokens"),
    osl=_series("llm_d_epp_request_output_tokens"),
    duration=_series("llm_d_epp_request_duration_seconds"),
    ttft=_series("llm_d_epp_request_ttft_seconds"),
    itl=_series("llm_d_epp_request_streaming_itl_seconds"),
    queue=VLLM.queue,
    cached=_series("llm_d_epp_request_cached_tokens_sum"),
    load=VLLM.load,
)

SGLANG = Preset(
    name="sglang",
    model_label="model_name",
    alive=_engine("sglang:num_running_reqs"),
    requests=(_engine("sglang:num_requests_total"),),
    in_flight=(_engine("sglang:num_running_reqs"), _engine("sglang:num_queue_reqs")),
    completed=_engine("sglang:num_requests_total"),
    isl=_engine("sglang:prompt_tokens_histogram"),
    osl=_engine("sglang:generation_tokens_histogram"),
    duration=_engine("sglang:e2e_request_latency_seconds"),
    ttft=_engine("sglang:time_to_first_token_seconds"),
    itl=_engine("sglang:inter_token_latency_seconds"),
    queue=_engine("sglang:queue_time_seconds"),
    cached=_engine("sglang:cached_tokens_total"),
    load=Load(
        running=_engine("sglang:num_running_reqs"),
        waiting=_engine("sglang:num_queue_reqs"),
        kv_usage=_engine("sglang:token_usage"),
        role_label="engine_type",
        roles={"unified": Role.MIXED, "prefill": Role.PREFILL, "decode": Role.DECODE},
    ),
)

FORMER = {
    "inter_token_latency_seconds": "time_per_output_token_seconds",
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
}
"""vLLM's names before 0.11, by those of today; versions around it show both, with the same values."""


def former(name: str) -> str | None:
    """The name of the same samples in older versions of vLLM; None where it did not change."""
    prefix, found, own = name.partition("vllm:")
    for today, before in FORMER.items() if found else ():
        if own == today or own.startswith(f"{today}_"):
            return f"{prefix}{found}{before}{own.removeprefix(today)}"
    return None


PRESETS: Mapping[str, Preset] = {
    preset.name: preset for preset in (HEADWAY, DYNAMO, VLLM, SGLANG, LLM_D, RAY_SERVE_LLM)
}


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
    role: Role | None = None
    """Of its engines; None where a label tells it."""
    gateway: Series | None = None
    """The series of a gateway that shows this one of its replicas; None where engines show it themselves."""


HISTOGRAMS = (
    Quantity.ISL,
    Quantity.OSL,
    Quantity.DURATION,
    Quantity.TTFT,
    Quantity.ITL,
    Quantity.QUEUE,
)
WITH_BUCKETS = frozenset({Quantity.TTFT, Quantity.ITL, Quantity.ISL, Quantity.OSL})


OF_PREFILL = frozenset({Quantity.TTFT, Quantity.QUEUE, Quantity.CACHED})
"""Read from prefill engines, where there are separate ones; the rest from decode engines."""


def channels(preset: Preset, model: str, selection: Selection = EVERYTHING) -> tuple[Channel, ...]:
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
        Channel(
            quantity=quantity,
            part=part,
            name=name,
            where=_narrowed(matched(series, preset, model, selection), selection, role),
            gauge=gauge,
        )
        for quantity, part, series, name, gauge in table
        for role in (_roles_read(quantity, selection, gauge=gauge) if series.engine else (None,))
    )


def gauges(preset: Preset, model: str, selection: Selection = EVERYTHING) -> tuple[Gauge, ...]:
    """All series of the load of pools."""
    if (load := preset.load) is None:
        return ()
    of_model = Series(name=preset.alive.name, where=matched(preset.alive, preset, model, selection))
    figures = {"running": load.running, "waiting": load.waiting, "kv_usage": load.kv_usage}
    return tuple(
        Gauge(
            figure=figure,
            name=series.name,
            where=_narrowed(
                matched(series, preset, model, selection) if load.by_model else series.where, selection, role
            ),
            averaged=figure == "kv_usage",
            role=role,
            gateway=None if load.by_model else of_model,
        )
        for figure, series in figures.items()
        for role in (tuple(selection.roles) or (None,) if series.engine else (None,))
    )


def matched(series: Series, preset: Preset, model: str, selection: Selection = EVERYTHING) -> Labels:
    """The labels that this model's samples of the series carry."""
    labels = {**dict(selection.labels), **dict(series.where), preset.model_label: preset.model(model)}
    return tuple(sorted(labels.items()))


def _narrowed(where: Labels, selection: Selection, role: Role | None) -> Labels:
    return where if role is None else tuple(sorted({**dict(where), **dict(selection.roles[role])}.items()))


def _roles_read(quantity: Quantity, selection: Selection, *, gauge: bool) -> tuple[Role | None, ...]:
    """The roles whose engines tell this quantity."""
    roles = tuple(selection.roles)
    if not roles:
        return (None,)
    if gauge or Role.PREFILL not in roles or Role.DECODE not in roles:
        return roles
    return (Role.PREFILL,) if quantity in OF_PREFILL else (Role.DECODE,)
