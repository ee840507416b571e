"""What is exported under the names of vLLM."""

from collections.abc import Mapping

import pytest

from headway.config import HeadwayConfig
from headway.planning import Role, Slo
from serve_apps.engines.protocol import FinishReason
from serve_apps.engines.vllm.metrics import VllmMetrics
from serve_apps.faults import Outcome
from serve_apps.gateway.admission import Places
from serve_apps.gateway.backend import ReplicaLoad, Timeline
from serve_apps.gateway.metrics import GatewayMetrics, Traffic
from serve_apps.gateway.request_record import RequestRecord
from tests.gateway.doubles import ScriptedBackend

LOAD = ReplicaLoad(
    role=Role.DECODE,
    replica="d1",
    running=2,
    waiting=1,
    kv_usage=0.5,
    prompt_tokens=100,
    cached_tokens=30,
    external_tokens=60,
    preemptions=4,
    output_tokens=700,
)
TRAFFIC = Traffic(backend=ScriptedBackend(loads=[LOAD]), places=Places(10))


class Served:
    """A gateway that measures requests on a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.metrics = GatewayMetrics("m", "vllm", Slo(ttft_s=1.0, itl_s=0.1), TRAFFIC, simulated=False)

    def serve(self, gaps_s: tuple[float, ...], reason: FinishReason | None, outcome: Outcome) -> None:
        record = RequestRecord("r", "/v1/completions", "k", self.metrics, Timeline(lambda: self.now_s))
        record.accepted(10)
        for gap_s in gaps_s:
            self.now_s += gap_s
            record.tokens(1)
        if reason is not None:
            record.finished(reason)
        record.ended(outcome)

    def scrape(self) -> Mapping[tuple[str, ...], float]:
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in VllmMetrics("m", TRAFFIC, self.metrics).collect()
            for sample in family.samples
        }


def test_what_replicas_say() -> None:
    seen, engine = Served().scrape(), ("m", "d1", "decode")
    assert {name: value for (name, *labels), value in seen.items() if tuple(labels) == engine} == {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 1,
        "vllm:kv_cache_usage_perc": 0.5,
        "vllm:prompt_tokens_total": 100,
        "vllm:generation_tokens_total": 700,
        "vllm:num_preemptions_total": 4,
        "vllm:prefix_cache_queries_total": 100,
        "vllm:prefix_cache_hits_total": 30,
        "vllm:external_prefix_cache_queries_total": 70,
        "vllm:external_prefix_cache_hits_total": 60,
    }
    by_source = {key[-1]: value for key, value in seen.items() if key[0].endswith("_by_source_total")}
    assert by_source == {"local_compute": 10, "local_cache_hit": 30, "external_kv_transfer": 60}


def test_what_the_gateway_measures() -> None:
    served = Served()
    served.serve((0.5, 0.1, 0.3), "length", "ok")
    served.serve((0.7,), "stop", "ok")
    served.serve((0.2, 0.2), None, "aborted")
    seen = served.scrape()
    sums = {
        "vllm:time_to_first_token_seconds": (1.4, 3),
        "vllm:inter_token_latency_seconds": (0.6, 3),
        "vllm:request_time_per_output_token_seconds": (0.2, 1),
        "vllm:e2e_request_latency_seconds": (1.6, 2),
        "vllm:request_prompt_tokens": (20, 2),
        "vllm:request_generation_tokens": (4, 2),
    }
    for name, (total, count) in sums.items():
        assert (seen[f"{name}_sum", "m"], seen[f"{name}_count", "m"]) == (pytest.approx(total), count)
    assert seen["vllm:request_success_total", "m", "stop"] == 1
    assert seen["vllm:request_success_total", "m", "length"] == 1


def test_an_output_that_was_complete_but_did_not_arrive_is_no_success() -> None:
    served = Served()
    served.serve((0.1,), "stop", "aborted")
    assert served.scrape()["vllm:request_success_total", "m", "stop"] == 0


def test_a_simulated_deployment_has_none_of_these_names() -> None:
    from serve_apps.gateway.app import make_app

    app = make_app(HeadwayConfig(), ScriptedBackend())
    assert not [family for family in app.state.registry.collect() if family.name.startswith("vllm:")]
