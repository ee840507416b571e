"""A live page over a control plane that a test writes: sizes and faults that a real fleet has not at once."""

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from headway.config import HeadwayConfig
from headway.planning import Role
from headway.planning.decision_text import story
from headway.planning.documents import StatusDocument
from headway.planning.record_figures import history
from headway.planning.records import DecisionRecord
from serve_apps.access import make_access
from serve_apps.control_api import control_routes
from serve_apps.control_host import ControlApp
from serve_apps.control_metrics import ControlMetrics, StatusFeed
from serve_apps.control_plane import judged
from serve_apps.faults import Unavailable
from serve_apps.gateway.backend import Readiness, ReplicaLoad
from serve_apps.live_page import LivePage, gateway_view

INTERVAL_S = 30.0
CLASSES = {
    "interactive": {"ttft_ms": None, "tpot_ms": None, "attainment": None},
    "batch": {"ttft_ms": 5000.0, "tpot_ms": 60.0, "attainment": 0.9},
}
JUDGED = {"interactive": (13_100.0, 120.0), "batch": (4_400.0, 31.0)}
PREDICTIONS = {"ttft error": 0.084, "ttft bias": 0.01, "ttft pairs": 812.0}
SHOWN = ("id", "created_at", "targets", "summary", "reached_at")


def needs(number: int) -> dict[str, int]:
    """Replicas that a day's wave needs."""
    wave = 0.5 - 0.5 * math.cos(number / 60.0)
    return {"prefill": 1 + round(3 * wave), "decode": 2 + round(6 * wave)}


def short(number: int) -> bool:
    """True while prefill may not have what it needs."""
    return number % 600 >= 540


def decided(number: int) -> dict[str, int]:
    """Replicas that the limits leave of it."""
    return needs(number) | ({"prefill": 1} if short(number) else {})


def record(number: int, end_s: float, times: int = 1, **changes: Any) -> DecisionRecord:
    """A decision of a day's wave, of so many `times` the fleet; prefill is short in every fifth hour."""
    wave = 0.5 - 0.5 * math.cos(number / 60.0)
    needed, targets, before = (
        {role: times * count for role, count in counts.items()}
        for counts in (needs(number), decided(number), decided(number - 1))
    )
    burns = short(number)
    late_s = 0.81 if burns else 0.34
    attained = 0.62 if burns else 0.992 + 0.006 * math.sin(number)
    document = {
        "id": number,
        "created_at": end_s + 0.4,
        "interval": {"start_s": end_s - INTERVAL_S, "end_s": end_s},
        "measured": {
            "start_s": end_s - INTERVAL_S,
            "end_s": end_s,
            "health": {"status": "ok"},
            "requests": times * INTERVAL_S * (5 + 20 * wave),
            "isl_tokens": 1200.0,
            "osl_tokens": 210.0,
            "cached_tokens": 320.0,
            "attainment": attained,
            "queue_s": 0.4 if burns else 0.02,
            "ttft_s": {"mean": 0.5 if burns else 0.24, "p50": 0.2, "p95": late_s, "p99": 1.3 * late_s},
            "itl_s": {"mean": 0.012, "p50": 0.011, "p95": 0.017, "p99": 0.019},
            "classes": {
                name: {
                    "requests": round(part * times * INTERVAL_S * (5 + 20 * wave)),
                    "judged": round(part * times * INTERVAL_S * (5 + 20 * wave)),
                    "attainment": attained if name == "interactive" else 1.0,
                    "ttft_s": {"p50": 0.2, "p95": late_s * (1 + part), "p99": 2 * late_s, "count": 9.0},
                    "itl_s": {"p50": 0.011, "p95": 0.016, "p99": 0.018, "count": 9.0},
                }
                for name, part in (("interactive", 0.3), ("batch", 0.1))
            },
            "load": {
                role: {"running": 8.0 * times, "waiting": 0.5 * times, "kv_usage": 0.4} for role in targets
            },
        },
        "forecast": {
            "requests": times * INTERVAL_S * (5.5 + 20 * wave),
            "requests_low": times * INTERVAL_S * (3.5 + 17 * wave),
            "requests_high": times * INTERVAL_S * (7.5 + 23 * wave),
        },
        "pools": {
            role: {"desired": count, "starting": 0, "ready": count, "draining": 0}
            for role, count in targets.items()
        },
        "previous_targets": before,
        "targets": targets,
        "reasons": {
            "needs": {
                role: {"replicas": count, "lead_s": 60.0, "option": {"expected": 0.7 * count, "factor": 1.3}}
                for role, count in needed.items()
            },
            "limits": ["prefill: max_replicas"] if burns else [],
        },
        "summary": f"Prefill needs {needed['prefill']}. Decode needs {needed['decode']}.",
        "connector": {"kind": "ray_serve", "status": "unchanged" if targets == before else "sent"},
        "reached_at": end_s + 20.0,
    }
    return DecisionRecord.model_validate({**document, **changes})


@dataclass
class StandingPlane:
    """The control plane of the records; `down` while it does not answer."""

    records: list[DecisionRecord] = field(default_factory=list)
    changes: Mapping[str, Any] = field(default_factory=dict)
    outcomes: Mapping[str, int] = field(
        default_factory=lambda: {"ok": 44_120, "shed": 310, "timeout": 22, "failed": 0}
    )
    routing: Mapping[str, Any] = field(
        default_factory=lambda: {"queued": 7, "sheds": {"no_headroom": 310}, "predictions": PREDICTIONS}
    )
    down: bool = False
    times: int = 1

    async def status(self) -> Mapping[str, Any]:
        if self.down:
            raise Unavailable("Planner did not answer within 5.0 s")
        last = self.records[-1]
        document = {
            "model": "meta-llama/Llama-3.1-8B-Instruct",
            "engine": {"kind": "vllm", "simulated": False, "time_scale": 1.0},
            "slo": {"ttft_ms": 500.0, "itl_ms": 20.0, "attainment": 0.99, "classes": CLASSES},
            "planner": {"state": "running", "policy": "headway", "interval_s": INTERVAL_S},
            "pools": {
                role.value: {
                    "max_replicas": self.times * (1 if role == "prefill" and short(last.id) else 8),
                    **pool.model_dump(), "kv_usage": 0.4,
                    "running": 8.0 * self.times, "waiting": 0.5 * self.times,
                    "min_replicas": 1, "gpus_per_replica": 1,
                }
                for role, pool in last.pools.items()
            },
            "attainment": {"last_interval": last.measured.attainment, "total": 0.9931},
            "measured": last.measured.document(),
            "last_decision": {
                **{key: getattr(last, key) for key in SHOWN},
                "needed": {role: need["replicas"] for role, need in last.reasons["needs"].items()},
                "limits": last.reasons["limits"],
                "forecast": None if last.forecast is None else last.forecast.document(),
                "forecast_error": 0.08,
                "status": last.connector.status,
            },
            "components": {name: {"ok": True} for name in ("MetricCollector", "Interpolator", "Connector")},
            "connector": {"kind": "ray_serve", "status": "unchanged"},
            "seen_at": {"metrics": last.interval.end_s, "profile": last.interval.end_s - 60.0},
            "alternatives": {
                "intervals": 100,
                "requests": 45_000,
                "fixed": {
                    "gpus": 10.0 * self.times,
                    "lost": 0.004,
                    "pools": {"prefill": 3 * self.times, "decode": 7 * self.times},
                },
                "threshold": {
                    "gpus": 8.4 * self.times,
                    "lost": 0.0095,
                    "pools": {"prefill": 0.4, "decode": 0.55},
                },
            },
            "cost": {"price_per_gpu_hour": 2.5, "currency": "$"},
            "refined": {"version": 3, "cells": 12, "factors": {"prefill": 1.27, "decode": 1.01}},
            **self.changes,
        }  # fmt: skip
        return judged(StatusDocument.model_validate(document).document(), last.created_at + 2.6)

    async def decisions(self, after: int, limit: int) -> Sequence[Mapping[str, Any]]:
        if self.down:
            raise Unavailable("Planner did not answer within 5.0 s")
        return [each.document() for each in self.records if each.id > after][:limit]

    async def decision(self, decision_id: int) -> Mapping[str, Any] | None:
        found = [each for each in self.records if each.id == decision_id]
        return found[0].document() if found else None

    async def history(self, after: int) -> Mapping[str, Any]:
        return history([each for each in self.records if each.id > after])

    async def story(self, decision_id: int) -> Mapping[str, Any] | None:
        found = [each for each in self.records if each.id == decision_id]
        return story(found[0]) if found else None

    def __getattr__(self, name: str) -> Any:
        raise Unavailable(f"{name}: not here")


def fleet(size: int) -> Sequence[ReplicaLoad]:
    """So many replicas, some of them full and some with requests that wait."""
    roles = (Role.PREFILL, Role.DECODE, Role.DECODE)
    return [
        ReplicaLoad(
            role=roles[place % 3],
            replica=f"r{place:04d}",
            running=place % 17,
            waiting=3 if place % 29 == 0 else 0,
            kv_usage=(place * 37 % 100) / 100.0,
        )
        for place in range(size)
    ]


@contextmanager
def standing(plane: StandingPlane, replicas: int = 9, keys: Sequence[str] = ()) -> Iterator[str]:
    """Serve it on loopback; the address."""
    config = HeadwayConfig.model_validate({"model": "m", "gateway": {"api_keys": list(keys)}})
    feed = StatusFeed(plane.status)
    loads = fleet(replicas)
    view = gateway_view(loads, JUDGED, plane.outcomes, plane.routing)
    live = LivePage(plane, feed, lambda: view)

    async def ready() -> Readiness:
        return Readiness(ok=True)

    routes = [*control_routes(plane), *live.routes()]
    app = ControlApp(routes, make_access(config.gateway, {}), ready, ControlMetrics("m", feed))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        live.end()
        server.should_exit = True
        thread.join()
