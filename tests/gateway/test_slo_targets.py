"""Headers of routing: what they say, what is wrong with them, and what the router hears of a request."""

import asyncio
import json
from collections.abc import Callable
from itertools import count
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import HeadwayConfig
from headway.config.routing import SloClass
from headway.planning import Slo
from headway.routing import Placement, RequestSlo, RouteClass
from serve_apps.engines.protocol import TokenChunk
from serve_apps.faults import InvalidRequest
from serve_apps.gateway.app import make_app
from serve_apps.gateway.backend import Overloaded
from serve_apps.gateway.prompts import prefix_blocks
from serve_apps.gateway.slo_targets import SloTargetReader, SloTargets
from tests.gateway.doubles import ScriptedBackend, chunks
from tests.gateway.serving import Answer, asked

CLASSES = {
    "urgent": SloClass(ttft_ms=500.0, tpot_ms=50.0, critical=True),
    "batch": SloClass(ttft_ms=5000.0),
    "plain": SloClass(),
}


TARGETS = Slo(ttft_s=3.0, itl_s=0.3)


def reader(*, default_critical: bool = False) -> SloTargetReader:
    return SloTargetReader(CLASSES, lambda: TARGETS, default_critical=default_critical)


def read(default_critical: bool = False, **headers: str) -> SloTargets:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return reader(default_critical=default_critical).read([(b"host", b"x"), *raw])


def test_without_headers_nothing_is_promised():
    assert read() == SloTargets()
    assert read(default_critical=True) == SloTargets(critical=True)


@pytest.mark.parametrize("prefix", ["x_slo", "x_llm_d_slo"])
def test_slos_are_milliseconds(prefix):
    promise = read(**{f"{prefix}_ttft_ms": "250", f"{prefix}_tpot_ms": " 12.5 "})
    assert promise.slo == RequestSlo(ttft_s=0.25, tpot_s=0.0125)


def test_a_dimension_that_is_not_named_is_not_promised():
    assert read(x_slo_ttft_ms="250").slo == RequestSlo(ttft_s=0.25, tpot_s=inf)


def test_a_class_promises_and_headers_go_before_it():
    assert read(x_headway_slo_class="urgent") == SloTargets(
        slo=RequestSlo(ttft_s=0.5, tpot_s=0.05), slo_class="urgent", class_place=1, critical=True
    )
    assert read(x_headway_slo_class="batch").slo == RequestSlo(ttft_s=5.0, tpot_s=0.3)
    assert not read(default_critical=True, x_headway_slo_class="batch").critical
    promise = read(x_headway_slo_class="urgent", x_slo_ttft_ms="100", x_headway_criticality="Sheddable")
    assert promise.slo == RequestSlo(ttft_s=0.1, tpot_s=0.05)
    assert not promise.critical


def test_what_a_class_leaves_open_is_the_deployments_also_when_that_changes():
    targets = [TARGETS]
    live = SloTargetReader(CLASSES, lambda: targets[-1], default_critical=False)
    header = [(b"x-headway-slo-class", b"plain")]
    assert live.read(header).slo == RequestSlo(ttft_s=3.0, tpot_s=0.3)
    targets.append(Slo(ttft_s=1.0, itl_s=0.1))
    assert live.read(header).slo == RequestSlo(ttft_s=1.0, tpot_s=0.1)
    assert live.read([*header, (b"x-prediction-based-scheduling", b"1")]).prediction_based


@pytest.mark.parametrize("name", ["x_session_id", "x_headway_session"])
def test_a_session_has_a_name(name):
    assert read(**{name: "s1"}).session == "s1"


@pytest.mark.parametrize(("text", "wanted"), [("true", True), ("1", True), ("FALSE", False), ("0", False)])
def test_switches(text, wanted):
    promise = read(x_prediction_based_scheduling=text, x_headway_explain=text, x_slo_ttft_ms="1")
    assert (promise.prediction_based, promise.explain) == (wanted, wanted)


WRONG = [
    ("x-slo-ttft-ms", "fast", "fast"),
    ("x-slo-ttft-ms", "0", "above 0"),
    ("x-slo-tpot-ms", "-5", "above 0"),
    ("x-slo-tpot-ms", "nan", "above 0"),
    ("x-llm-d-slo-ttft-ms", "inf", "above 0"),
    ("x-slo-ttft-ms", "1e-323", "above 0"),
    ("x-slo-tpot-ms", "1e308", "above 0"),
    ("x-slo-tpot-ms", "1_000", "above 0"),
    ("x-headway-slo-class", "g" * 5000, "unknown class 'g{79}; known"),
    ("x-llm-d-slo-tpot-ms", "", "above 0"),
    ("x-prediction-based-scheduling", "yes", "true, 1, false, 0"),
    ("x-prediction-based-scheduling", "true", "needs an SLO"),
    ("x-headway-explain", "", "true, 1, false, 0"),
    ("x-headway-slo-class", "gold", "batch, plain, urgent"),
    ("x-headway-criticality", "high", "critical, sheddable"),
    ("x-session-id", "", "1 to 256 characters"),
    ("x-headway-session", "x" * 257, "1 to 256 characters"),
]


@pytest.mark.parametrize(("header", "value", "said"), WRONG)
def test_what_is_wrong_is_said_with_the_headers_name(header, value, said):
    with pytest.raises(InvalidRequest, match=said) as raised:
        read(**{header: value})
    assert raised.value.param == header
    assert str(raised.value).startswith(f"{header}: ")


def test_two_spellings_of_a_target_that_differ_are_refused():
    same = read(x_slo_ttft_ms="200", x_llm_d_slo_ttft_ms="200.0", x_llm_d_slo_tpot_ms="30")
    assert same.slo == RequestSlo(ttft_s=0.2, tpot_s=0.03)
    with pytest.raises(InvalidRequest, match="x-slo-ttft-ms: 200, but x-llm-d-slo-ttft-ms is 400") as raised:
        read(x_slo_ttft_ms="200", x_llm_d_slo_ttft_ms="400")
    assert raised.value.param == "x-slo-ttft-ms"


def test_a_header_that_is_no_text_is_said():
    with pytest.raises(InvalidRequest, match="is not text"):
        reader().read([(b"x-session-id", b"\xff\xfe")])


@given(st.lists(st.tuples(st.sampled_from([name for name, *_ in WRONG]), st.text(max_size=5))))
def test_whatever_headers_hold_is_read_or_refused_by_name(headers):
    raw = [(name.encode(), value.encode()) for name, value in headers]
    refused = None
    try:
        promise = reader().read(raw)
    except InvalidRequest as error:
        refused, promise = error.param, SloTargets()
    assert refused is None or refused in {name for name, _ in headers}
    assert promise.slo is None or min(promise.slo.ttft_s, promise.slo.tpot_s) > 0


def ticking() -> Callable[[], float]:
    """A clock that goes on by a millisecond whenever somebody looks."""
    return map((0.001).__mul__, count()).__next__


def ask(
    script: Any, settings: dict[str, Any], headers: dict[str, str], **fields: Any
) -> tuple[Answer, ScriptedBackend, Any]:
    backend = script if isinstance(script, ScriptedBackend) else ScriptedBackend(script)
    app = make_app(HeadwayConfig.model_validate({"model": "m", **settings}), backend, clock=ticking())
    answer = asyncio.run(asked(app, {"model": "m", "prompt": [1] * 1100} | fields, headers))
    return answer, backend, app


DONE = [TokenChunk("x", 1, "length")]
ROUTED = {"slo": {"classes": {"urgent": {"ttft_ms": 500, "critical": True}}}}


def test_a_bad_header_is_a_400_that_names_it():
    answer, backend, _ = ask(DONE, {}, {"x-slo-ttft-ms": "soon"})
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["param"], error["type"]) == (400, "x-slo-ttft-ms", "invalid_request_error")
    assert backend.begun == 0


@pytest.mark.parametrize("headers", [{}, {"x-slo-ttft-ms": "5"}, {"x-session-id": "s"}])
def test_without_need_no_router_is_asked(headers):
    _, backend, _ = ask(DONE, {"routing": {"profile": "least_load"}}, headers)
    assert backend.requests[0].route is None


@pytest.mark.parametrize(
    "settings",
    [
        {},
        ROUTED | {"routing": {"profile": "least_load"}},
        {"routing": {"profile": "slo"}},
        {"routing": {"profile": "least_load", "offload": {"mode": "cost"}}},
        {
            "routing": {
                "profile": "least_load",
                "scheduling_profiles": [{"name": "least_load", "plugins": []}],
            }
        },
    ],
)
def test_profile_offload_or_classes_ask_the_router_for_every_request(settings):
    _, backend, _ = ask(DONE, settings, {})
    route = backend.requests[0].route
    assert route is not None
    assert (route.input_tokens, route.max_tokens) == (1100, backend.requests[0].max_tokens)
    assert route.request_id == backend.requests[0].request_id


def test_the_router_hears_what_headers_say():
    headers = {
        "x-prediction-based-scheduling": "true",
        "x-slo-ttft-ms": "100",
        "x-slo-tpot-ms": "20",
        "x-headway-criticality": "critical",
        "x-session-id": "s",
    }
    _, backend, _ = ask(DONE, {}, headers)
    route = backend.requests[0].route
    assert route is not None
    assert route.slo == RequestSlo(ttft_s=0.1, tpot_s=0.02)
    assert (route.prediction_based, route.critical, route.session) == (True, True, "anonymous/s")


def test_prefix_blocks_are_named_only_where_replicas_keep_prefixes():
    _, backend, _ = ask(DONE, ROUTED, {})
    assert backend.requests[0].route.blocks == ()
    _, backend, _ = ask(DONE, {**ROUTED, "engine": {"prefix_cache_tokens": 100_000}}, {})
    route = backend.requests[0].route
    assert len(route.blocks) == 1100 // route.block_tokens


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40), st.lists(st.integers(0, 9), max_size=20))
def test_equal_keys_are_equal_prefixes(common, rest):
    whole, part = prefix_blocks([*common, *rest], 8), prefix_blocks(common, 8)
    assert len(whole) == len([*common, *rest]) // 8
    assert whole[: len(part)] == part
    assert all(0 <= key < 2**63 for key in whole)
    if len(common) >= 8:
        changed = [common[0] ^ 1, *common[1:]]
        assert not set(prefix_blocks(changed, 8)) & set(part)


def test_text_has_blocks_of_as_many_bytes_as_tokens_are_estimated_at():
    assert len(prefix_blocks("ä" * 64, 16)) == 2
    assert prefix_blocks("a" * 64 + "b", 16) == prefix_blocks("a" * 64 + "cd", 16)


def test_text_and_ids_of_the_same_bytes_are_different_prompts():
    assert not set(prefix_blocks("\x01\0\0\0" * 8, 8)) & set(prefix_blocks([1] * 8, 8))
    assert not set(prefix_blocks([1] * 8, 8, "adapter")) & set(prefix_blocks([1] * 8, 8))


KEYS_OF_IDS = (6540716158938714846, 1955356899351995710)
KEYS_OF_TEXT = (1405712029911552248, 5675653911891223862)


def test_keys_are_the_same_in_every_process():
    assert prefix_blocks([1, 2, 3, 4], 2) == KEYS_OF_IDS
    assert prefix_blocks("abcdefgh", 1) == KEYS_OF_TEXT


PLACEMENT = Placement(
    request_id="r",
    prefill_replica="p",
    decode_replica="d",
    profile="slo",
    reason="p_idle_d_busy",
    route_class=RouteClass.HEAVY_P2P,
    predicted_ttft_s=0.25,
    queued_s=0.0015,
)
TOLD = {
    "x-headway-replica": "d",
    "x-headway-prefill-replica": "p",
    "x-headway-route-class": "HEAVY_P2P",
    "x-headway-route-reason": "p_idle_d_busy",
    "x-headway-predicted-ttft-ms": "250.000",
    "x-headway-queued-ms": "1.500",
}


@pytest.mark.parametrize("stream", [True, False])
def test_where_a_request_is_served_is_told_when_asked(stream):
    told, _, _ = ask(
        ScriptedBackend(chunks("a", "b"), placement=PLACEMENT),
        {},
        {"x-headway-explain": "true"},
        stream=stream,
    )
    assert {name: value for name, value in told.headers.items() if name in TOLD} == TOLD
    assert "x-headway-predicted-tpot-ms" not in told.headers
    silent, _, _ = ask(ScriptedBackend(chunks("a"), placement=PLACEMENT), {}, {}, stream=stream)
    assert not silent.headers.keys() & TOLD.keys()


@pytest.mark.parametrize(
    ("headers", "script", "met"),
    [
        ({}, DONE, True),
        ({"x-headway-slo-class": "urgent"}, DONE, True),
        ({"x-slo-ttft-ms": "0.000001"}, DONE, False),
        ({"x-headway-slo-class": "urgent", "x-slo-ttft-ms": "0.000001"}, DONE, False),
        ({"x-headway-slo-class": "urgent"}, [Overloaded("no_headroom")], False),
    ],
)
def test_each_request_is_judged_by_its_own_promise(headers, script, met):
    settings = {"slo": {"ttft_ms": 60_000, "itl_ms": 60_000, **ROUTED["slo"]}}
    answer, _, app = ask(script, settings, headers)
    metrics = app.state.metrics
    assert metrics.slo_requests == {met: 1, not met: 0}
    by_class = {(name, judged): 0 for name in ROUTED["slo"]["classes"] for judged in (True, False)}
    if "x-headway-slo-class" in headers:
        by_class["urgent", met] = 1
    assert dict(metrics.slo_class_requests) == by_class
    assert answer.status == (429 if script is not DONE else 200)
