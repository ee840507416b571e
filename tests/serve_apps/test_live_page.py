"""The stream of the live page, and the columns that it sends, without a browser."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headway.planning.record_figures import history
from serve_apps import live_page
from serve_apps.access import needs
from serve_apps.control_metrics import StatusFeed
from serve_apps.live_page import LivePage, gateway_view, page
from serve_apps.routed.metrics import RoutingCounts
from tests.live.standing import INTERVAL_S, StandingPlane, fleet, record
from tests.patience import PATIENCE_S


def plane(count: int) -> StandingPlane:
    begins_s = time.time() - count * INTERVAL_S
    return StandingPlane(records=[record(place, begins_s + place * INTERVAL_S) for place in range(count)])


def events(text: str) -> tuple[str, Any]:
    name, data = text.removesuffix("\n\n").split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def taken(stream: AsyncIterator[str], count: int) -> list[tuple[str, Any]]:
    return [events(await anext(stream)) for _ in range(count)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "PERIOD_S", 0.01)
    monkeypatch.setattr("serve_apps.control_metrics.WAIT_S", PATIENCE_S)


def live(shown: StandingPlane) -> LivePage:
    view = gateway_view(fleet(3), {"chat": (9.0, 1.0)}, {"ok": 9, "shed": 2}, {"queued": 4})
    return LivePage(shown, StatusFeed(shown.status), lambda: view)


def test_a_reader_gets_everything_kept_and_then_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_apps.control_metrics.FRESH_S", 0.0)

    async def read() -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
        shown = plane(30)
        stream = live(shown).events()
        first = await taken(stream, 2)
        shown.records.append(record(30, time.time()))
        later: list[tuple[str, Any]] = []
        while not any(name == "history" for name, _ in later):
            later += await taken(stream, 1)
        return first, later

    first, later = asyncio.run(read())
    assert [name for name, _ in first] == ["history", "status"]
    assert first[0][1]["id"] == list(range(30))
    status = first[1][1]
    assert [each["replica"] for each in status["replicas"]] == ["r0000", "r0001", "r0002"]
    assert status["classes"] == {"chat": {"met": 9.0, "missed": 1.0}}
    assert status["verdict"]["state"] == "keeping"
    # The last few come again: they may have been reached meanwhile.
    assert later[-1][1]["id"] == list(range(25, 31))


def test_what_the_router_cannot_say_yet_is_left_out() -> None:
    prediction = {("ttft", "pairs"): 0.0, ("ttft", "error"): float("nan")}
    seen = RoutingCounts(queued=2, figures={"prediction": prediction}).seen()
    assert seen["predictions"] == {"ttft pairs": 0.0}
    assert events(live_page.event("status", seen))[1]["queued"] == 2
    assert events(live_page.event("status", {"kv": [float("nan"), 1.0]})) == ("status", {"kv": [None, 1.0]})


def test_streams_end_with_the_server_and_there_are_not_too_many() -> None:
    async def end() -> list[str]:
        page = live(plane(3))
        stream = page.events()
        await anext(stream)
        page.end()
        return [text async for text in stream]

    assert len(asyncio.run(asyncio.wait_for(end(), PATIENCE_S))) <= 1

    async def crowd() -> int:
        (follow,) = (each.endpoint for each in live(plane(3)).routes() if each.path == "/v1/control/live")
        readers = [(await follow(None)).body_iterator for _ in range(live_page.MOST_READERS)]
        for reader in readers:
            await anext(reader)
        status: int = (await follow(None)).status_code
        for reader in readers:
            await reader.aclose()
        assert (await follow(None)).status_code == 200
        return status

    assert asyncio.run(crowd()) == 503


def test_columns_are_equally_long_and_unknown_is_null() -> None:
    odd = record(2, 90.0, pools={"mixed": {"ready": 3}}, targets={"mixed": 4}, previous_targets={})
    columns = history([record(1, 60.0), odd])
    lists = [each for name, each in columns.items() if name != "pools"]
    lists += [each for pool in columns["pools"].values() for each in pool.values()]
    assert {len(each) for each in lists} == {2}
    assert columns["pools"]["mixed"]["ready"] == [None, 3]
    assert columns["pools"]["decode"]["target"][1] is None
    assert columns["classes"]["batch"]["ttft_p95"] == [pytest.approx(0.374)] * 2
    json.dumps(columns, allow_nan=False)
    assert history([])["id"] == []


def test_the_page_is_open_and_what_it_shows_is_not() -> None:
    assert needs("GET", "/") is None
    assert needs("GET", "/v1/control/live") is not None
    text, policy = page()
    assert "/*SCRIPT*/" not in text
    assert "default-src 'none'" in policy
    assert "http" not in text.replace("http-equiv", "")
