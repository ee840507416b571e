"""Reports of replica counts to the virtual connector: what was seen holds, silence is unknown, nothing unseen
shrinks.
"""

from typing import Any

import pytest

from actors.connectors.drift import drift_aware
from actors.connectors.protocol import PoolCounts, Refused, Unreachable
from actors.stored import opened, put
from actors.virtual_connector import BadReport, VirtualConnectorCoordinator
from actors.virtual_connector.connector import VirtualConnector
from actors.virtual_connector.coordinator import KEY, KIND, StoredLedger
from headway.config import HeadwayConfig
from headway.planning import Role
from tests.actors.virtual_cases import RULES, new_ledger
from tests.clocks import Clock
from tests.conformance.connector_worlds import LocalActor
from tests.stores import MemoryStore

EIGHT = {"prefill": {"ready": 8}, "decode": {"ready": 8}}

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Fleet:
    """A fleet that others started, behind the connector and its coordinator."""

    def __init__(self, kind: str = "external", **connector: Any) -> None:
        tree = {"engine": {"kind": kind}, "connector": {"kind": "virtual", **connector}}
        self.config = HeadwayConfig.model_validate(tree)
        self.clock, self.store = Clock(), MemoryStore()
        self.shown: dict[str, int] = {}
        self.restart()

    async def engines(self) -> dict[str, int]:
        """As `MetricCollector.engines`."""
        return self.shown

    def restart(self) -> None:
        self.outside = VirtualConnectorCoordinator(self.config.model_dump_json(), self.store, self.clock)
        self.connector = VirtualConnector(self.config, LocalActor(self.outside), LocalActor(self), self.clock)

    async def set(self, prefill: int, decode: int) -> str:
        action = await self.connector.set_targets({Role.PREFILL: prefill, Role.DECODE: decode}, {})
        return action.status

    async def decode(self) -> PoolCounts:
        return (await self.connector.state())[Role.DECODE]


def pool(desired: int, starting: int, ready: int, draining: int) -> PoolCounts:
    return PoolCounts(desired=desired, starting=starting, ready=ready, draining=draining)


async def test_before_the_first_report_nothing_is_known_and_nothing_is_asked_for():
    fleet = Fleet()
    ready = await fleet.connector.ready()
    assert not ready.ok
    assert "decode: nobody has reported its replicas yet" in ready.reason
    assert "POST /v1/scaling/report" in ready.reason
    with pytest.raises(Unreachable, match="nobody has reported"):
        await fleet.connector.state()
    with pytest.raises(Refused, match=r"targets\.prefill: 2 is refused: nobody has reported"):
        await fleet.set(2, 3)
    assert await fleet.outside.get() is None

    await fleet.outside.report(EIGHT)
    assert (await fleet.connector.ready()).ok
    assert await fleet.decode() == pool(8, 0, 8, 0)
    assert await fleet.set(7, 8) == "sent"


async def test_what_metrics_show_is_enough_to_plan_from_but_not_to_act_upon():
    fleet = Fleet(report_max_age_s=60)
    guard = drift_aware(fleet.connector, lambda: fleet.config, fleet.store, fleet.clock)
    fleet.shown = {"prefill": 3}
    with pytest.raises(Unreachable, match=r"^decode: nobody has reported [^;]*, and metrics show no engine"):
        await fleet.connector.state()
    fleet.shown = {"prefill": 3, "decode": 5}
    assert (await fleet.connector.ready()).ok
    assert await fleet.connector.state() == {Role.PREFILL: pool(3, 0, 3, 0), Role.DECODE: pool(5, 0, 5, 0)}
    with pytest.raises(Refused, match=r"targets\.prefill: 4 is refused: nobody has reported .*POST /v1/sca"):
        await fleet.set(4, 6)
    # A report stands above it, for as long as it is fresh.
    await fleet.outside.report({"prefill": {"ready": 3}, "decode": {"desired": 7, "ready": 5}})
    assert await fleet.decode() == pool(7, 2, 5, 0)
    assert (await guard.set_targets({Role.PREFILL: 3, Role.DECODE: 7}, {})).status == "sent"
    await fleet.outside.complete(0)
    fleet.clock.now_s += 61
    await guard.state()
    assert await fleet.decode() == pool(5, 0, 5, 0)
    assert guard.notes() == []
    with pytest.raises(Refused, match=r"targets\.decode: 6 is refused: nobody has reported .* for 61 s"):
        await fleet.set(3, 6)
    assert await fleet.set(3, 8) == "sent"


async def test_reports_that_metrics_contradict_for_long_are_named_and_keep_nothing_from_being_set():
    fleet = Fleet()
    guard = drift_aware(fleet.connector, lambda: fleet.config, fleet.store, fleet.clock)
    fleet.shown = {"prefill": 8, "decode": 8}

    async def said(seconds: int, **ready: int) -> list[str]:
        for _ in range(seconds):
            fleet.clock.now_s += 1
            await fleet.outside.report({role: {"ready": count} for role, count in ready.items()})
            await guard.state()
        return guard.document().get("rivals", [])

    assert await said(90, prefill=8, decode=8) == []
    # Two engines that start are in the metrics before they are reported.
    fleet.shown = {"prefill": 8, "decode": 10}
    assert await said(50, prefill=8, decode=8) == []
    assert await said(90, prefill=8, decode=10) == []
    assert await said(90, prefill=0, decode=9) == [
        "8 prefill engines in the metrics, 0 ready by the reports",
        "10 decode engines in the metrics, 9 ready by the reports",
    ]
    assert (await guard.set_targets({Role.PREFILL: 3, Role.DECODE: 7}, {})).status == "sent"
    fleet.shown = {}
    assert await said(20, prefill=0, decode=9) == []


async def test_counts_are_what_was_reported_or_answered_last():
    fleet = Fleet()
    await fleet.outside.report(
        {"prefill": {"ready": 2}, "decode": {"ready": 5, "starting": 2, "draining": 1}}
    )
    assert await fleet.decode() == pool(7, 2, 5, 1)
    await fleet.set(2, 4)
    assert await fleet.decode() == pool(4, 0, 4, 2)
    await fleet.outside.report({"decode": {"desired": 4, "ready": 4, "draining": 3}})
    assert await fleet.decode() == pool(4, 0, 4, 3)
    fleet.clock.now_s += 5
    await fleet.outside.complete(0)
    assert await fleet.decode() == pool(4, 0, 4, 0)
    fleet.clock.now_s += 5
    await fleet.outside.report({"decode": {"desired": 4, "ready": 3, "starting": 1}})
    assert await fleet.decode() == pool(4, 1, 3, 0)


async def test_silence_is_unknown_and_does_not_shrink_but_may_grow():
    fleet = Fleet(report_max_age_s=60)
    await fleet.outside.report(EIGHT)
    fleet.clock.now_s += 61
    with pytest.raises(Unreachable, match=r"decode: nobody has reported its replicas for 61 s"):
        await fleet.connector.state()
    with pytest.raises(Refused, match=r"targets.decode: 7 is refused: nobody has reported its replicas for"):
        await fleet.set(8, 7)
    assert await fleet.set(8, 9) == "sent"
    fleet.restart()
    with pytest.raises(Refused, match="for 61 s"):
        await fleet.set(8, 7)
    await fleet.outside.report(EIGHT)
    assert (await fleet.connector.state())[Role.PREFILL].ready == 8


async def test_a_wish_that_would_shrink_the_unseen_waits_for_a_report():
    fleet = Fleet(report_max_age_s=60, scaling_timeout_s=100)
    await fleet.outside.report(EIGHT)
    await fleet.set(8, 9)
    assert await fleet.set(8, 5) == "pending"
    fleet.clock.now_s += 101
    assert (await fleet.outside.get())["targets"] == {"prefill": 8, "decode": 9}
    await fleet.outside.report({"prefill": {"ready": 8}, "decode": {"ready": 9}})
    assert (await fleet.outside.get())["targets"] == {"prefill": 8, "decode": 5}


async def test_engines_of_our_own_start_at_their_minimum_and_answers_are_enough():
    fleet = Fleet(kind="simulated")
    assert await fleet.decode() == pool(1, 0, 1, 0)
    await fleet.set(1, 3)
    await fleet.outside.complete(0)
    fleet.clock.now_s += 10_000
    assert await fleet.decode() == pool(3, 0, 3, 0)
    await fleet.outside.report({"decode": {"ready": 3}})
    fleet.clock.now_s += 10_000
    with pytest.raises(Unreachable, match="decode: nobody"):
        await fleet.connector.state()


async def test_a_desired_count_that_others_set_is_an_edit_and_is_overruled_or_left():
    fleet = Fleet()
    guard = drift_aware(fleet.connector, lambda: fleet.config, fleet.store, fleet.clock)
    await fleet.outside.report(EIGHT)
    await guard.set_targets({Role.PREFILL: 6, Role.DECODE: 8}, {})
    await guard.state()
    assert guard.notes() == []
    await fleet.outside.complete(0)
    fleet.clock.now_s += 5
    await fleet.outside.report({"prefill": {"ready": 6}, "decode": {"ready": 3}})
    await guard.state()
    assert guard.notes()[0].startswith("decode: 3, not 8 as set, changed by others")
    # A role that is left out keeps what others made of it.
    await fleet.connector.set_targets({Role.PREFILL: 7}, {})
    assert (await fleet.outside.get())["targets"] == {"prefill": 7, "decode": 3}
    await fleet.outside.complete(1)
    await fleet.outside.report({"prefill": {"ready": 6}, "decode": {"ready": 3}})
    assert (await fleet.connector.set_targets({Role.PREFILL: 7, Role.DECODE: 3}, {})).status == "sent"


@pytest.mark.parametrize(
    ("pools", "line"),
    [
        ({"mixed": {"ready": 1}}, "pools: there is no mixed pool; the pools are prefill, decode"),
        ({"decode": {"desired": 1}}, "pools.decode.ready: needed"),
        ({"decode": 3}, "pools.decode.ready: needed"),
        ({"decode": {"ready": -1}}, "pools.decode.ready: -1 is no replica count"),
        ({"decode": {"ready": 999_999}}, "pools.decode.ready: 999999 is no replica count"),
        ({"decode": {"ready": True}}, "pools.decode.ready: True is no replica count"),
        ({"decode": {"ready": 1, "redy": 1}}, "pools.decode.redy: unknown; the counts are desired, starting"),
    ],
)
async def test_a_wrong_report_is_one_line_and_changes_nothing(pools: dict[str, Any], line: str):
    fleet = Fleet()
    with pytest.raises(BadReport, match=line):
        await fleet.outside.report(pools)
    assert "nobody has reported" in (await fleet.connector.ready()).reason


def test_a_ledger_from_before_reports_is_read():
    store = MemoryStore()
    kept = new_ledger(store)
    kept.propose({"decode": 3}, {})
    document = opened(KIND, KEY, store.get(KEY) or b"")
    del document["reports"], document["begun_after"]
    put(store, KIND, KEY, document)
    again = StoredLedger(store, RULES, Clock())
    assert again.ledger == kept.ledger
