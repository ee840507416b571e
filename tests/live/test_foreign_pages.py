"""A real Chromium: pages of other origins change nothing, and under another name nothing is read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.gateway.serving import get
from tests.live.conftest import CHROMIUM
from tests.live.standing import StandingPlane, standing
from tests.patience import PATIENCE_S

NAME = "evil.test"
SENDS = """async ([url, method, mode, type]) => {
    const body = '{"planner.dry_run": false}'
    const sent = {method, mode, headers: {'content-type': type}, body};
    try { return (await fetch(url, sent)).status } catch (error) { return String(error) }
}"""


@dataclass
class Changed(StandingPlane):
    """Notes what it is asked to change."""

    updates: list[Mapping[str, Any]] = field(default_factory=list)

    async def status(self) -> Mapping[str, Any]:
        return {}

    async def update_settings(self, changes: Mapping[str, Any], by: str) -> Mapping[str, Any]:
        self.updates.append(changes)
        return changes


@pytest.fixture(scope="module")
def led() -> Iterator[Browser]:
    """A browser for which another's name leads to this machine."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", f"--host-resolver-rules=MAP {NAME} 127.0.0.1"],
            timeout=1000 * PATIENCE_S,
        )
        yield found
        found.close()


@pytest.fixture
def page(led: Browser) -> Iterator[Page]:
    context = led.new_context()
    yield context.new_page()
    context.close()


def test_pages_of_other_origins_change_no_setting(page: Page):
    plane = Changed()
    with standing(plane) as url, standing(Changed()) as elsewhere:
        page.goto(elsewhere)
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            page.evaluate(SENDS, [f"{url}/v1/control/settings", "POST", "no-cors", kind])
        failed = page.evaluate(SENDS, [f"{url}/v1/control/settings", "PATCH", "cors", "application/json"])
        assert "Failed to fetch" in failed
        assert not plane.updates
        page.goto(url)
        own = page.evaluate(
            """async url => (await fetch(url, {method: 'PATCH', body: '{"planner.dry_run": true}',
                headers: {'content-type': 'application/json'}})).status""",
            f"{url}/v1/control/settings",
        )
        assert own == 200
        assert plane.updates == [{"planner.dry_run": True}]


def test_under_another_name_nothing_is_read_and_nothing_changed(page: Page):
    plane = Changed()
    with standing(plane) as url:
        port = url.rpartition(":")[2]
        page.goto(f"http://{NAME}:{port}/health")
        for method, path in (("GET", "status"), ("PATCH", "settings")):
            status = page.evaluate(
                """async ([path, method]) => (await fetch(path, {method, body: method == 'GET' ? null : '{}',
                    headers: {'content-type': 'application/json'}})).status""",
                [f"/v1/control/{path}", method],
            )
            assert status == 403
        assert not plane.updates
        assert get(f"{url}/v1/control/status").status_code == 200
