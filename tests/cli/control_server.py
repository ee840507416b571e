"""The control API's documents, as docs/reference/http.md has them, over real HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from json import loads
from typing import Any
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

from headway.planning.documents import StatusDocument
from headway.planning.status_text import facts, warnings
from tests.http_thread import served

AT = 1_760_000_000.0


def measured(**changes: Any) -> dict[str, Any]:
    latency = {"mean": 0.4, "p50": 0.35, "p95": 0.9, "p99": 1.1, "count": 50}
    return {
        "start_s": AT,
        "end_s": AT + 10,
        "health": {"status": "ok", "detail": ""},
        "requests": 52,
        "completed": 50,
        "isl_tokens": 998.4,
        "osl_tokens": 80.1,
        "request_duration_s": 12.0,
        "attainment": 0.96,
        "ttft_s": latency,
        "itl_s": {**latency, "mean": 0.14, "p95": 0.149},
        "load": {"prefill": {"running": 0.5, "waiting": 1.25, "kv_usage": None}},
        **changes,
    }


def pool(desired: int = 2, ready: int = 2, **changes: Any) -> dict[str, Any]:
    counts = {"desired": desired, "starting": desired - ready, "ready": ready, "draining": 0}
    load = {"running": 3, "waiting": 0, "kv_usage": 0.125}
    return {**counts, **load, "min_replicas": 1, "max_replicas": 6, "gpus_per_replica": 1, **changes}


def decision(number: int = 7, **changes: Any) -> dict[str, Any]:
    created = AT + 10 * (number - 6)
    replica = {"role": "decode", "replica": "abc", "starting_at": created + 0.5, "running_at": created + 6.2}
    return {
        "id": number,
        "created_at": created,
        "interval": {"start_s": AT, "end_s": AT + 10},
        "measured": measured(),
        "forecast": {
            "requests": 61.0,
            "isl_tokens": 1000.0,
            "osl_tokens": 80.0,
            "source": {"requests": "kalman"},
        },
        "pools": {"prefill": pool(), "decode": pool(3, 3)},
        "previous_targets": {"prefill": 2, "decode": 3},
        "targets": {"prefill": 2, "decode": 4},
        "reasons": {
            "summary": "decode 3 → 4: more load",
            "forecast": {"requests": 61.0, "isl_tokens": 1000.0, "osl_tokens": 80.0},
            "requirement": {
                "decode": {"replicas": 3.4, "load_tokens_per_s": 488.0, "throughput_per_gpu": 143.0}
            },
        },
        "summary": "decode 3 → 4: more load",
        "connector": {"kind": "ray_serve", "status": "sent", "detail": {}},
        "dry_run": False,
        "replicas": [replica],
        "reached_at": created + 6.3,
        **changes,
    }


def status(**changes: Any) -> dict[str, Any]:
    last = decision()
    return {
        "model": "llama-3.1-8b",
        "engine": {"kind": "simulated", "simulated": True, "time_scale": 0.05},
        "slo": {"ttft_ms": 3000.0, "itl_ms": 150.0, "attainment": 0.95},
        "planner": {
            "state": "running",
            "reason": "",
            "dry_run": False,
            "policy": "reference",
            "predictor": "kalman",
            "interval_s": 10.0,
            "ticks": 8,
            "late_ticks": 0,
            "failed_ticks": 0,
            "last_tick_at": AT,
            "next_tick_at": AT + 10,
        },
        "pools": {"prefill": pool(), "decode": pool(4, 3)},
        "attainment": {"last_interval": 0.96, "total": 0.987},
        "measured": measured(),
        "last_decision": {key: last[key] for key in ("id", "created_at", "targets", "summary", "reached_at")}
        | {"status": "sent"},
        "components": {"Planner": {"ok": True, "detail": ""}, "Predictor": {"ok": True, "detail": ""}},
        "connector": {"kind": "ray_serve"},
        **changes,
    }


NOW = AT + 100.0
"""When the server is asked."""


def worded(document: dict[str, Any]) -> dict[str, Any]:
    """A status document as a server sends it: with its facts in words."""
    found = StatusDocument.model_validate(document)
    words = [fact.model_dump() for fact in facts(found, NOW)]
    return {"warnings": warnings(found, NOW), "facts": words, **document}


@dataclass
class Control:
    """The server's documents, and the requests that it got."""

    status: dict[str, Any] = field(default_factory=status)
    decisions: list[dict[str, Any]] = field(default_factory=lambda: [decision(n) for n in range(8)])
    traces: list[dict[str, Any]] = field(default_factory=lambda: [{"request_id": f"r{n}"} for n in range(30)])
    profile: dict[str, Any] = field(default_factory=dict)
    advice: dict[str, Any] = field(default_factory=dict)
    fleet: dict[str, Any] | None = None
    asked: list[str] = field(default_factory=list)
    patches: list[Any] = field(default_factory=list)
    authorisations: list[str | None] = field(default_factory=list)
    refuse: tuple[int, str] | None = None
    url: str = ""

    def answer(self, method: str, address: str, body: bytes) -> tuple[int, Any]:
        if self.refuse is not None:
            return self.refuse[0], {"error": {"message": self.refuse[1]}}
        parts = urlsplit(address.replace("/deployments/chat", ""))
        if method == "PATCH":
            self.patches.append(loads(body))
            return 200, loads(body)
        self.asked.append(address)
        whole = {
            "/v1/control/status": worded(self.status),
            "/v1/control/profile": self.profile,
            "/v1/control/advice": self.advice,
            **({} if self.fleet is None else {"/v1/fleet": self.fleet}),
        }
        if parts.path in whole:
            return 200, whole[parts.path]
        if parts.path == "/v1/control/decisions":
            query = {name: int(values[0]) for name, values in parse_qs(parts.query).items()}
            after, limit = query.get("after", -1), query.get("limit", 100)
            return 200, {"decisions": [row for row in self.decisions if row["id"] > after][:limit]}
        if parts.path == "/v1/control/offload-traces":
            return 200, {"traces": self.traces[-int(parse_qs(parts.query)["limit"][0]) :]}
        number = parts.path.rsplit("/", 1)[-1]
        found = [row for row in self.decisions if str(row["id"]) == number]
        return (200, found[0]) if found else (404, {"error": {"message": f"There is no decision {number}"}})


@contextmanager
def controlling() -> Iterator[Control]:
    control, app = Control(), web.Application()

    async def handle(request: web.Request) -> web.Response:
        control.authorisations.append(request.headers.get("Authorization"))
        code, document = control.answer(request.method, request.path_qs, await request.read())
        return web.json_response(document, status=code)

    app.router.add_route("*", "/{path:.*}", handle)
    with served(app) as (control.url, _):
        yield control
