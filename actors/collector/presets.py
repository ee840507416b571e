"""The meaning of metric names for each kind of system that we can read, and the series that follow from it.

All sources read this one table; `series` has what follows from it for one model.

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
two of them. Where their series are told apart by role, each quantity is read where it is whole:

    queue, TTFT and cached tokens                       prefill engines
    what ends, lengths, duration and ITL                decode engines
    requests in flight, for arrivals                    both: a request is in one of them at a time

Where they are not, each request counts twice: then read the gateway in front. Roles of pools are known to
headway (label `role`) and SGLang (`engine_type`); else vLLM engines count as mixed; Dynamo's frontend has no
load of pools.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNames:
    """The names of an engine's totals; a histogram stands for its `_sum` and `_count`.

    `prefill` is empty where a prompt's time is its TTFT less its time in the queue.
    """

    first_token: str
    queue: str
    gap: str
    prefill: str = ""
    lengths: str
    """A histogram of prompts' tokens, of requests that ended."""
    prompts: str
    """A counter of prompts' tokens; `cached` of those of them that were not computed again."""
    cached: str
    preemptions: str = ""
    iterations: str = ""

    @property
    def series(self) -> frozenset[str]:
        """The names of all samples."""
        histograms = (self.first_token, self.queue, self.gap, self.prefill, self.lengths)
        parts = [f"{name}_{part}" for name in histograms if name for part in ("sum", "count")]
        return frozenset({*parts, self.prompts, self.cached, self.preemptions, self.iterations} - {""})


def _vllm_totals(prefix: str) -> EngineNames:
    return EngineNames(
        first_token=f"{prefix}time_to_first_token_seconds",
        queue=f"{prefix}request_queue_time_seconds",
        gap=f"{prefix}inter_token_latency_seconds",
        prefill=f"{prefix}request_prefill_time_seconds",
        lengths=f"{prefix}request_prompt_tokens",
        prompts=f"{prefix}prompt_tokens_total",
        cached=f"{prefix}prefix_cache_hits_total",
        preemptions=f"{prefix}num_preemptions_total",
        iterations=f"{prefix}iteration_tokens_total_count",
    )


ENGINE_TOTALS: Mapping[str, EngineNames] = {
    "vllm": _vllm_totals("vllm:"),
    "ray-serve-llm": _vllm_totals("ray_vllm:"),
    "llm-d": _vllm_totals("vllm:"),
    "sglang": EngineNames(
        first_token="sglang:time_to_first_token_seconds",
        queue="sglang:queue_time_seconds",
        gap="sglang:inter_token_latency_seconds",
        lengths="sglang:prompt_tokens_histogram",
        prompts="sglang:prompt_tokens_total",
        cached="sglang:cached_tokens_total",
    ),
}
"""By preset; of a system that is not here, engines teach nothing."""
