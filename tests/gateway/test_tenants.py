"""Tenants at the gateway: whose a request is, what it may ask for, what the router and Prometheus hear."""

import asyncio
import json
import time
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from headway.config import ConfigError, HeadwayConfig, RoutingSettings
from headway.planning import Slo
from headway.routing import RequestSlo
from headway.routing.types import RouteRequest
from serve_apps.access import INFERENCE, Access, Holder, make_access
from serve_apps.engines.protocol import TokenChunk
from serve_apps.gateway.admission import MOST_USER_CHARACTERS, Tenants, check_tenants, cleaned
from serve_apps.gateway.app import GatewayApp
from serve_apps.gateway.backend import Overloaded
from serve_apps.gateway.state import make_state
from tests.gateway.doubles import ScriptedBackend
from tests.gateway.serving import Answer, asked

DONE = [TokenChunk("x", 1, "length")]
NOW = Slo(ttft_s=0.3, itl_s=0.02)


def routing(**tenants: dict[str, Any]) -> RoutingSettings:
    named = {"*" if name == "others" else name: each for name, each in tenants.items()}
    return RoutingSettings.model_validate({"tenants": named})


def name(settings: RoutingSettings, key: str, user: str | None) -> str:
    return Tenants(settings, lambda: NOW).name(Holder(tenant=key, rights=INFERENCE), user)


SPEAKS_FOR_MANY = routing(app={"per_user": True}, other={})


def test_a_user_is_a_tenant_only_where_the_key_speaks_for_many() -> None:
    assert name(SPEAKS_FOR_MANY, "app", "alice@example.org") == "app/alice@example.org"
    assert name(SPEAKS_FOR_MANY, "app", None) == name(SPEAKS_FOR_MANY, "app", "") == "app"
    assert name(SPEAKS_FOR_MANY, "other", "alice") == "other"
    assert name(routing(others={"per_user": True}), "anonymous", "alice") == "anonymous/alice"


@pytest.mark.parametrize("user", ["../other", "/", "a/b", "a\r\nx-evil: 1", "\0", "\ud800", "é" * 5000])
def test_what_a_hostile_client_says_is_bounded_and_stays_within_its_key(user: str) -> None:
    key, slash, rest = name(SPEAKS_FOR_MANY, "app", user).partition("/")
    assert (key, slash) == ("app", "/")
    assert "/" not in rest
    assert rest.isascii()
    assert rest.isprintable()
    assert 0 < len(rest) <= MOST_USER_CHARACTERS


@given(st.text(max_size=100), st.text(max_size=100))
def test_different_users_are_different_tenants(one: str, other: str) -> None:
    assert (cleaned(one, 64) == cleaned(other, 64)) == (one == other)


def test_a_long_user_is_not_the_one_that_it_is_shortened_to() -> None:
    long = "u" * 100
    short = cleaned(long, 64)
    assert cleaned(short, 64) != short
    assert cleaned("u" * 99, 64) != short


def ask(
    tenants: dict[str, Any],
    headers: dict[str, str] | None = None,
    script: Any = DONE,
    key: str = "",
    engine: dict[str, Any] | None = None,
    **fields: Any,
) -> tuple[Answer, RouteRequest | None, Any]:
    """One request of the key of that name, which is also its secret."""
    settings = {
        "model": "m",
        "routing": {"profile": "slo", "tenants": tenants},
        "engine": engine or {},
        "slo": {"classes": {"gold": {"ttft_ms": 50, "tpot_ms": 5, "critical": True}}},
    }
    backend = ScriptedBackend(script)
    config = HeadwayConfig.model_validate(settings)
    access = make_access(config.gateway)
    if key:
        holder = Holder(name=key, tenant=key, rights=INFERENCE)
        access = Access({sha256(key.encode()).digest(): holder})
    app = GatewayApp(make_state(config, backend, time.monotonic), access, ())
    said = {"x-request-id": "r", **(headers or {}), **({"authorization": f"Bearer {key}"} if key else {})}
    answer = asyncio.run(asked(app, {"model": "m", "prompt": "Hi", "max_tokens": 1} | fields, said))
    return answer, backend.requests[0].route if backend.requests else None, app


HELD = ("x-headway-slo-ttft-ms", "x-headway-slo-tpot-ms", "x-headway-criticality")


def told(answer: Answer) -> dict[str, str]:
    return {name: answer.headers[name] for name in HELD if name in answer.headers}


FLOORS = {"app": {"least_ttft_ms": 100, "least_tpot_ms": 10, "may_be_critical": False}}


@pytest.mark.parametrize(
    ("headers", "slo", "said"),
    [
        (
            {"x-slo-ttft-ms": "20", "x-slo-tpot-ms": "40"},
            RequestSlo(ttft_s=0.1, tpot_s=0.04),
            {"x-headway-slo-ttft-ms": "100", "x-headway-slo-tpot-ms": "40"},
        ),
        ({"x-slo-tpot-ms": "1"}, RequestSlo(tpot_s=0.01), {"x-headway-slo-tpot-ms": "10"}),
        ({"x-slo-ttft-ms": "100"}, RequestSlo(ttft_s=0.1), {}),
        (
            {"x-headway-slo-class": "gold"},
            RequestSlo(ttft_s=0.1, tpot_s=0.01),
            {
                "x-headway-slo-ttft-ms": "100",
                "x-headway-slo-tpot-ms": "10",
                "x-headway-criticality": "sheddable",
            },
        ),
        ({"x-headway-criticality": "critical"}, RequestSlo(), {"x-headway-criticality": "sheddable"}),
        ({"x-headway-criticality": "sheddable"}, RequestSlo(), {}),
        (
            {"x-headway-explain": "true"},
            RequestSlo(),
            {
                "x-headway-slo-ttft-ms": "300",
                "x-headway-slo-tpot-ms": "20",
                "x-headway-criticality": "sheddable",
            },
        ),
    ],
)
def test_a_request_is_held_to_what_its_tenant_may_ask_for_and_hears_of_it(
    headers: dict[str, str], slo: RequestSlo, said: dict[str, str]
) -> None:
    answer, route, _ = ask(FLOORS, headers, key="app")
    assert route is not None
    assert (answer.status, route.slo, route.critical, route.tenant) == (200, slo, False, "app")
    assert told(answer) == said


def test_the_router_engine_and_record_hear_which_adapter_is_asked_for() -> None:
    engine = {"lora": {"names": ["tuned"]}}
    _, route, app = ask({}, engine=engine, model="tuned")
    assert route is not None
    (asked,) = app.state.traffic.backend.requests
    assert route.adapter == asked.adapter == app.state.records.find("r")[0]["adapter"] == "tuned"
    _, route, app = ask({}, engine=engine)
    assert route is not None
    assert (route.adapter, app.state.records.find("r")[0]["adapter"]) == ("", None)
    assert ask({}, engine=engine, model="other")[0].status == 404


def test_another_tenant_gets_what_it_asks_for() -> None:
    answer, route, _ = ask(FLOORS, {"x-headway-slo-class": "gold"}, key="free")
    assert route is not None
    assert (route.slo, route.critical) == (RequestSlo(ttft_s=0.05, tpot_s=0.005), True)
    assert told(answer) == {}


def test_who_asks_for_nothing_does_not_get_more_than_it_may_ask_for() -> None:
    _, route, app = ask({"app": {"least_ttft_ms": 2000}}, key="app")
    assert route is not None
    assert route.slo == RequestSlo(ttft_s=2.0, tpot_s=0.02)
    (found,) = app.state.records.find("r")
    assert (found["slo"]["ttft_s"], found["tenant"]) == (2.0, "app")


def test_a_shed_request_hears_of_it_too_and_counts_for_its_tenant() -> None:
    answer, _, app = ask(FLOORS, {"x-slo-ttft-ms": "1"}, [Overloaded("no_headroom")], key="app")
    assert (answer.status, told(answer)) == (429, {"x-headway-slo-ttft-ms": "100"})
    counts = app.state.metrics.of_tenants
    assert counts.requests["app", "shed"] == counts.judged["app", False] == 1


def test_metrics_have_the_tenants_of_the_settings_and_one_series_for_all_others() -> None:
    users = [f"u{number}" for number in range(20)]
    _, _, app = ask({"app": {"per_user": True}, "app/vip": {}}, key="app", user="vip")
    for tenant in ("stranger", "", *(f"app/{user}" for user in users)):
        app.state.metrics.of_tenants.ended(tenant, "ok")
    registry = CollectorRegistry()
    registry.register(app.state.metrics)
    found = {
        sample.labels["tenant"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "headway_tenant_requests_total" and sample.labels["outcome"] == "ok"
    }
    assert found == {"app": 20.0, "app/vip": 1.0, "other": 2.0}


def session(tenants: dict[str, Any], headers: dict[str, str] | None = None, **fields: Any) -> str | None:
    _, route, _ = ask(tenants, headers, key="app", **fields)
    assert route is not None
    return route.session


def test_the_cache_key_is_the_session_where_no_header_names_one() -> None:
    fields = {"prompt_cache_key": "thread 7"}
    assert session({}, **fields) == "app/thread%207"
    assert session({}, {"x-session-id": "s"}, **fields) == "app/s"
    assert session({}) is None


def test_no_tenant_has_anothers_session_whatever_it_says() -> None:
    tenants = {"app": {"per_user": True}}
    said = (("eve", "s"), ("mallory", "s"), ("mallory", "../eve/s"), (None, "eve/s"))
    sessions = [session(tenants, user=user, prompt_cache_key=key) for user, key in said]
    assert sessions == ["app/eve/s", "app/mallory/s", "app/mallory/..%2Feve%2Fs", "app/eve%2Fs"]
    assert len(session(tenants, prompt_cache_key="k" * 100_000) or "") == len("app/") + 256


@pytest.mark.parametrize("field", ["user", "prompt_cache_key"])
def test_what_is_no_text_is_refused_by_name(field: str) -> None:
    answer, _, _ = ask({}, **{field: 5})
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["param"] == field


@pytest.mark.parametrize(
    ("tenants", "said"),
    [
        ({"ap": {}}, "'ap': no key has that name; known: app, batch"),
        ({"": {}}, "'': no key has that name"),
        ({"app/alice": {}}, "'app/alice': 'app' has no users without per_user: true"),
        ({"app": {"per_user": True}, "app/al ice": {}}, "'app/al ice': this user is called app/al%20ice"),
        ({"app": {"per_user": True}, "app/a/b": {}}, "'app/a/b': this user is called app/a%2Fb"),
    ],
)
def test_settings_of_what_is_no_tenant_are_refused_in_one_line(tenants: dict[str, Any], said: str) -> None:
    settings = RoutingSettings.model_validate({"tenants": tenants})
    with pytest.raises(ConfigError) as raised:
        check_tenants(settings, {"app", "batch"})
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_settings_of_tenants_that_there_are_or_may_be_are_taken() -> None:
    named = {"app": {"per_user": True}, "app/al%20ice": {}, "key-0123abcd": {}, "*": {}}
    check_tenants(RoutingSettings.model_validate({"tenants": named}), {"app", "batch"})
    check_tenants(RoutingSettings.model_validate({"tenants": {"unknown": {}}}), set())
