"""One gateway of several models: whose a request is, and what it shows of all."""

import asyncio
import gc
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from headway.config import HeadwayConfig, Right
from serve_apps.access import Access, Holder, read_keys
from serve_apps.gateway.admission import Quotas
from serve_apps.gateway.app import make_app
from serve_apps.gateway.backend import (
    EmptyState,
    NotReady,
    Overloaded,
    Readiness,
    ReplicaLost,
    TooLong,
)
from serve_apps.gateway.many_models import ManyModels, labelled
from serve_apps.gateway.request_record import RequestRecord
from tests.gateway.doubles import LOADS, WAIT, ScriptedBackend, Step, chunks

MODELS = {"chat": "llama", "code": "codestral"}
ANY = Access({})
PROMPT = {"prompt": "x", "max_tokens": 2}


async def _no_budget() -> Mapping[str, Any]:
    chat, code = ({"name": name, "shares": name == "chat", "wanted": 3} for name in MODELS)
    return {"gpus": 8, "deployments": [chat, code]}


def many(
    access: Access = ANY,
    models: Mapping[str, str] = MODELS,
    aliases: Mapping[str, Sequence[str]] | None = None,
    **backend: Any,
) -> ManyModels:
    front, quotas = ManyModels(access, _no_budget), Quotas(lambda: 0.0)
    front.change(
        {
            name: make_app(
                HeadwayConfig.model_validate({"model": model, "aliases": (aliases or {}).get(name, ())}),
                ScriptedBackend(chunks(name), **{"loads": LOADS, **backend}),
                access=access,
                quotas=quotas,
            )
            for name, model in models.items()
        }
    )
    return front


def asked(front: ManyModels, method: str, path: str, **more: Any) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(front)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **more)

    return asyncio.run(ask())


def completion(front: ManyModels, body: Mapping[str, Any], **more: Any) -> httpx.Response:
    return asked(front, "POST", "/v1/completions", json=body, **more)


@pytest.mark.parametrize("name", MODELS)
def test_a_request_goes_to_the_deployment_of_its_model(name: str) -> None:
    front = many()

    answer = completion(front, {**PROMPT, "model": MODELS[name]}, headers={"x-request-id": "mine"})

    assert answer.status_code == 200
    assert name in answer.text
    assert answer.headers["x-request-id"] == "mine"
    counted = {each: asked(front, "GET", f"/deployments/{each}/metrics").text for each in MODELS}
    ended = {each: f'outcome="ok"}} {float(each == name)}' in page for each, page in counted.items()}
    assert ended == dict.fromkeys(MODELS, True)


def test_an_alias_is_served_as_its_model() -> None:
    front = many(aliases={"code": ["gpt-4o", "default"]})
    answer = completion(front, {**PROMPT, "model": "gpt-4o"})
    assert answer.json()["model"] == "codestral"
    assert "gpt-4o" not in asked(front, "GET", "/metrics").text
    assert asked(front, "GET", "/v1/models/gpt-4o").json()["parent"] == "codestral"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"model": "gpt"}, 404, "The model 'gpt' does not exist here; llama, codestral can be used"),
        ({}, 400, "'model' is missing; llama, codestral can be used"),
        ({"model": 3}, 400, "Invalid 'model': it should be of type string"),
    ],
)
def test_a_model_that_is_not_here_is_refused(body: Mapping[str, Any], status: int, said: str) -> None:
    answer = completion(many(), {**PROMPT, **body})

    assert (answer.status_code, answer.json()["error"]["message"]) == (status, said)


def test_what_is_no_json_is_refused() -> None:
    answer = asked(many(), "POST", "/v1/completions", content=b"{")

    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("The body is not valid JSON")


def test_the_only_model_need_not_be_named() -> None:
    assert "code" in completion(many(models={"code": "codestral"}), PROMPT).text


def test_deployments_come_and_go_while_it_runs() -> None:
    front = many()
    front.change({name: app for name, app in front._apps.items() if name == "code"})

    assert completion(front, {**PROMPT, "model": "llama"}).status_code == 404
    assert completion(front, {**PROMPT, "model": "codestral"}).status_code == 200
    assert asked(front, "GET", "/deployments/chat/health").status_code == 404
    front.change({})
    assert asked(front, "GET", "/ready").status_code == 503
    assert asked(front, "GET", "/v1/control/status").status_code == 404
    assert completion(front, PROMPT).status_code == 400


def test_all_models_are_listed_with_their_deployment_and_state() -> None:
    listed = asked(many(), "GET", "/v1/models").json()["data"]

    assert [(each["id"], each["deployment"], each["state"]) for each in listed] == [
        ("llama", "chat", "ready"),
        ("codestral", "code", "ready"),
    ]
    assert asked(many(), "GET", "/v1/models/codestral").json()["deployment"] == "code"
    assert asked(many(), "GET", "/v1/models/gpt").status_code == 404


@pytest.mark.parametrize("state", ["asleep", "starting", "waiting"])
def test_a_model_without_a_replica_is_what_its_backend_says(state: EmptyState) -> None:
    front = many(readiness=Readiness(ok=True, empty=state))

    assert asked(front, "GET", "/v1/models/codestral").json()["state"] == state


def test_series_of_all_have_the_deployment_as_a_label() -> None:
    page = asked(many(), "GET", "/metrics").text

    samples = [sample for family in families(page) for sample in family.samples]
    arrivals = {
        (each.labels["deployment"], each.labels["model"])
        for each in samples
        if each.name == "headway_request_arrivals_total"
    }
    assert arrivals == set(MODELS.items())
    own = {each.name for each in samples if each.labels.get("deployment") not in MODELS}
    assert own == {"headway_unknown_model_requests_total"}


@pytest.mark.parametrize(("gateway", "labels"), [(None, {}), ("g1", {"gateway": "g1"})])
def test_requests_for_unknown_models_are_counted(gateway: str | None, labels: Mapping[str, str]) -> None:
    front = ManyModels(ANY, _no_budget, gateway)
    for body in ({"model": "gpt"}, {"model": "gpt-2"}, {}):
        completion(front, {**PROMPT, **body})

    for accept in ("text/plain", "application/openmetrics-text; version=1.0.0"):
        answer = asked(front, "GET", "/metrics", headers={"accept": accept})
        assert answer.headers["content-type"].startswith(accept.partition(";")[0])
        (counted,) = (each for family in families(answer.text) for each in family.samples)
        assert (counted.name, counted.labels, counted.value) == (
            "headway_unknown_model_requests_total",
            labels,
            2.0,
        )


def test_a_label_is_added_whether_there_are_others_or_none() -> None:
    page = '# HELP a {x} y\n# TYPE a counter\na_total 1.0\nb_bucket{le="+Inf",m="a{b"} 2\n'

    assert labelled(page, "chat") == (
        '# HELP a {x} y\n# TYPE a counter\na_total{deployment="chat"} 1.0\n'
        'b_bucket{deployment="chat",le="+Inf",m="a{b"} 2\n'
    )


def test_the_fleet_in_short_has_the_budget_of_each() -> None:
    fleet = asked(many(), "GET", "/v1/fleet").json()

    assert fleet["gpus"] == 8
    assert [(row["deployment"], row["model"], row["budget"]) for row in fleet["deployments"]] == [
        ("chat", "llama", {"name": "chat", "shares": True, "wanted": 3}),
        ("code", "codestral", None),
    ]


def test_a_request_is_found_whosever_it_was() -> None:
    front = many()
    completion(front, {**PROMPT, "model": "codestral"}, headers={"x-request-id": "mine"})

    assert asked(front, "GET", "/v1/requests/mine").json()["requests"][0]["id"] == "mine"
    assert asked(front, "GET", "/v1/requests/others").status_code == 404


NO_PLACE = Overloaded("spilled: it goes to another deployment")


def spilling(
    script: Sequence[Step],
    after: Readiness | None = None,
    second_script: Sequence[Step] = chunks("from the second"),
    access: Access = ANY,
    **gateway: float,
) -> tuple[ManyModels, ScriptedBackend]:
    """Two deployments of one model, of which the first spills over; and the backend of that."""
    config = HeadwayConfig.model_validate({"model": "llama", "gateway": gateway})
    front, first = ManyModels(access, _no_budget), ScriptedBackend(script, loads=LOADS)
    second = ScriptedBackend(second_script, loads=LOADS, readiness=after or Readiness(ok=True))
    make = partial(make_app, config, access=access, quotas=Quotas(time.monotonic))
    apps = {"chat": make(first), "more": make(second)}
    front.change(apps, {"chat": "more"})
    return front, first


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("fault", [NO_PLACE, NotReady("no replica is running"), TooLong("for its KV cache")])
def test_what_finds_no_place_is_served_by_the_next_deployment(fault: Exception, ready: bool) -> None:
    front, first = spilling([fault], Readiness(ok=ready, reason="" if ready else "starting"))

    answer = completion(front, {**PROMPT, "model": "llama"}, headers={"x-request-id": "mine"})

    assert (answer.status_code, answer.json()["choices"][0]["text"]) == (200, "from the second")
    # Where the next one has replicas nothing has to wait here.
    assert [each.route and each.route.spills for each in first.requests] == [ready]
    records = asked(front, "GET", "/v1/requests/mine").json()["requests"]
    assert [(each["deployment"], each["outcome"]) for each in records] == [
        ("chat", "spilled"),
        ("more", "ok"),
    ]
    assert records[1]["ttft_s"] > records[0]["e2e_s"], "its time begins where it came first"
    first_page, second_page = (
        asked(front, "GET", f"/deployments/{name}/metrics").text for name in ("chat", "more")
    )
    assert 'headway_request_arrivals_total{model="llama"} 1.0' in first_page, "the load that it is sized for"
    assert 'headway_slo_requests_total{met="false",model="llama"} 0.0' in first_page
    assert 'headway_requests_total{model="llama",outcome="ok"} 1.0' in second_page


@pytest.mark.parametrize(("script", "status"), [([ReplicaLost("it died")], 502), ([*chunks("a", "b")], 200)])
def test_all_else_stays_where_it_came(script: Sequence[Step], status: int) -> None:
    front, _ = spilling(script)

    assert completion(front, {**PROMPT, "model": "llama"}).status_code == status

    page = asked(front, "GET", "/deployments/more/metrics").text
    assert 'headway_request_arrivals_total{model="llama"} 0.0' in page


def test_a_stream_that_has_begun_stays_where_it_is() -> None:
    front, _ = spilling([*chunks("a", reason="")[:1], NO_PLACE])

    answer = completion(front, {**PROMPT, "model": "llama", "stream": True})

    assert answer.status_code == 200
    assert "from the second" not in answer.text


def test_comments_alone_are_no_stream_that_has_begun() -> None:
    front, _ = spilling([0.2, NO_PLACE], heartbeat_s=0.05)

    answer = completion(front, {**PROMPT, "model": "llama", "stream": True})

    assert answer.text.startswith(": headway\n\n")
    assert "from the second" in answer.text


def test_what_the_next_deployment_cannot_hold_waits_where_it_is() -> None:
    front, first = spilling([NO_PLACE])
    short = HeadwayConfig.model_validate({"model": "llama", "engine": {"max_model_tokens": 2}})
    more = make_app(short, ScriptedBackend(chunks("too long"), loads=LOADS), access=ANY)
    front.change({**front._apps, "more": more}, {"chat": "more"})

    assert completion(front, {**PROMPT, "model": "llama"}).status_code == 429, "not 413"
    assert [each.route and each.route.spills for each in first.requests] == [False]


def test_what_none_has_place_for_is_no_new_demand_when_it_comes_again() -> None:
    front, _ = spilling([NO_PLACE], second_script=[NO_PLACE])

    assert [completion(front, {**PROMPT, "model": "llama"}).status_code for _ in range(2)] == [429, 429]
    for name in ("chat", "more"):
        page = asked(front, "GET", f"/deployments/{name}/metrics").text
        assert 'headway_request_arrivals_total{model="llama"} 2.0' in page
        assert 'headway_repeat_input_tokens_count{model="llama"} 1.0' in page


class Anew(list[Step]):
    """Steps that are new ones each time: an error that is kept keeps all that it went through."""

    def __iter__(self) -> Iterator[Step]:
        return map(copy, super().__iter__())


@pytest.mark.parametrize("step", [NO_PLACE, ReplicaLost("it died"), chunks("a")[0]])
def test_a_call_leaves_nothing_to_the_garbage_collector(step: Step) -> None:
    front, now_s = ManyModels(ANY, _no_budget), [0.0]
    made = (
        make_app(
            HeadwayConfig(model="llama"), ScriptedBackend(Anew([each]), loads=LOADS), clock=lambda: now_s[0]
        )
        for each in (step, NO_PLACE)
    )
    front.change(dict(zip(("chat", "more"), made, strict=True)), {"chat": "more"})
    gc.collect()
    gc.disable()
    try:
        for now_s[0] in (0.0, 10.0, 20.0):
            completion(front, {**PROMPT, "model": "llama"})
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not [each for each in gc.garbage if isinstance(each, RequestRecord | Exception)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_nothing_waits_while_any_deployment_of_the_model_has_replicas() -> None:
    front, first = spilling([NO_PLACE])
    none = Readiness(ok=True, empty="asleep")
    asleep, last = ScriptedBackend([NotReady("none")], none), ScriptedBackend(chunks("third"))
    more, most = (make_app(HeadwayConfig(model="llama"), each, access=ANY) for each in (asleep, last))
    front.change({**front._apps, "more": more, "most": most}, {"chat": "more", "more": "most"})

    assert "third" in completion(front, {**PROMPT, "model": "llama"}).text
    assert [each.route and each.route.spills for each in (*first.requests, *asleep.requests)] == [True, True]
    first.readiness = none
    assert asked(front, "GET", "/v1/models/llama").json()["state"] == "ready"
    last.readiness = none
    assert asked(front, "GET", "/v1/models/llama").json()["state"] == "asleep"


def test_a_call_has_its_time_once_however_many_deployments_it_asks() -> None:
    front, _ = spilling([0.6, NO_PLACE], None, [WAIT], request_timeout_s=1.0)

    answer = completion(front, {**PROMPT, "model": "llama"}, headers={"x-request-id": "mine"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
    assert "longer than 1 s" in answer.json()["error"]["message"]
    records = asked(front, "GET", "/v1/requests/mine").json()["requests"]
    assert records[1]["e2e_s"] - records[0]["e2e_s"] < 0.6


def test_the_next_deployment_may_go_while_a_call_waits() -> None:
    front, first = spilling([NO_PLACE])

    def script(_: int) -> Sequence[Step]:
        front.change({"chat": front._apps["chat"]})
        return [NO_PLACE]

    first.script = script
    answer = completion(front, {**PROMPT, "model": "llama"})

    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "more is no longer served here")


def test_a_model_of_several_deployments_is_listed_once_and_each_can_be_asked() -> None:
    front, _ = spilling([NO_PLACE])

    assert [each["deployment"] for each in asked(front, "GET", "/v1/models").json()["data"]] == ["chat"]
    refused = asked(front, "POST", "/deployments/chat/v1/completions", json=PROMPT)
    served = asked(front, "POST", "/deployments/more/v1/completions", json=PROMPT)
    assert (refused.status_code, served.status_code) == (429, 200)


def test_other_paths_are_the_first_deployments() -> None:
    assert asked(many(), "GET", "/openapi.json").json()["info"]["summary"] == "Serves llama."


@pytest.fixture
def keyed(tmp_path: Path) -> Access:
    path = tmp_path / "keys.yaml"
    entries = [
        {"name": "all", "key": "k-all", "roles": ["infer", "observe"]},
        {"name": "coder", "key": "k-code", "roles": ["infer"], "models": ["codestral"]},
    ]
    path.write_text(json.dumps(entries))
    path.chmod(0o600)
    return Access(read_keys(path))


def test_a_key_sees_and_uses_its_own_models(keyed: Access) -> None:
    front, coder = many(keyed), {"authorization": "Bearer k-code"}

    assert completion(front, {**PROMPT, "model": "codestral"}, headers=coder).status_code == 200
    refused = completion(front, {**PROMPT, "model": "llama"}, headers=coder)
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        403,
        "This key may not use the model 'llama'",
    )
    embedding = asked(front, "POST", "/v1/embeddings", json={"model": "llama", "input": "x"}, headers=coder)
    assert embedding.status_code == 403
    listed = asked(front, "GET", "/v1/models", headers=coder).json()["data"]
    assert [each["id"] for each in listed] == ["codestral"]
    named = completion(front, {**PROMPT, "model": "gpt"}, headers=coder).json()["error"]["message"]
    assert named == "The model 'gpt' does not exist here; codestral can be used"


def test_a_keys_limits_hold_for_all_its_models_together(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    limits = {"requests_per_minute": 2}
    path.write_text(json.dumps([{"name": "a", "key": "k", "roles": ["infer"], "limits": limits}]))
    path.chmod(0o600)
    front, headers = many(Access(read_keys(path))), {"authorization": "Bearer k"}

    asked_of = ("llama", "codestral", "llama", "codestral")
    answers = [completion(front, {**PROMPT, "model": model}, headers=headers) for model in asked_of]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]


def test_a_call_that_has_begun_counts_for_its_key_though_there_was_no_place(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    limits = {"requests_per_minute": 1}
    path.write_text(json.dumps([{"name": "a", "key": "k", "roles": ["infer"], "limits": limits}]))
    path.chmod(0o600)
    front, _ = spilling([0.2, NO_PLACE], access=Access(read_keys(path)), heartbeat_s=0.05)

    body = {**PROMPT, "model": "llama", "stream": True}
    codes = [completion(front, body, headers={"authorization": "Bearer k"}).status_code for _ in range(3)]
    assert (codes[0], codes[-1]) == (200, 429)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/deployments/chat/v1/completions", PROMPT),
        ("POST", "/deployments/chat/v1/embeddings", {"input": "x"}),
        ("POST", "/deployments/chat/v1/embeddings", {"input": "x", "model": "codestral"}),
        ("POST", "/deployments/chat/tokenize", {"prompt": "x"}),
        ("GET", "/deployments/chat/v1/models", None),
        ("GET", "/version", None),
    ],
)
def test_a_key_reaches_no_other_model_by_any_path(
    keyed: Access, method: str, path: str, body: Mapping[str, Any] | None
) -> None:
    answer = asked(many(keyed), method, path, json=body, headers={"authorization": "Bearer k-code"})

    assert answer.status_code == 403


def test_a_key_observes_its_own_models(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    roles = ["infer", "observe", "operate"]
    path.write_text(json.dumps([{"name": "coder", "key": "k", "roles": roles, "models": ["codestral"]}]))
    path.chmod(0o600)
    front, headers = many(Access(read_keys(path))), {"authorization": "Bearer k"}

    rows = asked(front, "GET", "/v1/fleet", headers=headers).json()["deployments"]
    assert [row["deployment"] for row in rows] == ["code"]
    for name, status in (("chat", 403), ("code", 200)):
        page = f"/deployments/{name}/metrics/requests"
        assert asked(front, "GET", page, headers=headers).status_code == status
    changing = {"json": {"slo.ttft_ms": 1}, "headers": headers}
    assert asked(front, "PATCH", "/v1/control/settings", **changing).status_code == 403


def test_the_page_of_a_deployment_is_below_its_name() -> None:
    moved = asked(many(), "GET", "/deployments/chat")

    assert (moved.status_code, moved.headers["location"]) == (307, "chat/")


@pytest.mark.parametrize("path", ["/v1/fleet", "/deployments/chat/v1/control/status", "/v1/models"])
def test_without_a_key_nothing_is_told(keyed: Access, path: str) -> None:
    assert asked(many(keyed), "GET", path).status_code == 401


def test_a_body_is_not_read_for_a_stranger(keyed: Access) -> None:
    assert completion(many(keyed), {**PROMPT, "model": "llama"}).status_code == 401


def test_a_holder_without_a_list_may_use_any_model() -> None:
    assert Holder(rights=frozenset(Right)).may_use("llama")
