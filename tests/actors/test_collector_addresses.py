"""Addresses are shown without credentials, also those that are none."""

import asyncio

import pytest

from actors.collector.gateway_source import GatewaySource
from actors.collector.presets import PRESETS
from actors.collector.tracker import Tracker
from actors.store import MemoryStore


@pytest.mark.parametrize("address", ["http://user:s3cret@127.0.0.1:1x", "user:s3cret@127.0.0.1:1"])
def test_an_address_that_is_none_does_not_show_its_password(address: str) -> None:
    async def detail() -> str:
        tracker = Tracker(PRESETS["headway"], "m", 1.0)
        source = GatewaySource(tracker, lambda: address, MemoryStore(), timeout_s=1.0, clock=lambda: 1.0)
        health = await source.probe()
        await source.close()
        return health.detail

    said = asyncio.run(detail())
    assert "is not an http address" in said
    assert "127.0.0.1:1" in said
    assert "s3cret" not in said
