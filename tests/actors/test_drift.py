"""Edits by others: noticed, said, overruled or yielded to, across restarts of the planner."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from actors.connectors.drift import FIGHT, DriftAwareConnector, drift_aware
from actors.connectors.protocol import Action, Editor, PoolCounts, Ready, Refused
from actors.planning.settings import RuntimeSettings
from headway.config import load_config
from headway.planning import Role
from tests.clocks import Clock
from tests.stores import MemoryStore

YIELD_S = 600.0


class Cluster:
    """A connector whose counts others may change, who then sign for it."""

    def __init__(self) -> None:
        self.counts = {Role.PREFILL: 8, Role.DECODE: 8}
        self.writes: list[dict[Role, int]] = []
        self.signed: dict[Role, Editor] = {}
        self.others: list[str] = []
        self.claims: list[bool] = []
        self.reverts: dict[Role, int] = {}

    async def set_targets(self, targets: Mapping[Role, int], reasons: Mapping[str, Any]) -> Action:
        self.writes.append(dict(targets))
        self.counts |= {**targets, **self.reverts}
        return Action(status="sent", detail={"object": "it"})

    async def state(self) -> Mapping[Role, PoolCounts]:
        return {r: PoolCounts(desired=n, starting=0, ready=n, draining=0) for r, n in self.counts.items()}

    async def ready(self) -> Ready:
        return Ready(ok=True)

    async def editors(self, since_s: float) -> Mapping[Role, Editor]:
        return {role: one for role, one in self.signed.items() if (one.at_s or 0) >= since_s}

    async def rivals(self, *, claim: bool) -> list[str]:
        self.claims.append(claim)
        return self.others


class Case:
    """A drift_aware cluster with a clock, a store and settings that may change."""

    def __init__(self, **connector: Any) -> None:
        self.cluster, self.clock, self.store = Cluster(), Clock(), MemoryStore()
        overrides = {"connector.kind": "kubernetes", "connector.yield_s": YIELD_S}
        config = load_config(None, {**overrides, **{f"connector.{k}": v for k, v in connector.items()}})
        self.settings = RuntimeSettings(config, self.store)
        self.guard = self.restarted()

    def restarted(self) -> DriftAwareConnector:
        self.guard = drift_aware(self.cluster, lambda: self.settings.config, self.store, self.clock)
        return self.guard

    def set(self, prefill: int, decode: int) -> Action:
        return asyncio.run(self.guard.set_targets({Role.PREFILL: prefill, Role.DECODE: decode}, {}))

    def look(self) -> list[str]:
        asyncio.run(self.guard.state())
        return self.guard.notes()

    def after(self, seconds: float) -> "Case":
        self.clock.now_s += seconds
        return self


def test_what_was_there_before_the_first_decision_is_nobodys_edit() -> None:
    case = Case()
    assert case.look() == []
    assert case.set(6, 8).status == "sent"
    assert case.after(5).look() == []
    assert case.guard.document() == {}


def test_an_edit_is_said_with_who_and_when_and_overruled() -> None:
    case = Case()
    case.set(6, 8)
    case.cluster.counts[Role.DECODE] = 3
    case.after(60)
    case.cluster.signed[Role.DECODE] = Editor(by="kubectl-edit", at_s=case.clock.now_s - 2)

    (line,) = case.look()
    assert line.startswith("decode: 3, not 8 as set, changed by kubectl-edit at 1970-")
    assert line.endswith("overruled at the next decision")
    (edit,) = case.guard.document()["foreign_edits"]
    assert (edit["role"], edit["found"], edit["ours"], edit["by"]) == ("decode", 3, 8, "kubectl-edit")
    assert edit["changed_at"] == case.clock.now_s - 2

    assert case.after(5).set(6, 9).status == "sent"
    assert case.cluster.counts == {Role.PREFILL: 6, Role.DECODE: 9}
    assert case.look() == []


def test_yielding_leaves_the_count_until_nobody_has_changed_it_for_a_while() -> None:
    case = Case(foreign_edits="yield")
    case.set(6, 8)
    case.cluster.counts[Role.DECODE] = 3
    action = case.set(7, 9)
    assert action.status == "yielded"
    assert list(action.detail["yielded"]) == ["decode"]
    assert case.cluster.counts == {Role.PREFILL: 7, Role.DECODE: 3}
    case.after(YIELD_S - 1).cluster.counts[Role.DECODE] = 4
    assert "left so until" in case.look()[0]
    assert case.after(YIELD_S - 1).set(7, 9).status == "yielded"
    assert case.after(2).set(7, 9).status == "sent"
    assert case.cluster.counts == {Role.PREFILL: 7, Role.DECODE: 9}


def test_a_clock_that_was_set_back_makes_no_yielding_longer() -> None:
    case = Case(foreign_edits="yield")
    case.after(7200).set(6, 8)
    case.cluster.counts[Role.DECODE] = 3
    assert case.set(7, 9).status == "yielded"
    assert case.after(-3600).set(7, 9).status == "sent"


def test_an_operator_resumes_and_agreement_ends_an_edit() -> None:
    case = Case(foreign_edits="yield")
    case.set(6, 8)
    case.cluster.counts[Role.DECODE] = 3
    assert case.set(6, 8).status == "yielded"
    case.settings.update({"connector.foreign_edits": "overrule"})
    assert case.set(6, 8).status == "sent"
    case.settings.update({"connector.foreign_edits": "yield"})
    case.cluster.counts[Role.DECODE] = 5
    assert case.look()
    assert case.set(6, 5).status == "sent"
    assert case.look() == []


def test_a_restarted_planner_knows_its_own_counts_from_those_of_others() -> None:
    case = Case(foreign_edits="yield")
    case.set(6, 8)
    case.cluster.counts[Role.DECODE] = 3
    case.restarted()
    assert case.set(6, 8).status == "yielded"
    case.restarted()
    assert case.after(YIELD_S + 1).set(6, 8).status == "sent"


def test_a_count_that_flips_back_after_each_write_is_a_fight_that_ends() -> None:
    case = Case()
    case.cluster.reverts = {Role.DECODE: 2}
    for _ in range(FIGHT + 1):
        assert case.after(30).set(6, 8).status == "sent"
    case.after(30)
    assert case.set(6, 8).status == "yielded"
    assert f"changed after each of {FIGHT} writes: another controller?" in case.look()[0]
    assert case.cluster.counts[Role.DECODE] == 2
    case.cluster.reverts = {}
    assert case.after(YIELD_S + 1).set(6, 8).status == "sent"
    assert case.after(30).set(6, 8).status == "sent"
    case.cluster.counts[Role.DECODE] = 3
    assert case.look()[0].endswith("overruled at the next decision")


def test_another_controller_is_refused_by_name_and_said_in_a_dry_run() -> None:
    case = Case()
    case.cluster.others = ["HorizontalPodAutoscaler prod/a scales Deployment prod/b too"]
    with pytest.raises(Refused, match="HorizontalPodAutoscaler prod/a"):
        case.set(6, 8)
    assert case.cluster.writes == []
    assert case.guard.document()["rivals"] == case.cluster.others
    case.cluster.others = []
    assert case.set(6, 8).status == "sent"


def test_a_dry_run_claims_nothing_and_begins_anew_when_it_ends() -> None:
    case = Case()
    case.set(6, 8)
    case.settings.update({"planner.dry_run": True})
    case.cluster.counts[Role.DECODE] = 3
    assert case.after(60).look() == []
    assert case.cluster.claims[-1] is False
    case.settings.update({"planner.dry_run": False})
    assert case.after(60).look() == []
    assert case.set(6, 8).status == "sent"
