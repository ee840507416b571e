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
)
from headway.routing.decide.context import RoutingState, SchedulingContext
from headway.routing.decide.scheduler import RouteChoice
from headway.routing.factory import make_pipelines, make_scheduler, make_state, prediction_profile
from headway.routing.fleet.records import Record
from headway.routing.fleet.table import FleetRow
from headway_aibrix.profiles import AibrixProfile, parse_aibrix_profile
from interp import Profile

PROFILE = "llama-3.1-8b_h100_tp1"
NO_SLO = RequestSlo()
MIXED, SPLIT = {"mixed": {}}, {"prefill": {}, "decode": {}}
OWN_ROWS = [
    row
    for row in FleetRow
    if row not in {FleetRow.TPOT_SLO_S, FleetRow.BUSY_UNTIL_S, FleetRow.PROMPT_AT_S}
    and row not in {FleetRow.DUTY, FleetRow.DUTY_AT_S, FleetRow.CAPACITY_TOKENS, FleetRow.KIND}
    and row not in {FleetRow.TTFT_CAUTION, FleetRow.TPOT_CAUTION}
    and row not in {FleetRow.ADAPTERS, FleetRow.ADAPTER_ROOM, FleetRow.ADAPTER_WORK}
]
"""Rows that are 0 when nobody is there."""


class SeenRouter(Router):
    """A router of parts that its test holds, too.

    `state` is what it goes by, as plugins see it; `choices` has what was chosen last for each request.
    """

    def __init__(self, config: HeadwayConfig, state: RoutingState, *, live: bool) -> None:
        settings, pipelines = config.routing, make_pipelines(config.routing)
        self.state, self.scheduler = state, make_scheduler(config, state, pipelines, live=live)
        self.choices: dict[str, RouteChoice] = {}
        guard_s = self.scheduler.guard_s

        def seen(now_s: float, record: Record, choice: RouteChoice) -> float:
            self.choices[record.request.request_id] = choice
            return guard_s(now_s, record, choice)

        self.scheduler.guard_s = seen  # type: ignore[method-assign]
        super().__init__(settings, pipelines, prediction_profile(settings, pipelines), state, self.scheduler)

    def cell(self, row: FleetRow, name: str = "mixed-0") -> float:
        """What the books say of a replica."""
        return float(self.state.fleet.table[row, self.slot(name)])

    def slot(self, name: str) -> int:
        """The replica's column in the books."""
        replica = self.state.fleet.get(name)
        assert replica is not None
        return replica.slot

    def book(self, row: FleetRow, *values: float) -> None:
        """Have the books say so of mixed-0, mixed-1 and so on."""
        for number, value in enumerate(values):
            self.state.fleet.table[row, self.slot(f"mixed-{number}")] = value

    @property
    def books_are_closed(self) -> bool:
        """True if the books have nothing on anybody."""
        return not self.state.fleet.table[OWN_ROWS].any()


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
) -> SeenRouter:
    """A router with `count` replicas of each role, named "mixed-0" and so on."""
    config = settings(profile, pools, **routing)
    if slo is not None:
        config = config.model_copy(update={"slo": config.slo.model_copy(update=dict(slo))})
    known = {"": surfaces()} if profiles is None else profiles
    chunk = 2048 if pools is MIXED else 0
    state = make_state(config, known, rules or EngineRules(chunk_tokens=chunk), np.random.default_rng(seed))
    made = SeenRouter(config, state, live=live)
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


def question(
    made: SeenRouter, role: Role = Role.MIXED, now_s: float = 0.0, **changes: Any
) -> SchedulingContext:
    """What plugins look at when a request comes."""
    asked = request(**changes)
    record = Record(
        request=asked, number=0, expected_output=100, slo=asked.slo, profile="least_load", judged=False
    )
    return SchedulingContext(made.state, now_s, record, role)


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
