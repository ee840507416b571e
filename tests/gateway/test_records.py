"""A request is found by its id: its record at any gateway, and its line in the log."""

import gc
import json
import logging
import weakref
from typing import Any

import httpx
import pytest

from headway.routing.types import Placement
from headway_cli.app import run
from headway_cli.request import print_record
from serve_apps.engines.protocol import EngineTimes, TokenChunk
from serve_apps.gateway.backend import BackendError, Overloaded, Timeline
from serve_apps.gateway.metrics import GatewayMetrics
from serve_apps.gateway.request_record import RecentRequests, RequestRecord
from tests.gateway.conftest import Serve
from tests.gateway.doubles import WAIT, ScriptedBackend
from tests.gateway.serving import Running, get, post, until
from tests.gateway.test_fleet import Node, got
from tests.patience import PATIENCE_S

BODY = {"model": "m", "prompt": "Hi", "max_tokens": 3}
TIMES = EngineTimes(transferred_s=0.01, begun_s=0.02, first_token_s=0.03, ended_s=0.04)
ANSWER = [TokenChunk("a", 1), TokenChunk("b", 2, "length", 7, TIMES)]
PLACEMENT = Placement(
    request_id="r",
    prefill_replica="p#1",
    decode_replica="d#2",
    profile="slo",
    reason="least harm",
    predicted_ttft_s=0.125,
    queued_s=0.25,
)
LINES = "ray.serve.requests"


def ask(running: Running, request_id: str, key: str = "") -> httpx.Response:
    headers = {"x-request-id": request_id} | ({"authorization": f"Bearer {key}"} if key else {})
    return post(f"{running.url}/v1/completions", json=BODY, headers=headers)


def look(running: Running, request_id: str, key: str = "") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return get(f"{running.url}/v1/requests/{request_id}", headers=headers)


def ended(running: Running, request_id: str) -> list[dict[str, Any]]:
    """Its records, once it has ended: the client has its answer a moment before."""
    until(lambda: "under way" not in look(running, request_id).text)
    found: list[dict[str, Any]] = look(running, request_id).json()["requests"]
    return found


def test_an_ended_request_is_found_with_its_placement_and_the_reason(serve: Serve) -> None:
    running = serve(ScriptedBackend(ANSWER, placement=PLACEMENT))
    running.app.state.set_slo(600.0, 600.0)
    assert ask(running, "mine/1").status_code == 200
    assert ask(running, "another").status_code == 200
    (found,) = ended(running, "mine/1")
    assert (found["id"], found["outcome"], found["status"], found["error"]) == ("mine/1", "ok", 200, None)
    assert (found["input_tokens"], found["cached_tokens"], found["output_tokens"]) == (1, 7, 3)
    assert 0 < found["ttft_s"] <= found["e2e_s"]
    slo = {"class": None, "ttft_s": 600.0, "tpot_s": 600.0, "critical": False, "met": True}
    assert (found["slo"], found["tenant"], found["adapter"]) == (slo, "anonymous", None)
    placement = found["placement"]
    assert (placement["profile"], placement["reason"]) == ("slo", "least harm")
    assert (placement["prefill_replica"], placement["decode_replica"]) == ("p#1", "d#2")
    assert (placement["predicted_ttft_s"], placement["queued_s"]) == (0.125, 0.25)
    assert "Hi" not in json.dumps(found)


def test_an_id_that_was_used_twice_finds_both_in_order(serve: Serve) -> None:
    running = serve(ScriptedBackend(ANSWER))
    ask(running, "again")
    running.app.state.traffic.backend.script = [Overloaded("too much", 1.0)]
    ask(running, "again")
    first, second = ended(running, "again")
    assert (first["outcome"], second["outcome"]) == ("ok", "shed")
    assert (second["status"], second["error"]["code"]) == (429, "rate_limit_exceeded")
    assert second["error"]["message"] == "too much"


def test_one_that_is_under_way_is_found_too(serve: Serve) -> None:
    running = serve([TokenChunk("a", 1), WAIT])
    with httpx.stream(
        "POST",
        f"{running.url}/v1/completions",
        json=BODY | {"stream": True},
        headers={"x-request-id": "now"},
        timeout=PATIENCE_S,
    ) as answer:
        parts = answer.iter_raw()
        next(parts)
        (found,) = look(running, "now").json()["requests"]
        assert (found["outcome"], found["output_tokens"], found["e2e_s"]) == ("under way", 1, None)
    until(lambda: look(running, "now").json()["requests"][0]["outcome"] == "aborted")


def test_a_wrong_id_is_one_clear_line(serve: Serve) -> None:
    answer = look(serve(ScriptedBackend(ANSWER)), "nobody's")
    assert answer.status_code == 404
    assert 'no gateway has a request "nobody\'s"' in answer.json()["error"]["message"]


def test_a_record_keeps_nothing_of_the_request_alive(serve: Serve) -> None:
    class Heavy(BackendError):
        """Weak references can be made to it."""

    error = Heavy("x" * 10_000)
    running = serve(ScriptedBackend([error]))
    ask(running, "failed")
    (found,) = ended(running, "failed")
    assert len(found["error"]["message"]) == 500
    kept = weakref.ref(error)
    running.app.state.traffic.backend.script = []
    del error

    def let_go() -> bool:
        gc.collect()
        return kept() is None

    until(let_go)


def test_only_so_many_are_kept(serve: Serve) -> None:
    running = serve(ScriptedBackend(ANSWER), kept_requests=2)
    for name in ("one", "two", "three"):
        ask(running, name)
        ended(running, name)
    assert [look(running, name).status_code for name in ("one", "two", "three")] == [404, 200, 200]


def test_a_key_that_may_not_observe_finds_its_own_requests(serve: Serve, tmp_path: Any) -> None:
    roles = {"her": ["infer"], "his": ["infer"], "theirs": ["observe"], "scaling": ["scale"]}
    keys = tmp_path / "keys.yaml"
    keys.write_text(json.dumps([{"name": name, "key": name, "roles": has} for name, has in roles.items()]))
    keys.chmod(0o600)
    running = serve(ScriptedBackend(ANSWER), keys_file=str(keys))
    assert ask(running, "hers", "her").status_code == 200
    seen = {name: look(running, "hers", name).status_code for name in roles}
    assert seen == {"her": 200, "his": 404, "theirs": 200, "scaling": 403}
    assert look(running, "hers").status_code == 401


def test_any_gateway_finds_it_on_whatever_node() -> None:
    node = Node(a="one", b="one", c="two")
    for name in ("b", "c"):
        state = node.apps[name].state
        record = RequestRecord("r", "/v1/completions", "k", state.metrics, Timeline())
        state.records.begin(record)
    answer = got(node.apps["a"], "/v1/requests/r")
    assert [each["gateway"] for each in answer.json()["requests"]] == ["b", "c"]
    node.silent = {"b"}
    assert [each["gateway"] for each in got(node.apps["a"], "/v1/requests/r").json()["requests"]] == ["c"]
    missing = got(node.apps["a"], "/v1/requests/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (503, "gateway_unread")
    node.silent = set()
    assert got(node.apps["a"], "/v1/requests/other").status_code == 404


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    said = [each.getMessage() for each in caplog.records if each.name == LINES]
    return [json.loads(each.removeprefix("request ")) for each in said]


def test_problems_have_a_line_that_is_found_by_the_id(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LINES)
    running = serve(ScriptedBackend(ANSWER, placement=PLACEMENT))
    running.app.state.set_slo(600.0, 600.0)
    ask(running, "fine")
    ended(running, "fine")
    running.app.state.set_slo(1e-9, 1e-9)
    ask(running, "late")
    ended(running, "late")
    running.app.state.traffic.backend.script = [BackendError("the engine is gone")]
    ask(running, "broken")
    ended(running, "broken")
    late, broken = lines(caplog)
    assert (late["id"], late["outcome"], late["slo"]["met"]) == ("late", "ok", False)
    assert late["placement"]["reason"] == "least harm"
    assert (broken["id"], broken["outcome"], broken["status"]) == ("broken", "failed", 500)
    assert broken["error"]["message"] == "the engine is gone"


@pytest.mark.parametrize(("logged", "found"), [("all", ["fine"]), ("none", [])])
def test_all_or_none_have_one(
    serve: Serve, caplog: pytest.LogCaptureFixture, logged: str, found: list[str]
) -> None:
    caplog.set_level(logging.INFO, LINES)
    running = serve(ScriptedBackend(ANSWER), request_log=logged)
    ask(running, "fine")
    ended(running, "fine")
    assert [each["id"] for each in lines(caplog)] == found


def test_lines_beyond_so_many_a_second_are_counted_in_the_next(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LINES)
    now_s = [0.0]
    recent = RecentRequests(10, "all", 2.0, lambda: now_s[0])

    def end(name: str) -> None:
        state = Node(a="one").apps["a"].state
        metrics: GatewayMetrics = state.metrics
        record = RequestRecord(name, "/v1/completions", "k", metrics, Timeline())
        recent.begin(record)
        record.ended("ok", 200)
        recent.end(record)

    for name in ("1", "2", "3", "4"):
        end(name)
    now_s[0] = 0.5
    end("5")
    said = lines(caplog)
    assert [each["id"] for each in said] == ["1", "2", "5"]
    assert said[-1]["lines_left_out"] == 2


def test_the_command_tells_its_story(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    running = serve(ScriptedBackend(ANSWER, placement=PLACEMENT))
    ask(running, "mine/1")
    ended(running, "mine/1")
    assert run(["request", "mine/1", "--url", running.url]) == 0
    said = capsys.readouterr().out
    for text in (
        "mine/1 at ",
        "ok, status 200",
        "1 of input (7 cached), 3 of output",
        ": kept",
        "by slo, least harm; predicted TTFT 125 ms; held 250 ms",
        "first token left",
        "ended: ok",
    ):
        assert text in said
    assert run(["request", "mine/1", "--url", running.url, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["placement"]["decode_replica"] == "d#2"
    assert run(["request", "nobody's", "--url", running.url]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "answered with status 404" in line
    assert "no gateway has a request" in line


def test_the_command_has_each_step_in_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([100.0, 100.0, 100.0, 100.001, 100.002, 100.102, 100.103, 100.104, 100.5, 100.6])
    timeline = Timeline(lambda: next(clock))
    metrics = Node(a="one").apps["a"].state.metrics
    record = RequestRecord("r", "/v1/completions", "k", metrics, timeline)
    with timeline.step("route"):
        pass
    with timeline.step("prefill", "p#1") as step:
        step.times = EngineTimes(begun_s=0.01, ended_s=0.09)
    with pytest.raises(BackendError), timeline.step("decode", "d#1"):
        raise BackendError("it died")
    timeline.step("decode", "d#2")
    timeline.close(TIMES)
    record.ended("ok", 200)
    print_record(record.document())
    said = [line.strip() for line in capsys.readouterr().out.splitlines() if " ms  " in line]
    assert said == [
        "0.0 ms  arrived",
        "0.0 ms  placed, 0 ms after it asked for a place",
        "1.0 ms  prefill on p#1",
        "11.0 ms    the engine begins",
        "91.0 ms    prompt computed",
        "102.0 ms  decode on d#1",
        "103.0 ms    decode ended: BackendError: it died",
        "104.0 ms  decode on d#2",
        "114.0 ms    KV transferred",
        "124.0 ms    the engine begins",
        "134.0 ms    first token made",
        "144.0 ms    last token made",
        "600.0 ms  ended: ok",
    ]


def test_a_call_that_was_elsewhere_arrived_when_it_came_there() -> None:
    now_s = 100.0
    metrics = Node(a="one").apps["a"].state.metrics
    record = RequestRecord("r", "/v1/completions", "k", metrics, Timeline(lambda: now_s))
    made_at = record.arrived_at
    now_s = 103.0
    record.received(90.0)
    assert (record.arrived_s, record.arrived_at) == (90.0, pytest.approx(made_at - 10.0, abs=1e-4))
