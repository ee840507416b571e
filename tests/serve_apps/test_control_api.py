"""The control API's routes over stand-ins for the actors, asked over the bare ASGI channel."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.applications import Starlette

from serve_apps.control_api import control_routes, scaling_routes
from serve_apps.faults import InvalidRequest, NeverIssued, NotFound, Unavailable
from tests.patience import PATIENCE_S

DECISION = {"decision_id": 3, "num_prefill": 1, "num_decode": 2, "created_at": 5.0, "reasons": {}}
NEXT = "/v1/scaling/decisions/next"

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Plane:
    """A planner with ten decisions."""

    asked: list[Any] = field(default_factory=list)
    down: bool = False

    async def status(self):
        if self.down:
            raise Unavailable("Planner did not answer within 5.0 s")
        return {"model": "m"}

    async def decisions(self, after, limit):
        self.asked.append((after, limit))
        return [{"id": number} for number in range(10) if number > after][:limit]

    async def decision(self, decision_id):
        return {"id": decision_id} if 0 <= decision_id < 10 else None

    async def advice(self, since_s):
        self.asked.append(since_s)
        return {"window": None}

    async def offload_traces(self, limit):
        self.asked.append(limit)
        return [{"request_id": "r"}]

    async def profile(self):
        return {"prefill": {}, "decode": {}, "meta": {}}

    async def update_settings(self, changes, by):
        if "slo.ttft_ms" not in changes:
            raise InvalidRequest("slo.nonsense: cannot be changed while running")
        return changes


@dataclass
class Outside:
    """A virtual connector that holds one decision, or lets the caller wait."""

    decision: dict[str, Any] | None = field(default_factory=lambda: DECISION)
    asked: list[Any] = field(default_factory=list)
    cancelled: int = 0
    waits: bool = False

    async def next(self, after, timeout_s):
        self.asked.append((after, timeout_s))
        if after is not None and after > 3:
            raise NeverIssued("after: decision 9 was never issued: the newest is 3", param="after")
        try:
            while self.waits:
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.decision

    async def latest(self):
        return self.decision

    async def complete(self, decision_id):
        return self._counted(decision_id)

    async def fail(self, decision_id, reason):
        self.asked.append(reason)
        return self._counted(decision_id)

    async def report(self, pools):
        if "mixed" in pools:
            raise InvalidRequest(
                "pools: there is no mixed pool; the pools are prefill, decode", param="pools"
            )
        return pools

    @staticmethod
    def _counted(decision_id):
        if not 0 <= decision_id <= 3:
            raise NotFound(f"decision {decision_id} was never issued: the newest is 3", param="decision_id")
        return decision_id == 3


class Client:
    """Asks an application, and may go away while it waits."""

    def __init__(self, plane=None, scaling=None) -> None:
        self.plane = plane or Plane()
        self.scaling = scaling
        self._app = Starlette(routes=[*control_routes(self.plane), *scaling_routes(scaling)])

    async def ask(
        self,
        method: str,
        url: str,
        body: bytes | str = b"",
        gone: asyncio.Event | None = None,
        kind: str = "application/json; charset=utf-8",
    ):
        path, _, query = url.partition("?")
        raw = body.encode() if isinstance(body, str) else body
        sent = iter([{"type": "http.request", "body": raw, "more_body": False}])
        messages: list[dict[str, Any]] = []

        async def receive():
            if (message := next(sent, None)) is None:
                await (gone or asyncio.Event()).wait()
                message = {"type": "http.disconnect"}
            return message

        async def send(message):
            messages.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(b"content-type", kind.encode())] if kind else [],
        }
        await self._app(scope, receive, send)
        text = b"".join(message.get("body", b"") for message in messages[1:])
        return messages[0]["status"], json.loads(text) if text else None


def error(answer: tuple[int, Any]) -> tuple[int, str, str | None]:
    status, body = answer
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return status, body["error"]["message"], body["error"]["param"]


async def test_status_and_decisions():
    client = Client()
    assert await client.ask("GET", "/v1/control/status") == (200, {"model": "m"})
    assert await client.ask("GET", "/v1/control/decisions/4") == (200, {"id": 4})
    status, body = await client.ask("GET", "/v1/control/decisions?after=6&limit=2")
    assert (status, body) == (200, {"decisions": [{"id": 7}, {"id": 8}]})
    await client.ask("GET", "/v1/control/decisions")
    assert client.plane.asked == [(6, 2), (-1, 100)]


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
async def test_a_body_of_another_type_than_json_is_refused(kind):
    body = '{"slo.ttft_ms": 200}'
    status, message, _ = error(await Client().ask("PATCH", "/v1/control/settings", body, kind=kind))
    assert status == 415
    assert message.startswith("Send the body as content-type: application/json (curl: --json), not ")
    empty = await Client(scaling=Outside()).ask("POST", "/v1/scaling/decisions/3/complete", kind=kind)
    assert empty[0] == 200


async def test_advice_since_a_time():
    client = Client()
    for query in ("", "?since=24h", "?since=90m", "?since=1.5d", "?since=45s", "?since=3600"):
        assert await client.ask("GET", f"/v1/control/advice{query}") == (200, {"window": None})
    assert client.plane.asked == [None, 86_400.0, 5_400.0, 129_600.0, 45.0, 3_600.0]


async def test_offload_traces():
    client = Client()
    for query in ("", "?limit=7"):
        answer = await client.ask("GET", f"/v1/control/offload-traces{query}")
        assert answer == (200, {"traces": [{"request_id": "r"}]})
    assert client.plane.asked == [100, 7]


async def test_the_profile():
    answer = await Client().ask("GET", "/v1/control/profile")
    assert answer == (200, {"prefill": {}, "decode": {}, "meta": {}})


async def test_a_decision_that_there_is_not():
    assert error(await Client().ask("GET", "/v1/control/decisions/10")) == (
        404,
        "There is no decision 10",
        "decision_id",
    )


async def test_settings_are_changed_or_the_key_is_named():
    client = Client()
    changed = await client.ask("PATCH", "/v1/control/settings", '{"slo.ttft_ms": 200}')
    assert changed == (200, {"slo.ttft_ms": 200})
    refused = error(await client.ask("PATCH", "/v1/control/settings", '{"slo.nonsense": 1}'))
    assert refused[:2] == (400, "slo.nonsense: cannot be changed while running")


@pytest.mark.parametrize(
    "body", ["", "{}", "[]", "null", "{", "\xff", '{"a": NaN}', "[" * 60_000], ids=lambda body: body[:8]
)
async def test_settings_that_are_no_object_are_refused(body):
    status, message, _ = error(await Client().ask("PATCH", "/v1/control/settings", body))
    assert status == 400
    assert message.startswith("The body should")


async def test_a_large_body_is_refused():
    answer = error(await Client().ask("PATCH", "/v1/control/settings", b" " * 70_000))
    assert answer[:2] == (413, "The body is larger than 65536 bytes")


async def test_a_planner_that_does_not_answer_is_503():
    answer = await Client(Plane(down=True)).ask("GET", "/v1/control/status")
    assert error(answer)[:2] == (503, "Planner did not answer within 5.0 s")
    assert answer[1]["error"]["code"] == "control_plane_unavailable"


@pytest.mark.parametrize(
    ("url", "param", "message"),
    [
        ("/v1/control/decisions?after=x", "after", "should be a whole number, not 'x'"),
        ("/v1/control/decisions?after=1.0", "after", "should be a whole number"),
        ("/v1/control/decisions?after=", "after", "should be a whole number, not ''"),
        ("/v1/control/decisions?after=٣", "after", "should be a whole number"),
        ("/v1/control/decisions?after=" + "9" * 5000, "after", "should be a whole number"),
        ("/v1/control/decisions?limit=0", "limit", "should be between 1 and 1000, not 0"),
        ("/v1/control/decisions?limit=1001", "limit", "should be between 1 and 1000, not 1001"),
        ("/v1/control/decisions?after=1&after=2", "after", "should come once"),
        ("/v1/control/offload-traces?limit=0", "limit", "should be between 1 and 10000, not 0"),
        ("/v1/control/decisions?since=1", "since", "unknown query parameter (known: after, limit)"),
        ("/v1/control/advice?since=soon", "since", "should be a time such as 24h, 90m or 7d, not 'soon'"),
        ("/v1/control/advice?since=-1h", "since", "should be a time such as 24h, 90m or 7d, not '-1h'"),
        ("/v1/control/advice?since=h", "since", "should be a time such as 24h, 90m or 7d, not 'h'"),
        ("/v1/control/advice?since=nan", "since", "should be a time such as 24h, 90m or 7d, not 'nan'"),
        ("/v1/control/decisions/x", "decision_id", "should be a whole number, not 'x'"),
        ("/v1/control/status?x=1", "x", "unknown query parameter (known: there are none)"),
        (f"{NEXT}?timeout_s=x", "timeout_s", "should be a number of seconds from 0, not 'x'"),
        (f"{NEXT}?timeout_s=-1", "timeout_s", "should be a number of seconds from 0, not '-1'"),
        (f"{NEXT}?timeout_s=nan", "timeout_s", "should be a number of seconds"),
        (f"{NEXT}?timeout_s=inf", "timeout_s", "should be a number of seconds"),
        (f"{NEXT}?timeout=3", "timeout", "unknown query parameter (known: after, timeout_s)"),
        (f"{NEXT}?after=x", "after", "should be a whole number, not 'x'"),
    ],
)
async def test_parameters_that_make_no_sense_are_named(url, param, message):
    status, text, named = error(await Client(scaling=Outside()).ask("GET", url))
    assert (status, named) == (400, param)
    assert text.startswith(f"{param}: {message}")
    assert "\n" not in text


async def test_the_next_decision():
    scaling = Outside()
    client = Client(scaling=scaling)
    assert await client.ask("GET", f"{NEXT}?after=2&timeout_s=1.5") == (200, DECISION)
    assert await client.ask("GET", NEXT) == (200, DECISION)
    assert await client.ask("GET", f"{NEXT}?timeout_s=100000") == (200, DECISION)
    assert scaling.asked == [(2, 1.5), (None, 30.0), (None, 300.0)]


async def test_no_decision_in_time_is_204():
    client = Client(scaling=Outside(decision=None))
    assert await client.ask("GET", f"{NEXT}?timeout_s=0") == (204, None)
    assert await client.ask("GET", "/v1/scaling/decisions/latest") == (204, None)


async def test_an_after_that_was_never_issued_is_409():
    answer = error(await Client(scaling=Outside()).ask("GET", f"{NEXT}?after=9"))
    assert answer == (409, "after: decision 9 was never issued: the newest is 3", "after")


async def test_a_client_that_goes_away_ends_its_wait():
    scaling, gone = Outside(waits=True), asyncio.Event()
    asking = asyncio.create_task(Client(scaling=scaling).ask("GET", NEXT, gone=gone))
    async with asyncio.timeout(PATIENCE_S):
        while not scaling.asked:
            await asyncio.sleep(0)
        assert not scaling.cancelled
        gone.set()
        await asking
    assert scaling.cancelled == 1


async def test_answers():
    scaling = Outside()
    client = Client(scaling=scaling)
    base = "/v1/scaling/decisions"
    assert await client.ask("POST", f"{base}/3/complete") == (200, {"decision_id": 3, "counted": True})
    assert await client.ask("POST", f"{base}/1/complete", "{}") == (200, {"decision_id": 1, "counted": False})
    failed = await client.ask("POST", f"{base}/3/fail", '{"reason": "no nodes"}')
    assert failed == (200, {"decision_id": 3, "counted": True})
    assert scaling.asked == ["no nodes"]


@pytest.mark.parametrize("action", ["complete", "fail"])
async def test_an_id_that_was_never_issued_is_404(action):
    body = '{"reason": "no nodes"}' if action == "fail" else ""
    for number in (4, -1):
        answer = await Client(scaling=Outside()).ask("POST", f"/v1/scaling/decisions/{number}/{action}", body)
        assert error(answer) == (
            404,
            f"decision {number} was never issued: the newest is 3",
            "decision_id",
        )


@pytest.mark.parametrize(
    ("url", "body", "message"),
    [
        ("/v1/scaling/decisions/x/complete", "", "decision_id: should be a whole number, not 'x'"),
        ("/v1/scaling/decisions/3/complete", '{"x": 1}', "x: unknown field (known: there are none)"),
        ("/v1/scaling/decisions/3/fail", "", "reason: should be a text of 1 to 1000 characters"),
        ("/v1/scaling/decisions/3/fail", '{"reason": " "}', "reason: should be a text"),
        ("/v1/scaling/decisions/3/fail", '{"reason": 3}', "reason: should be a text"),
        ("/v1/scaling/decisions/3/fail", json.dumps({"reason": "x" * 1001}), "reason: should be a text"),
        ("/v1/scaling/decisions/3/fail", '{"reason": "x", "why": 1}', "why: unknown field (known: reason)"),
    ],
)
async def test_answers_that_make_no_sense_are_refused(url, body, message):
    status, text, _ = error(await Client(scaling=Outside()).ask("POST", url, body))
    assert status == 400
    assert text.startswith(message)


@pytest.mark.parametrize(("method", "path"), [("GET", "next"), ("GET", "latest"), ("POST", "0/complete")])
async def test_without_the_virtual_connector_the_paths_say_so(method, path):
    status, message, _ = error(await Client(scaling=None).ask(method, f"/v1/scaling/decisions/{path}"))
    assert status == 404
    assert "connector.kind: virtual" in message


async def test_reports_of_replica_counts():
    client, url = Client(scaling=Outside()), "/v1/scaling/report"
    pools = {"decode": {"desired": 8, "starting": 0, "ready": 8, "draining": 0}}
    assert await client.ask("POST", url, json.dumps({"pools": pools})) == (200, {"pools": pools})
    for body, said in (
        ("{}", "pools: should hold the counts of at least one pool"),
        ('{"pools": []}', "pools: should hold"),
        ('{"decode": {}}', "decode: unknown field (known: pools)"),
        ('{"pools": {"mixed": {"ready": 1}}}', "pools: there is no mixed pool"),
    ):
        status, answer = await client.ask("POST", url, body)
        assert status == 400
        assert said in answer["error"]["message"]
    assert (await Client(scaling=None).ask("POST", url, "{}"))[0] == 404
