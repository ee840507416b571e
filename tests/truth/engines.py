"""Fleets whose every request is known, and the pages of metrics that such engines would show of them.

Names, labels and habits are the systems' own as their sources say (`actors/collector/presets.yaml` names
them), not as our presets have them: a page here is what the other side does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

import numpy as np

MODEL = "Qwen/Qwen3-32B"
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000)
SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Labels = Mapping[str, str]
Sample = tuple[str, Labels, float]


@dataclass(frozen=True)
class Requests:
    """What came to one engine: arrays of one length, times in seconds, `first_s` inf where no token came.

    `counted` is false for those whose end no counter shows, `aborted` true where they left.
    """

    arrival_s: np.ndarray
    start_s: np.ndarray
    first_s: np.ndarray
    end_s: np.ndarray
    isl: np.ndarray
    osl: np.ndarray
    aborted: np.ndarray
    counted: np.ndarray

    def arrived(self, start_s: float, end_s: float) -> int:
        return int(((self.arrival_s > start_s) & (self.arrival_s <= end_s)).sum())


def requests(
    rate_rps: float | Callable[[np.ndarray], np.ndarray],
    seed: int,
    *,
    until_s: float,
    isl: float = 600,
    osl: float = 100,
    ttft_s: float = 0.12,
    itl_s: float = 0.02,
    places: float = inf,
    abort: float = 0.0,
    counted: bool = True,
) -> Requests:
    """A Poisson stream, served at once while `places` are free; a share of `abort` leaves halfway."""
    rng = np.random.default_rng(seed)
    rate = rate_rps if callable(rate_rps) else (lambda at_s: np.full_like(at_s, rate_rps))
    most = float(rate(np.linspace(0, until_s, 1000)).max())
    arrival_s = np.sort(rng.uniform(0, until_s, rng.poisson(most * until_s)))
    arrival_s = arrival_s[rng.random(arrival_s.size) < rate(arrival_s) / most]
    n = arrival_s.size
    isl_n = np.maximum(1, rng.lognormal(np.log(isl), 0.3, n).round())
    osl_n = (
        np.maximum(min(osl, 1), rng.lognormal(np.log(max(osl, 0.1)), 0.3, n).round())
        if osl > 1
        else np.full(n, osl)
    )
    service_s = ttft_s + np.maximum(osl_n - 1, 0) * itl_s
    aborted = rng.random(n) < abort
    start_s, free = arrival_s.copy(), []
    if places < inf:
        free = [0.0] * int(places)
        for i in range(n):
            place = int(np.argmin(free))
            start_s[i] = max(arrival_s[i], free[place])
            free[place] = start_s[i] + service_s[i]
    end_s = start_s + np.where(aborted, service_s * 0.5, service_s)
    first_s = np.where(osl_n > 0, start_s + ttft_s, inf)
    first_s = np.where(first_s > end_s, inf, first_s)
    made = np.where(np.isfinite(first_s), 1 + np.floor((end_s - first_s) / max(itl_s, 1e-9) + 1e-6), 0)
    osl_n = np.where(aborted, np.minimum(osl_n, made), osl_n)
    return Requests(arrival_s, start_s, first_s, end_s, isl_n, osl_n, aborted, np.full(n, counted) | ~aborted)


@dataclass(frozen=True)
class Engine:
    """One process: what it serves, where it is found, and how its page looks."""

    served: Requests
    address: str = "10.0.0.1:8000"
    pod: str = "vllm-0"
    system: str = "vllm"
    model: str = MODEL
    itl_s: float = 0.02
    accepted: float = 1.0
    """Tokens of a step, of which ITL has one sample."""
    labels: Labels = field(default_factory=dict)
    found: Labels = field(default_factory=dict)
    """What the look-up of pods says of it."""
    begun_s: float = 0.0
    """When the process began: what came before is not in its counters."""
    gone_s: float = inf
    odd: Callable[[float, list[Sample]], list[Sample]] = lambda _, page: page
    """What is wrong with its page at a time."""

    def page(self, at_s: float) -> list[Sample]:
        return self.odd(at_s, PAGES[self.system](self, at_s))

    def arrived(self, start_s: float, end_s: float) -> int:
        """Requests that came between two times, and found it."""
        return self.served.arrived(max(start_s, self.begun_s), min(end_s, self.gone_s))

    def there(self, at_s: float) -> bool:
        return self.begun_s <= at_s < self.gone_s


def text(page: list[Sample]) -> str:
    """Prometheus' text format."""
    return "".join(f"{name}{shown(labels)} {value!r}\n" for name, labels, value in page)


def shown(labels: Labels) -> str:
    inner = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _histogram(name: str, labels: Labels, values: np.ndarray, bounds: tuple[float, ...]) -> Iterator[Sample]:
    for bound in bounds:
        yield f"{name}_bucket", {**labels, "le": str(float(bound))}, float((values <= bound).sum())
    yield f"{name}_bucket", {**labels, "le": "+Inf"}, float(values.size)
    yield f"{name}_sum", labels, float(values.sum())
    yield f"{name}_count", labels, float(values.size)


@dataclass(frozen=True)
class _Seen:
    """The requests of an engine as of a moment, as far as its process has seen them."""

    engine: Engine
    at_s: float

    def at(self, column: str, when: str) -> np.ndarray:
        """A column of those to whom `when` has happened in this process."""
        served = self.engine.served
        own = (served.arrival_s > self.engine.begun_s) & (getattr(served, when) <= self.at_s)
        return getattr(served, column)[own]

    def ended(self, column: str) -> np.ndarray:
        served = self.engine.served
        over = (served.arrival_s > self.engine.begun_s) & (served.end_s <= self.at_s) & served.counted
        return getattr(served, column)[over]

    @property
    def running(self) -> int:
        served = self.engine.served
        own = served.arrival_s > self.engine.begun_s
        return int((own & (served.start_s <= self.at_s) & (served.end_s > self.at_s)).sum())

    @property
    def waiting(self) -> int:
        served = self.engine.served
        own = served.arrival_s > self.engine.begun_s
        return int((own & (served.arrival_s <= self.at_s) & (served.start_s > self.at_s)).sum())

    def gaps(self) -> np.ndarray:
        """ITL samples up to now: one for each step after the first."""
        served = self.engine.served
        until_s = np.minimum(served.end_s, self.at_s)
        step_s = self.engine.itl_s * self.engine.accepted
        known = np.isfinite(served.first_s) & (served.arrival_s > self.engine.begun_s)
        steps = np.where(known, np.maximum(0, np.floor((until_s - served.first_s) / step_s + 1e-6)), 0)
        return np.full(int(steps[known].sum()), step_s)


def _vllm(engine: Engine, at_s: float, prefix: str = "vllm:", label: str = "model_name") -> list[Sample]:
    seen, name = _Seen(engine, at_s), {label: engine.model, **engine.labels}
    ends = {"stop": ~seen.ended("aborted"), "length": np.zeros(0, bool), "abort": seen.ended("aborted")}
    page: list[Sample] = [
        (f"{prefix}num_requests_running", name, float(seen.running)),
        (f"{prefix}num_requests_waiting", name, float(seen.waiting)),
        (f"{prefix}kv_cache_usage_perc", name, min(1.0, 0.01 * seen.running)),
        (f"{prefix}prefix_cache_hits_total", name, 0.0),
        (f"{prefix}prompt_tokens_total", name, float(seen.at("isl", "first_s").sum())),
    ]
    page += [
        (f"{prefix}request_success_total", {**name, "finished_reason": reason}, float(which.sum()))
        for reason, which in ends.items()
    ]
    waits = seen.ended("start_s") - seen.ended("arrival_s")
    first = seen.at("first_s", "first_s") - seen.at("arrival_s", "first_s")
    for series, values, bounds in (
        ("request_prompt_tokens", seen.ended("isl"), TOKENS),
        ("request_generation_tokens", seen.ended("osl"), TOKENS),
        ("time_to_first_token_seconds", first, SECONDS),
        ("inter_token_latency_seconds", seen.gaps(), SECONDS),
        ("e2e_request_latency_seconds", seen.ended("end_s") - seen.ended("arrival_s"), SECONDS),
        ("request_queue_time_seconds", waits, SECONDS),
    ):
        page += _histogram(prefix + series, name, values, bounds)
    return page


def _old_vllm(engine: Engine, at_s: float) -> list[Sample]:
    """Before 0.11."""
    older = {
        "vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds",
        "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    }

    def named(name: str) -> str:
        for today, before in older.items():
            if name.startswith(today):
                return name.replace(today, before)
        return name

    return [(named(name), labels, value) for name, labels, value in _vllm(engine, at_s)]


def _sglang(engine: Engine, at_s: float) -> list[Sample]:
    """Context- and tensor-parallel ranks each show the gauges; counters have the first rank's alone."""
    seen = _Seen(engine, at_s)
    name = {"engine_type": "unified", "model_name": engine.model, **engine.labels}
    page: list[Sample] = []
    for rank in range(int(engine.labels.get("_ranks", "1"))):
        ranked = {**name, "pp_rank": "0", "tp_rank": str(rank), "moe_ep_rank": "0"}
        ranked.pop("_ranks", None)
        page += [
            ("sglang:num_running_reqs", ranked, float(seen.running)),
            ("sglang:num_queue_reqs", ranked, float(seen.waiting)),
            ("sglang:token_usage", ranked, min(1.0, 0.01 * seen.running)),
        ]
    name.pop("_ranks", None)
    page.append(("sglang:num_requests_total", name, float(seen.ended("end_s").size)))
    first = seen.at("first_s", "first_s") - seen.at("arrival_s", "first_s")
    for series, values, bounds in (
        ("prompt_tokens_histogram", seen.ended("isl"), TOKENS),
        ("generation_tokens_histogram", seen.ended("osl"), TOKENS),
        ("time_to_first_token_seconds", first, SECONDS),
        ("inter_token_latency_seconds", seen.gaps(), SECONDS),
        ("e2e_request_latency_seconds", seen.ended("end_s") - seen.ended("arrival_s"), SECONDS),
        ("queue_time_seconds", seen.at("start_s", "start_s") - seen.at("arrival_s", "start_s"), SECONDS),
    ):
        page += _histogram(f"sglang:{series}", name, values, bounds)
    return page


def _dynamo(engine: Engine, at_s: float) -> list[Sample]:
    """The frontend: lengths and TTFT are observed at the first token, the rest at the end."""
    seen, name = _Seen(engine, at_s), {"model": engine.model, **engine.labels}
    page: list[Sample] = [
        ("dynamo_frontend_inflight_requests", name, float(seen.running + seen.waiting)),
        (
            "dynamo_frontend_requests_total",
            {**name, "endpoint": "chat_completions", "request_type": "stream", "status": "success"},
            float(seen.ended("end_s").size),
        ),
        ("dynamo_frontend_cached_tokens_sum", name, 0.0),
    ]
    first = seen.at("first_s", "first_s") - seen.at("arrival_s", "first_s")
    for series, values, bounds in (
        ("input_sequence_tokens", seen.at("isl", "first_s"), TOKENS),
        ("output_sequence_tokens", seen.ended("osl"), TOKENS),
        ("time_to_first_token_seconds", first, SECONDS),
        ("inter_token_latency_seconds", seen.gaps(), SECONDS),
        ("request_duration_seconds", seen.ended("end_s") - seen.ended("arrival_s"), SECONDS),
    ):
        page += _histogram(f"dynamo_frontend_{series}", name, values, bounds)
    return page


def _picker(engine: Engine, at_s: float) -> list[Sample]:
    """llm-d's endpoint picker counts as requests come, by the name that was asked for."""
    seen = _Seen(engine, at_s)
    name = {"model_name": engine.model, "target_model_name": MODEL, **engine.labels}
    page: list[Sample] = [
        ("llm_d_epp_request_total", name, float(seen.at("isl", "arrival_s").size)),
        ("llm_d_epp_request_cached_tokens_sum", name, 0.0),
    ]
    first = seen.at("first_s", "first_s") - seen.at("arrival_s", "first_s")
    for series, values, bounds in (
        ("request_input_tokens", seen.at("isl", "arrival_s"), TOKENS),
        ("request_output_tokens", seen.ended("osl"), TOKENS),
        ("request_ttft_seconds", first, SECONDS),
        ("request_streaming_itl_seconds", seen.gaps(), SECONDS),
        ("request_duration_seconds", seen.ended("end_s") - seen.ended("arrival_s"), SECONDS),
    ):
        page += _histogram(f"llm_d_epp_{series}", name, values, bounds)
    return page


PAGES: Mapping[str, Callable[[Engine, float], list[Sample]]] = {
    "vllm": _vllm,
    "vllm-0.10": _old_vllm,
    "kserve": lambda engine, at_s: _vllm(engine, at_s, prefix="kserve_vllm:"),
    "nim": lambda engine, at_s: _vllm(engine, at_s, prefix=""),
    "ray": lambda engine, at_s: _vllm(engine, at_s, prefix="ray_vllm_"),
    "sglang": _sglang,
    "dynamo": _dynamo,
    "picker": _picker,
}
