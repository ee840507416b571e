"""Report pages in a real Chromium: drawn without an error, and what stands there equals the result file."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from headway.words import percent
from headway_cli.app import run
from tests.patience import PATIENCE_S

LOAD = "diurnal:rate_rps=20,amplitude=0.6,duration_s=600,input_tokens=900,output_tokens=80,seed=5"
POLICIES = ("--policies", "reference,static:prefill=3:decode=3", "--jobs", "1")
DRAWN = (
    "[...document.querySelectorAll('.charts')].map((host) => host.figure.panels.flatMap((panel) =>"
    " panel.spec.series.map((one) => [one.name, one.x, one.y])))"
)
"""Name, x and y of every series of every figure."""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of a comparison, and its page beside it."""
    result = tmp_path_factory.mktemp("compared") / "compared.json"
    page_file = result.with_suffix(".html")
    assert run(["compare", LOAD, *POLICIES, "--json", str(result), "--report", str(page_file)]) == 0
    return result


@pytest.fixture(params=[1280, pytest.param(390, marks=pytest.mark.slow)])
def page(request: pytest.FixtureRequest, browser: Browser, compared: Path) -> Iterator[Page]:
    """The page in a wide and a narrow window; it must not ask for anything, nor complain."""
    page = browser.new_page(viewport={"width": request.param, "height": 900})
    page.set_default_timeout(1000 * PATIENCE_S)
    troubles: list[str] = []
    asked: list[str] = []
    page.on("console", lambda said: troubles.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(compared.with_suffix(".html").as_uri())
    page.locator(".charts").nth(1).locator("svg[role] text").first.wait_for()
    yield page
    assert troubles == []
    assert [url for url in asked if not url.startswith(("file:", "blob:", "data:"))] == []
    page.close()


def test_what_stands_there_is_the_result(page: Page, compared: Path) -> None:
    document = json.loads(compared.read_text())
    texts = page.locator(".figures tbody tr").all_inner_texts()
    for row, text in zip(document["policies"], texts, strict=True):
        cells = text.split("\t")
        assert cells[0] == row["label"]
        assert cells[2] == percent(row["attainment"])
        assert cells[4] == f"{row['gpu_hours']:.4g}"
    drawn = page.evaluate(DRAWN)
    points = {name: (x, y) for name, x, y in drawn[0]}
    spent = {name: y for name, _, y in drawn[1]}
    for row in document["policies"]:
        (hours,), (missed,) = points[row["label"]]
        assert hours == pytest.approx(row["gpu_hours"])
        assert missed == pytest.approx(max(1e-4, 1.0 - row["attainment"]))
        assert max(spent[row["label"]]) == pytest.approx(row["gpu_hours"], rel=1e-6)
    assert page.locator("body").evaluate("body => body.scrollWidth - window.innerWidth") <= 0


def test_legends_hide_and_a_cursor_tells_values(page: Page) -> None:
    figure = page.locator(".charts").nth(1)
    lines = figure.locator("svg[role] g.drawn path")
    before = lines.count()
    name = figure.locator(".legend.top button").first
    name.click()
    # One policy has a line in each of six panels.
    assert before - lines.count() == 6
    assert name.get_attribute("aria-pressed") == "false"
    name.click()
    assert lines.count() == before
    figure.locator("svg[role]").first.focus()
    page.keyboard.press("End")
    assert "arrivals" in figure.locator(".tip").inner_text()
    page.keyboard.press("Escape")
    assert not figure.locator(".tip").is_visible()


def test_dragging_zooms_all_panels(page: Page) -> None:
    figure = page.locator(".charts").nth(1)
    picture = figure.locator("svg[role]").first
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    assert box is not None
    shown = "charts => charts.figure.panels.map((panel) => [panel.x.low, panel.x.high])"
    whole = figure.evaluate(shown)
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 62, steps=3)
    page.mouse.up()
    spans = figure.evaluate(shown)
    assert len({tuple(span) for span in spans}) == 1
    assert whole[0][0] < spans[0][0] < spans[0][1] < whole[0][1]
    figure.get_by_role("button", name="whole range").click()
    assert figure.evaluate(shown) == whole


def test_the_data_can_be_had(page: Page, compared: Path) -> None:
    with page.expect_download() as saving:
        page.locator(".charts").nth(0).get_by_role("button", name="CSV").click()
    with Path(saving.value.path()).open(newline="") as file:
        saved = {row["series"]: row for row in csv.DictReader(file)}
    for row in json.loads(compared.read_text())["policies"]:
        found = saved[row["label"]]
        assert float(found["x"]) == pytest.approx(row["gpu_hours"], rel=1e-6)
        assert found["y"] == percent(row["attainment"])
