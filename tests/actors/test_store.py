"""Stores that are slow or away: nothing waits for them longer than it may, and writes keep their order."""

from contextlib import suppress

import pytest

from actors.store import InOrder, StoreAway
from tests.stores import GatedStore

pytestmark = pytest.mark.anyio


async def test_work_with_a_store_that_is_away_is_left_and_the_loop_goes_on() -> None:
    store, order = GatedStore(), InOrder(within_s=0.05)
    with pytest.raises(StoreAway, match=r"does not answer within 0\.05 s"):
        await order.run(lambda: store.put("a", b"1"))
    with pytest.raises(StoreAway):
        await order.run(lambda: store.put("never", b"2"))
    store.open.set()
    while "b" not in store.order:
        # On a busy machine such a time may be over once more.
        with suppress(StoreAway):
            await order.run(lambda: store.put("b", b"3"))
    assert store.order[:2] == ["a", "b"], "what was under way was written, and before what came after it"
    assert store.get("never") is None


async def test_failures_are_those_of_the_work_or_a_store_that_is_away() -> None:
    def lost() -> None:
        raise ConnectionError("no GCS\nand more")

    def refused() -> None:
        raise ValueError("not so")

    order = InOrder()
    with pytest.raises(StoreAway, match=r"^the store: no GCS$"):
        await order.run(lost)
    with pytest.raises(ValueError, match="not so"):
        await order.run(refused)
    assert await order.run(lambda: 3) == 3
