"""Report pages in a real Chromium: drawn without an error, and what stands there equals the result file."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from headway.planning.documents import AdviceDocument
from headway.words import percent
from headway_cli.app import run
from headway_cli.page.advice import render
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


def test_the_figures_of_advice_fit_a_phone(browser: Browser, tmp_path: Path) -> None:
    spread = {"value": 0.3, "low": 0.25, "high": 0.35}
    fleet = {"gpu_hours": 240.0, "attainment": spread, "cost": 600.0}
    window = {
        "start_at": 1.7e9, "end_at": 1.7e9 + 86400.0, "covered_s": 86400.0, "requests": 24_000.0,
        "stood": fleet, "planned": fleet,
        "saved_gpu_hours": spread, "saved_share": spread, "saved_cost": spread,
    }  # fmt: skip
    found = AdviceDocument.model_validate({"window": window, "day": window, "price_per_gpu_hour": 2.5})
    (tmp_path / "advice.html").write_text(render(found), encoding="utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto((tmp_path / "advice.html").as_uri())
    table = page.locator(".figures")
    assert table.evaluate("host => host.scrollWidth - host.clientWidth") <= 0
    saved = table.locator("tbody td").nth(4)
    assert saved.inner_text() == "30.0 % (25.0 to 35.0 %)"
    assert saved.evaluate("cell => getComputedStyle(cell, '::before').content") == '"saved"'
    page.close()
