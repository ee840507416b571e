"""Hosts that are cut off, lost and back, from what is seen of them."""

from typing import Any

import pytest
from ray.core.generated.common_pb2 import ActorDeathCause, ActorDiedErrorContext

from actors.planning.host_faults import BACK_S, ORDERLY, HostFaults, SeenHost, parts, restarts
from headway.planning.documents import RestartFigures

HEAD = SeenHost(node="h", address="10.0.0.1", alive=True, answers=True, ran=("Planner",))
WELL = SeenHost(node="d", address="10.0.0.2", alive=True, answers=True, ran=("Decode#1",))
SILENT = SeenHost(node="d", address="10.0.0.2", alive=True, answers=False)
DEAD = SeenHost(node="d", address="10.0.0.2", alive=False, answers=False)


def seen(*hosts: SeenHost) -> HostFaults:
    """After looks at seconds 0, 1, 2 and so on."""
    faults = HostFaults()
    for now_s, host in enumerate(hosts):
        faults.see(float(now_s), [HEAD, host])
    return faults


def told(faults: HostFaults) -> list[tuple[str, str, float, float | None, tuple[str, ...]]]:
    return [(each.address, each.state, each.since_s, each.back_s, each.ran) for each in faults.now()]


def test_one_probe_that_fails_is_no_fault() -> None:
    assert told(seen(WELL, SILENT)) == []
    assert told(seen(WELL, SILENT, WELL, SILENT)) == []


def test_a_cut_is_named_since_its_first_probe_with_what_ran_there() -> None:
    cut = seen(WELL, WELL, SILENT, SILENT, SILENT)
    assert told(cut) == [("10.0.0.2", "unreachable", 2.0, None, ("Decode#1",))]
    assert told(seen(WELL, SILENT, SILENT, WELL)) == [("10.0.0.2", "back", 1.0, 3.0, ("Decode#1",))]


def test_a_host_that_ray_gave_up_is_lost_until_another_node_has_its_address() -> None:
    faults = seen(WELL, SILENT, SILENT, DEAD)
    assert told(faults) == [("10.0.0.2", "lost", 1.0, None, ("Decode#1",))]
    again = SeenHost(node="e", address="10.0.0.2", alive=True, answers=True, ran=("Decode#2",))
    faults.see(4.0, [HEAD, DEAD, again])
    assert told(faults) == [("10.0.0.2", "back", 1.0, 4.0, ("Decode#1",))]
    faults.see(4.0 + BACK_S + 1.0, [HEAD, DEAD, again])
    assert told(faults) == []


def test_a_second_cut_is_a_fault_of_its_own() -> None:
    faults = seen(WELL, SILENT, SILENT, WELL, SILENT, SILENT)
    assert told(faults) == [("10.0.0.2", "unreachable", 4.0, None, ("Decode#1",))]


def test_a_host_that_was_stopped_in_order_or_was_dead_before_is_no_fault() -> None:
    stopped = SeenHost(node="d", address="10.0.0.2", alive=False, answers=False, orderly=True)
    assert told(seen(WELL, stopped)) == []
    assert told(seen(WELL, SILENT, SILENT, stopped)) == []
    assert told(seen(DEAD, DEAD, DEAD)) == []


def test_the_reasons_of_an_orderly_end_are_rays() -> None:
    from ray.core.generated.common_pb2 import NodeDeathInfo

    reasons = {number: name for name, number in NodeDeathInfo.Reason.items()}
    assert {reasons[number] for number in ORDERLY} == set(reasons.values()) - {
        "UNSPECIFIED",
        "UNEXPECTED_TERMINATION",
    }


def row(
    name: str, state: str = "ALIVE", times: int = 0, at: float = 0.0, reason: str = "", began: float = 0.0
) -> dict[str, Any]:
    cause = ActorDeathCause()
    if reason:
        cause.actor_died_error_context.reason = ActorDiedErrorContext.Reason.Value(reason)
    moments = {"StartTime": 1e3 * began, "Timestamp": 1e3 * at, "EndTime": 1e3 * at}
    return {"Name": name, "State": state, "NumRestarts": times, "DeathCause": cause, **moments}


def replica(of: str, at: float, reason: str, app: str = "headway") -> dict[str, Any]:
    return row(f"SERVE_REPLICA::{app}#{of}#x{at:g}", "DEAD", at=at, reason=reason)


def test_actors_that_came_back_and_replicas_that_were_lost_are_counted() -> None:
    found = restarts(
        [
            row("Planner", times=2, at=50.0),
            row("Router:m", times=1, at=60.0),
            row("Interpolator"),
            replica("Gateway", 30.0, "WORKER_DIED"),
            replica("Gateway", 20.0, "NODE_DIED"),
        ],
        "headway",
    )
    assert found == {
        "Planner": RestartFigures(count=2, at=50.0),
        "Router:m": RestartFigures(count=1, at=60.0),
        "Gateway": RestartFigures(count=2, at=30.0),
    }


@pytest.mark.parametrize(("began", "planner_came_back"), [(40.0, True), (60.0, False)])
def test_what_came_back_before_a_deployment_was_added_is_not_told_of_it(
    began: float, planner_came_back: bool
) -> None:
    rows = [
        row("Planner", times=1, at=50.0),
        replica("Gateway", 30.0, "WORKER_DIED", app="models"),
        row("SERVE_REPLICA::chat#Mixed#1", began=began),
        row("SERVE_REPLICA::chat#Mixed#2", "PENDING_CREATION"),
        replica("Mixed", 70.0, "WORKER_DIED", app="chat"),
    ]
    planner = {"Planner": RestartFigures(count=1, at=50.0)} if planner_came_back else {}
    assert restarts(rows, "chat", "models") == {**planner, "Mixed": RestartFigures(count=1, at=70.0)}


def test_what_ended_in_an_orderly_way_or_is_not_ours_is_none() -> None:
    assert not restarts(
        [
            # Replaced by an actor with other settings, and one that is not back yet.
            row("Planner", "DEAD", times=2, reason="RAY_KILL"),
            row("Predictor", "RESTARTING", times=1),
            row("Somebody", times=3),
            replica("Decode", 30.0, "RAY_KILL"),
            replica("Decode", 30.0, ""),
            replica("Decode", 30.0, "WORKER_DIED", app="other"),
        ],
        "headway",
    )


def test_the_parts_that_have_to_answer_are_actors_gateways_and_who_keeps_them() -> None:
    named = {
        "Planner": "ALIVE",
        "Predictor": "RESTARTING",
        "Router:m": "ALIVE",
        "SERVE_REPLICA::headway#Gateway#g1": "ALIVE",
        "SERVE_REPLICA::other#Gateway#g2": "ALIVE",
        "SERVE_REPLICA::headway#Decode#d1": "ALIVE",
        "SERVE_REPLICA::headway#ControlPlane#c1": "ALIVE",
        "SERVE_CONTROLLER_ACTOR": "ALIVE",
    }
    rows = [{"Name": name, "State": state} for name, state in named.items()]
    assert parts(rows, "headway") == {"Planner", "Router:m", "Gateway#g1", "ControlPlane#c1"}
