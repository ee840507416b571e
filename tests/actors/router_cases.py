"""Routers of small deployments, and what gateways say to them."""

from typing import Any

import numpy as np

from actors.routing.gateway_sessions import GatewaySessions
from actors.routing.messages import Batch, Changed, Event, OnReplica
from headway.config import load_config
from headway.engine import engine_profile, engine_rules
from headway.planning import Role
from headway.routing import Placement, ReplicaState, ReplicaUpdate, RequestSlo, RouteRequest, make_router

MIXED = {"pools": {"mixed": {}}, "routing.profile": "slo"}


def sessions(**settings: Any) -> GatewaySessions:
    config = load_config(None, {**MIXED, **settings})
    profile = engine_profile(config)
    rules = engine_rules(config, profile)
    return GatewaySessions(make_router(config, {"": profile}, rules, np.random.default_rng(1)))


def asked(request_id: str, arrival_s: float = 0.0, **fields: Any) -> RouteRequest:
    slo = RequestSlo(ttft_s=30.0, tpot_s=1.0)
    given = {"input_tokens": 100, "max_tokens": 10, "slo": slo} | fields
    return RouteRequest(request_id=request_id, arrival_s=arrival_s, **given)


def ready(replica: str, at_s: float = 0.0) -> Changed:
    return Changed(at_s, ReplicaUpdate(replica=replica, role=Role.MIXED))


def gone(replica: str, at_s: float = 0.0) -> Changed:
    return Changed(at_s, ReplicaUpdate(replica=replica, role=Role.MIXED, state=ReplicaState.GONE))


def on(replica: str, request: RouteRequest, *, attempt: int = 1, computed: bool = True) -> OnReplica:
    placement = Placement(
        request_id=request.request_id,
        prefill_replica=replica,
        decode_replica=replica,
        profile="slo",
        attempt=attempt,
    )
    return OnReplica(request, placement, computed, 1)


def hello(*events: Event, session: int = 1, sent_s: float = 0.0) -> Batch:
    return Batch(session, sent_s, events, hello=True)


def batch(*events: Event, session: int = 1, sent_s: float = 0.0) -> Batch:
    return Batch(session, sent_s, events)
