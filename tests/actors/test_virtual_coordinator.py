"""The coordinator on an event loop without Ray: who is woken, when, and by what."""

import asyncio
from contextlib import suppress

import pytest

from actors.store import InOrder, StoreAway
from actors.virtual_connector.coordinator import VirtualConnectorCoordinator, Waiters
from actors.virtual_connector.ledger import TooManyWaiters, UnknownDecision
from headway.config import HeadwayConfig
from tests.clocks import Clock
from tests.patience import PATIENCE_S, eventually
from tests.stores import FailingStore, GatedStore, MemoryStore

SOON_S = 0.05

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def settings(scaling_timeout_s: float = 1800.0) -> str:
    config = HeadwayConfig.model_validate({"connector": {"scaling_timeout_s": scaling_timeout_s}})
    return config.model_dump_json()


def started(store: MemoryStore | None = None, scaling_timeout_s: float = 1800.0, **options):
    return VirtualConnectorCoordinator(settings(scaling_timeout_s), store or MemoryStore(), **options)


def ask(decode: int) -> tuple[dict[str, int], dict[str, str]]:
    return {"prefill": 1, "decode": decode}, {}


async def waiting(coordinator, count: int) -> None:
    """Until so many calls wait."""
    async with asyncio.timeout(PATIENCE_S):
        while (await coordinator.state())["waiters"] != count:
            await asyncio.sleep(0)


async def test_wait_returns_at_once_when_something_is_not_answered():
    coordinator = started()
    await coordinator.propose(*ask(2))
    assert (await coordinator.next(None, PATIENCE_S))["decision_id"] == 0
    assert (await coordinator.next(-1, PATIENCE_S))["decision_id"] == 0


async def test_wait_ends_with_nothing_after_its_time():
    coordinator = started()
    assert await coordinator.next(None, 0.0) is None
    assert await coordinator.next(None, SOON_S) is None
    assert (await coordinator.state())["waiters"] == 0


async def test_many_waiters_are_woken_by_one_decision():
    coordinator = started()
    calls = [asyncio.create_task(coordinator.next(None, PATIENCE_S)) for _ in range(2_000)]
    await waiting(coordinator, 2_000)
    await coordinator.propose(*ask(2))
    assert {found["decision_id"] for found in await asyncio.gather(*calls)} == {0}
    await waiting(coordinator, 0)


async def test_an_acknowledgement_wakes_nobody():
    coordinator = started()
    await coordinator.propose(*ask(2))
    call = asyncio.create_task(coordinator.next(0, PATIENCE_S))
    await waiting(coordinator, 1)
    await coordinator.complete(0)
    await asyncio.sleep(0)
    assert not call.done()
    await coordinator.propose(*ask(3))
    assert (await call)["decision_id"] == 1


async def test_an_answer_that_frees_the_way_wakes_with_the_wish():
    coordinator = started()
    await coordinator.propose(*ask(2))
    await coordinator.propose(*ask(3))
    call = asyncio.create_task(coordinator.next(0, PATIENCE_S))
    await waiting(coordinator, 1)
    await coordinator.fail(0, "no nodes")
    assert (await call)["targets"]["decode"] == 3


async def test_the_timer_issues_the_wish_without_another_call():
    coordinator = started(scaling_timeout_s=SOON_S)
    await coordinator.propose(*ask(2))
    await coordinator.propose(*ask(3))
    async with asyncio.timeout(PATIENCE_S):
        assert (await coordinator.next(0, PATIENCE_S))["targets"]["decode"] == 3


async def test_a_restart_sets_the_timer_anew():
    store, clock = MemoryStore(), Clock()
    before = started(store, SOON_S, clock=clock)
    await before.propose(*ask(2))
    await before.propose(*ask(3))
    clock.now_s += SOON_S
    after = started(store, SOON_S, clock=clock)
    assert (await after.get())["decision_id"] == 1


async def test_a_store_that_refuses_keeps_the_decision_back_and_the_timer_trying(monkeypatch):
    monkeypatch.setattr("actors.virtual_connector.coordinator.RETRY_S", 0.01)
    store, clock = FailingStore(), Clock()
    coordinator = started(store, SOON_S, clock=clock)
    await coordinator.propose(*ask(2))
    await coordinator.propose(*ask(3))
    call = asyncio.create_task(coordinator.next(0, PATIENCE_S))
    await waiting(coordinator, 1)
    store.fault = ConnectionError("no store")
    clock.now_s += SOON_S
    await eventually(lambda: coordinator.timer_failures >= 2)
    assert not call.done()
    store.fault = None
    assert (await call)["decision_id"] == 1


async def test_while_the_store_is_away_all_is_answered_but_steps_and_what_is_stored_late_counts(monkeypatch):
    monkeypatch.setattr("actors.virtual_connector.coordinator.InOrder", lambda: InOrder(within_s=SOON_S))
    store = GatedStore()
    coordinator = started(store)
    call = asyncio.create_task(coordinator.next(None, PATIENCE_S))
    await waiting(coordinator, 1)
    with pytest.raises(StoreAway):
        await coordinator.propose(*ask(2))
    with pytest.raises(StoreAway):
        await coordinator.propose(*ask(3))
    assert (await coordinator.state())["last_id"] == -1
    store.open.set()
    assert (await call)["targets"]["decode"] == 2, "the second proposal was refused for good"
    while True:
        # On a busy machine its time may be over once more.
        with suppress(StoreAway):
            assert (await coordinator.propose(*ask(2)))["status"] == "unchanged"
            break


async def test_a_waiter_that_is_cancelled_leaves():
    coordinator = started()
    call = asyncio.create_task(coordinator.next(None, PATIENCE_S))
    await waiting(coordinator, 1)
    call.cancel()
    await waiting(coordinator, 0)


async def test_an_after_that_was_never_issued_is_an_error():
    coordinator = started()
    with pytest.raises(UnknownDecision, match="decision 0 was never issued: there is none yet"):
        await coordinator.next(0, PATIENCE_S)
    await coordinator.propose(*ask(2))
    with pytest.raises(UnknownDecision, match="decision 5 was never issued: the newest is 0"):
        await coordinator.next(5, PATIENCE_S)


async def test_no_more_may_wait_than_there_is_room_for():
    waiters = Waiters(most=1)
    first = asyncio.create_task(waiters.until(lambda: None, PATIENCE_S))
    while waiters.count < 1:
        await asyncio.sleep(0)
    with pytest.raises(TooManyWaiters):
        await waiters.until(lambda: None, PATIENCE_S)
    first.cancel()


async def test_state_tells_everything():
    coordinator = started()
    await coordinator.propose(*ask(2))
    await coordinator.propose(*ask(3))
    state = await coordinator.state()
    assert state["decision"]["decision_id"] == state["last_id"] == 0
    assert state["wish"]["targets"] == {"prefill": 1, "decode": 3}
    assert state["pools"]["decode"] == {"desired": 2, "starting": 1, "ready": 1, "draining": 0}
    assert state["free_at_s"] == pytest.approx(state["decision"]["created_at"] + 1800.0)
