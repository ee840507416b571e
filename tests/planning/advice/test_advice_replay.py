"""The replay that goes on: the same however it is cut, no request lost, near the simulator."""

from collections.abc import Mapping
from dataclasses import replace

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from headway.config import load_config
from headway.planning import Role
from headway.planning.advice.replay import MOST_UNDER_WAY, NOTHING, FleetReplay, Served
from headway.planning.replay import ReplayEngine, Requests
from headway.simulation.build import make_plan, make_scenario, run
from headway.workload import TraceOptions, open_trace
from tests.planning.advice.advice_cases import MIXED, SPLIT, engine, requests

FLEETS = [(0, SPLIT), (2048, SPLIT), (2048, MIXED)]


def lived(fleet: FleetReplay, coming: Requests, step_s: float, until_s: float) -> list[Served]:
    """Steps of that length, up to a time."""
    found, begun = [], 0
    for now_s in np.arange(step_s, until_s + step_s, step_s).tolist():
        end = int(np.searchsorted(coming.arrival_s, now_s, side="right"))
        found.append(fleet.run(coming.where(slice(begun, end)), now_s))
        begun = end
    return found


@pytest.mark.parametrize(("chunk", "counts"), FLEETS)
def test_it_does_not_matter_where_the_time_is_cut(chunk: int, counts: Mapping[Role, int]) -> None:
    coming = requests(2000, 100.0)
    totals = []
    for step_s in (200.0, 30.0, 1.7):
        parts = lived(FleetReplay(engine(chunk, ttft_s=0.3), counts, 0.0), coming, step_s, 200.0)
        totals.append((sum(each.ended for each in parts), sum(each.met for each in parts)))
    assert totals[0][0] == 2000
    assert 0 < totals[0][1] < 2000
    assert totals[0] == totals[1] == totals[2]


@hypothesis.given(
    changes=st.lists(st.tuples(st.floats(0.0, 60.0), st.integers(0, 5), st.integers(0, 5)), max_size=6),
    split=st.booleans(),
    seed=st.integers(0, 5),
)
def test_no_request_is_lost_whatever_happens_to_the_fleet(
    changes: list[tuple[float, int, int]], split: bool, seed: int
) -> None:
    counts = SPLIT if split else MIXED
    roles = list(counts)
    moves = [(at_s, dict(zip(roles, (one, other), strict=False))) for at_s, one, other in sorted(changes)]
    fleet, coming = FleetReplay(engine(), counts, 0.0), requests(300, 60.0, seed)
    before = fleet.run(coming, 60.0, moves)
    after = fleet.run(NOTHING, 5000.0, [(60.0, dict.fromkeys(roles, 1))])
    assert before.ended + after.ended == 300
    assert before.met + after.met <= 300
    state = fleet.pools(dict.fromkeys(roles, 1), dict.fromkeys(roles, 0))
    left = {(pool.ready, pool.draining, pool.running, pool.waiting) for pool in state.values()}
    assert left == {(1, 0, 0, 0)}


def test_released_replicas_drain_and_cost_until_they_are_empty() -> None:
    fleet = FleetReplay(engine(2048), MIXED, 0.0)
    coming = Requests(np.zeros(6), np.full(6, 1000.0), np.full(6, 300.0))
    first = fleet.run(coming, 1.0)
    assert first.drained_s == {Role.MIXED: 0.0}
    second = fleet.run(NOTHING, 60.0, [(1.0, {Role.MIXED: 1})])
    # Each of the six has a request of 300 tokens at 5 to 6 ms a token: five replicas are busy for a while.
    assert 5 * 0.4 < second.drained_s[Role.MIXED] < 5 * 2.5
    assert second.ended == 6
    assert fleet.run(NOTHING, 90.0).drained_s == {Role.MIXED: 0.0}


def test_requests_wait_for_the_first_replica() -> None:
    fleet = FleetReplay(engine(2048), {Role.MIXED: 0}, 0.0)
    coming = Requests(np.array([1.0, 2.0]), np.full(2, 1000.0), np.full(2, 10.0))
    assert fleet.run(coming, 10.0).ended == 0
    served = fleet.run(NOTHING, 30.0, [(20.0, {Role.MIXED: 1})])
    assert (served.ended, served.met) == (2, 0)
    assert 18.0 < served.ttft_s < 19.0


def test_what_fits_no_cache_and_what_is_too_much_is_missed() -> None:
    fleet = FleetReplay(engine(2048), {Role.MIXED: 0}, 0.0)
    huge = Requests(np.array([0.5]), np.array([200_000.0]), np.array([10.0]))
    assert (fleet.run(huge, 1.0).ended, fleet.run(NOTHING, 2.0).ended) == (1, 0)
    many = Requests(np.full(MOST_UNDER_WAY + 7, 2.5), *np.ones((2, MOST_UNDER_WAY + 7)))
    refused = fleet.run(many, 3.0)
    assert (refused.ended, refused.met) == (7, 0)


SHAPE = "diurnal:rate_rps=30,amplitude=0.7,period_s=600,duration_s=1200"
LOAD = f"{SHAPE},input_tokens=900,output_tokens=150,seed=3"


@pytest.mark.parametrize(
    ("pools", "fleet"),
    [({"prefill": {}, "decode": {}}, {"prefill": 1, "decode": 1}), ({"mixed": {}}, {"mixed": 2})],
)
def test_a_fixed_fleet_attains_what_the_simulator_says(
    pools: Mapping[str, object], fleet: Mapping[str, int]
) -> None:
    config = load_config(
        None,
        {
            "engine.profile": "llama-3.1-8b_h100_tp1",
            "slo": {"ttft_ms": 150, "itl_ms": 12},
            "pools": pools,
            "planner.policy": "static",
            **{f"planner.static.{role}": count for role, count in fleet.items()},
        },
    )
    plan = make_plan(config)
    with open_trace(LOAD, TraceOptions()) as trace:
        result = run(plan, make_scenario(plan, trace), trace)
        parts = [(chunk.arrival_s, chunk.input_tokens, chunk.output_tokens) for chunk in trace.chunks()]
    columns = (np.concatenate(column).astype(np.float64) for column in zip(*parts, strict=True))
    assert plan.settings.engine is not None
    own = ReplayEngine.of(plan.profile, plan.settings.slo, plan.settings.engine)
    replayed = FleetReplay(own, {Role(role): count for role, count in fleet.items()}, 0.0)
    served = replayed.run(Requests(*columns), 3000.0)
    assert served.ended == result.tally.requests
    assert result.attainment is not None
    assert 0.3 < result.attainment < 0.9
    assert served.met / served.ended == result.attainment


def test_other_surfaces_are_followed() -> None:
    slow = engine(2048)
    fleet, coming = FleetReplay(slow, {Role.MIXED: 1}, 0.0), requests(100, 30.0)
    fleet.run(coming, 30.0)
    fleet.use(replace(slow, slo=replace(slow.slo, ttft_s=1e-9)))
    later = coming._replace(arrival_s=coming.arrival_s + 30.0)
    assert fleet.run(later, 400.0).met_ttft == 0
