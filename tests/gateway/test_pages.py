"""Pages of metrics are shared by those who ask while the last one is paid for."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.responses import Response

from serve_apps.gateway.app import Pages
from tests.patience import PATIENCE_S
from tests.scenarios import scenarios

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Counted:
    """Counts the pages that are made; each is made when it may go on."""

    def __init__(self) -> None:
        self.made = 0
        self.go = asyncio.Event()
        self.pages = Pages(self._page)

    async def _page(self, accept: str) -> Response:
        self.made += 1
        number = self.made
        await self.go.wait()
        if accept == "broken":
            raise OSError("no page")
        return Response(f"{number} {accept}")


def play(scenario: Callable[[Counted], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario(Counted())

    asyncio.run(bounded())


in_world = scenarios(play)()


@in_world
async def test_a_page_is_for_all_who_ask_before_it_is_begun_and_for_nobody_later(counted: Counted, /):
    early = [asyncio.create_task(counted.pages.page("")) for _ in range(100)]
    while not counted.made:
        await asyncio.sleep(0)
    late = [asyncio.create_task(counted.pages.page("")) for _ in range(100)]
    counted.go.set()
    assert {bytes(page.body) for page in await asyncio.gather(*early)} == {b"1 "}
    assert {bytes(page.body) for page in await asyncio.gather(*late)} == {b"2 "}


@in_world
async def test_each_form_has_its_own_page(counted: Counted, /):
    counted.go.set()
    asked = ["", OPENMETRICS, "text/plain", OPENMETRICS]
    pages = await asyncio.gather(*map(counted.pages.page, asked))
    assert [bytes(page.body) for page in pages] == [
        b"1 ",
        f"2 {OPENMETRICS}".encode(),
        b"1 ",
        f"2 {OPENMETRICS}".encode(),
    ]


@in_world
async def test_one_who_goes_away_takes_no_page_from_others_and_a_fault_is_everybodys(counted: Counted, /):
    gone, *others = [asyncio.create_task(counted.pages.page("broken")) for _ in range(3)]
    await asyncio.sleep(0)
    gone.cancel()
    counted.go.set()
    for other in others:
        with pytest.raises(OSError, match="no page"):
            await other
    assert counted.made == 1
