"""A planner over a fleet that others started and edit: its decisions start from what stands there."""

import asyncio
from collections.abc import Callable
from typing import Any

from actors.connectors.drift import drift_aware
from headway.planning import Role
from tests.actors.planner_cases import Deployment, ScriptedPools, clock, settings
from tests.engines.virtual_loop import on_virtual_time
from tests.engines.virtual_loop import run as in_virtual_time
from tests.stores import MemoryStore


async def at_once(function: Callable[..., None], *args: Any) -> None:
    function(*args)


def adopted(**overrides: Any) -> tuple[Deployment, ScriptedPools]:
    """A planner that attaches to 8 + 8 replicas, and the fleet."""
    config, store = (
        settings(pools__prefill__max_replicas=16, pools__decode__max_replicas=16, **overrides),
        MemoryStore(),
    )
    fleet = ScriptedPools(counts={Role.PREFILL: 8, Role.DECODE: 8})
    made: list[Deployment] = []

    def in_force():
        return made[0].settings.config if made else config

    made.append(Deployment(config, store, pools=drift_aware(fleet, in_force, store, clock, at_once)))
    return made[0], fleet


def test_the_first_decision_starts_from_what_stands_there():
    for policy in ("reference", "headway"):
        deployment, fleet = adopted(planner__policy=policy)
        in_virtual_time(deployment.run_for(12))
        first = deployment.records()[0]
        assert first["previous_targets"] == {"prefill": 8, "decode": 8}
        assert {role: pool["ready"] for role, pool in first["pools"].items()} == {"prefill": 8, "decode": 8}
        assert first["reasons"]["inputs"]["pools"]["decode"]["desired"] == 8
        assert "8" in first["summary"]
        # Nothing was set before it.
        assert len(fleet.calls) == 1


@on_virtual_time
async def test_an_edit_is_in_the_next_decision_and_in_the_status_and_is_overruled():
    deployment, fleet = adopted()
    async with deployment.running():
        await asyncio.sleep(12)
        fleet.counts = {**fleet.counts, Role.DECODE: 7}
        await asyncio.sleep(5)
        status = deployment.status()
        await asyncio.sleep(5)
    first, second = deployment.records()[:2]
    (edit,) = status["connector"]["foreign_edits"]
    ours = first["targets"]["decode"]
    assert (edit["role"], edit["found"], edit["ours"], edit["left_until"]) == ("decode", 7, ours, None)
    assert "foreign_edits" not in first["reasons"]
    assert second["reasons"]["foreign_edits"] == [edit]
    assert second["notes"][0].startswith(f"decode: 7, not {ours} as set, changed by others at ")
    assert second["connector"]["status"] == "sent"
    assert fleet.counts[Role.DECODE] == second["targets"]["decode"]
