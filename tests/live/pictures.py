"""The pictures of docs/live-page.md and of a comparison: `python -m tests.live.pictures` (needs chromium)."""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, sync_playwright

from headway_cli.app import run
from tests.live.conftest import CHROMIUM
from tests.live.standing import INTERVAL_S, StandingPlane, decided, record, standing

IMAGES = Path(__file__).parents[2] / "docs" / "img"
KEPT = 960
SETTLED_S = 2.0
PICTURES = (
    # name, newest decision, replicas, width, height, colours, story
    ("live-rest", 1500, 12, 1360, 900, "light", False),
    ("live-burning", 1770, 12, 1360, 900, "dark", True),
    ("live-thousand", 1680, 1000, 1360, 900, "light", False),
    ("live-phone", 1500, 12, 390, 844, "light", False),
)

WAVE = "diurnal:rate_rps=40,amplitude=0.7,period_s=7200,duration_s=7200"
LOAD = f"{WAVE},input_tokens=3000,output_tokens=200,seed=1"
POLICIES = "headway,reference,threshold,static:auto"
COMPARED = ("compare", LOAD, "--ttft-ms", "500", "--itl-ms", "20", "--policies", POLICIES, "--static-sweep")


def main() -> None:
    """Write them all."""
    assert CHROMIUM is not None, "needs chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for picture in PICTURES:
            draw(browser, *picture)
            sys.stdout.write(f"docs/img/{picture[0]}.png\n")
        draw_comparison(browser)
        sys.stdout.write("docs/img/compare.png\n")
        browser.close()


def draw(
    browser: Browser, name: str, last: int, replicas: int, width: int, height: int, colours: str, story: bool
) -> None:
    """One picture of a fleet whose newest decision is `last`."""
    now_s = time.time()
    numbers = range(last - KEPT + 1, last + 1)
    times = max(1, round(replicas / sum(decided(last).values())))
    records = [record(number, now_s - 3.0 - (last - number) * INTERVAL_S, times) for number in numbers]
    with standing(StandingPlane(records=records, times=times), times * sum(decided(last).values())) as url:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if colours == "dark" else "light",
        )
        page = context.new_page()
        page.goto(url)
        page.locator("#tiles .tile").first.wait_for()
        if story:
            page.locator("#list tr").nth(1).click()
            page.evaluate("scrollTo(0, 0)")
        time.sleep(SETTLED_S)
        page.screenshot(path=IMAGES / f"{name}.png", full_page=name == "live-thousand")
        context.close()


def draw_comparison(browser: Browser) -> None:
    """The upper part of the page of a comparison of policies on generated load."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "compared.html"
        assert run([*COMPARED, "--jobs", "1", "--report", str(file)]) == 0
        page = browser.new_page(viewport={"width": 1280, "height": 1500})
        page.goto(file.as_uri())
        page.locator(".charts").nth(1).locator("svg[role] text").first.wait_for()
        time.sleep(SETTLED_S)
        page.screenshot(path=IMAGES / "compare.png")
        page.close()


if __name__ == "__main__":
    main()
