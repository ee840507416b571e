"""Routers, replicas and requests for tests of the router."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from headway.config import HeadwayConfig, Role
from headway.engine import EngineRules, engine_profile
from headway.routing import (
    Placement,
    ReplicaState,
    ReplicaUpdate,
    RequestSlo,
    Router,
    RouteRequest,
    RoutingOutcome,
    make_router,
)
from headway.routing.aibrix import AibrixProfile, parse_aibrix_profile
from headway.routing.table import FleetRow
from interp import Profile

PROFILE = "llama-3.1-8b_h100_tp1"
NO_SLO = RequestSlo()
MIXED, SPLIT = {"mixed": {}}, {"prefill": {}, "decode": {}}
OWN_ROWS = [
    row
    for row in FleetRow
    if row not in {FleetRow.TPOT_SLO_S, FleetRow.TTFT_SLACK_S, FleetRow.BUSY_UNTIL_S}
    and row not in {FleetRow.DUTY, FleetRow.DUTY_AT_S, FleetRow.CAPACITY_TOKENS, FleetRow.KIND}
    and row not in {FleetRow.TTFT_CAUTION, FleetRow.TPOT_CAUTION}
]
"""Rows that are 0 when nobody is there."""


def settings(profile: str = "slo", pools: Mapping[str, Any] = MIXED, **routing: Any) -> HeadwayConfig:
    return HeadwayConfig.model_validate(
        {"engine": {"profile": PROFILE}, "pools": pools, "routing": {"profile": profile, **routing}}
    )


def surfaces() -> Profile:
    return engine_profile(settings())


def router(
    profile: str = "slo",
    pools: Mapping[str, Any] = MIXED,
    *,
    count: int = 2,
    seed: int = 0,
    rules: EngineRules | None = None,
    profiles: Mapping[str, Profile] | None = None,
    slo: Mapping[str, Any] | None = None,
    live: bool = False,
    **routing: Any,
) -> Router:
    """A router with `count` replicas of each role, named "mixed-0" and so on."""
    config = settings(profile, pools, **routing)
    if slo is not None:
        config = config.model_copy(update={"slo": config.slo.model_copy(update=dict(slo))})
    known = {"": surfaces()} if profiles is None else profiles
    chunk = 2048 if pools is MIXED else 0
    made = make_router(
        config, known, rules or EngineRules(chunk_tokens=chunk), np.random.default_rng(seed), live=live
    )
    for role in config.pools:
        for number in range(count):
            join(made, f"{role}-{number}", Role(role))
    return made


def join(made: Router, name: str, role: Role = Role.MIXED, now_s: float = 0.0) -> RoutingOutcome:
    return made.replica_changed(now_s, ReplicaUpdate(replica=name, role=role))


def gone(made: Router, name: str, role: Role = Role.MIXED, now_s: float = 0.0) -> RoutingOutcome:
    return made.replica_changed(now_s, ReplicaUpdate(replica=name, role=role, state=ReplicaState.GONE))


def request(request_id: str = "r", **changes: Any) -> RouteRequest:
    fields: dict[str, Any] = {
        "request_id": request_id,
        "arrival_s": 0.0,
        "input_tokens": 1000,
        "max_tokens": 200,
    }
    return RouteRequest(**{**fields, **changes})


def placed(outcome: RoutingOutcome) -> Placement:
    """The one placement that followed."""
    assert not outcome.sheds
    assert len(outcome.placements) == 1
    return outcome.placements[0]


def finish(made: Router, request_id: str, now_s: float = 1.0, output_tokens: int = 100) -> None:
    """All events of a placed request."""
    made.prefilled(now_s, request_id)
    made.first_token(now_s, request_id)
    made.complete(now_s + 1.0, request_id, output_tokens)


def aibrix_content(capacity: float) -> dict[str, Any]:
    """An AIBrix profile in which every request has that capacity."""
    return {"indexes": [[100], [1000]], "tputs": [[capacity]], "e2e": [[1.0]]}


def bearing(capacity: float) -> AibrixProfile:
    return parse_aibrix_profile(aibrix_content(capacity), "x")
